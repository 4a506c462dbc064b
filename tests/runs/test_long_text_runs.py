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

from attendrop.runs.inference import evaluate, predict
from attendrop.runs.model_source import Source
from attendrop.runs.train import train

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
