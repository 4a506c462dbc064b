"""``--calibrate``: a temperature in the weights of the last layer."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from helpers import tiny, zoo

from attendrop.errors import AttendropError
from attendrop.runs.config import Source
from attendrop.runs.inference import predict
from attendrop.runs.train import divide_logits, train


@pytest.mark.parametrize(
    "family", [name for name, entry in zoo.ZOO.items() if entry.model.endswith("ForSequenceClassification")]
)
def test_all_logits_are_divided(family: str) -> None:
    model, batch = zoo.build(family), zoo.batch_of(family, (5, 7))
    batch.pop("labels", None)
    with torch.no_grad():
        before = model(**batch).logits
        divide_logits(model, 2.5)
        after = model(**batch).logits
    torch.testing.assert_close(after * 2.5, before)


@pytest.mark.parametrize("refit", [True, False])
def test_probabilities_change_and_predictions_stay(files: Path, refit: bool, caplog: pytest.LogCaptureFixture) -> None:
    options = {"method": "finetune", "selection_fraction": 0.3, "refit": refit, "epochs": 1}
    plain = train(tiny.config(files, "plain", **options))
    found = train(tiny.config(files, "calibrated", calibrate=True, **options))
    assert plain["temperature"] is None
    assert "Probabilities are calibrated on " in caplog.text  # few rows
    assert found["temperature"] > 0
    assert abs(found["temperature"] - 1) > 1e-3
    assert found["all_scores"] == plain["all_scores"]
    labels, probabilities = zip(*(predicted(files / run, files) for run in ("plain", "calibrated")), strict=True)
    assert labels[0] == labels[1]
    # Of two classes, the log-odds of the answer are divided by the temperature.
    odds = [torch.tensor(each, dtype=torch.float64).logit() for each in probabilities]
    torch.testing.assert_close(odds[1] * found["temperature"], odds[0], rtol=1e-3, atol=1e-4)


def predicted(run: Path, folder: Path) -> tuple[list[str], list[float]]:
    source = Source(file=str(folder / "dev.csv"), text_columns=("sentence1", "sentence2"))
    predict(str(run), source, str(run) + ".csv")
    with open(f"{run}.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [row["label"] for row in rows], [float(row["probability"]) for row in rows]


def test_it_is_refused_without_classes_or_rows(tmp_path: Path) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    tiny.write_data(tmp_path)
    with pytest.raises(AttendropError, match="needs rows held out"):
        tiny.config(tmp_path, calibrate=True, selection_fraction=0.0)
    tiny.write_csv(tmp_path / "train.csv", [0.5, 1.5] * 20)
    tiny.write_csv(tmp_path / "dev.csv", [0.5, 1.5] * 6)
    with pytest.raises(AttendropError, match="calibrate is for classes"):
        train(tiny.config(tmp_path, calibrate=True, method="finetune"))
