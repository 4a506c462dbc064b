"""Labels of which any number apply: what files say, what is refused, scores and decisions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.errors import AttendropError
from attendrop.tasks.base import TaskData
from attendrop.tasks.custom_files import load_files, stream_file
from attendrop.tasks.table import BadRows
from attendrop.tasks.types.classification import MultiLabel
from attendrop.tasks.types.linear_models import fit_logistic_regressions

HEAD = MultiLabel(("art", "music", "sport"))


def write(path: Path, labels: list[Any]) -> Path:
    rows = [{"text": f"text {number}", "topics": label} for number, label in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_csv(path: Path, labels: list[str]) -> Path:
    path.write_text("\n".join(["text,topics", *(f'text {n},"{label}"' for n, label in enumerate(labels))]) + "\n")
    return path


def load(path: Path, **options: Any) -> TaskData:
    return load_files(train_file=path, text_columns=("text",), label_column="topics", **options)


EXPECTED = [[1, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 1]]


def test_names_have_separators_in_text(tmp_path: Path) -> None:
    found = load(
        write_csv(tmp_path / "a.csv", ["['sport', 'art']", "music", "", "art|music, sport"]), label_type="labels"
    )
    assert found.task.label_names == HEAD.label_names
    assert found.splits["train"]["label"][:] == EXPECTED


COLUMNS = "text,sport,music,art\nfirst,1,0,1.0\nsecond,no,YES,No\nthird,0,0,0\nfourth,true,1,1\n"


def test_labels_have_a_column_each(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(COLUMNS)
    (tmp_path / "map.csv").write_text("label,meaning\nart,arts\n")
    given: dict[str, Any] = {"text_columns": ("text",), "label_column": "sport, music,art"}
    found = load_files(train_file=tmp_path / "a.csv", **given)
    assert found.task.kind == "multi-label-classification" and found.task.label_names == HEAD.label_names
    assert found.splits["train"]["label"][:] == EXPECTED
    mapped = load_files(train_file=tmp_path / "a.csv", label_map=tmp_path / "map.csv", **given)
    assert mapped.task.label_names == ("arts", "music", "sport")
    (chunk,) = stream_file(tmp_path / "a.csv", task_type=HEAD, size=9, bad=BadRows(), **given)
    assert chunk.columns["label"] == EXPECTED


def test_a_column_of_a_label_says_yes_or_no(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(COLUMNS + "fifth,1,,0\n")
    given: dict[str, Any] = {"train_file": tmp_path / "a.csv", "text_columns": ("text",)}
    with pytest.raises(AttendropError, match=r"line 6, column 'music': '' does not say .*; write 0 or 1"):
        load_files(label_column="sport,music,art", **given)
    found = load_files(label_column="sport,music,art", skip_bad_rows=True, **given)
    assert found.splits["train"]["label"][:] == EXPECTED and [row.place for row in found.skipped] == ["line 6"]
    with pytest.raises(AttendropError, match=r"no column 'arts'; did you mean 'art'"):
        load_files(label_column="sport,music,arts", **given)


def test_each_label_is_predicted_above_one_half() -> None:
    outputs = np.array([[2.0, -1.0, 0.5], [-1.0, -1.0, -1.0]])
    assert HEAD.decode(outputs) == [[1, 0, 1], [0, 0, 0]]
    first, second = HEAD.prediction_rows(outputs, probabilities=True)
    assert first["labels"] == ["art", "sport"] and second["labels"] == []
    assert first["probability_music"] == pytest.approx(1 / (1 + math.e), abs=1e-6)
    assert HEAD.predicted_counts(outputs) == {"art": 1, "sport": 1}
    assert HEAD.shown_label([1, 0, 1]) == "art, sport"


def test_a_linear_model_of_each_label() -> None:
    draw = np.random.default_rng(0)
    features = draw.normal(size=(60, 4))
    targets = np.stack([features[:, 0] > 0, features[:, 1] > 0.5, np.zeros(60), np.ones(60)], axis=1).astype(float)
    fit = fit_logistic_regressions(features, targets, 4)
    assert fit is not None and fit.score[1] > 0.95
    outputs = fit.outputs(features)
    assert ((outputs[:, :2] > 0) == targets[:, :2]).mean() > 0.9
    assert outputs[0, 2] == pytest.approx(math.log(0.5 / 60.5)) and outputs[0, 3] == pytest.approx(math.log(60.5 / 0.5))
    assert fit_logistic_regressions(features, targets[:, 2:], 2) is None
