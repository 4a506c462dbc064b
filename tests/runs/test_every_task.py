"""Every kind of task, with every method and every command: they work on its models, or are refused in words.

A few cases run by default, with another method for each pair of a kind and a family of models; all others are slow.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import sacrebleu
import torch
from helpers import tiny, tiny_translators
from helpers.command_line import Captured
from helpers.task_examples import EXAMPLES, FAMILIES, TEXT, write_rows
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

import attendrop
from attendrop import AttendropError, cli
from attendrop.methods.core.registry import method_names
from attendrop.runs.config import RunConfig, Source
from attendrop.runs.inference import predict
from attendrop.runs.train import train
from attendrop.support.files import finite
from attendrop.tasks.metrics import PREDICTIONS, RowScores

PAIRS = [(kind, family) for kind, example in EXAMPLES.items() for family in example.families]
# Options with which a method acts in the first of few steps.
OPTIONS: dict[str, dict[str, Any]] = {
    "ad-drop": {"cross_tuning": False},
    "attendout": {"dropout_step": 1},
    "supert": {"search": 0.5, "fraction": 0.5},
}
COMMANDS: dict[str, list[str]] = {
    "prune": ["--layers", "1", "--recover-epochs", "1", "--output-dir", "OUT/pruned"],
    "export": ["--format", "torch", "--output", "OUT/exported"],
    "export --quantize int8": ["--output", "OUT/quantized"],
    "attend": [TEXT, "--output", "OUT/page.html"],
}
REFUSED: dict[str, tuple[str, ...]] = {"translation": tuple(COMMANDS), "multiple-choice": ("attend",)}
KINDS = [pytest.param(kind, marks=() if place in (0, 5) else pytest.mark.slow) for place, kind in enumerate(EXAMPLES)]


class Weights(TrainerCallback):
    """The trained model, and its parameters when training began."""

    def on_train_begin(self, *_: Any, model: Any, **__: Any) -> None:
        self.model = model
        self.before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def changed(self) -> list[str]:
        return [name for name, value in self.model.named_parameters() if not torch.equal(value, self.before[name])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


def options(folder: Path, kind: str, family: str = "") -> dict[str, Any]:
    """Options of a run on a few rows of a kind of task, whose files and model are written if need be."""
    example, model = EXAMPLES[kind], folder / (family or EXAMPLES[kind].families[0])
    if not model.exists():
        FAMILIES[model.name](model)
    if not (folder / f"{kind}-dev.jsonl").exists():
        write_rows(folder / f"{kind}-train.jsonl", example, 0, 16)
        write_rows(folder / f"{kind}-dev.jsonl", example, 100, 6)
    files = {"train_file": f"{folder}/{kind}-train.jsonl", "eval_file": f"{folder}/{kind}-dev.jsonl"}
    columns = {"text_columns": example.texts, "label_column": example.label or None}
    found = {**files, **columns, "model": str(model), "max_length": 24, "device": "cpu", "label_names": "none"}
    return found | {"batch_size": 8} | example.options


# Methods --------------------------------------------------------------------------------------------------------------


def cases() -> list[Any]:
    """All cases; those of the default tests have another method for each pair."""
    return [
        pytest.param(*pair, method, marks=() if number == turn % len(PAIRS) and turn % 2 == 0 else pytest.mark.slow)
        for number, pair in enumerate(PAIRS)
        for turn, method in enumerate(method_names())
    ]


@pytest.mark.parametrize(("kind", "family", "method"), cases())
def test_a_method_trains_or_is_refused(kind: str, family: str, method: str, folder: Path, tmp_path: Path) -> None:
    weights, run = Weights(), tmp_path / "run"
    how = {"method": method, "options": OPTIONS.get(method, {}), "max_steps": 3, "learning_rate": 1e-2}
    config = RunConfig(**options(folder, kind, family) | how, output_dir=str(run))
    if family == "albert" and method in ("layer-reinit", "supert"):
        with pytest.raises(AttendropError, match="shares its layers"):
            train(config)
        assert not run.exists()
        return
    metrics = train(config, keep_model=False, callbacks=[weights])
    last = metrics["history"][-1]
    assert math.isfinite(metrics["score"]) and math.isfinite(last["train_loss"])
    assert last["regularized"] or method == "finetune"
    assert any("att" in name.lower() for name in weights.changed())
    # The score is kept by row, and so are the predictions.
    found = RowScores.from_dict(metrics["row_scores"])
    predictions = pyarrow.parquet.read_table(run / PREDICTIONS)["prediction"]
    assert found.rows == len(predictions) == metrics["data"]["rows"]["dev"]
    if found.values.dtype == bool:
        assert found.values.mean() == metrics["score"]
    assert np.isfinite(found.values).all()


# Commands -------------------------------------------------------------------------------------------------------------


def trained(folder: Path, kind: str) -> Path:
    """Return the folder of a run that is resumed from its first epoch's checkpoint."""
    run = folder / f"run-{kind}"
    if not run.exists():
        how = {"epochs": 2, "method": "ad-drop", "options": {"cross_tuning": False}}
        config = RunConfig(**options(folder, kind), **how, output_dir=str(run))
        with tiny.kept_checkpoints():
            train(config)
        whole = (run / "model.safetensors").read_bytes()
        unfinished = tiny.unfinished(run)
        for name in ("model.safetensors", "config.json", "checkpoint-4"):
            (unfinished / name).rename(folder / f"away-{kind}-{name}")
        train(config, resume=True)
        assert (run / "model.safetensors").read_bytes() == whole
    return run


