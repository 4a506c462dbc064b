"""Options that contradict each other are refused before anything is read, and the refusal names one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.errors import AttendropError
from attendrop.runs.config import Source

TASK: dict[str, Any] = {"train_file": None, "eval_file": None, "text_columns": (), "label_column": None}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"test_fraction": 0.2}, "test-fraction and eval-file are both evaluation data"),
        ({"test_fraction": 1.0}, "test_fraction=1.0 must be at least 0 and below 1"),
        ({"refit": True, "selection_fraction": 0.0}, "refit needs rows held out from training"),
        ({"patience": 2, "selection_fraction": 0}, "patience needs rows held out"),
        ({"shots": 1, "max_train_samples": 1}, "both limit the training data"),
        ({"task": "class", "label_type": "number"}, "'class' and label-type 'number' differ"),
        (
            {"task": "swag"},
            "With a train-file, task is the kind of its rows, one of choice, .*, and not 'swag'; give one",
        ),
        ({**TASK, "task": "tags"}, "'tags' is for custom files"),
        ({**TASK, "task": "rte", "skip_bad_rows": True}, "skip-bad-rows is for custom files"),
        ({"options": 3}, "options must be a mapping"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"max_steps": 0}, "max-steps 0 trains nothing but the head's start"),
        ({"lora": {"r": 0}}, "r=0 must be a whole number"),
    ],
    ids=str,
)
def test_options_of_a_run(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttendropError, match=words):
        tiny.config(Path("nowhere"), **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "a.csv", "task": "rte"}, "a task .* or a file"),
        ({"task": "rte", "text_columns": ("a",)}, "text-columns is for custom files"),
        ({"task": "rte", "unknown_labels": "wrong"}, "unknown-labels is for custom files"),
        ({"file": "a.csv", "input_format": "csv"}, "input-format is for standard input"),
        ({"file": "a.csv", "skipped_file": "x"}, "skipped-file is for skip-bad-rows"),
    ],
    ids=str,
)
def test_options_of_evaluation_and_prediction(options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttendropError, match=words):
        Source(**options)
