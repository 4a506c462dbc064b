"""Results that runs of one process share: when, how many, and that they change no score."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers import tiny, zoo

from attendrop.runs.config import RunConfig
from attendrop.runs.data import cached, digest_of_model, share_results
from attendrop.runs.train import train
from attendrop.studies import baselines
from attendrop.studies.baselines import run_baseline

pytestmark = pytest.mark.filterwarnings("ignore:.*did not converge")


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    share_results(False)  # what runs in this process before may share results
    yield
    share_results(False)


def asked(key: Any, compute: Any, size: int = 1, kind: str = "sum") -> Any:
    return cached(lambda: key, compute, lambda _: size, kind=kind)


def test_memory_is_bounded_and_what_was_not_used_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendrop.runs.data.MOST_BYTES", 10)
    share_results()
    first, second = asked("first", object, 4), asked("second", object, 4)
    assert asked("first", object, 4) is first
    asked("third", object, 4)
    assert asked("first", object, 4) is first
    assert asked("second", object, 4) is not second
    large = asked("large", object, 11)
    assert asked("large", object, 11) is not large


def test_the_digest_of_a_model_is_that_of_weights_buffers_and_configuration() -> None:
    model = zoo.build("bert")
    before = digest_of_model(model)
    assert digest_of_model(zoo.build("bert")) == before
    assert digest_of_model(zoo.build("bert").to(torch.bfloat16)) != before
    head_apart = digest_of_model(model, without=model.classifier)
    with torch.no_grad():
        model.classifier.bias[0] += 1
    assert digest_of_model(model) != before
    assert digest_of_model(model, without=model.classifier) == head_apart
    model.config.hidden_act = "relu"
    assert digest_of_model(model, without=model.classifier) != head_apart


# Runs -----------------------------------------------------------------------------------------------------------------


def run_of(folder: Path, place: Path, name: str, **options: Any) -> dict[str, Any]:
    """Run a method or a baseline; return what must not depend on what is shared."""
    method = "finetune" if name in baselines.BASELINES else name
    given: dict[str, Any] = {"method": method, "max_train_samples": 24, "max_steps": 1, "pooling": "mean"}
    given |= {"head_init": "linear-probe"} | options
    config: RunConfig = tiny.config(folder, str(place / f"{name}{len(list(place.iterdir()))}"), **given)
    metrics = run_baseline(config, name) if name in baselines.BASELINES else train(config, keep_model=False)
    losses = [epoch["train_loss"] for epoch in metrics.get("history", [])]
    return {key: metrics.get(key) for key in ("all_scores", "train_fit", "head_init", "predicted")} | {"losses": losses}


def test_changed_data_and_models_are_not_taken_for_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = Mock(wraps=baselines.frozen_features)
    monkeypatch.setattr(baselines, "frozen_features", encoded)
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    runs = tmp_path / "runs"
    runs.mkdir()
    share_results()
    for name in ("frozen", "finetune"):
        run_of(tmp_path, runs, name)
    tiny.write_csv(tmp_path / "dev.csv", ["yes", "no"] * 6, 52)
    tiny.save_tiny_bert(tmp_path / "model", initializer_range=0.5)
    scored = [run_of(tmp_path, runs, name) for name in ("frozen", "finetune")]
    assert encoded.call_count == 2 * 2
    share_results(False)
    assert [run_of(tmp_path, runs, name) for name in ("frozen", "finetune")] == scored
