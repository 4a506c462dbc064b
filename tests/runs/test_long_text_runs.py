"""Whole runs on texts that are longer than the model reads: trained on windows, scored by text."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from attendrop.errors import AttendropError
from attendrop.runs.inference import evaluate, predict
from attendrop.runs.model_source import Source
from attendrop.runs.prune import prune_run
from attendrop.runs.train import train
from attendrop.studies.compare import compare

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
WINDOWS: dict[str, Any] = {"text_columns": ("sentence1",), "long_texts": "windows", "max_length": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("long")
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    train(tiny.config(folder, **WINDOWS, method="ad-drop", options={"cross_tuning": False}))
    return folder


def test_scores_and_predictions_are_those_of_texts(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["data"]["rows"] == {"train": 36, "selection": 4, "dev": 12}
    assert sum(metrics["predicted"]["dev"].values()) == 12
    assert metrics["data"]["report"]["parts"]["dev"]["truncated"] == 8  # sentences of 5 words and more
    found = evaluate(str(folder / "run"), Source(file=str(folder / "dev.csv"), device="cpu"))
    assert (found["rows"], found["score"]) == (12, metrics["score"])
    output = folder / "predicted.csv"
    predict(str(folder / "run"), Source(file=str(folder / "dev.csv"), device="cpu"), str(output), probabilities=True)
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["probability_yes"]) for row in rows] == pytest.approx(by_hand(folder), abs=1e-5)


def by_hand(folder: Path) -> list[float]:
    """Average the logits of windows of four words."""
    model = AutoModelForSequenceClassification.from_pretrained(folder / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run")
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


def test_a_model_can_be_scored_with_another_treatment(folder: Path) -> None:
    scores = [
        evaluate(str(folder / "run"), Source(file=str(folder / "dev.csv"), device="cpu", long_texts=how))["rows"]
        for how in ("head", "head+tail", "windows")
    ]
    assert scores == [12, 12, 12]


def test_pairs_are_refused_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(AttendropError, match="long-texts 'windows' is for single texts; rows of files have 2"):
        train(tiny.config(folder, "pairs", long_texts="windows"))
    assert not (folder / "pairs").exists()
    with pytest.raises(AttendropError, match="tail"):
        tiny.config(folder, "pairs", long_texts="tail")


@pytest.mark.slow
def test_models_are_pruned_and_compared_by_text(folder: Path) -> None:
    prune_run(str(folder / "run"), str(folder / "pruned"), layers="1", device="cpu")
    assert (folder / "pruned" / "metrics.json").is_file()
    files = {"train_file": str(folder / "train.csv"), "eval_file": str(folder / "dev.csv"), "label_column": "label"}
    compare(
        **(WINDOWS | files),
        model=str(folder / "model"),
        output_dir=str(folder / "compared"),
        methods=["finetune", "r-drop"],
        seeds=2,
        baselines=("frozen",),
        max_steps=2,
        workers=0,
        device="cpu",
    )
    assert (folder / "compared" / "best").is_dir()
