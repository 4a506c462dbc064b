"""Choice of an encoder before methods are compared: each one frozen, with a linear model, on the training rows alone.

The evaluation rows play no part, so that what is compared on the chosen encoder is scored on rows that nothing has
seen.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.data import divide, load_data
from attendrop.runs.inference import frozen_features
from attendrop.runs.model_loading import load_config, load_for
from attendrop.studies import FROZEN
from attendrop.studies.answer import DECIMALS, ERROR_MARGIN, MethodRow, ends, number, p_text, signed
from attendrop.studies.baselines import defined_for
from attendrop.studies.statistics import ALPHA, Estimate, holm
from attendrop.tasks.base import Task, encode, with_others
from attendrop.tasks.class_names import AUTO
from attendrop.tasks.metrics import RowScores, compute_scores, row_scores
from attendrop.tasks.splits import groups_of
from attendrop.tasks.tokenization import columns_of, document_means, of_documents
from attendrop.tasks.types.base import Array
from attendrop.tasks.types.linear_models import fit_logistic_regression, stratified_parts
from attendrop.wording import counted, decimals

# Each row is held out once in each repetition; four fifths of the rows are nearly as many as there are.
FOLDS, REPEATS = 5, 3
logger = logging.getLogger(__name__)
# What ``auto`` stands for, by size: encoders of English texts that need no code of their own. Their licences, and the
# published figures by which they were chosen, are in docs/compare.md.
PUBLISHED = (
    "minilm",
    "thenlper/gte-small",
    "BAAI/bge-small-en-v1.5",
    "sentence-transformers/all-mpnet-base-v2",
    "BAAI/bge-base-en-v1.5",
    "Alibaba-NLP/gte-modernbert-base",
)


@dataclass(frozen=True)
class ScreenedEncoder:
    """Frozen encoder with a linear model in cross-validation.

    Attributes:
        seconds: Of reading 1,000 rows on this device, tokenization included.
        difference: Score minus that of the best; None for the best.
        p_holm: Its p value over rows and repetitions, corrected over the encoders; None for the best.
    """

    model: str
    parameters: int
    score: float
    seconds: float
    difference: Estimate | None = None
    p_holm: float | None = None


@dataclass(frozen=True)
class Screening:
    """Comparison of encoders on the training rows, the best one first.

    The cheapest is chosen of the best and of those that are not shown to be behind it; cheap is what has few
    parameters, as times vary.

    Attributes:
        rows: Number of training rows, without names of classes.
        left_out: Encoders of ``auto`` that could not be loaded.
    """

    metric: str
    rows: int
    encoders: tuple[ScreenedEncoder, ...]
    left_out: tuple[str, ...] = ()

    @property
    def chosen(self) -> ScreenedEncoder:
        """The encoder that methods are compared on."""
        good = [each for each in self.encoders if each.p_holm is None or each.p_holm > ALPHA]
        return min(good, key=lambda each: each.parameters)

    @property
    def decimals(self) -> int:
        """How many decimals scores are shown with."""
        is_error = self.metric.startswith("neg_")
        return decimals(ERROR_MARGIN * abs(self.encoders[0].score), DECIMALS) if is_error else DECIMALS

    def name_of(self, encoder: ScreenedEncoder) -> str:
        """Return the last part of an encoder's name, or the whole name if another one has the same part."""
        short = Path(encoder.model).name
        return short if [Path(each.model).name for each in self.encoders].count(short) == 1 else encoder.model

    @property
    def sentences(self) -> list[str]:
        """Say which encoder is chosen, why, and which ones are left out."""
        best, chosen = self.encoders[0], self.chosen
        smaller = [each for each in self.encoders if each.parameters < chosen.parameters]

        def lead(other: ScreenedEncoder) -> str:
            assert other.difference is not None
            low, value, high = -other.difference.high, -other.difference.value, -other.difference.low
            names = f"{self.name_of(best)} minus {self.name_of(other)}"
            difference = f"{signed(value, self.decimals)} {ends(Estimate(value, low, high), self.decimals)}"
            return f"({names}: {self.metric} {difference})"

        if len(self.encoders) == 1:
            reason = "it is the only one that could be loaded" if self.left_out else "no other is given"
        elif chosen is not best:
            reason = (
                f"the best one is not shown to be ahead of it {lead(chosen)}, and none as good is smaller; where cost "
                f"matters less, name {best.model} by --model"
            )
        elif smaller:
            best_smaller = max(smaller, key=lambda each: each.score)
            reason = f"it is shown to be ahead of all that are smaller {lead(best_smaller)}"
        else:
            reason = "it has the best score, and none is smaller"
        rows = f"on the {self.rows} training rows"
        told = f"Encoder: {self.name_of(chosen)}. Frozen, with a linear model, {rows}, {reason}."
        left_out = f"Left out, because they cannot be loaded here: {', '.join(self.left_out)}."
        return [told, left_out] if self.left_out else [told]

    def table(self) -> list[tuple[str, ...]]:
        """Return the header and the rows of a table, as texts."""
        header = ("encoder", "parameters", self.metric, "minus the best [95 % CI]", "p (Holm)", "s per 1,000 rows")
        rows, digits = list[tuple[str, ...]]([header]), self.decimals
        for each in self.encoders:
            found, p = each.difference, each.p_holm
            told = "-" if found is None else f"{signed(found.value, digits)} {ends(found, digits)}"
            name = self.name_of(each) + (" (chosen)" if each is self.chosen else "")
            size, score = f"{each.parameters / 1e6:.3g} M", number(each.score, digits)
            rows.append((name, size, score, told, "-" if p is None else p_text(p), f"{each.seconds:.1f}"))
        return rows

    @property
    def title(self) -> str:
        """What the table is."""
        return f"{self.metric} of frozen encoders on training rows, {FOLDS} folds, {REPEATS} times:"

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Read what ``asdict`` returned, in JSON."""
        encoders = [each | {"difference": (of := each["difference"]) and Estimate(**of)} for each in found["encoders"]]
        every = tuple(ScreenedEncoder(**each) for each in encoders)
        return cls(found["metric"], found["rows"], every, tuple(found["left_out"]))


def screen(config: RunConfig, models: Sequence[str]) -> Screening:
    """Score encoders by cross-validation on the training rows of a run with this configuration; names may be ``auto``.

    Names of classes that are training rows are never held out, and rows that belong together are held out together.
    All encoders are scored on the same held-out rows by models of the same other rows, so that they are paired by row.
    The features of an encoder are computed once, by the mean over tokens, as the baseline ``frozen`` reads them.

    Raises:
        AttendropError: The kind of task has no linear model, a model cannot be loaded, or there are too few rows.
    """
    data = load_data(config)
    task, found = data.task, divide(config.filled(selection_fraction=0.0, refit=False, patience=None), data)
    if FROZEN not in defined_for(task):
        raise AttendropError(
            f"Encoders are chosen by a linear model, which {task.type.kind} tasks do not have; omit models, and name "
            "one by model."
        )
    real, rows, scored, left_out = found.real.train, found.train, list[tuple[MethodRow, ScreenedEncoder]](), []
    groups = np.array(groups_of(with_others(real, joined=False), task))
    if groups.max(initial=0) == 0:
        raise AttendropError(f"{counted(len(real), 'row')} of one text or group cannot be held out; omit models.")
    for name in models:  # a mistake in a name is told before the others are read
        if name != AUTO:
            load_config(name)
    for name in dict.fromkeys(each for given in models for each in (PUBLISHED if given == AUTO else [given])):
        try:
            encoder, tokenizer = load_for(name, task)[:2]
        except AttendropError:
            if name in models or AUTO not in models:
                raise
            left_out.append(name)
            continue
        start = time.monotonic()
        encoded = columns_of(encode(rows, task, tokenizer, config.max_length))
        features = frozen_features(encoder, tokenizer, task.type, encoded, config.eval_batch_size, config.device)
        seconds = 1000 * (time.monotonic() - start) / len(rows)
        logger.info("%s: %.2g seconds for 1,000 rows.", name, seconds)
        balanced = config.class_weights is not None
        row = cross_validated(name, task, real, document_means(features, encoded), encoded, groups, balanced=balanced)
        parameters = sum(each.numel() for each in encoder.base_model.parameters())
        scored.append((row, ScreenedEncoder(name, parameters, row.mean, seconds)))
    if not scored:
        raise AttendropError("None of the encoders of models=auto can be loaded here; name folders by models.")
    scored.sort(key=lambda each: (-each[1].score, each[1].parameters))
    (best, first), *others = scored
    leads = {each.model: lead for row, each in others if (lead := row.versus(best))}  # all have the same repetitions
    p_holm = holm({name: 1.0 if lead.p_value is None else lead.p_value for name, lead in leads.items()})
    behind = [replace(each, difference=leads[each.model].mean, p_holm=p_holm[each.model]) for _, each in others]
    return Screening(task.metric, len(real), (first, *behind), tuple(left_out))


def cross_validated(
    name: str, task: Task, real: Dataset, features: Array, encoded: Mapping[str, Any], groups: Array, *, balanced: bool
) -> MethodRow:
    """Score a linear model of features by cross-validation, divided among rows: one score for each repetition.

    ``features``, ``(rows, features)``, and the ``encoded`` columns are those of all rows, of which the ``real`` ones
    come first, and are held out by their ``groups``, ``(real rows,)``. The strength of
    :meth:`attendrop.tasks.types.base.TaskType.fit_linear`, if it is chosen among several, is chosen once, on all rows.
    """
    task_type, targets = task.type, list(of_documents(encoded["labels"][:], encoded))
    references = task_type.references(encoded)
    whole, options = task_type.fit_linear(features, targets, balanced=balanced), dict[str, Any]()
    if whole is not None and type(task_type).linear_model is fit_logistic_regression:
        options["strength"] = whole.settings["C"]
    strata = np.array(task_type.strata_of(real)) if len(task_type.strata) > 1 else np.zeros(len(real), int)
    scores, by_row = dict[int, float](), dict[int, RowScores]()
    for repeat in range(REPEATS):
        part_of = stratified_parts(groups, strata, FOLDS, repeat, strata=max(len(task_type.strata), 1))
        outputs: Any = None
        for part in np.unique(part_of):
            held = np.flatnonzero(part_of == part)
            kept = np.setdiff1d(np.arange(len(targets)), held)
            fit = task_type.fit_linear(features[kept], [targets[row] for row in kept], balanced=balanced, **options)
            if fit is None:  # all of one class, or of one number
                constant = task_type.constant_answer(references[kept], references[held])
                assert constant is not None  # what is of one vector has one
                found = constant[1]
            else:
                found = fit.outputs(features[held])
            outputs = np.zeros((len(real), *found.shape[1:])) if outputs is None else outputs
            outputs[held] = found
        scores[repeat] = compute_scores(task, outputs, references[: len(real)])[task.metric]
        if (divided := row_scores(task, outputs, references[: len(real)], real)) is not None:
            by_row[repeat] = divided
    scale = statistics.fmean(map(abs, scores.values())) if task.metric.startswith("neg_") else 1.0
    return MethodRow(name, FROZEN, {}, scores, by_row=by_row, scale=scale, span=task_type.metrics[task.metric].span)
