"""Answer of a comparison: its methods beside one another, the decision, and both in words.

The decision is that of the table :data:`RULES`: the first rule that holds, with its sentence. What takes more must be
significantly ahead of what takes less, over seeds and examples: a p value of at most 0.05
(:func:`attendrop.studies.statistics.crossed_test`), by Holm for methods, from four common seeds or more. Models are
equivalent where the 95 % interval of their difference lies within the margin as a whole.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import decided_by_data, labelled_method
from attendrop.studies import BASELINES, CHEAP
from attendrop.studies.executor import LABEL, REFERENCE, WITHOUT
from attendrop.studies.statistics import ALPHA, ROUNDING, Array, Estimate, PairedDifference, holm, paired_difference
from attendrop.support.files import finite
from attendrop.tasks.class_names import names_told, unlabelled_decisions, unlabelled_told
from attendrop.tasks.metrics import BLOCKS, RowScores
from attendrop.tasks.table import files_of
from attendrop.wording import aligned, counted, decimals, in_markdown, markdown_table

# Methods in a table --------------------------------------------------------------------------------------------------

Metrics = Mapping[str, Any]


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
        scale: How far scores of a row may differ: 1, or of errors, which have no limit, their mean.
        span: Largest possible difference of two scores.
        cost: Median ratio of the seconds of training to those of the reference, per step where both take steps, since
            runs may choose different numbers of epochs; infinite if unknown.
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
    span: float = math.inf
    cost: float = math.inf

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
            **(found.mean if found else Estimate(math.nan, math.nan, math.nan)).as_dict("difference"),
            "these_rows_low": finite(found.seeds_only.low) if found else None,
            "these_rows_high": finite(found.seeds_only.high) if found else None,
            "ahead": None if found is None else found.ahead,
            "p": None if found is None else found.p_value,
            "p_holm": self.p_holm,
            "time_ratio": finite(self.cost),
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
            return paired_difference(first, second, span=self.span)
        of, scale = self.by_row[seeds[0]], max(self.scale, other.scale)
        return paired_difference(first, second, by_row, of.rows, groups=of.groups, scale=scale, span=self.span)

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
    A study or comparison that has its own name for the method adds it as :data:`attendrop.studies.executor.LABEL`.
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
        known, metric = list[float](), first.get("metric", "")
        for seed, plain in groups.get(reference, {}).items():
            if seed in group and plain["train_seconds"] > 0:
                ratio = float(group[seed]["train_seconds"] / plain["train_seconds"])
                own, others = (  # steps, with those of the selection; a baseline takes none
                    run.get("steps", 0) + ((run.get("selection") or {}).get("history") or [{"step": 0}])[-1]["step"]
                    for run in (group[seed], plain)
                )
                known.append(ratio * others / own if own and others else ratio)
        row = MethodRow(
            label,
            first["method"],
            first["options"],
            {seed: float(group[seed]["score"]) for seed in seeds},
            {seed: Path(group[seed]["output_dir"]).name for seed in seeds if group[seed].get("output_dir")},
            is_reference,
            any("dev" in (run["data"].get("selected_on"), run["data"].get("rewarded_on")) for run in group.values()),
            {seed: RowScores.from_dict(found) for seed in seeds if (found := group[seed].get("row_scores"))},
            scale=statistics.fmean(abs(run["score"]) for run in group.values()) if metric.startswith("neg_") else 1.0,
            span=span_of(metric),
            cost=1.0 if is_reference else statistics.median(known) if known else math.inf,
        )
        rows.append(row)
    rows.sort(key=lambda row: (not row.is_reference, row.is_baseline, -row.mean))
    if not rows or not rows[0].is_reference:
        return rows
    compared = [replace(row, difference=row.versus(rows[0])) for row in rows[1:]]
    p_holm = holm({row.label: found.p_value for row in compared if (found := row.difference) and not row.is_baseline})
    return [rows[0], *(replace(row, p_holm=p_holm.get(row.label)) for row in compared)]


def span_of(metric: str) -> float:
    """Return the largest possible difference of two scores, as the metrics of the kinds of tasks have it."""
    if metric.startswith("neg_") or metric == "r2":
        return math.inf
    return 2.0 if metric in ("matthews_correlation", "cohen_kappa", "pearson", "spearman") else 1.0


def has_score(run: Metrics) -> bool:
    """Whether a run has a score on evaluation rows, and it is a number."""
    return run.get("score") is not None and math.isfinite(run["score"])


# What scores are on, in words -----------------------------------------------------------------------------------------


def scored_on(run: Metrics, *, ood: bool = False) -> str:
    """Describe the rows on which a run is scored, with their number, or those of its out-of-distribution split."""
    config, scores = run.get("config", {}), (run["ood"] if ood else run).get("row_scores") or {}
    kind = "groups" if config.get("group_column") else "texts"
    groups = f" of {scores['groups']} {kind}" if "groups" in scores else ""
    rows = run["data"]["rows"].get("ood" if ood else "dev")
    if not ood:
        return scored_data(run, "" if rows is None else f" ({rows} rows{groups})")
    column = config.get("ood_column")
    held = "whole groups of similar texts" if column is None else f"whole values of '{column}'"
    return f"the OOD split ({rows} rows{groups}, {held}, held out)"


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


def holds_for(run: Metrics, rows: Sequence[MethodRow], leads: Mapping[str, PairedDifference]) -> str:
    """Describe what the intervals of a comparison hold for, given a run, its rows, and leads over the best baseline."""
    differences = [row.difference for row in rows if row.difference is not None]
    found = [each for each in leads.values() if each.n > 1]  # also of those without a seed of the reference
    if not found and not any(each.n > 1 for each in differences):
        one = "One seed gives no intervals."
        return one if differences else "Nothing is compared with the reference: there are no intervals."
    config, trained = run.get("config", {}), ", with the same training rows"
    if sample := config.get("shots") or config.get("max_train_samples"):
        own = ("train", "selection", "reward")
        described = (run["data"].get("report") or {}).get("parts", {})
        by_class = sum((Counter(described.get(part, {}).get("classes", {})) for part in own), Counter[str]())
        used = sum(run["data"]["rows"].get(part, 0) for part in own)
        if config.get("shots") and by_class and by_class.total() == used:  # classes with fewer rows are there with all
            most = "" if min(by_class.values()) >= sample else "at most "
            per_class, sampled = " per class", max(by_class.values()) >= sample
        else:
            most, per_class, sampled = "", " per class" if config.get("shots") and used > sample else "", used >= sample
        if sampled:
            trained = f" and other samples of {most}{sample} training rows{per_class}"
    if not any(each.components for each in (*differences, *found)):
        return f"The intervals hold for other seeds{trained}, on these evaluation rows only."
    column = config.get("group_column")
    other = "evaluation rows" if column is None else f"groups of evaluation rows, by {column!r},"
    file = ", ".join(each.name for each in files_of(config.get("eval_file") or config.get("train_file") or ""))
    return (
        f"95 % CI (seeds × examples): for other seeds{trained}, and other {other} like those of {file or run['task']}; "
        "(seeds only): for these evaluation rows."
    )


# Fewer seeds say too little of how seeds vary; from here on the test holds its level: docs/compare.md.
MIN_SEEDS = 4
# The groups of methods by their difference from the reference, in words.
GROUPS = {
    "ahead": "Also significantly ahead",
    "equivalent": "Equivalent (within ±{margin})",
    "inconclusive": "Inconclusive",
    "behind": "Significantly behind",
    "untested": "Not tested (fewer than {least} common seeds, or no scores by row)",
}
# The baselines.
IN_WORDS = {
    "majority": "the constant answer",
    "tfidf": "the TF-IDF model",
    "frozen": "the linear model on the frozen encoder",
    "setfit": "the linear model on an encoder that was trained on pairs",
}
# Decimals of scores, but for small errors.
DECIMALS = 3
_FEW = "{seeds} in common of {candidate} and {reference}: too few to tell, take {least} or more."
_NO_ROWS = (
    "The runs have no scores by row, or of different rows, so nothing is known of other rows: compare in a new folder, "
    "with two evaluation rows or more."
)
# The reason; when the rule holds for a verdict; what is used, the candidate and the reference; and the sentence.
RULES: tuple[tuple[str, Callable[[Any], Any], Callable[[Any], tuple[MethodRow | None, ...]], str], ...] = (
    # Fine-tuned models against the best baseline.
    ("few seeds", lambda f: f.base and f.gap.n < MIN_SEEDS, lambda f: (None, f.leader, f.base), _FEW),
    ("no row scores", lambda f: f.base and f.gap.p_value is None, lambda f: (None, f.leader, f.base), _NO_ROWS),
    ("few seeds", lambda f: f.base and f.over and f.best_tuned in f.ahead and f.best_tuned.label not in f.p_values,
     lambda f: (None, f.best_tuned, f.base), _FEW),
    ("others not ahead", lambda f: f.base and f.over and f.best_tuned not in f.over,
     lambda f: (f.best_over, f.best_over, f.base),
     "It is significantly ahead of {reference}, as not all fine-tuned models are: {gain}."),
    ("behind", lambda f: f.base and not f.over and f.gap.mean.value <= ROUNDING,
     lambda f: (f.base, f.leader, f.base), "Fine-tuning is not ahead of it ({candidate}: {gain})."),
    ("negligible", lambda f: f.base and not f.over and f.is_within(f.gap),
     lambda f: (f.base, f.leader, f.base), "Fine-tuning is equivalent to it, within ±{margin} ({candidate}: {gain})."),
    ("undecided", lambda f: f.base and not f.over, lambda f: (f.base, f.leader, f.base),
     "Fine-tuning is not significantly ahead of it ({candidate}: {gain})."),
    # Methods against plain fine-tuning, or another method that is named as the reference.
    ("alone", lambda f: not f.methods, lambda f: (f.plain, None, None), "No other method has a result."),
    ("few seeds", lambda f: max(row.pairs for row in f.methods) < MIN_SEEDS,
     lambda f: (None, max(f.methods, key=lambda row: (row.pairs > 1, gain_of(row))), f.plain), _FEW),
    ("no row scores", lambda f: len(f.untested) == len(f.methods),
     lambda f: (None, max(f.methods, key=gain_of), f.plain), _NO_ROWS),
    ("ahead", lambda f: f.ahead, lambda f: (f.best_tuned, f.best_tuned, f.plain),
     "It is significantly ahead of {reference}: {gain}."),
    ("all behind", lambda f: not f.equivalent and not f.inconclusive,
     lambda f: (f.plain, max(f.behind, key=gain_of), f.plain),
     "All other methods that are tested are significantly behind ({candidate}: {gain})."),
    ("negligible", lambda f: not f.inconclusive and f.best_tuned is not f.plain,
     lambda f: (f.best_tuned, f.best_tuned, f.plain),
     "It is equivalent to {reference}, within ±{margin}, and takes less time: {gain}."),
    ("negligible", lambda f: not f.inconclusive,
     lambda f: (f.plain, max(f.equivalent, key=gain_of), f.plain),
     "No method that is tested is better by more than {margin}, and none as good is clearly cheaper ({candidate}: "
     "{gain})."),
    ("undecided", lambda f: True, lambda f: (f.plain, max(f.inconclusive, key=gain_of), f.plain),
     "No other method is significantly ahead by more than {margin} ({candidate}: {gain})."),
)  # fmt: skip


class Verdict:
    """Decision on rows of :func:`method_rows`, plain fine-tuning first, by the first of :data:`RULES` that holds.

    It rests on one pair: a candidate, which takes more, must be significantly ahead of a reference, which takes less.

    Attributes:
        margin: Differences below this are practically zero.
        use: The recommended method or baseline; None if there is none.
        why: The reason: the rule that decides, or "no reference".
        says: The sentence of the rule, to be completed.
        candidate, reference, lead: The pair, if there is one, and their difference.
        groups: Labels of the methods by their difference from plain fine-tuning, see :data:`GROUPS`.
        base: The best baseline; None without one.
        leads: Of each fine-tuned model, by label, its difference from the best baseline.
        p_values: Of these, those of methods corrected over the methods; None without scores by row.
    """

    use: MethodRow | None = None
    why, says = "no reference", ""
    candidate: MethodRow | None = None
    reference: MethodRow | None = None
    lead: PairedDifference | None = None
    base: MethodRow | None = None

    def __init__(self, rows: Sequence[MethodRow], margin: float) -> None:
        self.margin = margin
        self.groups, self.leads = dict[str, list[str]](), dict[str, PairedDifference]()
        self.p_values: dict[str, float | None] = {}
        if not rows or not rows[0].is_reference:
            return
        self.tuned, baselines = ([row for row in rows if row.is_baseline is which] for which in (False, True))
        self.plain, *self.methods = self.tuned
        # Groups of methods, by their difference from plain fine-tuning.
        tested = [row for row in self.methods if row.pairs >= MIN_SEEDS and row.p_holm is not None]
        shown = [row for row in tested if (row.p_holm or 0) <= ALPHA]
        self.untested = [row for row in self.methods if row not in tested]
        clear = [row for row in shown if not self.is_within(row.difference)]
        self.behind, self.ahead = ([row for row in clear if sign * gain_of(row) > 0] for sign in (-1, 1))
        unclear = [row for row in tested if row not in self.ahead and row not in self.behind]
        self.equivalent = [row for row in unclear if self.is_within(row.difference)]
        self.inconclusive = [row for row in unclear if row not in self.equivalent]
        # Among the fine-tuned models: the cheapest of the best, or of those that are equivalent.
        self.best_tuned = self.plain
        if self.ahead:
            self.best_tuned = self.cheapest_of_best(self.ahead, self.plain)
        elif self.equivalent and not self.inconclusive:
            cheapest = min(self.equivalent, key=lambda row: row.cost)
            if cheapest.cost < 0.9 * self.plain.cost:  # times are noisy
                self.best_tuned = cheapest
        # The best baseline, None without one; the best fine-tuned model, with its lead; and those that are over it.
        # A baseline that trains the encoder must be significantly ahead of those that do not.
        self.base = max(baselines, key=gain_of, default=None)
        if self.base is not None:
            simple = max((row for row in baselines if row.method in CHEAP), key=gain_of, default=self.base)
            if not (lead := self.base.versus(simple)) or not self.is_over(lead, self.corrected({"": lead}).get("")):
                self.base = simple
        found = {row.label: row.versus(self.base) for row in self.tuned} if self.base else {}
        self.leads = {label: lead for label, lead in found.items() if lead is not None}
        self.p_values = self.corrected(self.leads)
        if not self.leads:
            self.base = None
        if self.base is not None:
            enough = min(MIN_SEEDS, max(lead.n for lead in self.leads.values()))
            known = [row for row in self.tuned if row.label in self.leads]
            self.leader = max((row for row in known if self.leads[row.label].n >= enough), key=gain_of)
            self.gap = self.leads[self.leader.label]
            self.over = [row for row in known if self.is_over(self.leads[row.label], self.p_values.get(row.label))]
            if self.over:
                first = self.plain in self.over
                self.best_over = self.plain if first else self.cheapest_of_best(self.over, self.base)
        self.why, _, decides, self.says = next(rule for rule in RULES if rule[1](self))
        self.use, self.candidate, self.reference = decides(self)
        if self.candidate is not None and self.reference is not None:
            self.lead = self.candidate.versus(self.reference)
        self.groups = {group: [row.label for row in getattr(self, group)] for group in GROUPS}

    def corrected(self, leads: Mapping[str, PairedDifference]) -> dict[str, float | None]:
        """Return the p values of leads over a baseline that have enough seeds, those of methods corrected by Holm.

        That of plain fine-tuning is not: it was not chosen among the methods.
        """
        p_values = {label: lead.p_value for label, lead in leads.items() if lead.n >= MIN_SEEDS}
        own = {row.label: p_values[row.label] for row in self.methods if row.label in p_values}
        p_holm = holm({label: 1.0 if p is None else p for label, p in own.items()})
        return p_values | {label: p_holm[label] for label, p in own.items() if p is not None}

    def is_over(self, lead: PairedDifference, p: float | None) -> bool:
        """Whether a lead is significant, and not practically zero."""
        return p is not None and p <= ALPHA and lead.mean.value > 0 and not self.is_within(lead)

    def cheapest_of_best(self, rows: Sequence[MethodRow], other: MethodRow) -> MethodRow:
        """Choose the cheapest of the methods whose lead over another is within the margin of the largest."""
        leads = {row.label: found.mean.value for row in rows if (found := row.versus(other)) is not None}
        best = (row for row in rows if max(leads.values()) - leads[row.label] <= self.margin)
        return min(best, key=lambda row: row.cost)

    def is_within(self, difference: PairedDifference | None) -> bool:
        """Whether a whole interval is practically zero.

        Few rows may not show a real difference: what occurs in none of n rows may still occur in 3 / n of all, in 0.005
        of 600. Of many rows, there are fewer blocks than usual only if each is of rows that belong together: then they
        count, not rows.
        """
        known = None if difference is None else difference.components
        if difference is None or (known and (known.rows < 600 or known.units < BLOCKS)):
            return False
        return -self.margin < difference.mean.low and difference.mean.high < self.margin


def gain_of(row: MethodRow) -> float:
    """Return the mean difference from the reference."""
    return 0.0 if row.is_reference else -math.inf if row.difference is None else row.difference.mean.value


# The decision in words -----------------------------------------------------------------------------------------------


def sentences(verdict: Verdict, rows: Sequence[MethodRow], reference: str, metric: str) -> Iterator[str]:
    """Word a verdict on rows: the decision with its reason, then the figures that it rests on.

    Differences are those of the metric, with 95 % intervals over seeds and examples; those of errors (``neg_...``) are
    of scores, of which the higher is the better.
    """
    if verdict.why == "no reference":
        told = f"{name(reference)}, the reference, has no score on evaluation rows"
        told += "; `attendrop report FOLDER --reference LABEL` compares with another method"
        yield f"No recommendation: {told if rows else 'no run has a score on evaluation rows'}."
        return
    digits, plain, use, candidate = decimals(verdict.margin, DECIMALS), rows[0], verdict.use, verdict.candidate
    words = {"margin": number(verdict.margin, digits), "least": str(MIN_SEEDS), "seeds": counted(0, "seed"), "gain": ""}

    def tested(row: MethodRow, lead: PairedDifference, p: float | None) -> str:
        ahead = f"ahead in {sum(value > ROUNDING for value in lead.values)} of {counted(lead.n, 'seed')}"
        if p is None:
            return f"{ahead}, not tested"
        shown = p_text(p)
        sign = f"{shown[0]} {shown[1:]}" if shown[0] in "<>" else f"= {shown}"
        return f"{ahead}, p {sign}{' (Holm)' * (not row.is_reference)}"

    if candidate is not None and verdict.reference is not None:
        words |= {"candidate": name(candidate.label), "reference": title(verdict.reference)}
    if (lead := verdict.lead) is not None:
        words |= {"seeds": counted(lead.n, "seed"), "gain": f"{metric} {interval(lead, digits)}"}
    yield f"{opening(use)} {verdict.says.format(**words)}"
    if use is None:
        return
    if candidate is not None and verdict.reference is plain and lead is not None:
        told = tested(candidate, lead, candidate.p_holm)
        yield f"Against {name(plain.label)}, {candidate.label} is {told}; it takes {cost(candidate)} the time."
        for group, title_of_group in GROUPS.items():
            if others := [label for label in verdict.groups[group] if label != candidate.label]:
                yield f"{title_of_group.format(**words)}: {', '.join(others)}."
    own, baseline = candidate if use.is_baseline else use, verdict.base
    if own is not None and baseline is not None and (over := verdict.leads.get(own.label)) is not None:
        told = tested(own, over, verdict.p_values.get(own.label))
        time = "" if baseline.cost == math.inf else f", which takes {cost(baseline)} the time of {name(plain.label)}"
        gain = "" if verdict.reference is baseline else f": {metric} {interval(over, digits)}"
        line = f"Against the best baseline, {title(baseline)}{time}, {name(own.label)} is {told}{gain}"
        if own is use and baseline.cost < use.cost and over.mean.value < verdict.margin:
            line += f"; use the baseline where the time of training counts for more than {words['margin']}"
        yield f"{line}."


def opening(use: MethodRow | None) -> str:
    """Return the decision without its reason: what to use; None if there is no recommendation."""
    return "No recommendation yet." if use is None else f"Use {title(use)}."


def title(row: MethodRow) -> str:
    """Name a model as sentences about decisions do, such as "the TF-IDF model (tfidf)"."""
    return f"{IN_WORDS[row.method]} ({row.label})" if row.is_baseline else name(row.label)


def name(label: str) -> str:
    """Name a model by its label, and the reference in words."""
    return "plain fine-tuning" if label == "finetune" else label


def number(value: float, digits: int = DECIMALS) -> str:
    """Format a score, zero without a sign; errors of large numbers, such as prices, without decimals."""
    size = abs(value)
    return f"{value:z.{digits}f}" if size < 10 else f"{value:.0f}" if 1000 <= size < 1e9 else f"{value:.4g}"


def signed(value: float, digits: int = DECIMALS) -> str:
    """Format a difference of scores, with the sign that it had before it was rounded."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{number(abs(value), digits)}"


