"""Columns with numbers for each token, from a file to the batches that train: the command line, alignment, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import torch
from datasets import Dataset
from helpers import tiny
from helpers.command_line import Captured, assert_refused
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from attendrop import AttendropError, cli
from attendrop.methods import structure_mask
from attendrop.tasks.base import Task
from attendrop.tasks.custom_files import load_files
from attendrop.tasks.tokenization import encode

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def chain(text: str) -> list[int]:
    """Each word below the word before, and the first below [CLS]; special tokens have no head."""
    return [-1, *range(len(text.split())), -1]


TEXTS = [tiny.sentence(number) for number in range(12)]
LABELS = ["no", "yes"] * 6
ROWS = [
    {"text": text, "dependency_heads": chain(text), "label": label} for text, label in zip(TEXTS, LABELS, strict=True)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("columns")
    tiny.save_tiny_bert(folder / "model")
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    names = list(rows[0])
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        case ".parquet":
            pyarrow.parquet.write_table(pyarrow.table({name: [row[name] for row in rows] for name in names}), path)
        case _:
            cells = [[v if isinstance(v, str) else f'"{json.dumps(v)}"' for v in row.values()] for row in rows]
            path.write_text("\n".join(",".join(each) for each in [names, *cells]) + "\n")
    return path


def train(folder: Path, file: Path, *more: str) -> list[str]:
    return [
        *("train", "--train-file", str(file), "--text-columns", "text", "--label-column", "label"),
        *("--model", f"{folder}/model", "--output-dir", f"{file}-run", "--epochs", "1", "--batch-size", "4"),
        *("--device", "cpu", "--method", "structure-mask", "--set", "structure=dependencies", *more),
    ]


# What arrives ---------------------------------------------------------------------------------------------------------


def test_heads_reach_the_batches_that_train(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    outside_of_tree = structure_mask.outside_of_tree

    def watched(heads: torch.Tensor, relation: str) -> torch.Tensor:
        seen.extend(heads.tolist())
        return outside_of_tree(heads, relation)

    monkeypatch.setattr(structure_mask, "outside_of_tree", watched)
    dev = write(tmp_path / "dev.csv", [{"text": row["text"], "label": row["label"]} for row in ROWS[:4]])  # no heads
    file = write(tmp_path / "a.parquet", ROWS)
    assert cli.main(train(folder, file, "--eval-file", str(dev), "--selection-fraction", "0", "--quiet")) == 0
    width = max(map(len, seen))
    padded = [[heads + [-1] * (width - len(heads)) for heads in every] for every in (seen, map(chain, TEXTS))]
    assert sorted(padded[0]) == sorted(padded[1])


# Alignment ------------------------------------------------------------------------------------------------------------

TASK = Task("files", "classification", ("text",), ("no", "yes"), "accuracy", "own files")


def encoded(tokenizer: PreTrainedTokenizerBase, kind: str, numbers: list[Any], length: int, *texts: str) -> list[Any]:
    rows = dict(zip(("text", "text_pair"), ([text] for text in texts), strict=False))
    dataset = Dataset.from_dict({**rows, "own": [numbers], "place": ["line 2"]})
    return encode(dataset, TASK, tokenizer, length, {"own": kind})[0]["own"]


@pytest.mark.parametrize(
    ("length", "texts", "heads", "expected"),
    [
        (7, ["the cat sees a bird"], [-1, 2, 3, 3, 5, 3, -1], [-1, 2, 3, 3, 5, 3, -1]),
        # Without "bird" and its number; "a" was below it, "the" is below [SEP], which moved.
        (6, ["the cat sees a bird"], [-1, 6, 3, 3, 5, 3, 0], [-1, 5, 3, 3, -1, 0]),
        # [CLS] the cat (sees a bird) [SEP] a dog [SEP]: what stands behind the cut moves three places.
        (7, ["the cat sees a bird", "a dog"], [-1, 2, 3, 3, 5, 3, -1, 8, 8, 1], [-1, 2, -1, -1, 5, 5, 1]),
    ],
)
def test_heads_are_cut_as_the_texts_are(
    tokenizer: PreTrainedTokenizerBase, length: int, texts: list[str], heads: list[int], expected: list[int]
) -> None:
    assert encoded(tokenizer, "positions", heads, length, *texts) == expected


def test_what_is_left_is_what_the_tokenizer_leaves(folder: Path) -> None:
    """Numbers that are the tokens themselves stay so, whichever end is cut, for one text and two."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    for tokenizer.truncation_side in ("right", "left"):
        for texts in (["the cat sees a bird"], ["a", "the dog likes a red bird"]):
            ids = tokenizer(*texts)["input_ids"]
            for length in (4, len(ids) - 2, len(ids)):
                cut = tokenizer(*texts, truncation=True, max_length=length)["input_ids"]
                assert encoded(tokenizer, "numbers", ids, length, *texts) == cut


# What is refused ------------------------------------------------------------------------------------------------------


def test_wrong_columns_are_refused_before_a_run_begins(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    file = write(tmp_path / "a.csv", [ROWS[0], ROWS[1] | {"dependency_heads": [1, 1, 2]}, *ROWS[2:]])
    message = "line 3, column 'dependency_heads': 3 entries, but the model's input has 6 tokens: [CLS] "
    assert_refused(train(folder, file, "--selection-fraction", "0"), Path(f"{file}-run"), message, capsys)


def test_tasks_have_no_such_columns(folder: Path, tmp_path: Path, capsys: Captured) -> None:
    output = tmp_path / "run"
    method = ("--method", "structure-mask+r-drop", "--set", "structure-mask.structure=dependencies")
    arguments = ["train", "--task", "rte", "--model", f"{folder}/model", "--output-dir", str(output), *method]
    message = "The data of task 'rte' has no column 'dependency_heads', which method 'structure-mask+r-drop' reads"
    assert_refused(arguments, output, message, capsys)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("numbers", ["a"], r"a\.jsonl, line 2, column 'x': \['a'\] is not a list of numbers, or a list of n"),
        ("numbers", [True], r"\[True\] is not a list"),
        ("numbers", [float("nan")], r"\[nan\] is not a list"),
        ("numbers", [2**63], r"is not a list"),
        ("matrix", [1, 2], r"is not a list of n lists of n numbers"),
        ("matrix", [[1, 2]], r"is not a list of n lists of n numbers"),
        ("positions", [1.5], "is not a list of whole numbers"),
        ("positions", [0, 2], "there is no position 2 among 2; count from 0, and write -1 for none"),
        ("numbers", [[1]], r"\[\[1\]\] does not have the form of the rows before"),
    ],
    ids=str,
)
def test_what_is_not_of_the_kind(kind: str, value: Any, message: str, tmp_path: Path) -> None:
    first = [[1]] if kind == "matrix" else [0]
    file = write(tmp_path / "a.jsonl", [{"text": "a", "label": 0, "x": first}, {"text": "b", "label": 1, "x": value}])
    with pytest.raises(AttendropError, match=message):
        load_files(train_file=file, text_columns=["text"], label_column="label", token_columns={"x": kind})


@pytest.mark.parametrize("name", ["input_ids", "index", "text_pair"])
def test_names_of_columns_of_the_model_are_reserved(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", [{"text": "a", "label": 0, name: [0]}, {"text": "b", "label": 1, name: [0]}])
    with pytest.raises(AttendropError, match=f"the name of the column '{name}' is reserved; rename it"):
        load_files(train_file=file, text_columns=["text"], label_column="label", token_columns={name: "numbers"})
