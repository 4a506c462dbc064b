"""Which rows a run trains on and is scored on: held out, of another task, in windows, or a sample."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from datasets import Dataset
from helpers import tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, Source
from attendrop.runs.data import Parts, data_report, encode_parts, report_warnings, resolve_run
from attendrop.runs.inference import evaluate, predict
from attendrop.runs.train import train
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.custom_files import files_task
from attendrop.tasks.metrics import row_scores
from attendrop.tasks.types.base import TaskType
from attendrop.tasks.types.classification import Classification

# Rows set aside for the final scores, without an evaluation file ------------------------------------------------------


def config(files: Path, **options: Any) -> RunConfig:
    return tiny.config(files, **({"eval_file": None, "test_fraction": 0.25} | options))


def parts(files: Path, **options: Any) -> Parts:
    return resolve_run(config(files, **options)).parts


def test_the_same_rows_for_every_seed_and_not_for_training(files: Path) -> None:
    found = [parts(files, seed=seed, selection_fraction=0.1) for seed in (0, 1)]
    one, other = ([row["text"] for row in part.report["dev"]] for part in found)
    assert one == other and sorted(found[0].report["dev"]["label"]) == [0] * 5 + [1] * 5
    for part in found:
        assert not {*part.train["text"], *part.selection["text"]} & set(one)
    assert found[0].selection["index"] != found[1].selection["index"]


@pytest.mark.parametrize(("reward_data", "source"), [("eval", "dev"), ("split", "reward")])
def test_a_method_is_rewarded_on_the_rows_that_it_names(reward_data: str, source: str, files: Path) -> None:
    """On those that the score is of, only if it asks for them."""
    found = parts(files, method="attendout", options={"reward_data": reward_data}, selection_fraction=0.2)
    of = {"train": found.train, "selection": found.selection, "dev": found.report["dev"], "reward": found.reward}
    texts = {name: {*rows["text"]} for name, rows in of.items()}
    assert texts["reward"] == texts[source]
    assert all(texts["reward"].isdisjoint(texts[name]) for name in {*texts} - {source, "reward"})


def test_rows_of_the_same_text_are_on_one_side(files: Path) -> None:
    """Of every pair of parts: the rows for the scores, for the choice of the epoch, and for training."""
    file = files / "twice.csv"
    lines = (files / "train.csv").read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*lines, *lines[1:]]) + "\n", encoding="utf-8")
    found = parts(files, train_file=str(file), selection_fraction=0.2)
    train, selection, dev = (set(rows["text"]) for rows in (found.train, found.selection, found.report["dev"]))
    assert not train & selection and not train & dev and not selection & dev
    assert (len(found.train), len(found.selection), len(found.report["dev"])) == (48, 12, 20)


def test_other_columns_are_read_in_front_of_the_text_and_change_no_split(files: Path) -> None:
    how: dict[str, Any] = {"selection_fraction": 0.2, "text_columns": ["sentence1"]}
    alone, found = parts(files, **how), parts(files, **how, with_columns=["sentence2"])
    others = [line["sentence2"] for line in csv.DictReader((files / "train.csv").open(encoding="utf-8"))]
    for name, rows in found.named.items():
        texts = [f"sentence2: {others[row['index']]} | {row['text']}" for row in alone.named[name]]
        assert rows["text"][:] == texts and rows["index"][:] == alone.named[name]["index"][:]
    task, outputs = files_task(["text"], Classification(("no", "yes"))), np.eye(2)[[0, 1] * 5]
    scores = [row_scores(task, outputs, np.array([0, 1] * 5), each.report["dev"]) for each in (alone, found)]
    assert scores[0] is not None and scores[1] is not None
    assert scores[0].as_dict() == scores[1].as_dict()  # which are paired
    paper = how | {"protocol": "paper", "selection_fraction": None}
    assert [*parts(files, **paper, with_columns=["sentence2"]).named] == ["train", "dev"]
    with pytest.raises(AttendropError, match="the column 'label' is given twice; text, label and other columns must"):
        parts(files, **how, with_columns=["label"])
    with pytest.raises(AttendropError, match="with-columns and unlabelled do not go together"):
        config(files, **how, with_columns=["sentence2"], unlabelled="texts.csv")


# Another task, and a sample of the rows -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three classes, trained on five rows of each, and HANS."""
    folder = tmp_path_factory.mktemp("transfer")
    tiny.save_tiny_bert(folder / "model")
    names = ["entailment", "neutral", "contradiction"]
    tiny.write_csv(folder / "train.csv", names * 8)
    tiny.write_csv(folder / "dev.csv", names * 2, 40)
    train(tiny.config(folder, method="finetune", shots=5, epochs=1))
    lines = ["gold_label\tsentence1\tsentence2\theuristic"]
    for number in range(12):
        label, heuristic = ("entailment", "non-entailment")[number % 2], ("subsequence", "constituent")[number % 3 > 0]
        lines.append(f"{label}\t{tiny.sentence(number)}\t{tiny.sentence(number + 3)}\t{heuristic}")
    (folder / "hans").mkdir()
    (folder / "hans" / "heuristics_evaluation_set.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_a_model_of_three_classes_is_scored_on_two_and_by_group(folder: Path) -> None:
    found = evaluate(str(folder / "run"), Source(task="hans", data_dir=str(folder), device="cpu"), report=True)
    groups = found["groups"]["heuristic"]
    assert {name: group["rows"] for name, group in groups.items()} == {"subsequence": 4, "constituent": 8}
    assert found["score"] == pytest.approx(sum(group["rows"] * group["accuracy"] for group in groups.values()) / 12)
    assert found["predicted"].keys() <= {"entailment", "non-entailment"}
    read = {f"{tiny.sentence(n)} | {tiny.sentence(n + 3)}": ("non-" * (n % 3 > 0)) + "entailment" for n in range(24)}
    nearest = [error["nearest"] for error in found["report"]["errors"]]
    assert nearest and all(each["class"] == read[each["text"]] for each in nearest)


# Windows of long texts ------------------------------------------------------------------------------------------------


WINDOWS: dict[str, Any] = {"text_columns": ("sentence1",), "long_texts": "windows", "max_length": 6}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = tmp_path_factory.mktemp("long")
    tiny.save_tiny_bert(long / "model")
    tiny.write_data(long)
    train(tiny.config(long, **WINDOWS, method="ad-drop", options={"cross_tuning": False}, epochs=1))
    return long


def test_scores_and_predictions_are_those_of_texts(long: Path) -> None:
    metrics = tiny.read_metrics(long / "run")
    assert metrics["data"]["rows"] == {"train": 36, "selection": 4, "dev": 12}
    assert metrics["data"]["report"]["parts"]["dev"]["truncated"] == 8  # sentences of 5 words and more
    found = evaluate(str(long / "run"), Source(file=str(long / "dev.csv"), device="cpu"))
    assert (found["rows"], found["score"]) == (12, metrics["score"])
    output = long / "predicted.csv"
    predict(str(long / "run"), Source(file=str(long / "dev.csv"), device="cpu"), str(output), probabilities=True)
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["probability_yes"]) for row in rows] == pytest.approx(by_hand(long), abs=1e-5)


