"""The model that a comparison keeps: whatever is recommended, its run can be made."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers import tiny

from attendrop.runs.config import RunConfig
from attendrop.runs.resolved_run import resolve_run
from attendrop.studies.answer import answer
from attendrop.studies.best_model import best_model
from attendrop.studies.units import Result, Unit

HIGH, LOW = (0.9, 0.91, 0.89, 0.9, 0.92), (0.7, 0.72, 0.69, 0.7, 0.71)


@pytest.fixture(scope="module")
def folder(folder: Path) -> Path:
    tiny.save_tiny_gpt2(folder / "gpt2")
    return folder


def chosen(
    config: RunConfig, scores: dict[str, tuple[float, ...]], decided: dict[str, Any] | None = None
) -> tuple[str | None, RunConfig]:
    """Choose the model of a comparison with these scores, and resolve its run as training would.

    Its data ``decided`` on these options of the methods, if any.
    """
    results = []
    for name, of_seeds in scores.items():
        baseline = name if name in ("frozen", "tfidf", "setfit") else None
        options = {"reward_data": "eval"} if name == "attendout" else {}
        own = dataclasses.replace(config, method="finetune" if baseline else name, options=options)
        for seed, score in enumerate(of_seeds):
            metrics: dict[str, Any] = {
                "task": "files",
                "model": "m",
                "metric": "accuracy",
                "method": name,
                "seed": seed,
            }
            own_options = own.regularizer.options() | (decided or {} if name != "finetune" else {})
            metrics |= {"options": {} if baseline else own_options, "score": score, "train_seconds": 1.0}
            metrics |= {"data": {"selected_on": None, "rewarded_on": None, "rows": {"dev": 3000}}}
            metrics |= {"row_scores": {"rows": 3000, "data": "", "blocks": [score] * 100}}
            unit = Unit(dataclasses.replace(own, seed=seed), baseline)
            results.append(Result(unit, Path(f"{name}-{seed}"), metrics, None))
    found = answer([each.metrics for each in results if each.metrics is not None])
    wanted = best_model(found, results, config, resolve_run(config).task.head, Path(config.output_dir))
    assert wanted.keep_model
    return wanted.baseline, resolve_run(wanted.config).config


def comparison_config(folder: Path, **options: Any) -> RunConfig:
    given = {"method": "finetune", "selection_fraction": None, "refit": None, "eval_file": None, "test_fraction": 0.25}
    return tiny.config(folder, "answer", **(given | options))


def test_a_recommended_method_is_trained_on_all_rows(folder: Path) -> None:
    baseline, config = chosen(comparison_config(folder), {"finetune": LOW, "mixout": HIGH})
    assert (baseline, config.method, config.seed, config.output_dir) == (None, "mixout", 0, f"{folder}/answer/best")
    assert (config.test_fraction, config.selection_fraction, config.refit) == (0.0, 0.0, False)


def test_what_the_data_decided_for_the_scores_holds_for_the_model(folder: Path) -> None:
    """On all rows, which may be too many for it, they would decide otherwise."""
    decided = {"p": 0.3, "attribution": "recorded", "layers": "all"}
    _, config = chosen(comparison_config(folder), {"finetune": LOW, "ad-drop": HIGH}, decided)
    assert {name: config.options[name] for name in decided} == decided


@pytest.mark.parametrize("options", [{}, {"lora": {"r": 2}}, {"patience": 2}], ids=["plain", "lora", "patience"])
def test_a_recommended_frozen_encoder_is_a_linear_model_on_it(folder: Path, options: dict[str, Any]) -> None:
    baseline, config = chosen(comparison_config(folder, **options), {"finetune": LOW, "frozen": HIGH})
    assert (baseline, config.max_steps, config.head_start, config.pooling) == (None, 0, "frozen", "mean")
    assert config.lora is None and config.patience is None


@pytest.mark.parametrize(("model", "name"), [("model", "tfidf"), ("model", "setfit"), ("gpt2", "frozen")])
def test_what_is_no_model_of_transformers_is_kept_as_a_baseline(folder: Path, model: str, name: str) -> None:
    given = comparison_config(folder, model=f"{folder}/{model}", protocol="paper")
    baseline, config = chosen(given, {"finetune": LOW, "r-drop": tuple(x - 0.1 for x in LOW), name: HIGH})
    assert (baseline, config.test_fraction, config.protocol) == (name, 0.0, "honest")


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("autodropout", {}),  # scores on a selection split
        ("mixout", {"patience": 2}),
        ("mixout", {"protocol": "paper"}),  # chooses the epoch on the evaluation rows
        ("attendout", {}),  # is rewarded on them
    ],
)
def test_rows_that_a_run_needs_stay_held_out(folder: Path, method: str, options: dict[str, Any]) -> None:
    baseline, config = chosen(comparison_config(folder, **options), {"finetune": LOW, method: HIGH})
    assert (baseline, config.method) == (None, method)
    assert config.test_fraction == (0.25 if method == "attendout" or "protocol" in options else 0.0)
