"""Rows of a comparison: each method's scores, the data they are on, its gain and its cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import labelled_method
from attendrop.studies.run_specs import BASELINES, LABEL
from attendrop.studies.statistics import Array, Estimate, PairedDifference, holm, paired_difference
from attendrop.tasks.metrics import RowScores
from attendrop.tasks.table import files_of

Metrics = Mapping[str, Any]
_UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class MethodRow:
    """A method with its options in a comparison.

    Attributes:
        label: Name of the method with the options that are not its defaults, such as "METHOD p=0.9".
        method: Name of the method, or of the baseline.
        scores, folders: Scores, and names of the folders of the runs, by seed.
        is_reference: Whether the others are compared with it.
        selected_on_reported: Whether a model was chosen on the rows of its score, which flatters it.
        by_row: Scores divided among the evaluation rows, by seed; without seeds whose rows are not known.
        difference: Comparison with the reference; None for the reference, and without a common seed.
        p_holm: p value of the difference over seeds and examples, corrected over all methods other than baselines.
        scale: How far scores may differ: 1, or of errors, which have no limit, their mean.
        cost: Median ratio of the seconds of training to those of the reference, per step where both take steps, since
            runs may choose different numbers of epochs; None if unknown.
    """

    label: str
    method: str
    options: Mapping[str, Any]
    scores: Mapping[int, float]
    folders: Mapping[int, str] = field(default_factory=dict)
    is_reference: bool = False
    selected_on_reported: bool = False
    by_row: Mapping[int, RowScores] = field(default_factory=dict, repr=False, compare=False)
    difference: PairedDifference | None = None
    p_holm: float | None = None
    scale: float = 1.0
    cost: float | None = None

    @property
    def n(self) -> int:
        """Number of seeds."""
        return len(self.scores)

    @property
    def pairs(self) -> int:
        """Number of seeds that the reference has, too."""
        return 0 if self.difference is None else self.difference.n

    @cached_property
    def mean(self) -> float:
        """Mean score."""
        return statistics.fmean(self.scores.values())

    @cached_property
    def std(self) -> float | None:
        """Standard deviation (n - 1) of the scores; None for one seed."""
        return statistics.stdev(self.scores.values()) if self.n > 1 else None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values, without the scores by row; an infinite end of an interval is None."""
        found = self.difference
        return {
            "label": self.label,
            "method": self.method,
            "options": dict(self.options),
            "baseline": self.is_baseline,
            "n": self.n,
            "mean": self.mean,
            "std": self.std,
            "pairs": self.pairs,
            **(found.mean if found else _UNKNOWN).as_dict("difference"),
            **(found.seeds_only if found else _UNKNOWN).ends("these_rows"),
            "ahead": None if found is None else found.ahead,
            "p": None if found is None else found.p_value,
            "p_holm": self.p_holm,
            "time_ratio": self.cost,
            "selected_on_reported": self.selected_on_reported,
            "scores": {str(seed): score for seed, score in self.scores.items()},
            "differences": None if found is None else list(found.values),
            "components": None if found is None or found.components is None else asdict(found.components),
            "runs": {str(seed): name for seed, name in self.folders.items()},
        }

    @property
    def is_baseline(self) -> bool:
        """Whether nothing is fine-tuned."""
        return self.method in BASELINES

    def versus(self, other: MethodRow) -> PairedDifference | None:
        """Compare with another method on the seeds that both have; None if there is none."""
        seeds = sorted(self.scores.keys() & other.scores.keys())
        if not seeds:
            return None
        first, second = ([row.scores[seed] for seed in seeds] for row in (self, other))
        if (by_row := self.row_differences(other, seeds)) is None:
            return paired_difference(first, second)
        of, scale = self.by_row[seeds[0]], max(self.scale, other.scale)
        return paired_difference(first, second, by_row, of.rows, groups=of.groups, scale=scale)

    def row_differences(self, other: MethodRow, seeds: Sequence[int]) -> Array | None:
        """Subtract the scores divided among rows, ``(seeds, rows or blocks)``; None if unknown, or on other rows."""
        known = [row.by_row[seed] for row in (self, other) for seed in seeds if seed in row.by_row]
        units = [each.by_unit for each in known]
        alike = {(each.data, each.groups, len(values)) for each, values in zip(known, units, strict=True)}
        if len(known) < 2 * len(seeds) or len(alike) > 1:
            return None
        values: Array = np.stack(units)
        return values[: len(seeds)] - values[len(seeds) :]


def method_label(metrics: Metrics) -> str:
    """Name a run by its method and its options without the defaults, from its ``metrics.json``.

    Options that the data decided are not in the name, so that runs on other data have the same one.
    A study or comparison that has its own name for the method adds it as :data:`attendrop.studies.run_specs.LABEL`.
    """
    if own := metrics.get(LABEL):
        return str(own)
    method: str = metrics["method"]
    if method in BASELINES:
        return method
    options: Mapping[str, Any] = metrics.get("config", {}).get("options", metrics["options"])
    return labelled_method(method, options)


