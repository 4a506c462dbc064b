"""The model that a comparison keeps: the recommended one, which may be a baseline, trained on all rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attendrop.files.output_files import write_text
from attendrop.runs.config import RunConfig
from attendrop.runs.model_card import CARD, with_section
from attendrop.runs.model_loading import load_config
from attendrop.studies.answer import Answer
from attendrop.studies.comparison import BEST
from attendrop.studies.method_rows import MethodRow, method_label
from attendrop.studies.units import FROZEN, REFERENCE, Result, Unit
from attendrop.tasks.heads.base import Head
from attendrop.tasks.heads.model_classes import is_encoder
from attendrop.text_tables import in_markdown
from attendrop.wording import score_text

# Options with which no row is set aside to score on.
_ALL: dict[str, Any] = {"test_fraction": 0.0, "shift": None, "shift_column": None}


def best_model(answer: Answer, results: Sequence[Result], config: RunConfig, head: Head, folder: Path) -> Unit:
    """Choose the run that gives the recommended model, or without a recommendation that of plain fine-tuning.

    A linear model on the frozen encoder is made by a run that fine-tunes nothing, so that it is a model of
    transformers. Other baselines are models of :mod:`attendrop.runs.prediction_passes`.
    """
    found = {method_label(each.metrics): (each.unit, each.metrics) for each in results if each.metrics is not None}
    unit, metrics = found[answer.use or REFERENCE]
    changes, baseline = _all_rows(unit.config), unit.baseline
    if baseline is None:
        changes["options"] = metrics["options"]  # also what the data of the comparison's runs decided
    else:
        changes = _ALL | {"lora": None, "patience": None, "selection_fraction": 0.0}
        changes |= {"refit": False, "protocol": "honest"}
    if baseline == FROZEN and head.one_vector and is_encoder(load_config(unit.config.model)):
        changes |= {"max_steps": 0, "head_start": "frozen", "pooling": "mean"}
        baseline = None
    changes |= {"seed": config.seed, "output_dir": str(folder / BEST)}
    return Unit(dataclasses.replace(unit.config, **changes), baseline, keep_model=True)


def add_scores(answer: Answer, label: str, folder: Path) -> None:
    """Add the comparison's score to the card of the kept model.

    The score belongs to other models: the kept one may be trained on the scored rows.
    """
    card, row = folder / CARD, next((row for row in answer.rows if row.label == label), None)
    if row is None or not card.exists():  # without a finite score, there is no row
        return
    unlike = next((each for each in answer.shifted.rows if each.label == label), None) if answer.shifted else None
    of = "the score of one seed" if row.n == 1 else f"the mean and the standard deviation of {row.n} seeds"
    there = "" if unlike is None or answer.shifted is None else f"; {_spread(unlike)} on {answer.shifted.scored_on}"
    scores = in_markdown(f"{answer.metric} {_spread(row)}, {of}, on {answer.scored_on}{there}.")
    text = (
        f"`{label}`: {scores} These are scores of the comparison's models, which were trained without these rows, and "
        "not of this one, which was trained in the end."
    )
    write_text(card, with_section(card.read_text(encoding="utf-8"), "In the comparison", text))


def _spread(row: MethodRow) -> str:
    return score_text(row.mean) + ("" if row.std is None else f" ± {score_text(row.std, row.mean)}")


def _all_rows(config: RunConfig) -> dict[str, Any]:
    """Return the options for training on all rows, except those that the method or the protocol needs.

    Rows held out to choose the epoch are finally trained on.
    """
    on_evaluation_rows = config.rewarded_on == "eval" or config.protocol == "paper"
    changes: dict[str, Any] = {} if on_evaluation_rows else dict(_ALL)
    chooses = config.patience is not None or config.selection_fraction
    return changes | ({"refit": None} if chooses else {"selection_fraction": 0.0, "refit": False})
