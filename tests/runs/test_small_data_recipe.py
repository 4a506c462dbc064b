"""What follows from the data where options are not given: steps, held-out rows, a final training on all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers as hf
from helpers import tiny

from attendrop import ADDrop, Compose, Method, RDrop
from attendrop.reports.attention_viewer import load_stages
from attendrop.runs.data import ResolvedRun, learning_rate, resolve_run, steps
from attendrop.runs.inference import load_finished_run
from attendrop.runs.run_folder import note_in_run, read_run
from attendrop.runs.train import announce_scores, train
from attendrop.studies.answer import method_label

ASK: dict[str, Any] = {"epochs": None, "batch_size": None, "learning_rate": None, "selection_fraction": None}
ASK |= {"refit": None, "method": "finetune"}
# With no eval-file, 4 of 40 rows are held out: 5 steps an epoch, and as many in the final training.
HELD_OUT: dict[str, Any] = ASK | {"eval_file": None, "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}


@pytest.fixture(scope="module")
def folder(own: Path) -> Path:
    """A model, data, and in ``run`` a finished run without an eval-file."""
    train(tiny.config(own, **HELD_OUT))
    return own


def resolved(folder: Path, **options: Any) -> ResolvedRun:
    return resolve_run(tiny.config(folder, "unused", **(ASK | options)))


# What is decided ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "expected"), [(10, 240), (770, 482), (4000, 1200), (8551, 1604)])
def test_steps_of_small_sets_are_epochs_within_limits_and_of_large_sets_three_epochs(rows: int, expected: int) -> None:
    assert steps(rows, 16) == expected


def test_steps_of_large_sets_alone_depend_on_the_batch() -> None:
    assert steps(385, 32) == steps(385, 16) and steps(32000, 32) == 3000


@pytest.mark.parametrize(("size", "rate"), [(384, 1e-4), (512, 1e-4), (768, 5e-5), (1024, 2e-5)])
def test_learning_rate_falls_with_the_hidden_size(size: int, rate: float) -> None:
    assert learning_rate(hf.BertConfig(hidden_size=size, num_attention_heads=8)) == rate


def test_what_is_given_wins(folder: Path) -> None:
    found = resolved(folder).config
    assert (found.max_steps, found.batch_size, found.learning_rate, found.pooling) == (240, 16, 1e-4, "cls")
    given = {"epochs": 3, "batch_size": 4, "learning_rate": 0.1, "pooling": "mean"}
    found = resolved(folder, **given).config
    assert {name: getattr(found, name) for name in given} == given and found.max_steps is None


def test_steps_are_the_same_where_a_method_sets_rows_aside(folder: Path, tmp_path: Path) -> None:
    train_file = str(tiny.write_csv(tmp_path / "train.csv", ["no", "yes"] * 300))
    found = [
        resolved(folder, train_file=train_file, method=method, **options)
        for method, options in (
            ("finetune", {}),
            ("attendout", {"options": {"reward_data": "split"}}),
            ("finetune", {"selection_fraction": 0.2}),
        )
    ]
    assert [run.config.max_steps for run in found] == [375] * 3
    assert [len(run.parts.train) for run in found] == [600, 540, 479]  # texts repeat, in two or three rows


@pytest.mark.parametrize(
    ("options", "fraction", "refit", "chooses"),
    [
        ({}, 0.0, False, False),
        ({"eval_file": None}, 0.1, True, False),
        ({"patience": 2}, 0.1, True, True),
        ({"selection_fraction": 0.2}, 0.2, True, True),
        ({"selection_fraction": 0.0, "eval_file": None}, 0.0, False, False),
        ({"refit": True}, 0.1, True, False),
        ({"protocol": "paper"}, 0.0, False, True),
    ],
)
def test_rows_are_held_out_where_something_needs_them(
    options: dict[str, Any], fraction: float, refit: bool, chooses: bool, folder: Path
) -> None:
    run = resolved(folder, **options)
    assert (run.config.selection_fraction, run.config.refit, run.chooses_epoch) == (fraction, refit, chooses)


# The final training ---------------------------------------------------------------------------------------------------


def test_the_final_model_is_that_of_a_run_on_all_rows(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["selection"]["rows"] == 4 and metrics["data"]["rows"] == {"train": 40, "selection": 4}
    assert metrics["steps"] == metrics["selection"]["steps"] == metrics["selection"]["planned_steps"] == 10
    whole = train(tiny.config(folder, "whole", **(HELD_OUT | {"selection_fraction": 0.0, "max_steps": 10})))
    assert tiny.weights_of(folder / "run") == tiny.weights_of(folder / "whole")
    assert whole["selection"] is None and metrics["history"] == whole["history"]


def test_the_selection_score_is_that_of_the_model_without_these_rows(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    held_out = train(tiny.config(folder, "held-out", **(HELD_OUT | {"refit": False})))
    assert metrics["selection_score"] == held_out["selection_score"] is not None
    assert metrics["selection"]["history"] == held_out["history"]
    assert metrics["score"] is None and metrics["predicted"] == held_out["predicted"]


def test_it_stops_where_the_best_epoch_ended(folder: Path) -> None:
    options = HELD_OUT | {"selection_fraction": 0.1, "epochs": 3}
    metrics = train(tiny.config(folder, "best", **options))
    scores = [entry["selection"]["accuracy"] for entry in metrics["selection"]["history"]]
    best = scores.index(max(scores)) + 1
    assert (metrics["selection"]["epoch"], metrics["steps"]) == (best, 5 * best)
    assert metrics["selection"]["planned_steps"] == metrics["planned_steps"] == 15
    assert metrics["data"]["selected_on"] == "selection"


def test_what_was_decided_is_on_record(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    assert metrics["training"] == {
        **{"epochs": 2, "max_steps": None, "batch_size": 8, "learning_rate": 1e-3, "pooling": "cls"},
        **{"head_init": "linear-probe", "selection_fraction": 0.1, "refit": True},
    }
    assert metrics["config"]["selection_fraction"] is None and metrics["config"]["pooling"] == "auto"
    run = load_finished_run(str(folder / "run"))
    assert run.config.learning_rate == 1e-3 and run.chosen_on is None


MANY: dict[str, Any] = {"method": "ad-drop", "train_file": "many.csv", "eval_file": None, "selection_fraction": 0.0}
USUAL = ADDrop(p=0.1, attribution="gradient", layers="first")
RECORDED = ADDrop(p=0.3, attribution="recorded", layers="all")


@pytest.mark.parametrize(
    ("classes", "rows", "options", "expected"),
    [
        (20, 400, {}, RECORDED),
        (20, 200, {"q": 0.5}, replace(RECORDED, q=0.5)),
        (20, 200, {"p": 0.1}, USUAL),
        (20, 401, {}, USUAL),
        (19, 57, {}, USUAL),
        (20, 40, {"method": "ad-drop+r-drop"}, Compose(RECORDED, RDrop())),
        (20, 40, {"label_type": "number"}, USUAL),
    ],
)
def test_ad_drop_records_where_classes_are_many_and_their_rows_few(
    files: Path, classes: int, rows: int, options: dict[str, Any], expected: Method
) -> None:
    tiny.write_csv(files / "many.csv", [number % classes for number in range(rows)])
    own = ("p", "q", "target")
    settings: dict[str, Any] = {"label_type": "class"} | {k: v for k, v in options.items() if k not in own}
    settings["options"] = {k: v for k, v in options.items() if k in own}
    assert resolved(files, **(MANY | {"train_file": str(files / "many.csv")} | settings)).method == expected


def test_what_the_data_decide_of_the_method_is_kept(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the scores, when the run is loaded again, and when its drops are shown."""
    caplog.set_level("INFO", "attendrop")
    train_file = str(tiny.write_csv(files / "many.csv", [number % 20 for number in range(40)]))
    asked: dict[str, Any] = MANY | {"train_file": train_file, "label_type": "class", "max_steps": 2, "epochs": None}
    metrics = train(tiny.config(files, "many", **(asked | {"eval_file": train_file})))
    assert "so the method is ad-drop p=0.3 attribution=recorded layers=all." in caplog.text
    assert ADDrop(**metrics["options"]) == RECORDED and method_label(metrics) == "ad-drop"
    assert load_finished_run(str(files / "many")).method == RECORDED
    assert load_stages(str(files / "many"), device="cpu").method == RECORDED


