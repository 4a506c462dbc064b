"""Runs of every method on every kind of task, with each family of models that learns it: trained, or refused in words.

Pairs of a kind and a family take turns in the default tests, one for every second method; all others are slow.
"""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from helpers.task_examples import EXAMPLES, FAMILIES, write_rows
from transformers import TrainerCallback

from attendrop import AttendropError
from attendrop.methods.core.registry import method_names
from attendrop.runs.config import RunConfig
from attendrop.runs.train import train
from attendrop.tasks.metrics import PREDICTIONS, RowScores

PAIRS = [(kind, family) for kind, example in EXAMPLES.items() for family in example.families]
# Options with which a method acts in the first of few steps.
OPTIONS: dict[str, dict[str, Any]] = {
    "ad-drop": {"cross_tuning": False},
    "attendout": {"dropout_step": 1},
    "supert": {"search": 0.5, "fraction": 0.5},
}
# What is refused, by kind of task, family and method, "*" for any: a part of the message.
REFUSED: dict[tuple[str, str, str], str] = {
    ("*", "albert", "layer-reinit"): "shares its layers",
    ("*", "albert", "supert"): "shares its layers",
}


def refusal(kind: str, family: str, method: str) -> str | None:
    """A part of the message by which a case is refused; None if it trains."""
    keys = product((kind, "*"), (family, "*"), (method, "*"))
    return next((REFUSED[key] for key in keys if key in REFUSED), None)


def cases() -> list[Any]:
    """All cases; those of the default tests have another method for each pair."""
    return [
        pytest.param(*pair, method, marks=() if number == turn % len(PAIRS) and turn % 2 == 0 else pytest.mark.slow)
        for number, pair in enumerate(PAIRS)
        for turn, method in enumerate(method_names())
    ]


class Weights(TrainerCallback):
    """The trained model, and its parameters when training began."""

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self.model = model
        self.before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def changed(self) -> list[str]:
        """Names of the parameters that training has changed."""
        return [name for name, value in self.model.named_parameters() if not torch.equal(value, self.before[name])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of each kind of task."""
    folder = tmp_path_factory.mktemp("tasks")
    for kind, example in EXAMPLES.items():
        write_rows(folder / f"{kind}-train.jsonl", example, 0, 16)
        write_rows(folder / f"{kind}-dev.jsonl", example, 100, 6)
    return folder


def run(
    folder: Path, output: Path, kind: str, family: str, method: str, options: dict[str, Any] | None = None
) -> tuple[dict[str, Any], Weights]:
    """Train for three steps, as ``attendrop train`` does; returns ``metrics.json``, and the weights."""
    example, weights, model = EXAMPLES[kind], Weights(), folder / family
    if not model.exists():
        FAMILIES[family](model)
    given: dict[str, Any] = {"max_steps": 3, "batch_size": 8, "learning_rate": 1e-2, "max_length": 24, "device": "cpu"}
    given |= {"train_file": f"{folder}/{kind}-train.jsonl", "eval_file": f"{folder}/{kind}-dev.jsonl"}
    given |= {"text_columns": example.texts, "label_column": example.label or None, **example.options}
    given |= {
        "label_names": "none",
        "method": method,
        "options": options or OPTIONS.get(method, {}),
        "model": str(model),
        "output_dir": str(output),
    }
    return train(RunConfig(**given), keep_model=False, callbacks=[weights]), weights


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("kind", "family", "method"), cases())
def test_a_method_trains_or_is_refused(kind: str, family: str, method: str, folder: Path, tmp_path: Path) -> None:
    message = refusal(kind, family, method)
    if message is not None:
        with pytest.raises(AttendropError, match=message) as refused:
            run(folder, tmp_path / "run", kind, family, method)
        assert re.fullmatch(r"\S[^\n]*\.", str(refused.value)), "a refusal is one line that ends with a full stop"
        assert not (tmp_path / "run").exists()
        return
    metrics, weights = run(folder, tmp_path / "run", kind, family, method)
    last = metrics["history"][-1]
    assert math.isfinite(metrics["score"]) and math.isfinite(last["train_loss"])
    assert last["regularized"] or method == "finetune"
    assert any("att" in name.lower() for name in weights.changed())
    # The score is kept by row, and so are the predictions.
    found = RowScores.from_dict(metrics["row_scores"])
    predictions = pyarrow.parquet.read_table(tmp_path / "run" / PREDICTIONS)["prediction"]
    assert found.rows == len(predictions) == metrics["data"]["rows"]["dev"] and 2 <= len(found.values) <= found.rows
    if found.values.dtype == bool:
        assert found.values.mean() == metrics["score"]
    assert np.isfinite(found.values).all()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("kind", "family"),
    [pytest.param(*pair, marks=() if number == 0 else pytest.mark.slow) for number, pair in enumerate(PAIRS)],
)
def test_recorded_attributions_act_from_the_second_epoch(kind: str, family: str, folder: Path, tmp_path: Path) -> None:
    metrics, _ = run(folder, tmp_path / "run", kind, family, "ad-drop", {"attribution": "recorded", "layers": "all"})
    first, *_, last = metrics["history"]
    assert not first["dropped"].get("ad-drop") and last["dropped"]["ad-drop"] > 0
    assert metrics["records"]["rows"] >= 16 and metrics["records"]["forgotten"] == 0
