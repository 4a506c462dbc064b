"""Whole runs on a tiny model: the protocol, the files in the folder, and that nothing is written after a mistake."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from datasets import Dataset
from helpers import tiny, zoo
from helpers.command_line import Captured
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainerState, TrainingArguments

from attendrop import cli, load
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig, Source, preset, run_file
from attendrop.runs.data import resolve_run
from attendrop.runs.inference import evaluate, predict
from attendrop.runs.run_folder import holds_run
from attendrop.runs.run_trainer import (
    balanced_loss,
    epoch_metrics,
    has_stopped,
    held_out_temperature,
    num_epochs,
    run_arguments,
)
from attendrop.runs.train import announce_scores, divide_logits, summarise, train
from attendrop.studies.baselines import run_baseline
from attendrop.tasks.types.classification import Classification


@pytest.fixture(scope="module")
def folder(own: Path, shared: Path) -> Path:
    """A model, data, and in ``run`` a finished run of AD-DROP."""
    (own / "run").symlink_to(shared / "run")
    return own


def test_history_has_an_entry_for_each_epoch_and_the_best_is_kept(folder: Path) -> None:
    metrics = tiny.read_metrics(folder / "run")
    first, second = metrics["history"]
    assert (first["step"], second["step"]) == (metrics["steps"] / 2, metrics["steps"])
    for entry in (first, second):
        assert entry["regularized"] and 0 < entry["dropped"]["ad-drop"] < 0.3
        assert entry["train_loss"] > 0 and entry["selection_loss"] > 0
    scores = [entry["selection"]["accuracy"] for entry in metrics["history"]]
    assert metrics["selection_score"] == max(scores)
    assert metrics["best_epoch"] == scores.index(max(scores)) + 1
    (checkpoint,) = (folder / "run").glob(f"checkpoint-{5 * metrics['best_epoch']}")
    assert tiny.weights_of(checkpoint) == tiny.weights_of(folder / "run")


def test_stock_model_gives_the_reported_score(folder: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(folder / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "run")
    assert model.config.id2label == {0: "no", 1: "yes"}
    rows = [line.split(",") for line in (folder / "dev.csv").read_text().splitlines()[1:]]
    inputs = tokenizer([r[0] for r in rows], [r[1] for r in rows], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    answers = [model.config.id2label[label] for label in logits.argmax(-1).tolist()]
    score = sum(answer == row[2] for answer, row in zip(answers, rows, strict=True)) / len(rows)
    assert score == tiny.read_metrics(folder / "run")["score"]
    predict(str(folder / "run"), Source(file=str(folder / "dev.csv")), str(folder / "predictions.jsonl"))
    found = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert [row["label"] for row in found] == answers
    probabilities = logits.double().softmax(-1).max(-1).values
    assert [row["probability"] for row in found] == [round(float(p), 6) for p in probabilities]


@pytest.mark.parametrize("part", ["train", "selection"])
def test_resume_with_other_data_is_refused(plain: Path, shared: Path, part: str) -> None:
    """Rows that select the epoch count as those that are trained on."""
    config = tiny.config(shared, str(plain), epochs=1, method="finetune")
    rows = resolve_run(config).parts
    place = (rows.train if part == "train" else rows.selection or rows.train)["index"][0]
    lines = (shared / "train.csv").read_text().splitlines()
    lines[place + 1] = f"a dog,a cat,{lines[place + 1].rpartition(',')[2]}"
    changed = plain.parent / "train.csv"
    changed.write_text("\n".join(lines) + "\n")
    record = json.loads((plain / "run.json").read_text())
    record["config"]["train_file"] = str(changed)
    (tiny.unfinished(plain) / "run.json").write_text(json.dumps(record))
    with pytest.raises(AttendropError, match="training data changed"):
        train(dataclasses.replace(config, train_file=str(changed)), resume=True)


def test_resume_with_a_changed_model_is_refused(plain: Path, shared: Path) -> None:
    model = Path(shutil.copytree(shared / "model", plain.parent / "model"))
    config = tiny.config(shared, str(plain), epochs=1, method="finetune", model=str(model))
    record = json.loads((plain / "run.json").read_text())
    record["config"]["model"] = str(model)
    (plain / "run.json").write_text(json.dumps(record))
    assert train(config, resume=True) == tiny.read_metrics(plain)
    (model / "tokenizer_config.json").write_text((model / "tokenizer_config.json").read_text() + "\n")
    with pytest.raises(AttendropError, match=f"files of the model in '{model}' changed since"):
        train(config, resume=True)
    assert not holds_run(plain, config, record["data_sha256"])


PAPER = {"p": 0.3, "q": 0.3, "layers": "first", "direction": "high", "cross_tuning": True}


def test_scores_of_mixed_precision_are_those_of_the_saved_model(folder: Path, tmp_path: Path) -> None:
    numbers = str(tiny.write_csv(tmp_path / "numbers.csv", [0.5 + number % 7 for number in range(40)]))
    config = tiny.config(folder, str(tmp_path / "run"), train_file=numbers, eval_file=numbers, bf16=True, max_steps=4)
    metrics = train(config)
    assert evaluate(str(tmp_path / "run"), Source(device="cpu"))["all_scores"] == metrics["all_scores"]["dev"]


def test_preset_of_the_paper() -> None:
    chosen = preset("paper", "stsb", "ad-drop")
    config = RunConfig(model="minilm", output_dir="x", task="stsb", **chosen)
    assert (config.max_length, config.epochs, config.patience, config.schedule) == (100, 50, 5, "constant")
    assert PAPER.items() <= config.options.items()
    assert (config.protocol, config.weight_decay, config.warmup) == ("paper", 0.01, 0.0)
    assert preset("paper", "mnli", "finetune")["options"] == {}
    assert preset("paper", "cola", "ad-drop")["options"] == PAPER | {"layers": "all"}

    rewards = {"reward_data": "eval", "reward_batch_size": 1}
    alone, both = preset("paper", "stsb", "attendout"), preset("paper", "stsb", "ad-drop + attendout")
    assert (alone["max_length"], alone["epochs"], alone["patience"]) == (256, 3, None) and alone["options"] == rewards
    assert (both["max_length"], both["options"]) == (256, {"ad-drop": PAPER, "attendout": rewards})
    assert preset("paper", "stsb", "ad-drop+mixout")["options"] == {"ad-drop": PAPER}
    assert preset("paper", None, "r-drop")["options"] == {"reduction": "mean"}


# --- Data that the method is rewarded on


def test_what_the_method_was_rewarded_on_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"reward_data": "eval", "dropout_step": 3}
    metrics = train(tiny.config(folder, "attendout", method="attendout", options=options))
    assert metrics["data"]["rewarded_on"] == "dev"
    assert metrics["data"]["rows"] == {"train": 36, "selection": 4, "dev": 12}
    card = (folder / "attendout" / "README.md").read_text(encoding="utf-8")
    assert "scored models on the development set during training" in card
    assert "The development set was scored once, at the end." not in card
    assert "so the score on it is optimistic" in caplog.text
    assert [step["step"] for step in metrics["dropout_steps"]] == [3, 6, 9, 10]


def test_no_epoch_of_a_search_is_the_best(folder: Path) -> None:
    """Though its score is that of all others: its model was discarded."""
    how: dict[str, Any] = {"method": "supert", "options": {"search": 0.6, "fraction": 0.5}, "epochs": 4}
    metrics = train(tiny.config(folder, "supert", refit=True, learning_rate=1e-9, **how))
    assert (metrics["selection"]["epoch"], metrics["steps"]) == (3, 15)


def test_a_fixed_number_of_steps(folder: Path) -> None:
    metrics = train(tiny.config(folder, "steps", max_steps=6, method="finetune", max_train_samples=40))
    assert sorted(json.loads((folder / "steps" / "sampled_rows.json").read_text())) == ["selection", "train"]
    assert (metrics["steps"], metrics["planned_steps"], len(metrics["history"])) == (6, 6, 2)


def test_steps_and_epochs_are_those_of_all_processes(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, epochs in (
        ({"max_steps": 5}, 1),
        ({"max_steps": 6}, 2),
        ({"max_steps": 3, "gradient_accumulation": 3}, 2),
    ):
        assert num_epochs(tiny.config(shared, **options), 36) == epochs
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert num_epochs(tiny.config(shared, max_steps=5), 36) == 2  # of 3 steps, each of two batches of 8
    many = str(tiny.write_csv(tmp_path / "many.csv", ["no", "yes"] * 200))
    run = resolve_run(tiny.config(shared, train_file=many, epochs=None, batch_size=1, selection_fraction=0.0))
    assert run.config.max_steps == 600  # three epochs, each step of two rows


@pytest.mark.parametrize(
    ("patience", "waited", "stop_after", "stopped"),
    [(2, 1, None, False), (2, 2, None, True), (None, 2, 11, False), (None, 0, 10, True)],
)
def test_a_resumed_run_that_had_stopped_takes_no_more_steps(
    shared: Path, tmp_path: Path, patience: int | None, waited: int, stop_after: int | None, stopped: bool
) -> None:
    stopping = {"args": {}, "attributes": {"early_stopping_patience_counter": waited}}
    state = TrainerState(global_step=10, stateful_callbacks={"EarlyStoppingCallback": stopping})
    state.save_to_json(str(tmp_path / "trainer_state.json"))
    assert has_stopped(tiny.config(shared, patience=patience), tmp_path, stop_after) == stopped


def test_a_run_trains_on_one_of_several_gpus(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTwo(TrainingArguments):
        def __post_init__(self) -> None:
            super().__post_init__()
            self._n_gpu = 2

    monkeypatch.setattr("attendrop.runs.run_trainer.TrainingArguments", WithTwo)
    assert run_arguments(resolve_run(tiny.config(shared)), 36, Path("unused")).n_gpu == 1


# ``--calibrate``: a temperature in the weights of the last layer


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


def test_calibration_counts_texts_and_not_their_windows(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendrop.runs.run_trainer._outputs", lambda *_: (np.eye(2), 0.0))
    windows = Dataset.from_dict({"labels": [0, 0, 1, 1, 1], "document": [0, 0, 1, 1, 1]})
    run: Any = SimpleNamespace(task=SimpleNamespace(type=Classification(("no", "yes"))))
    held_out_temperature(run, run, windows)
    assert "Probabilities are calibrated on 2 rows" in caplog.text


def test_probabilities_change_and_predictions_stay(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"method": "finetune", "selection_fraction": 0.3, "refit": True, "epochs": 1}
    plain = train(tiny.config(files, "plain", **options))
    found = train(tiny.config(files, "calibrated", calibrate=True, **options))
    assert "Probabilities are calibrated on " in caplog.text  # few rows
    assert plain["temperature"] is None and found["temperature"] > 0 and abs(found["temperature"] - 1) > 1e-3
    assert found["all_scores"] == plain["all_scores"]
    # Of two classes, the log-odds are divided by the temperature.
    texts = [(tiny.sentence(number), tiny.sentence(number + 3)) for number in range(40, 52)]
    rows = [load(files / run).predict(texts, probabilities=True) for run in ("plain", "calibrated")]
    before, after = (torch.tensor([row["probability_yes"] for row in each]).logit() for each in rows)
    torch.testing.assert_close(after * found["temperature"], before, rtol=1e-3, atol=1e-4)


def test_what_is_said_of_the_rows_holds_for_all_that_the_model_is_trained_on(files: Path) -> None:
    """Those that were held out first, too."""
    options = {"method": "finetune", "selection_fraction": 0.3, "refit": True, "epochs": 1}
    metrics = train(tiny.config(files, eval_file=str(files / "train.csv"), **options))
    parts = metrics["data"]["report"]["parts"]
    assert {name: part["rows"] for name, part in parts.items()} == {"train": 40, "selection": 12, "dev": 40}
    assert parts["dev"]["in_train"] == 40 and "in_train" not in parts["selection"]
    assert "Rows: 40 train, 40 dev." in (files / "run" / "README.md").read_text(encoding="utf-8")
    reports = metrics["report"], evaluate(str(files / "run"), Source(), report=True)["report"]
    assert all(error["nearest"]["text"] == error["text"] for report in reports for error in report["errors"])
    for report in reports:  # probabilities may differ in the last digits
        report["errors"] = [error | {"probability": round(error["probability"], 6)} for error in report["errors"]]
    assert reports[0]["errors"] == reports[1]["errors"] != []


@pytest.mark.parametrize("name", ["run", "tfidf"])
def test_errors_have_no_neighbours_among_rows_that_changed(
    name: str, files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A class that was labelled later moved the numbers of the others: neighbours had wrong classes, or there was a
    traceback."""
    options = tiny.config(files, name, method="finetune", epochs=1, selection_fraction=0.2, refit=True)
    train(options) if name == "run" else run_baseline(options, name, keep_model=True)
    before = evaluate(str(files / name), Source(), report=True)["report"]["errors"]
    assert before and all("nearest" in error for error in before)
    content = (files / "train.csv").read_text()
    (files / "train.csv").unlink()
    (files / "train.csv").write_text(content + content.splitlines()[1].rsplit(",", 1)[0] + ",aaa\n")
    after = evaluate(str(files / name), Source(file=str(files / "dev.csv")), report=True)["report"]["errors"]
    assert len(after) == len(before) and not any("nearest" in error for error in after)
    assert "The training data are not there any more, or changed" in caplog.text


