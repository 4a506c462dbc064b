"""HANS and PAWS-X: their files, models of other tasks on them, and the groups of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks import sources
from attendrop.tasks.heads.registry import get_head
from attendrop.tasks.metrics import group_scores, read_as, reading_of
from attendrop.tasks.registry import get_task, load_task

HANS_HEADER = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\theuristic\tsubcase\ttemplate\n"
HANS_ROW = 'non-entailment\t(a b)\tThe "doctor saw the judge .\tThe judge saw .\tex0\tlexical_overlap\tln_x\ttemp1\n'


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return folder


def test_hans_is_read_from_its_official_file(tmp_path: Path) -> None:
    write(tmp_path, "hans/heuristics_evaluation_set.txt", HANS_HEADER + HANS_ROW)
    rows = load_task("hans", data_dir=tmp_path, splits=("dev",)).splits["dev"].to_dict()
    assert rows == {
        "text": ['The "doctor saw the judge .'],
        "text_pair": ["The judge saw ."],
        "heuristic": ["lexical_overlap"],
        "label": [1],
        "index": [0],
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pawsx/dev-en.tsv", "a b .\tb a .\t1\r\nc .\td .\t0\r\n"),
        ("x-final/en/dev_2k.tsv", "id\tsentence1\tsentence2\tlabel\n1\ta b .\tb a .\t1\n2\tc .\td .\t0\n"),
    ],
)
def test_pawsx_is_read_with_and_without_a_header(name: str, text: str, tmp_path: Path) -> None:
    folder = write(tmp_path, name, text) / name.partition("/")[0]
    rows = load_task("pawsx", data_dir=folder, splits=("dev",)).splits["dev"].to_dict()
    assert rows == {"text": ["a b .", "c ."], "text_pair": ["b a .", "d ."], "label": [1, 0], "index": [0, 1]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hans/heuristics_evaluation_set.txt", "gold_label\tsentence1\n", "no column 'sentence2'"),
        ("hans/heuristics_evaluation_set.txt", HANS_HEADER + "entailment\ta\n", "line 2: 2 fields instead of 8"),
        ("pawsx/dev-en.tsv", "a\tb\t2\n", "line 1: the label '2' is not one of 0, 1"),
        ("pawsx/dev-en.tsv", "a\tb\n", "line 1: 2 fields instead of 3"),
    ],
)
def test_broken_files_are_refused_with_their_place(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AttendropError, match=message):
        load_task(name.partition("/")[0], data_dir=write(tmp_path, name, text), splits=("dev",))


def test_rows_of_the_hub_have_their_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTENDROP_DATA", raising=False)
    raw = {
        "premise": ["a", "c"],
        "hypothesis": ["b", "d"],
        "label": [0, 1],
        "heuristic": ["subsequence", "constituent"],
    }

    def load(task: Any, name: str, *, split: str) -> Dataset:
        assert (name, split) == ("jhu-cogsci/hans", "validation")
        return Dataset.from_dict(raw)

    monkeypatch.setattr(sources, "load_from_hub", load)
    rows = load_task("hans", splits=("dev",)).splits["dev"].to_dict()
    assert (rows["text"], rows["text_pair"], rows["label"]) == (["a", "c"], ["b", "d"], [0, 1])
    assert rows["heuristic"] == ["subsequence", "constituent"]


@pytest.mark.parametrize(
    ("task", "trained_on", "reading"),
    [
        ("hans", "mnli", [0, 1, 1]),
        ("hans", "rte", [0, 1]),
        ("hans", "hans", None),
        ("pawsx", "mrpc", [0, 1]),
        ("pawsx", "qqp", [0, 1]),
        ("wnli", "rte", [1, 0]),  # the same names in another order
        ("rte", "qnli", None),
        ("rte", "mrpc", None),  # a task without readings leaves the decision to the user, with a warning
    ],
)
def test_classes_of_a_model_are_read_by_their_names(task: str, trained_on: str, reading: list[int] | None) -> None:
    assert reading_of(get_task(task), get_task(trained_on).head) == reading


def test_names_count_whatever_their_order() -> None:
    head = get_head("classification", ("contradiction", "entailment", "neutral"))
    assert reading_of(get_task("hans"), head) == [1, 0, 1]
    assert reading_of(get_task("mnli"), head) == [2, 0, 1]


@pytest.mark.parametrize(
    ("task", "trained_on"), [("hans", "mrpc"), ("pawsx", "mnli"), ("pawsx", "rte"), ("hans", "stsb")]
)
def test_models_with_other_classes_are_refused(task: str, trained_on: str) -> None:
    with pytest.raises(AttendropError, match=f"{task} scores models with the classes .* This model's are: "):
        reading_of(get_task(task), get_task(trained_on).head)


def test_the_prediction_of_a_model_is_what_is_read() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 3))
    read = read_as(logits, [0, 1, 1], 2)
    assert read.argmax(1).tolist() == [[0, 1, 1][best] for best in logits.argmax(1)]
    assert read_as(logits, None, 2) is logits


def test_groups_are_scored_for_themselves() -> None:
    outputs, labels = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]]), np.array([0, 1, 1, 1])
    found = group_scores(get_task("hans"), outputs, labels, {"heuristic": ["a", "a", "b", "a"]})
    assert found == {
        "heuristic": {"a": {"rows": 3, "accuracy": pytest.approx(2 / 3)}, "b": {"rows": 1, "accuracy": 1.0}}
    }
