"""Rows set aside for the final scores where there is no evaluation file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.stand_in_data import write_stand_ins

from attendrop import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts
from attendrop.runs.resolved_run import resolve_run


def config(files: Path, **options: Any) -> RunConfig:
    return tiny.config(files, **({"eval_file": None, "test_fraction": 0.25} | options))


def parts(files: Path, **options: Any) -> Parts:
    return resolve_run(config(files, **options)).parts


def test_the_same_rows_for_every_seed_and_not_for_training(files: Path) -> None:
    found = [parts(files, seed=seed, selection_fraction=0.1) for seed in (0, 1)]
    one, other = ([row["text"] for row in part.report["dev"]] for part in found)
    assert one == other and sorted(found[0].report["dev"]["label"]) == [0] * 5 + [1] * 5
    for part in found:
        assert part.selection is not None
        assert not {*part.train["text"], *part.selection["text"]} & set(one)
    assert found[0].selection["index"] != found[1].selection["index"]


def test_shots_are_taken_from_the_others(files: Path) -> None:
    found = parts(files, shots=3, selection_fraction=0.0)
    assert (len(found.train), len(found.report["dev"])) == (6, 10)


def test_rows_of_the_same_text_are_on_one_side(files: Path) -> None:
    """Of every pair of parts: the rows for the scores, for the choice of the epoch, and for training."""
    file = files / "twice.csv"
    lines = (files / "train.csv").read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([*lines, *lines[1:]]) + "\n", encoding="utf-8")
    found = parts(files, train_file=str(file), selection_fraction=0.2)
    assert found.selection is not None
    train, selection, dev = (set(rows["text"]) for rows in (found.train, found.selection, found.report["dev"]))
    assert not train & selection and not train & dev and not selection & dev
    assert (len(found.train), len(found.selection), len(found.report["dev"])) == (48, 12, 20)


def test_of_a_task_they_take_the_place_of_its_development_set(files: Path) -> None:
    task = {"train_file": None, "text_columns": (), "label_column": None, "task": "sst2"}
    task["data_dir"] = str(write_stand_ins(files / "stand-ins"))
    found = parts(files, **task, selection_fraction=0.0)
    assert list(found.report) == ["dev"]
    data = resolve_run(config(files, **task, test_fraction=0.0)).data
    train, development = (set(data.task.head.texts(data.splits[name])) for name in ("train", "dev"))
    held = set(data.task.head.texts(found.report["dev"]))
    assert held <= train and not held & set(data.task.head.texts(found.train))
    assert not held & development


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_file": "dev.csv"}, "test-fraction and eval-file are both evaluation data"),
        ({"test_fraction": 1.0}, "test-fraction must be at least 0 and below 1"),
    ],
)
def test_it_is_refused_where_it_makes_no_sense(files: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(AttendropError, match=message):
        config(files, **options)