def interval(difference: PairedDifference, digits: int = DECIMALS) -> str:
    """Format a mean difference with its 95 % interval over seeds and examples."""
    mean = signed(difference.mean.value, digits)
    if difference.p_value is None:
        return f"{mean} ({'one seed' if difference.n == 1 else 'rows not known'})"
    return f"{mean} {ends(difference.mean, digits)}"


def ends(found: Estimate, digits: int = DECIMALS) -> str:
    """Format an interval; "-" for none."""
    return f"[{signed(found.low, digits)}, {signed(found.high, digits)}]" if math.isfinite(found.low) else "-"


def p_text(p: float) -> str:
    """Format a p value; one that is above the limit of 0.05, and would be rounded to it, as ">0.05"."""
    rounded_p = float(f"{p:.2g}")
    return "<0.0001" if p < 0.0001 else f"{'>' * (p > ALPHA >= rounded_p)}{rounded_p:g}"


def cost(row: MethodRow) -> str:
    """Format the time of training, relative to the reference."""
    if row.cost == math.inf:
        return "-"
    return "<0.01x" if row.cost < 0.01 else f"{row.cost:.2g}x" if row.cost < 10 else f"{row.cost:.0f}x"


# Differences below this are practically zero, as a share of the reference's error; of scores up to 1, below 0.005.
ERROR_MARGIN = 0.01
COLUMNS = (
    "method", "seeds", "score", "difference [95 % CI (seeds × examples)]", "[seeds only]", "p (Holm)", "ahead", "time",
)  # fmt: skip
# Further columns, for the out-of-distribution split.
OOD_COLUMNS = ("OOD score", "OOD difference")