def by_hand(long: Path) -> list[float]:
    """Average the logits of windows of four words."""
    model = AutoModelForSequenceClassification.from_pretrained(long / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(long / "run")
    found = []
    for number in range(40, 52):
        words = tiny.sentence(number).split()
        count = max(1, int(np.ceil((len(words) - 1) / 3)))
        starts = [0] if count == 1 else [round(k * (len(words) - 4) / (count - 1)) for k in range(count)]
        windows = [" ".join(words[start : start + 4]) for start in starts]
        with torch.no_grad():
            logits = torch.stack([model(**tokenizer(window, return_tensors="pt")).logits[0] for window in windows])
        found.append(float(logits.mean(0).softmax(-1)[1]))
    return found


YES_NO = Classification(("no", "yes"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> hf.PreTrainedTokenizerBase:
    return hf.AutoTokenizer.from_pretrained(tiny.save_tiny_bert(tmp_path_factory.mktemp("model")))


def report_of(
    tokenizer: hf.PreTrainedTokenizerBase,
    train: list[tuple[str, Any]],
    dev: list[tuple[str, Any]],
    task_type: TaskType = YES_NO,
    max_length: int = 6,
) -> dict[str, Any]:
    task = files_task(["text"], task_type)
    splits = {name: as_dataset(task, rows) for name, rows in {"train": train, "dev": dev}.items()}
    data, parts = TaskData(task, splits, "here"), Parts(splits["train"], None, {"dev": splits["dev"]})
    config = tiny.config(Path(), max_length=max_length, method="finetune")
    return data_report(data, parts, encode_parts(config, task, parts, tokenizer), tokenizer, max_length)


def as_dataset(task: Task, rows: list[tuple[str, Any]]) -> Dataset:
    labels = [task.type.read_label(label) for _, label in rows]
    return Dataset.from_dict({"text": [text for text, _ in rows], "label": labels})


TRAIN = [
    ("the cat sees a dog", "no"),  # seven tokens with [CLS] and [SEP]: cut
    ("the cat sees a", "yes"),  # six: just fits
    ("the dog", "yes"),
    ("the dog", "yes"),
    ("a bird", "yes"),
    ("a bird", "no"),
    ("zzz qqq", "no"),
]
DEV = [("the dog", "no"), ("near", "yes"), ("the dog", "no"), ("xxx", "no")]


def test_every_part_is_counted(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    report = report_of(tokenizer, TRAIN, DEV)
    parts = report["parts"]
    assert parts["train"] == {
        "rows": 7, "classes": {"no": 3, "yes": 4}, "truncated": 1, "unknown": 1, "duplicates": 2,
    }  # fmt: skip
    assert parts["dev"] == {
        "rows": 4, "classes": {"no": 3, "yes": 1}, "truncated": 0, "unknown": 1, "duplicates": 1, "in_train": 2,
    }  # fmt: skip

    assert list(report_warnings(report, YES_NO)) == [
        "2 of 4 rows of dev (50.0 %) have a text that is in train, too: the score on them is optimistic.",
        "1 text of train has several labels, in 2 rows, such as 'a bird': 'no', 'yes'.",
        "2 rows of train repeat the text of another row.",
        "1 of 7 rows of train have no token that the model knows.",
        "1 of 4 rows of dev have no token that the model knows.",
    ]


def test_texts_are_the_same_but_for_case_spaces_and_unicode_forms_as_in_inspect(
    tokenizer: hf.PreTrainedTokenizerBase,
) -> None:
    train = [("A cat\u00e9", "no"), ("a  CATe\u0301 ", "yes"), ("the dog", "yes")]
    report = report_of(tokenizer, train, [("THE DOG", "yes"), ("a bird", "no")])
    assert report["parts"]["dev"]["in_train"] == report["parts"]["train"]["duplicates"] == 1
    assert report["conflicts"] == {"texts": 1, "rows": 2, "example": "'A cat\u00e9': 'no', 'yes'"}


def test_a_text_is_cut_where_the_model_ends(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    long = [(" ".join(["the cat"] * 20), "no"), ("a dog", "yes")]  # of a model of 32 tokens
    assert report_of(tokenizer, long, DEV, max_length=128)["parts"]["train"]["truncated"] == 1


@pytest.mark.parametrize("part", ["train", "dev"])
def test_a_part_without_a_known_token_is_refused(tokenizer: hf.PreTrainedTokenizerBase, part: str) -> None:
    rows = {"train": TRAIN, "dev": DEV} | {part: [("xxx", "no"), ("zzz qqq", "yes")]}
    with pytest.raises(AttendropError, match=f"None of the 2 rows of {part} has a token that the model knows"):
        report_of(tokenizer, **rows)


def test_a_space_is_no_token_that_a_model_knows(tmp_path: Path) -> None:
    """SentencePiece writes one before a word that it does not know, as all of another script are."""
    tokens = Tokenizer(models.Unigram([("<pad>", 0.0), ("<unk>", 0.0), ("▁", -2.0), ("▁cat", -2.0)], unk_id=1))
    tokens.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", unk_token="<unk>")
    train = [("东京 cat", "no"), ("东京", "yes"), ("สวัสดี ครับ", "no")]
    assert report_of(tokenizer, train, train[:1])["parts"]["train"]["unknown"] == 2


def test_classes_that_differ_in_case_only_are_pointed_out(tokenizer: hf.PreTrainedTokenizerBase) -> None:
    task_type = Classification(("Pos", "pos", "neg"))
    report = report_of(tokenizer, [("a", "Pos"), ("the", "pos")], [("dog", "neg")], task_type)
    assert list(report_warnings(report, task_type)) == [
        "Classes that differ only in case or spaces: 'Pos' and 'pos'.",
        "No row of train has one of these classes, which cannot be learnt: 'neg'.",
        "These classes occur once, in a row that is trained on, so that no score is of them: 'Pos', 'pos'.",
    ]
    assert not any("cannot be learnt" in warning for warning in report_warnings(report, task_type, [2]))  # by its name
