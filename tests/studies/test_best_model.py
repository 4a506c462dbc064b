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
from attendrop.studies.compare import best_model
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
            metrics: dict[str, Any] = {"task": "files", "model": "m", "metric": "accuracy"}
            metrics |= {"method": name, "seed": seed}
            own_options = own.regularizer.options() | (decided or {} if name != "finetune" else {})
            metrics |= {"options": {} if baseline else own_options, "score": score, "train_seconds": 1.0}
            metrics |= {"data": {"selected_on": None, "rewarded_on": None, "rows": {"dev": 3000}}}
            metrics |= {"row_scores": {"rows": 3000, "data": "", "blocks": [score] * 100}}
            unit = Unit(dataclasses.replace(own, seed=seed), baseline)
            results.append(Result(unit, Path(f"{name}-{seed}"), metrics, None))
    found = answer([each.metrics for each in results if each.metrics is not None])
    wanted = best_model(found, results, config, resolve_run(config).task.type, Path(config.output_dir))
    assert wanted.keep_model
    return wanted.baseline, resolve_run(wanted.config).config


ALL = {"test_fraction": 0.0}
FROZEN = ALL | {"max_steps": 0, "head_init": "linear-probe", "pooling": "mean", "lora": None, "patience": None}
KEPT = {"test_fraction": 0.25}  # rows that a run needs stay held out


@pytest.mark.parametrize(
    ("options", "recommended", "baseline", "expected"),
    [
        ({}, "mixout", None, ALL | {"method": "mixout", "seed": 0, "selection_fraction": 0.0, "refit": False}),
        ({}, "frozen", None, FROZEN),  # a linear model on the encoder
        ({"lora": {"r": 2}}, "frozen", None, FROZEN),
        ({"patience": 2}, "frozen", None, FROZEN),
        ({"protocol": "paper"}, "tfidf", "tfidf", ALL | {"protocol": "held-out"}),  # no models of transformers
        ({"protocol": "paper"}, "setfit", "setfit", ALL | {"protocol": "held-out"}),
        ({"model": "gpt2"}, "frozen", "frozen", ALL | {"protocol": "held-out"}),
        ({"patience": 2}, "mixout", None, ALL),
        ({"protocol": "paper"}, "mixout", None, KEPT),  # chooses the epoch on the evaluation rows
        ({}, "attendout", None, KEPT),  # is rewarded on them
    ],
)
def test_the_recommended_model_is_trained_on_all_rows(
    folder: Path, options: dict[str, Any], recommended: str, baseline: str | None, expected: dict[str, Any]
) -> None:
    given = {"method": "finetune", "selection_fraction": None, "refit": None, "eval_file": None, "test_fraction": 0.25}
    given |= options | {"model": f"{folder}/{options.get('model', 'model')}"}
    found = chosen(tiny.config(folder, "answer", **given), {"finetune": LOW, recommended: HIGH})
    assert found[0] == baseline and found[1].output_dir == f"{folder}/answer/best"
    assert {name: getattr(found[1], name) for name in expected} == expected


def test_what_the_data_decided_for_the_scores_holds_for_the_model(folder: Path) -> None:
    """On all rows, which may be too many for it, they would decide otherwise."""
    decided = {"p": 0.3, "attribution": "recorded", "layers": "all"}
    config = tiny.config(folder, "answer", method="finetune", eval_file=None, test_fraction=0.25)
    _, found = chosen(config, {"finetune": LOW, "ad-drop": HIGH}, decided)
    assert {name: found.options[name] for name in decided} == decided
