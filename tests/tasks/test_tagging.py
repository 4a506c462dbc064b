"""Tagging tasks: the official files, the hub, and entity scores."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from seqeval.metrics import f1_score, precision_score, recall_score

from attendrop import AttendropError
from attendrop.tasks.heads.tag_metrics import entity_scores, to_iob2
from attendrop.tasks.registry import load_task, task_files

UD = "1\tIt\t_\tPRON\t_\t_\t2\t_\t_\t_\n2\trains\t_\tVERB\t_\t_\t0\t_\t_\t_\n\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "conll2003").mkdir()
    for name in ("eng.train", "eng.testa", "eng.testb"):
        text = (
            "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nJohn NNP I-NP I-PER\nSmith NNP I-NP I-PER\nAnn NNP I-NP B-PER\n"
        )
        (tmp_path / "conll2003" / name).write_text(text)
    (tmp_path / "ptb").mkdir()
    text = "".join(f"# file = wsj_{number:04}\nIt\tPRP\n\n" for number in (1, 159, 160, 179, 180, 199))
    (tmp_path / "ptb" / "ptb_nltk_pos.tsv").write_text(text)
    (tmp_path / "UD_English-EWT").mkdir()
    for split in ("train", "dev", "test"):
        (tmp_path / "UD_English-EWT" / f"en_ewt-ud-{split}.conllu").write_text(UD)
    monkeypatch.setenv("ATTENDROP_DATA", str(tmp_path))
    return tmp_path


def test_entities_are_read_as_iob1_and_become_iob2(folder: Path) -> None:
    data = load_task("conll2003", splits=("train", "dev", "test"))
    assert list(data.splits) == ["train", "dev", "test"]
    (row,) = data.splits["dev"]
    assert row["tokens"] == ["EU", "John", "Smith", "Ann"]
    assert [data.task.label_names[tag] for tag in row["label"]] == ["B-ORG", "B-PER", "I-PER", "B-PER"]


def test_the_treebank_is_split_by_file(folder: Path) -> None:
    data = load_task("ptb-pos", splits=("train", "dev", "test"))
    assert {split: len(rows) for split, rows in data.splits.items()} == {"train": 2, "dev": 2, "test": 2}
    assert data.splits["test"]["place"][:] == ["line 14", "line 17"]


def test_dependencies_come_with_the_tags(folder: Path) -> None:
    data = load_task("ud")
    assert data.splits["train"][0] == {
        "tokens": ["It", "rains"], "label": [10, 15], "index": 0, "place": "line 1", "dependency_heads": [1, 1]
    }  # fmt: skip
    assert data.task.label_names[10] == "PRON"
    german = folder / "UD_German-GSD"
    (folder / "UD_English-EWT").rename(german)
    with pytest.raises(AttendropError, match="name a folder that has one"):
        load_task("ud", data_dir=folder)
    assert load_task("ud", data_dir=german, splits=("dev",)).source == f"local folder {german}"


def test_local_files_are_listed(folder: Path) -> None:
    assert [file.name for file in task_files("conll2003")] == ["eng.train", "eng.testa", "eng.testb"]
    assert [file.name for file in task_files("ptb-pos")] == ["ptb_nltk_pos.tsv"]
    assert len(task_files("ud")) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "conll2003/eng.testa").unlink(), "has no file of conll2003 dev"),
        (lambda f: (f / "conll2003/eng.testa").write_text("a I-GPE\n"), "line 1: the tag 'B-GPE' is not among"),
    ],
)
def test_broken_files_are_refused(folder: Path, change: Callable[[Path], Any], message: str) -> None:
    change(folder)
    with pytest.raises(AttendropError, match=message):
        load_task("conll2003")


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)
    asked: list[tuple[Any, ...]] = []

    def load_dataset(*name: str, split: str, revision: str) -> Dataset:
        asked.append((*name, split, revision))
        words = {"tokens": List(Value("string"))}
        if name[0].endswith("conll2003"):
            names = ["O", "B-PER", "I-PER"]
            features = Features(words | {"ner_tags": List(ClassLabel(names=names))})
            return Dataset.from_dict({"tokens": [["Ann", "Lee"], []], "ner_tags": [[1, 2], []]}, features=features)
        features = Features(
            words | {"upos": List(ClassLabel(names=["VERB", "_", "PRON"])), "head": List(Value("string"))}
        )
        rows = {"tokens": [["dont", "do", "I"]], "upos": [[1, 0, 2]], "head": [["None", "0", "1"]]}
        return Dataset.from_dict(rows, features=features)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    conll, ud = (load_task(name, splits=["dev"]) for name in ("conll2003", "ud"))
    assert asked == [
        ("eriktks/conll2003", "validation", "refs/convert/parquet"),
        ("universal-dependencies/universal_dependencies", "en_ewt", "validation", "refs/convert/parquet"),
    ]
    assert conll.splits["dev"]["label"][:] == [[1, 2]]  # sentences without words are left out
    assert ud.splits["dev"][0]["tokens"] == ["do", "I"] and ud.splits["dev"][0]["dependency_heads"] == [0, 0]
    with pytest.raises(AttendropError, match="ptb-pos is not in a local folder, and not on the hub"):
        load_task("ptb-pos")


# Entities -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("I-A I-A O I-A", "B-A I-A O B-A"),
        ("I-A B-A I-A", "B-A B-A I-A"),
        ("I-A I-B", "B-A B-B"),
        ("B-A I-A O B-B", "B-A I-A O B-B"),
        ("B-A E-A S-B O", "B-A E-A S-B O"),
    ],
)
def test_iob1_becomes_iob2_which_stays(iob1: str, iob2: str) -> None:
    assert to_iob2(iob1.split()) == iob2.split()
    assert to_iob2(iob2.split()) == iob2.split()


def test_entity_scores_are_those_of_seqeval() -> None:
    draw = random.Random(0)
    tags = ["O", "O", "B-A", "I-A", "B-B", "I-B", "E-A", "S-B"]
    gold, predicted = ([[draw.choice(tags) for _ in range(1 + row % 7)] for row in range(200)] for _ in range(2))
    expected = [score(gold, predicted) for score in (precision_score, recall_score, f1_score)]
    assert entity_scores(gold, predicted) == pytest.approx(expected)
    assert entity_scores([["O"]], [["B-A"]]) == (0.0, 0.0, 0.0)