def method_rows(runs: Sequence[Metrics], reference: str) -> list[MethodRow]:
    """Make the rows of a comparison of runs with finite scores: the reference, other methods, baselines, by mean score.

    Raises:
        AttendropError: Two runs have the same label and seed.
    """
    groups: dict[str, dict[int, Metrics]] = {}
    for run in runs:
        label, seed = method_label(run), run["seed"]
        if seed in groups.setdefault(label, {}):
            raise AttendropError(
                f"Two runs of '{label}' have seed {seed}: '{groups[label][seed].get('output_dir')}' and "
                f"'{run.get('output_dir')}'; compare runs that differ in method and seed only."
            )
        groups[label][seed] = run
    rows = []
    for label, group in groups.items():
        seeds, first, is_reference = sorted(group), next(iter(group.values())), label == reference
        against = groups.get(reference, {})
        ratios = [_time_ratio(group[seed], against[seed]) for seed in seeds if seed in against]
        known = [ratio for ratio in ratios if ratio is not None]
        is_error = first.get("metric", "").startswith("neg_")
        row = MethodRow(
            label,
            first["method"],
            first["options"],
            {seed: float(group[seed]["score"]) for seed in seeds},
            {seed: Path(group[seed]["output_dir"]).name for seed in seeds if group[seed].get("output_dir")},
            is_reference,
            any("dev" in (run["data"].get("selected_on"), run["data"].get("rewarded_on")) for run in group.values()),
            {seed: RowScores.from_dict(found) for seed in seeds if (found := group[seed].get("row_scores"))},
            scale=statistics.fmean(abs(run["score"]) for run in group.values()) if is_error else 1.0,
            cost=1.0 if is_reference else statistics.median(known) if known else None,
        )
        rows.append(row)
    rows.sort(key=lambda row: (not row.is_reference, row.is_baseline, -row.mean))
    if not rows or not rows[0].is_reference:
        return rows
    compared = [replace(row, difference=row.versus(rows[0])) for row in rows[1:]]
    tested = [(row.label, row.difference) for row in compared if row.difference is not None and not row.is_baseline]
    p_values = {label: found.p_value for label, found in tested if found.p_value is not None}
    p_holm = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    return [rows[0], *(replace(row, p_holm=p_holm.get(row.label)) for row in compared)]


def _time_ratio(run: Metrics, reference: Metrics) -> float | None:
    """Divide the times of training, per step where both took steps, in the selection, too; baselines take none."""
    if not reference["train_seconds"] > 0:
        return None
    ratio = float(run["train_seconds"] / reference["train_seconds"])
    before = [(each.get("selection") or {}).get("history") or [{"step": 0}] for each in (run, reference)]
    own, others = (
        each.get("steps", 0) + found[-1]["step"] for each, found in zip((run, reference), before, strict=True)
    )
    return ratio * others / own if own and others else ratio


def has_score(run: Metrics) -> bool:
    """Whether a run has a score on evaluation rows, and it is a number."""
    return run.get("score") is not None and math.isfinite(run["score"])


# What scores are on, in words -----------------------------------------------------------------------------------------


def scored_on(run: Metrics) -> str:
    """Describe the rows on which a run is scored, with their number."""
    rows = run["data"]["rows"].get("dev")
    return scored_data(run, "" if rows is None else f" ({rows} rows{_in_groups(run.get('row_scores'), run)})")


def scored_out_of_distribution(run: Metrics) -> str:
    """Describe the rows of a run's out-of-distribution split, with their number."""
    column, rows = run.get("config", {}).get("ood_column"), run["data"]["rows"]["ood"]
    held = "whole groups of similar texts" if column is None else f"whole values of '{column}'"
    return f"the OOD split ({rows} rows{_in_groups(run['ood'].get('row_scores'), run)}, {held}, held out)"


def _in_groups(scores: Mapping[str, Any] | None, run: Metrics) -> str:
    """Say how many groups the rows of some row scores form, with a space before it; empty if rows are the units."""
    if not scores or "groups" not in scores:
        return ""
    return f" of {scores['groups']} {'groups' if run.get('config', {}).get('group_column') else 'texts'}"


def scored_data(run: Metrics, count: str = "") -> str:
    """Name the data on which a run is scored, with their ``count``, and the file that it was trained on."""
    config = run.get("config", {})
    trained, evaluated = (
        ", ".join(file.name for file in files_of(config.get(name) or "")) for name in ("train_file", "eval_file")
    )
    place = evaluated or trained or str(config.get("task") or run["task"])
    if config.get("test_fraction"):
        unlike = config.get("ood") or config.get("ood_column")  # were held out before
        part = "a random part" if unlike else f"{100 * config['test_fraction']:g} %"
        place = f"{part} of {trained or place}, set aside"
    return place + count + (f", trained on {trained}" if evaluated else "")


def holds_for(run: Metrics, rows: Sequence[MethodRow], leads: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe what the intervals of a comparison hold for, given a run, its rows, and leads over the best baseline."""
    differences = [row.difference for row in rows if row.difference is not None]
    found = [each for each in leads.values() if each["seeds"] > 1]  # also of those without a seed of the reference
    if not found and not any(each.n > 1 for each in differences):
        one = "One seed gives no intervals."
        return one if differences else "Nothing is compared with the reference: there are no intervals."
    config, trained = run.get("config", {}), ", with the same training rows"
    if config.get("shots"):
        trained = f" and other samples of {config['shots']} training rows per class"
    elif config.get("max_train_samples"):
        trained = f" and other samples of {config['max_train_samples']} training rows"
    if not any(each.components for each in differences) and not any(each["value_low"] is not None for each in found):
        return f"The intervals hold for other seeds{trained}, on these evaluation rows only."
    column = config.get("group_column")
    other = "evaluation rows" if column is None else f"groups of evaluation rows, by {column!r},"
    file = ", ".join(each.name for each in files_of(config.get("eval_file") or config.get("train_file") or ""))
    return (
        f"95 % CI (seeds × examples): for other seeds{trained}, and other {other} like those of {file or run['task']}; "
        "(seeds only): for these evaluation rows."
    )
