"""What AttendOut learnt: read, plotted, fitted, and trained with."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny
from helpers.command_line import Captured

from attendrop import AttendropError, cli
from attendrop.reports import learned_patterns as patterns
from attendrop.reports.figures import Figure
from attendrop.reports.learned_patterns import Numbers, Patterns
from attendrop.runs.train import train
from attendrop.support.files import model_sha256


@pytest.fixture(autouse=True)
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of figures be empty, for they take time."""
    monkeypatch.setattr(Figure, "files", lambda self: {"png": b""})


def learnt(progress: Any, probabilities: Any, planned: int = 1000, shares: Any = None) -> Patterns:
    """Patterns of made-up curves, ``(T,)`` or ``(T, layers)``."""
    steps = np.asarray(progress, dtype=np.float64) * planned
    values = np.asarray(probabilities, dtype=np.float64).reshape(len(steps), -1)
    layers = tuple(f"encoder.{i}" for i in range(values.shape[1]))
    none = np.zeros(len(steps))
    shares = np.ones(len(steps)) if shares is None else np.asarray(shares)
    return Patterns("a run", planned, layers, steps, shares, values, none, (True,) * len(steps), {"options": {}})


def write_run(folder: Path, layers: int = 2, count: int = 20, **changed: Any) -> Path:
    """The folder of a run whose layer ``i`` falls in a straight line from 0.6 to ``0.1 (i + 1)``."""
    folder.mkdir(parents=True)
    config = {"model": "org/some model", "task": "cola", "method": "attendout", "options": {"layers": "all"}}
    config |= {"output_dir": str(folder), "text_columns": [], "epochs": 3, "seed": 4, "bf16": True, "shots": None}
    steps = []
    for t in range(count):
        # In the order of text, which is not that of layers.
        falling = {i: 0.6 + (0.1 * (i + 1) - 0.6) * (t + 1) / count for i in sorted(range(layers), key=str)}
        step = {"step": 10 * (t + 1), "reward": (-1) ** t * 0.25, "baseline": 0.0, "generator_loss": 0.5}
        step |= {"attacker_survived": t % 2 == 0}
        steps.append(step | {"drop_probability": {f"encoder.{i}": value for i, value in falling.items()}})
    metrics = {"method": "attendout", "model": "org/some model", "task": "cola", "seed": 4, "all_scores": {}}
    metrics |= {"planned_steps": 10 * count, "dropout_steps": steps, "config": config, **changed}
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps({"config": config, "data_sha256": "", "files": {}}), encoding="utf-8")
    return folder


# --- Fitting


def test_no_other_values_at_the_knots_fit_better() -> None:
    random = np.random.default_rng(1)
    progress = np.linspace(0.05, 1, 40)
    found = learnt(progress, 0.5 + 0.1 * np.sin(6 * progress) + random.normal(0, 0.05, 40))
    fitted = patterns.fit(found, 3, 3)

    def error(values: Numbers) -> float:
        curve = np.interp(progress, fitted.knots, values)
        return float(np.mean((curve - found.probabilities[:, 0]) ** 2))

    best = error(fitted.values[:, 0])
    assert best == pytest.approx(fitted.rms[0] ** 2, rel=1e-4)
    assert all(error(fitted.values[:, 0] + random.normal(0, 0.01, 4)) > best for _ in range(50))


def test_a_partial_period_weighs_by_its_length() -> None:
    progress, values = np.array([0.2, 0.4, 0.6, 0.8, 0.9]), np.array([0.5, 0.45, 0.42, 0.33, 0.9])
    shares = np.array([1, 1, 1, 1, 0.5])
    fitted = patterns.fit(learnt(progress, values, shares=shares), 1, 1)
    twice = [np.append(np.repeat(column[:-1], 2), column[-1]) for column in (progress, values)]
    expected = patterns.fit(learnt(*twice), 1, 1)
    np.testing.assert_allclose(fitted.values, expected.values, atol=1e-6)
    assert fitted.rms == pytest.approx(expected.rms, abs=1e-6)


def test_what_cannot_be_fitted_is_refused() -> None:
    for progress, pieces, message in (
        ([0.5, 1.0], 0, "fit=0 must be at least 1"),
        ([0.5], 1, "fit=1: 1 dropout step, from 50% to 50% of the planned steps, do not determine the 2 knots"),
    ):
        with pytest.raises(AttendropError, match=message):
            patterns.fit(learnt(progress, [0.5] * len(progress)), pieces)


# --- The command


def change(run: Path, **entries: Any) -> None:
    metrics = tiny.read_metrics(run)
    (run / "metrics.json").write_text(json.dumps(metrics | entries))


def test_the_table_has_the_first_and_the_last_step_and_marks_what_is_partial(tmp_path: Path, capsys: Captured) -> None:
    run = write_run(tmp_path / "run", layers=12, count=100)
    steps = tiny.read_metrics(run)["dropout_steps"]
    steps[0]["drop_probability"].pop("encoder.1")
    steps[-1] |= {"step": 994, "period_share": 0.4}
    change(run, dropout_steps=steps)
    model = model_sha256(str(run))
    assert cli.main(["patterns", str(run), "--fit", "1"]) == 0
    assert (run / "scheduler.json").exists() and model_sha256(str(run)) == model  # the fit is none of the model
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split() == ["step", *map(str, range(12)), "reward", "kept"]
    assert lines[4].split() == ["10", "0.595", "–", *lines[4].split()[3:-2], "+0.250", "A"]
    assert lines[15].split()[:4] == ["994*", "0.100", "0.200", "0.300"]
    assert cli.main(["patterns", str(run)]) == 2
    assert "patterns.png' exists; --overwrite replaces it" in capsys.readouterr().err


def test_a_fit_is_written_and_its_command_trains_with_it(folder: Path, capsys: Captured) -> None:
    train(tiny.config(folder, "learnt", max_steps=1))
    learnt = tiny.read_metrics(write_run(folder / "made"))
    change(folder / "learnt", **learnt | {"config": learnt["config"] | {"options": {"layers": [0, 1]}}})
    fit, picture = folder / "f.json", folder / "p.png"
    arguments = ["--fit", "2", "--output", str(picture), "--options", str(fit), "--json"]
    assert cli.main(["patterns", str(folder / "learnt"), *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    schedule = json.loads(fit.read_text())
    assert (schedule["method"], schedule["options"]["layers"]) == ("scheduler", [0, 1])  # those of the run
    assert schedule["options"]["progress"] == [0, 0.5, 1]
    np.testing.assert_allclose(schedule["options"]["probabilities"], [[0.6, 0.35, 0.1], [0.6, 0.4, 0.2]], atol=1e-5)
    _, *command = shlex.split(found["fit"]["command"])
    assert cli.main([*command, "--output-dir", str(folder / "followed"), "--max-steps", "1", "--quiet"]) == 0
    assert tiny.read_metrics(folder / "followed")["options"] == schedule["options"]


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({"method": "ad-drop"}, ["--fit", "1"], "trained with ad-drop, which learns no dropout patterns"),
        ({"dropout_steps": []}, [], "took no dropout step; train for longer"),
        ({}, ["--options", "f.json"], "give the number of its pieces with --fit"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: Captured, changed: dict[str, Any], arguments: list[str], message: str
) -> None:
    run = write_run(tmp_path / "run", **changed)
    assert cli.main(["patterns", str(run), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and message in err
    assert sorted(path.name for path in run.iterdir()) == ["metrics.json", "run.json"]