# Metric, class weights, logs -----------------------------------------------------------------------------------------


def test_metric_of_ones_choice_selects_and_is_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "attendrop")
    train(tiny.config(folder, "of one", metric="f1", method="finetune", epochs=1))
    assert "f1 is that of the class 'yes', the second of two." in caplog.text
    metrics = train(tiny.config(folder, "metric", metric="macro-f1", method="finetune"))
    assert metrics["metric"] == "f1_macro" and next(iter(metrics["all_scores"]["dev"])) == "f1_macro"
    assert metrics["selection_score"] == max(entry["selection"]["f1_macro"] for entry in metrics["history"])
    found = evaluate(str(folder / "metric"), Source())
    assert (found["metric"], found["score"]) == ("f1_macro", metrics["score"])


def test_a_head_that_does_not_reach_the_numbers_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for score, started, told in ((0.2, "random", 0), (-6.0, "linear-probe", 0), (-6.0, "random", 1)):
        announce_scores({}, {"fitted": False, "metric": "r2", "score": score}, started)
        assert caplog.text.count("A head that starts at random does not reach numbers far from 0") == told


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
    constant = [{"dev": {"answer": "no", "scores": {"accuracy": score / 2}}} for score in scores]  # on held-out rows
    of_seeds = zip(scores, constant, strict=True)
    found = summarise([metrics | {"all_scores": {"dev": {"accuracy": s}}, "baseline": c} for s, c in of_seeds])
    expected = {"mean": statistics.mean(scores), "std": statistics.stdev(scores), "values": scores}
    assert found["all_scores"] == {"dev": {"accuracy": expected}}
    assert found["baseline"]["dev"]["scores"]["accuracy"] == pytest.approx(expected["mean"] / 2)


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
        (run_of, {"task": "swag"}, "task is the kind of its rows, one of choice, .*, and not 'swag'"),
        (run_of, {**TASK, "task": "tags"}, "'tags' is for custom files"),
        (run_of, {**TASK, "task": "rte", "skip_bad_rows": True}, "skip-bad-rows is for custom files"),
        (run_of, {"max_steps": 0}, "max-steps 0 trains nothing but the head's start"),
        (run_of, {"lora": {"r": 0}}, "r=0 must be a whole number"),
        (Source, {"file": "a.csv", "task": "rte"}, "a task .* or a file"),
        (Source, {"task": "rte", "text_columns": ("a",)}, "text-columns is for custom files"),
        (Source, {"file": "a.csv", "input_format": "csv"}, "input-format is for standard input"),
        (Source, {"file": "a.csv", "skipped_file": "x"}, "skipped-file is for skip-bad-rows"),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_options_that_contradict_each_other(made: Callable[..., Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(AttendropError, match=words):
        made(**options)