def test_interrupted_in_either_training_it_ends_the_same(folder: Path, stop_at: Callable[[int], Any]) -> None:
    config = tiny.config(folder, "stopped", **HELD_OUT, save_steps=4)
    for step in (8, 8):  # of the ten that select, and of the ten on all rows
        with pytest.raises(KeyboardInterrupt):
            train(config, callbacks=[stop_at(step)], resume=True)
    begun = read_run(folder / ".stopped.partial")
    assert begun is not None
    note_in_run(folder / ".stopped.partial", selected=begun["selected"] | {"seconds": 1000.0})
    metrics = train(config, resume=True)
    assert metrics["train_seconds"] > 1000 and metrics["total_seconds"] > 1000
    expected = tiny.read_metrics(folder / "run")
    for name in ("selection_score", "history", "head_init", "steps", "train_fit"):
        assert metrics[name] == expected[name], name
    assert metrics["selection"] | {"seconds": 0} == expected["selection"] | {"seconds": 0}
    assert tiny.weights_of(Path(config.output_dir)) == tiny.weights_of(folder / "run")


# The fit --------------------------------------------------------------------------------------------------------------


def test_a_model_that_has_not_fitted_is_pointed_out(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    fit = tiny.read_metrics(folder / "run")["train_fit"]
    assert fit["rows"] == 40 and fit["fitted"] is (fit["score"] >= 0.9)
    announce_scores({}, fit | {"fitted": True})
    assert not caplog.messages
    announce_scores({}, fit | {"fitted": False})
    assert "the model has not fitted its training rows; raise max-steps" in caplog.text
