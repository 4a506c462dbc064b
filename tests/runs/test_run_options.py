"""Messages about the data of a run, and options for metrics, class weights, logs, repetition and lists of runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers import tiny
from helpers.command_line import Captured
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional

from attendrop import cli
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, Source, run_file
from attendrop.runs.inference import evaluate
from attendrop.runs.run_metrics import epoch_metrics
from attendrop.runs.run_trainer import balanced_loss
from attendrop.runs.train import summarise, train

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(own: Path, shared: Path) -> Path:
    """A model, data, and in ``run`` a finished run."""
    (own / "run").symlink_to(shared / "run")
    return own


# The data and what a constant answer would score ---------------------------------------------------------------------


# Metric, class weights, logs -----------------------------------------------------------------------------------------


def test_metric_of_ones_choice_selects_and_is_reported(folder: Path) -> None:
    metrics = train(tiny.config(folder, "metric", metric="macro-f1", method="finetune"))
    assert metrics["metric"] == "f1_macro" and next(iter(metrics["all_scores"]["dev"])) == "f1_macro"
    assert metrics["selection_score"] == max(entry["selection"]["f1_macro"] for entry in metrics["history"])
    found = evaluate(str(folder / "metric"), Source())
    assert (found["metric"], found["score"]) == ("f1_macro", metrics["score"])


def test_balanced_loss_weighs_classes_as_scikit_learn_does() -> None:
    train_labels = [0] * 6 + [1] * 2
    weights = compute_class_weight("balanced", classes=np.arange(2), y=train_labels)
    logits, labels = torch.randn(8, 2, dtype=torch.float64), torch.tensor(train_labels)
    loss = balanced_loss(train_labels, 2)({"logits": logits}, labels)
    rows = [weights[label] * functional.cross_entropy(row, label) for row, label in zip(logits, labels, strict=True)]
    assert loss == pytest.approx(sum(rows).item() / 8)


def test_balanced_loss_does_not_depend_on_how_a_step_is_cut() -> None:
    weighted = balanced_loss([0, 0, 0, 1, 2, 2], 4)
    logits, labels = torch.randn(8, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 0, 2, 1, 1])
    whole = weighted({"logits": logits}, labels, num_items_in_batch=torch.tensor(8))
    parts = [
        weighted({"logits": logits[part]}, labels[part], num_items_in_batch=torch.tensor(8))
        for part in (slice(0, 3), slice(3, 8))
    ]
    torch.testing.assert_close(sum(parts), whole)


def test_an_epoch_is_what_all_its_logs_say_together() -> None:
    log = [{"loss": 1.0, "step": 4, "epoch": 0.8}, {"loss": 6.0, "step": 5, "epoch": 1.0, "x/dropped": 0.5}]
    assert epoch_metrics(log, 1).items() >= {"loss": 2.0, "x/dropped": 0.5}.items()


# run.yaml ------------------------------------------------------------------------------------------------------------


def test_every_run_leaves_a_file_that_repeats_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = str(folder / "run" / "run.yaml")
    assert cli.main(["train", "--config", file, "--output-dir", f"{folder}/repeated", "--quiet"]) == 0
    first, second = (tiny.read_metrics(folder / name) for name in ("run", "repeated"))
    assert first["history"] == second["history"]
    one, other = ((folder / name / "model.safetensors").read_bytes() for name in ("run", "repeated"))
    assert one == other


def test_command_line_goes_over_the_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[RunConfig] = []

    def stop(config: RunConfig, **_: Any) -> None:
        read.append(config)
        raise AttendropError("Enough is seen.")

    monkeypatch.setattr("attendrop.runs.train.train", stop)
    file = tmp_path / "own.yaml"
    known = yaml.safe_load((folder / "run" / "run.yaml").read_text())
    changed = known | {"learning_rate": "5e-4", "text-columns": "sentence1,sentence2", "seed": 4, "max_steps": 20}
    changed |= {"max_train_samples": 8}
    del changed["text_columns"]
    file.write_text(yaml.safe_dump(changed))
    assert cli.main(["train", "--config", str(file), "--epochs", "1", "--set", "q=0.2"]) == 2
    assert (read[0].epochs, read[0].max_steps, read[0].learning_rate, read[0].seed) == (1, None, 5e-4, 4)
    assert read[0].options == known["options"] | {"q": 0.2}
    assert cli.main(["train", "--config", str(file), "--method", "finetune"]) == 2
    assert read[1].options == {}
    assert cli.main(["train", "--config", str(file), "--shots", "4", "--test-fraction", "0.2"]) == 2
    assert (read[2].shots, read[2].max_train_samples, read[2].test_fraction, read[2].eval_file) == (4, None, 0.2, None)
    assert cli.main(["train", "--config", str(file), "--test-fraction", "0"]) == 2
    assert read[3].eval_file == known["eval_file"] and read[3].max_train_samples == 8


def test_config_file_says_where_the_data_of_a_task_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its name does not take the place of minilm."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("minilm").mkdir()
    monkeypatch.setenv("ATTENDROP_DATA", "data")
    found = yaml.safe_load(run_file(RunConfig(task="rte", model="minilm", output_dir="x")))
    assert (found["data_dir"], found["model"]) == (str(tmp_path / "data"), "minilm")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("epoch: 3", "has an unknown option 'epoch'. Did you mean 'epochs'?"),
        ("epochs: many", "epochs='many' is not a whole number."),
        ("a: [", "cannot be read"),
        ("seed: 1\nepochs: 2\nseed: 3", "line 3: the key 'seed' is given twice"),
        (None, "There is no config file"),
    ],
)
def test_broken_config_file(tmp_path: Path, capsys: Captured, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "run.yaml").write_text(content)
    assert cli.main(["train", "--config", str(tmp_path / "run.yaml")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


# Several seeds, and lists of runs ------------------------------------------------------------------------------------


def test_the_spread_of_seeds_is_that_of_a_sample(folder: Path) -> None:
    scores, metrics = [0.5, 0.75, 0.9], tiny.read_metrics(folder / "run")
    found = summarise([metrics | {"all_scores": {"dev": {"accuracy": score}}} for score in scores])
    expected = {"mean": statistics.mean(scores), "std": statistics.stdev(scores), "values": scores}
    assert found["all_scores"] == {"dev": {"accuracy": expected}}


# Options that contradict each other are refused before anything is read, and the refusal names one of them

TASK: dict[str, Any] = {"train_file": None, "eval_file": None, "text_columns": (), "label_column": None}


def run_of(**options: Any) -> RunConfig:
    return tiny.config(Path("nowhere"), **options)


@pytest.mark.parametrize(
    ("made", "options", "words"),
    [
        (run_of, {"test_fraction": 0.2}, "test-fraction and eval-file are both evaluation data"),
        (run_of, {"test_fraction": 1.0}, "test_fraction=1.0 must be at least 0 and below 1"),
        (run_of, {"refit": True, "selection_fraction": 0.0}, "refit needs rows held out from training"),
        (run_of, {"patience": 2, "selection_fraction": 0}, "patience needs rows held out"),
        (run_of, {"calibrate": True, "selection_fraction": 0.0}, "needs rows held out"),
        (run_of, {"shots": 1, "max_train_samples": 1}, "both limit the training data"),
        (run_of, {"task": "class", "label_type": "number"}, "'class' and label-type 'number' differ"),
        (
            run_of,
            {"task": "swag"},
            "task is the kind of its rows, one of choice, .*, and not 'swag'",
        ),
        (run_of, {**TASK, "task": "tags"}, "'tags' is for custom files"),
        (run_of, {**TASK, "task": "rte", "skip_bad_rows": True}, "skip-bad-rows is for custom files"),
        (run_of, {"max_steps": 0}, "max-steps 0 trains nothing but the head's start"),
        (run_of, {"lora": {"r": 0}}, "r=0 must be a whole number"),
        (Source, {"file": "a.csv", "task": "rte"}, "a task .* or a file"),
        (Source, {"task": "rte", "text_columns": ("a",)}, "text-columns is for custom files"),
        (Source, {"file": "a.csv", "input_format": "csv"}, "input-format is for standard input"),
        (Source, {"file": "a.csv", "skipped_file": "x"}, "skipped-file is for skip-bad-rows"),
    ],
    ids=str,
)
def test_options_that_contradict_each_other(made: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttendropError, match=words):
        made(**options)
