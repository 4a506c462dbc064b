"""Every kind of task, from its run to the other commands: they work on its model, or are refused in words.

Two kinds and two commands run by default; all others are slow.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny
from helpers.command_line import Captured
from helpers.task_examples import EXAMPLES, FAMILIES, write_rows

import attendrop
from attendrop import cli
from attendrop.runs.config import RunConfig
from attendrop.runs.inference import predict
from attendrop.runs.model_source import Source
from attendrop.runs.train import train
from attendrop.studies.compare import compare
from attendrop.studies.run_specs import CHEAP
from attendrop.support.files import finite

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TEXT = "the cat sees a dog"
# What the usage in the card reads, and what it makes of that.
USAGE: dict[str, tuple[dict[str, Any], str]] = {
    "classification": ({"text": TEXT}, "logits"),
    "regression": ({"text": TEXT}, "logits"),
    "multi-label-classification": ({"text": TEXT}, "labels"),
    "token-classification": ({"words": TEXT.split()}, "tags"),
    "multiple-choice": ({"question": "what", "choices": ["cat", "a dog"]}, "answer"),
    "translation": ({"text": TEXT}, "translation"),
}
COMMANDS: dict[str, list[str]] = {
    "prune": ["--layers", "1", "--recover-epochs", "1", "--output-dir", "OUT/pruned"],
    "export": ["--format", "torch", "--output", "OUT/exported"],
    "export --quantize int8": ["--output", "OUT/quantized"],
    "attend": [TEXT, "--output", "OUT/page.html"],
}
REFUSED: dict[str, tuple[str, ...]] = {
    "translation": ("prune", "export", "export --quantize int8", "attend"),
    "multiple-choice": ("attend",),
}
BASELINES: dict[str, set[str]] = {
    "classification": {*CHEAP},
    "regression": {*CHEAP},
    "multi-label-classification": {*CHEAP},
    "token-classification": {"majority"},
    "multiple-choice": {"majority"},
}


KINDS = [pytest.param(kind, marks=() if place in (0, 5) else pytest.mark.slow) for place, kind in enumerate(EXAMPLES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("commands")


def options(folder: Path, kind: str) -> dict[str, Any]:
    """Options of a run on a few rows of a kind of task, whose files and model are written if need be."""
    example, model = EXAMPLES[kind], folder / EXAMPLES[kind].families[0]
    if not model.exists():
        FAMILIES[model.name](model)
    if not (folder / f"{kind}-dev.jsonl").exists():
        write_rows(folder / f"{kind}-train.jsonl", example, 0, 16)
        write_rows(folder / f"{kind}-dev.jsonl", example, 100, 6)
    files = {"train_file": f"{folder}/{kind}-train.jsonl", "eval_file": f"{folder}/{kind}-dev.jsonl"}
    columns = {"text_columns": example.texts, "label_column": example.label or None}
    found = {**files, **columns, "model": str(model), "max_length": 24, "device": "cpu", "label_names": "none"}
    return found | example.options


def trained(folder: Path, kind: str) -> Path:
    """Return the folder of a run that is resumed from its first epoch's checkpoint."""
    run = folder / f"run-{kind}"
    if not run.exists():
        how = {"epochs": 2, "batch_size": 8, "method": "ad-drop", "options": {"cross_tuning": False}}
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_the_same_and_its_card_tells_how_to_use_it(folder: Path, kind: str) -> None:
    run = trained(folder, kind)
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: " in card
    given, made = USAGE[kind]
    names: dict[str, Any] = {"folder": str(run), **given}
    for block in card.split("```python\n")[1:]:
        exec(block.split("```")[0], names)
    assert {"answers", made} <= names.keys()


def score(run: Path, captured: Captured) -> Any:
    captured.readouterr()
    assert cli.main(["evaluate", str(run), "--device", "cpu", "--json"]) == 0
    return pytest.approx(json.loads(captured.readouterr().out)["all_scores"], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_repeats_the_score_of_a_run(folder: Path, kind: str, capsys: Captured) -> None:
    run = trained(folder, kind)
    assert tiny.read_metrics(run)["all_scores"]["dev"] == score(run, capsys)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_in_python_are_those_of_a_file(folder: Path, tmp_path: Path, kind: str) -> None:
    run, output, file = trained(folder, kind), tmp_path / "out.jsonl", folder / f"{kind}-dev.jsonl"
    predict(str(run), Source(file=str(file), device="cpu"), str(output))
    expected = [[*json.loads(line).values()][1] for line in output.read_text(encoding="utf-8").splitlines()]
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    texts = [tuple(row[name] for name in EXAMPLES[kind].texts) for row in rows]
    assert finite(attendrop.load(run).predict(texts)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_adapter_is_trained_and_scored(folder: Path, tmp_path: Path, kind: str, capsys: Captured) -> None:
    adapter = {"lora": {"r": 2, "targets": "all-linear"}, "method": "finetune", "max_steps": 2}
    metrics = train(RunConfig(**(options(folder, kind) | adapter), output_dir=str(tmp_path / "run")))
    assert metrics["all_scores"]["dev"] == score(tmp_path / "run", capsys)


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
        assert tiny.read_metrics(tmp_path / "pruned")["all_scores"]["dev"] == score(tmp_path / "pruned", capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_comparison_has_the_baselines_that_are_defined(folder: Path, tmp_path: Path, kind: str) -> None:
    how: dict[str, Any] = {"methods": ["ad-drop"], "seeds": 1, "max_steps": 2, "workers": 1, "keep_best": False}
    outcome = compare(**options(folder, kind), **how, output_dir=str(tmp_path))
    assert {row.method for row in outcome.answer.rows} == {"finetune", "ad-drop"} | BASELINES.get(kind, set())
