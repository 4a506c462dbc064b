"""Folders of finished runs with given scores and curves, as studies leave them, and a kept model beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attendrop.runs.train import train
from attendrop.studies import BASELINES
from attendrop.support.files import write_json
from helpers import tiny

EPOCHS = 3
# Scores of four seeds: of a reference, and of methods that are significantly ahead and behind.
PLAIN, AHEAD, BEHIND = (0.50, 0.52, 0.51, 0.53), (0.60, 0.63, 0.61, 0.62), (0.40, 0.42, 0.41, 0.44)


def history(score: float, *, held_out: bool = True) -> list[dict[str, Any]]:
    """Make the entries of epochs of four steps: losses that fall, a score that rises."""
    return [
        {
            "epoch": epoch,
            "step": 4 * epoch,
            "train_loss": 1 / epoch,
            "selection": {"accuracy": score * epoch / EPOCHS} if held_out else {},
            "selection_loss": 1.2 / epoch if held_out else None,
            "regularized": True,
            "dropped": {},
            "figures": {},
        }
        for epoch in range(1, EPOCHS + 1)
    ]


def write_run(
    folder: Path,
    method: str,
    score: float | None,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    **more: Any,
) -> Path:
    """Write the ``metrics.json`` of a run below ``folder/runs``; ``more`` replaces its entries."""
    baseline = method in BASELINES
    options = dict(options or {})
    given = {"task": "cola", "train_file": None, "max_train_samples": None, "learning_rate": None} | dict(config or {})
    task = given["task"] or "files"
    numbered = sum(1 for _ in (folder / "runs").glob("*")) if (folder / "runs").exists() else 0
    place = folder / "runs" / f"{numbered}-seed{seed}"
    place.mkdir(parents=True)
    trained = {
        **{"history": history(score or 0.0), "dropout_steps": [], "selection": None, "steps": 12, "planned_steps": 12},
        "training": {"max_steps": 12, "learning_rate": 1e-4},
        "train_fit": {"rows": 40, "loss": 0.25, "metric": "accuracy", "score": 1.0, "fitted": True},
    }
    rows = {"train": given["max_train_samples"] or 40, "dev": 2000}
    metrics = {
        **{"task": task, "model": "minilm", "method": method, "options": {} if baseline else options, "seed": seed},
        **{"protocol": "held-out", "metric": "accuracy", "selection_score": None, "score": score},
        "all_scores": {"dev": {"accuracy": score}},
        # Rows add no noise: the interval is that of the paired t test of the seeds.
        "row_scores": {"rows": 2000, "data": task, "blocks": [score] * 100},
        **({} if baseline else trained),
        "train_seconds": 0.5 if baseline else 20.0 if method == "finetune" else 35.0,
        "data": {"source": "task", "selected_on": None, "rows": rows},
        "config": given | {"method": "finetune" if baseline else method, "options": options, "seed": seed},
        "output_dir": str(place),
        "versions": {"attendrop": "0.1.0"},
    }
    write_json(place / "metrics.json", metrics | more)
    return place


def write_runs(folder: Path, method: str, scores: Sequence[float], **options: Any) -> list[Path]:
    """Write a run for each score; their seeds are 0, 1 and so on."""
    return [write_run(folder, method, score, seed=seed, **options) for seed, score in enumerate(scores)]


def write_comparison(folder: Path, scores: Mapping[str, Sequence[float]], **options: Any) -> Path:
    """Make a comparison of runs with given scores by method, and train the tiny model that it keeps, with ``options``.

    The model and the data are made in ``folder``, too.
    """
    tiny.save_tiny_bert(folder / "model")
    tiny.write_data(folder)
    files = {"task": None, "train_file": str(folder / "train.csv")}
    for method, found in scores.items():
        write_runs(folder / "answer", method, found, config=files)
    chosen = {"selection_fraction": 0.0, "method": "ad-drop", "options": {"cross_tuning": False}}
    train(tiny.config(folder, "answer/best", **(chosen | options)))
    return folder / "answer"