def score(run: Path, captured: Captured, *more: str) -> Any:
    captured.readouterr()
    assert cli.main(["evaluate", str(run), "--device", "cpu", "--json", *more]) == 0
    return json.loads(captured.readouterr().out)["all_scores"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_the_same_and_is_used_as_its_card_says(
    folder: Path, tmp_path: Path, kind: str, capsys: Captured
) -> None:
    run, output, file = trained(folder, kind), tmp_path / "out.jsonl", folder / f"{kind}-dev.jsonl"
    given, made = EXAMPLES[kind].usage
    names: dict[str, Any] = {"folder": str(run), **given}
    for block in (run / "README.md").read_text().split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert {"answers", made} <= names.keys()
    assert tiny.read_metrics(run)["all_scores"]["dev"] == pytest.approx(score(run, capsys), abs=1e-5)
    predict(str(run), Source(file=str(file), device="cpu"), str(output))
    expected = [[*json.loads(line).values()][1] for line in output.read_text().splitlines()]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    texts = [tuple(row[name] for name in EXAMPLES[kind].texts) for row in rows]
    assert finite(attendrop.load(run).predict(texts)) == expected


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=() if each in ("prune", "attend") else pytest.mark.slow) for each in COMMANDS]
)
@pytest.mark.parametrize("kind", KINDS)
def test_other_commands_work_or_are_refused(
    folder: Path, tmp_path: Path, kind: str, command: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendrop.runs.prune.SECONDS", 0.01)
    monkeypatch.setattr("attendrop.pruning.selection.RESAMPLES", 20)
    run = trained(folder, kind)
    capsys.readouterr()
    more = [part.replace("OUT", str(tmp_path)) for part in COMMANDS[command]]
    device = [] if command.startswith("export") else ["--device", "cpu"]
    code = cli.main([*command.split(), str(run), *more, *device, "--quiet"])
    said = " ".join(capsys.readouterr().err.split())
    assert code == (2 if command in REFUSED.get(kind, ()) else 0), said
    if code:
        assert f"`attendrop {command.partition(' --quantize')[0]}` does not work for {kind}" in said
        assert not list(tmp_path.iterdir())
    elif command == "prune":
        assert tiny.read_metrics(tmp_path / "pruned")["all_scores"]["dev"] == pytest.approx(
            score(tmp_path / "pruned", capsys), abs=1e-5
        )


NOUNS = ("cat", "dog", "bird")
OTHERS = [word for word in tiny.WORDS if word not in NOUNS]


def chosen(number: int) -> dict[str, Any]:
    """Of two to four choices, the one with an animal is correct."""
    draw = random.Random(number)
    choices = [f"{draw.choice(OTHERS)} {draw.choice(OTHERS)}" for _ in range(2 + number % 3)]
    correct = draw.randrange(len(choices))
    choices[correct] = f"{draw.choice(OTHERS)} {draw.choice(NOUNS)}"
    return {"q": tiny.sentence(number), "text": choices, "label": "ABCD"[correct]}


def tagged(number: int) -> dict[str, Any]:
    draw = random.Random(number)
    words = [draw.choice(tiny.WORDS) for _ in range(2 + number % 7)]
    return {"q": "", "text": words, "label": ["B-ANIMAL" if word in NOUNS else "O" for word in words]}


@pytest.mark.parametrize(
    ("row", "columns", "metric"),
    [
        (chosen, {"text_columns": ("q", "text"), "label_type": "choice"}, "accuracy"),
        (tagged, {"text_columns": ("text",)}, "entity_f1"),
    ],
)
def test_a_run_learns_and_its_predictions_are_as_good_as_its_scores(
    row: Callable[[int], dict[str, Any]], columns: dict[str, Any], metric: str, tmp_path: Path
) -> None:
    tiny.save_tiny_bert(tmp_path / "model")
    rows = [row(number) for number in range(90)]
    for name, part in (("train", rows[:70]), ("dev", rows[70:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in part))
    files = {"train_file": f"{tmp_path}/train.jsonl", "eval_file": f"{tmp_path}/dev.jsonl", "selection_fraction": None}
    how = {"method": "finetune", "epochs": 5, "learning_rate": 1e-2, "refit": None}
    metrics = train(tiny.config(tmp_path, **(files | how | columns)))
    scores = metrics["all_scores"]["dev"]
    assert metrics["score"] == scores[metric] >= 0.9
    assert metrics["baseline"]["dev"]["scores"][metric] < 0.7
    texts = [tuple(each[name] for name in columns["text_columns"]) for each in rows[70:]]
    found = attendrop.load(tmp_path / "run").predict(texts)
    pairs = zip(found, (each["label"] for each in rows[70:]), strict=True)
    right = [one == other for given, label in pairs for one, other in zip(given, label, strict=True)]
    assert sum(right) / len(right) == pytest.approx(scores["accuracy"])


# Whole runs of models that translate


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pairs = tmp_path_factory.mktemp("translation")
    tiny_translators.save_tiny_marian(pairs / "model")
    tiny_translators.write_pairs(pairs, "train", range(40))
    tiny_translators.write_pairs(pairs, "dev", range(100, 112))
    train, dev = (f"{pairs}/{part}.en,{pairs}/{part}.ro" for part in ("train", "dev"))
    files = f"train --train-file {train} --eval-file {dev} --model {pairs}/model --output-dir {pairs}/run"
    how = "--max-steps 6 --batch-size 8 --max-length 16 --learning-rate 1e-2 --device cpu --quiet"
    encoder = "--method ad-drop --set layers=encoder --set cross_tuning=false"
    generation = "--task-set max_new_tokens=6 --task-set num_beams=2"
    assert cli.main(f"{files} {how} {encoder} {generation}".split()) == 0
    return pairs


def test_the_score_is_that_of_what_the_saved_model_writes(pairs: Path, capsys: Captured) -> None:
    metrics = tiny.read_metrics(pairs / "run")
    scores = metrics["all_scores"]["dev"]
    assert list(scores) == ["bleu", "chrf", "neg_log_loss"] and metrics["metric"] == "bleu"
    model, tokenizer = (loader.from_pretrained(pairs / "run") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.max_new_tokens) == (2, 6)
    texts = [tiny_translators.pair(number) for number in range(100, 112)]
    written = [
        tokenizer.decode(model.generate(**tokenizer(text, return_tensors="pt"))[0], skip_special_tokens=True)
        for text, _ in texts
    ]
    expected = sacrebleu.corpus_chrf(written, [[target for _, target in texts]]).score / 100
    assert scores["chrf"] == pytest.approx(expected) and expected > 0
    assert score(pairs / "run", capsys) == pytest.approx(scores)
    shorter = score(pairs / "run", capsys, "--task-set", "max_new_tokens=1")  # instead of the run's own
    assert shorter["chrf"] != scores["chrf"] and shorter["neg_log_loss"] == pytest.approx(scores["neg_log_loss"])
    history = metrics["history"]
    assert history[-1]["train_loss"] < history[0]["train_loss"] and history[0]["dropped"]["ad-drop"] > 0.02


def test_an_adapter_generates_as_its_run_did(pairs: Path) -> None:
    """As soon as it is loaded, and not only after a prediction."""
    files = f"train --train-file {pairs}/train.en,{pairs}/train.ro --model {pairs}/model --output-dir {pairs}/adapter"
    how = "--lora r=2 --lora targets=q_proj --max-steps 1 --max-length 16 --method finetune --device cpu --quiet"
    assert cli.main(f"{files} {how} --task-set max_new_tokens=6 --task-set num_beams=2".split()) == 0
    generation = attendrop.load(pairs / "adapter").generation_config
    assert (generation.num_beams, generation.max_new_tokens) == (2, 6)