@dataclass(frozen=True)
class Answer:
    """Comparison of methods on one task.

    Attributes:
        task: Name of the task, or of the training file.
        scored_on: The rows of the scores, in words.
        margin: Differences below this are taken as practically zero.
        rows: The reference, the other methods, and the baselines.
        sentences: The verdict in words: the decision with its reason, then the figures that it rests on.
        notes: What limits it: runs that are missing, scores that flatter.
        holds_for: What the intervals hold for, in a sentence.
        data: What distinguishes its data from others of the same name: the training file with its folder and the
            column of its labels, or the task; not written.
        ood: The same comparison on the out-of-distribution split, if there is one.
    """

    task: str
    model: str
    metric: str
    scored_on: str
    margin: float
    rows: tuple[MethodRow, ...]
    verdict: Verdict = field(compare=False)
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    holds_for: str
    data: str
    ood: Answer | None = None

    @property
    def use(self) -> str | None:
        """Label of what is recommended; None if nothing is."""
        return None if self.verdict.use is None else self.verdict.use.label

    @property
    def decimals(self) -> int:
        """How many decimals scores are shown with."""
        return decimals(self.margin, DECIMALS)

    @property
    def decision(self) -> tuple[str, str]:
        """The decision in a sentence, and its reason, which may be empty."""
        before, decision, reason = self.sentences[0].partition(opening(self.verdict.use))
        return before + decision, reason.lstrip()

    def table(self) -> list[tuple[str, ...]]:
        """Return the header and the rows of the table, with those of the out-of-distribution split if there is one."""
        table = [COLUMNS, *(cells(row, self.decimals) for row in self.rows)]
        if (there := self.ood) is None:
            return table
        found = {row.label: cells(row, there.decimals)[2:4] for row in there.rows}
        beside = (OOD_COLUMNS, *(found.get(row.label, ("-", "-")) for row in self.rows))
        return [line + more for line, more in zip(table, beside, strict=True)]

    def lines(self) -> list[str]:
        """Return the answer in words, with its limits, and the table for a console."""
        words, holds = [*self.sentences, *self.notes, ""], [self.holds_for]
        if self.ood is not None:
            words += [*self.ood.sentences, *self.ood.notes, ""]
            holds += {self.ood.holds_for} - {self.holds_for}
        return [*words, f"{self.metric} of {self.model} on {self.scored_on}:", *aligned(self.table()), *holds]

    def markdown(self) -> str:
        """Return the answer, the table, and the score of each seed as Markdown."""
        seeds = sorted({seed for row in self.rows for seed in row.scores})
        by_seed = [
            [in_markdown(row.label)]
            + [number(row.scores[seed], self.decimals) if seed in row.scores else "-" for seed in seeds]
            for row in self.rows
        ]
        decision, reason = map(in_markdown, self.decision)
        parts = [
            f"**{decision}** {reason}".rstrip(),
            in_markdown(" ".join(self.sentences[1:])),
            "\n".join(f"- {in_markdown(note)}" for note in self.notes),
            in_markdown(f"{self.metric} of {self.model} on {self.scored_on}:"),
            markdown_table(COLUMNS, [[*map(in_markdown, cells(row, self.decimals))] for row in self.rows]),
            in_markdown(self.holds_for),
            "By seed:",
            markdown_table(("method", *map(str, seeds)), by_seed),
        ]
        text = "\n\n".join(part for part in parts if part) + "\n"
        return text if self.ood is None else f"{text}\n{self.ood.markdown()}"

    def records(self) -> list[dict[str, Any]]:
        """Return the rows of the table for a CSV, in full precision, with a column for the score of each seed."""
        seeds = sorted({seed for row in self.rows for seed in row.scores})
        there = {} if self.ood is None else {row.label: row.as_dict() for row in self.ood.rows}
        records = []
        for row in self.rows:
            record = row.as_dict() | {f"seed_{seed}": row.scores.get(seed) for seed in seeds}
            for key in ("options", "scores", "differences", "runs", "components"):
                del record[key]
            if self.ood is not None:
                keys = ("mean", "std", "difference", "difference_low", "difference_high", "p_holm")
                record |= {f"ood_{key}": there.get(row.label, {}).get(key) for key in keys}
            records.append(record)
        return records

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite end of an interval is None."""
        of = self.verdict
        base, candidate, reference = (row and row.label for row in (of.base, of.candidate, of.reference))
        leads = {
            label: {"seeds": lead.n, **lead.mean.as_dict("value"), "p_holm": of.p_values.get(label)}
            for label, lead in of.leads.items()
        }
        lead = {"candidate": candidate, "reference": reference} | (of.lead.mean.as_dict("value") if of.lead else {})
        return {
            **{key: getattr(self, key) for key in ("task", "model", "metric", "scored_on", "margin")},
            "reference": next((row.label for row in self.rows if row.is_reference), None),
            **{"use": self.use, "why": of.why, "baseline": base, "lead": lead, "groups": of.groups},
            "baseline_leads": leads,
            "sentences": list(self.sentences),
            "notes": list(self.notes),
            "holds_for": self.holds_for,
            "methods": [row.as_dict() for row in self.rows],
            **({} if self.ood is None else {"ood": self.ood.as_dict()}),
        }


def cells(row: MethodRow, digits: int) -> tuple[str, ...]:
    """Return the texts of a row of the table, one for each of :data:`COLUMNS`."""
    score = number(row.mean, digits) + ("" if row.std is None else f" ± {number(row.std, digits)}")
    both, seeds_only, ahead = "-", "-", "-"
    if (found := row.difference) is not None:
        both, seeds_only = interval(found, digits), ends(found.seeds_only, digits)
        ahead = f"{found.ahead:.2f}" if any(abs(value) > ROUNDING for value in found.values) else "equal"
    p = "-" if row.p_holm is None else p_text(row.p_holm)
    return row.label, str(row.n), score + "*" * row.selected_on_reported, both, seeds_only, p, ahead, cost(row)


def answer(runs: Sequence[Metrics], reference: str = REFERENCE, *, margin: float | None = None) -> Answer:
    """Compare methods with a reference, paired by seed.

    Args:
        runs: The ``metrics.json`` of finished runs that differ in method and seed only, baselines among them; of those
            without a result ``method``, ``options``, ``seed`` and ``error``.
        reference: Label of the method to compare with, see :func:`attendrop.studies.answer.method_label`.
        margin: Differences below this are taken as practically zero. None: 0.005; for errors (``neg_...``), 1 % of
            the reference's.

    Raises:
        AttendropError: There is no run, the reference is a baseline, the runs differ in task, model or metric, or two
            have the same method and seed.
    """
    metrics = [run for run in runs if "error" not in run]
    if not metrics:
        raise AttendropError("There is no finished run to compare.")
    if reference in BASELINES:
        raise AttendropError(f"The reference is a method, which {reference!r} is not; all are compared with baselines.")
    for key in ("task", "model", "metric"):
        # A study may move with the folder of its model, whose files are in the names of the runs' folders.
        found = sorted({Path(run[key]).name if key == "model" else str(run[key]) for run in metrics})
        if len(found) > 1:
            raise AttendropError(f"The runs differ in their {key} ({', '.join(found)}); compare those of one {key}.")
    rows = method_rows([run for run in metrics if has_score(run)], reference)
    first, metric, given = metrics[0], metrics[0]["metric"], margin
    if margin is None:
        margin = ERROR_MARGIN * abs(rows[0].mean) if metric.startswith("neg_") and rows else 0.005
    verdict, file = Verdict(rows, margin), first.get("config", {}).get("train_file")
    usual = Answer(
        task=first["task"] if file is None else Path(file).name,
        model=first["model"],
        metric=metric,
        scored_on=scored_on(first),
        margin=margin,
        rows=tuple(rows),
        verdict=verdict,
        sentences=tuple(sentences(verdict, rows, reference, metric)),
        notes=tuple(_notes(runs, rows, verdict, decimals(margin, DECIMALS))),
        holds_for=holds_for(first, rows, verdict.leads),
        data=str(first["task"] if file is None else f"{file}: {first['config'].get('label_column')}"),
    )
    # On the out-of-distribution split, where errors are larger; two sentences more say what it costs the reference, and
    # what the best model there costs on the usual rows.
    unchosen = {"selected_on": None, "rewarded_on": None}  # on these rows, nothing ever is
    unlike = [{**run, **run["ood"], "ood": None, "data": run["data"] | unchosen} for run in metrics if run.get("ood")]
    if not unlike:
        return usual
    shifted, scored, plain = answer(unlike, reference, margin=given), scored_on(first, ood=True), name(reference)
    here, there = ({row.label: row for row in each.rows} for each in (usual, shifted))
    words = [f"On {scored}: {shifted.sentences[0]}", *shifted.sentences[1:]]
    if reference in here and reference in there:
        scores = number(there[reference].mean, shifted.decimals), number(here[reference].mean, usual.decimals)
        words.append(f"{plain[0].upper()}{plain[1:]} scores {scores[0]} there, and {scores[1]} on the usual rows.")
    row = here.get(str(shifted.use))
    if row is not None and row.difference is not None and row.label not in (reference, usual.use):
        difference = interval(row.difference, usual.decimals)
        words.append(f"On the usual rows, {row.label} minus {plain} is {difference}.")
    holds = shifted.holds_for
    if any(row.difference is not None and row.difference.n > 1 for row in shifted.rows):
        holds = "OOD intervals hold for other rows of the same held-out groups: other groups may differ by more."
    notes = tuple(note for note in shifted.notes if note not in usual.notes)
    return replace(usual, ood=replace(shifted, scored_on=scored, sentences=tuple(words), notes=notes, holds_for=holds))


def _notes(runs: Sequence[Metrics], rows: Sequence[MethodRow], verdict: Verdict, digits: int) -> Iterator[str]:
    """List the limitations of an answer."""
    missing = [(method_label(run), run["seed"], run.get("error", "no score")) for run in runs if not has_score(run)]
    if missing:
        yield f"Without a result: {'; '.join(f'{label} with seed {seed} ({why})' for label, seed, why in missing)}."
    runs = [run for run in runs if "error" not in run]
    packages = ("attendrop", "torch", "transformers")  # runs are kept when these are upgraded
    of_runs = [run.get("versions", {}) for run in runs]
    versions = {name: dict.fromkeys(each[name] for each in of_runs if name in each) for name in packages}
    if mixed := [f"{package} {' and '.join(found)}" for package, found in versions.items() if len(found) > 1]:
        yield f"The runs are of several versions, which may make differences of their own: {'; '.join(mixed)}."
    # What the data decided.
    decisions: dict[str, str] = {}
    for run in runs:
        given = (run.get("config") or {}).get("options")
        if given is not None and (decision := decided_by_data(run["method"], given, run["options"])):
            decisions.setdefault(method_label(run), decision)
    for label, decision in decisions.items():
        yield f"Here {label} means {decision}: there are many classes with few rows each."
    if named := next((run for run in runs if "label_names" in run.get("data", {}).get("rows", {})), None):
        data, given = named["data"], named["config"]["label_names"]
        yield from names_told(data["rows"]["label_names"], data.get("names_left_out", ()), given)
    unlabelled = [(method_label(run), run["data"]["unlabelled"]) for run in runs if run["data"].get("unlabelled")]
    if unlabelled:
        yield from unlabelled_told(unlabelled[0][1])
        yield from unlabelled_decisions(unlabelled)
    alone = next((row for row in rows if row.label.startswith(WITHOUT)), None)
    plain = next((row for row in rows if row.label == REFERENCE), None)  # whatever the reference is
    if alone is not None and plain is not None and (found := plain.versus(alone)):
        low, high = found.mean.low, found.mean.high
        shown = "they help" if low > 0 else "they do harm" if high < 0 else "no gain is shown"
        shown = shown if found.n >= MIN_SEEDS else "there are too few seeds to judge"
        columns, difference = alone.label.removeprefix(WITHOUT), interval(found, digits)
        yield f"Texts begin with {columns}, and {shown}: plain fine-tuning with minus without is {difference}."
    # What was not compared. A method that acts in every second epoch only may act in none of a final model's.
    acted: dict[str, list[bool]] = {}
    for run in runs:
        if has_score(run) and run.get("history") and run["method"] != REFERENCE:
            acted.setdefault(method_label(run), []).append(any(entry["regularized"] for entry in run["history"]))
    for label, each in acted.items():
        if idle := each.count(False):
            yield f"{label} acted in no epoch of {idle} of {len(each)} runs, which are plain fine-tuning."
    for row in rows[1:] if rows and rows[0].is_reference else ():
        if row.pairs < max(row.n, rows[0].n):
            few = "" if row.pairs >= MIN_SEEDS else ", too few to judge"
            yield f"{row.label} and {rows[0].label} have {counted(row.pairs, 'seed')} in common{few}."
    # What is known of other rows.
    if grouped := next((run["data"]["looks_grouped"] for run in runs if run["data"].get("looks_grouped")), None):
        yield grouped
    parts = (run["data"].get("report", {}).get("parts", {}).get("dev", {}) for run in runs)
    part: Mapping[str, Any] = max(parts, key=lambda each: int(each.get("in_train", 0)), default={})
    if part.get("in_train"):
        yield (
            f"{part['in_train']} of {counted(part['rows'], 'evaluation row')} have a text that is in the training "
            "rows, too: scores on them are optimistic."
        )
    groups = max((each.groups for row in rows for each in row.by_row.values() if each.groups < each.rows), default=0)
    if 0 < groups < 30:
        yield (
            f"The evaluation rows are of {groups} groups only, so that little is known of others: further groups make "
            "the 95 % CI (seeds × examples) narrower, and further rows of these hardly."
        )
    unknown = [row.label for row in rows if row.difference and row.difference.n > 1 and not row.difference.components]
    if unknown:
        yield f"No scores by row on the reference's rows, so no 95 % CI (seeds × examples): {', '.join(unknown)}."
    best = verdict.base
    for other in rows:
        if best is None or not other.is_baseline or other.method in CHEAP or other.mean <= best.mean:
            continue
        if lead := other.versus(best):
            by = f"{other.label} minus {best.label} is {interval(lead, digits)}"
            yield f"{best.label}, which trains no encoder, counts as the best baseline: {by}."
    if len(rows) > 2 and verdict.use not in (None, rows[0]):
        yield f"The best score of {len(rows)} on the same rows is optimistic: expect slightly less on new data."
    if any(row.selected_on_reported for row in rows):
        yield "*: a model was chosen on the rows that it is scored on, so its score is optimistic."
