"""Decision of a comparison: of the table :data:`RULES`, the first rule that holds, with its sentence.

What takes more must be significantly ahead of what takes less, over seeds and examples: a p value of at most 0.05
(:func:`attendrop.studies.statistics.crossed_test`), by Holm for methods, from four common seeds or more. Models are
equivalent where the 95 % interval of their difference lies within the margin as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from attendrop.studies.method_rows import MethodRow
from attendrop.studies.run_specs import CHEAP
from attendrop.studies.statistics import ALPHA, ROUNDING, Estimate, PairedDifference, holm
from attendrop.tasks.metrics import BLOCKS
from attendrop.wording import counted, decimals

# Fewer seeds say too little of how seeds vary; from here on the test holds its level: docs/compare.md.
MIN_SEEDS = 4
# A method takes the place of the reference for its time alone if it takes less than this fraction: times are noisy.
_CHEAPER = 0.9
# On fewer rows, nothing is said to be equivalent: 3 / 600 = 0.005.
_ROWS_TO_BE_EQUIVALENT = 600
# The groups of methods by their difference from the reference, in words.
GROUPS = {
    "ahead": "Also significantly ahead",
    "equivalent": "Equivalent (within ±{margin})",
    "inconclusive": "Inconclusive",
    "behind": "Significantly behind",
    "untested": "Not tested (fewer than {least} common seeds, or no scores by row)",
}
BASELINES_IN_WORDS = {
    "majority": "the constant answer",
    "tfidf": "the TF-IDF model",
    "frozen": "the linear model on the frozen encoder",
    "setfit": "the linear model on an encoder that was trained on pairs",
}
# Decimals of scores, but for small errors; and scores that are shown with an exponent.
DECIMALS, _HUGE = 3, 1e9


class Rule(NamedTuple):
    """A rule of :class:`Facts`: when it holds; what is used, and the candidate and the reference; and the sentence."""

    why: str
    holds: Callable[[Any], Any]
    decides: Callable[[Any], tuple[MethodRow | None, MethodRow | None, MethodRow | None]]
    says: str


_FEW = "{seeds} in common of {candidate} and {reference} are too few to tell: take {least} or more."
_NO_ROWS = (
    "The runs have no scores by row, or of different rows, so nothing is known of other rows: compare in a new folder, "
    "with two evaluation rows or more."
)
RULES = (
    # Fine-tuned models against the best baseline.
    Rule("few seeds", lambda f: f.base and f.lead.n < MIN_SEEDS, lambda f: (None, f.leader, f.base), _FEW),
    Rule("no row scores", lambda f: f.base and f.lead.p_value is None, lambda f: (None, f.leader, f.base), _NO_ROWS),
    Rule("others not ahead", lambda f: f.base and f.over and f.best_tuned not in f.over,
         lambda f: (f.best_over, f.best_over, f.base),
         "It is significantly ahead of {reference}, as not all fine-tuned models are: {gain}."),
    Rule("behind", lambda f: f.base and not f.over and f.lead.mean.value <= ROUNDING,
         lambda f: (f.base, f.leader, f.base),
         "Fine-tuning is not ahead of it ({candidate}: {gain})."),
    Rule("negligible", lambda f: f.base and not f.over and f.is_within(f.lead),
         lambda f: (f.base, f.leader, f.base),
         "Fine-tuning is equivalent to it, within ±{margin} ({candidate}: {gain})."),
    Rule("undecided", lambda f: f.base and not f.over,
         lambda f: (f.base, f.leader, f.base),
         "Fine-tuning is not significantly ahead of it ({candidate}: {gain})."),
    # Methods against plain fine-tuning, or another method that is named as the reference.
    Rule("alone", lambda f: not f.methods, lambda f: (f.plain, None, None), "No other method has a result."),
    Rule("few seeds", lambda f: max(row.pairs for row in f.methods) < MIN_SEEDS,
         lambda f: (None, max(f.methods, key=lambda row: (row.pairs > 1, gain_of(row))), f.plain), _FEW),
    Rule("no row scores", lambda f: len(f.untested) == len(f.methods),
         lambda f: (None, max(f.methods, key=gain_of), f.plain), _NO_ROWS),
    Rule("ahead", lambda f: f.ahead, lambda f: (f.best_tuned, f.best_tuned, f.plain),
         "It is significantly ahead of {reference}: {gain}."),
    Rule("all behind", lambda f: not f.equivalent and not f.inconclusive,
         lambda f: (f.plain, max(f.behind, key=gain_of), f.plain),
         "All other methods that are tested are significantly behind ({candidate}: {gain})."),
    Rule("negligible", lambda f: not f.inconclusive,
         lambda f: (f.best_tuned, max(f.equivalent, key=gain_of), f.plain),
         "No method is better by more than {margin}, and none as good is clearly cheaper ({candidate}: {gain})."),
    Rule("undecided", lambda f: True, lambda f: (f.plain, max(f.inconclusive, key=gain_of), f.plain),
         "No other method is significantly ahead by more than {margin} ({candidate}: {gain})."),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Recommendation of a comparison.

    It rests on one pair: a candidate, which takes more, must be significantly ahead of a reference, which takes less.

    Attributes:
        use: Label of the recommended method or baseline; None if there is none.
        why: The reason: the rule of :data:`RULES` that decides, or "no reference".
        says: The sentence of the rule, to be completed; not written.
        lead: Candidate minus reference, with its interval over seeds and examples.
        groups: Labels of the methods by their difference from the reference, see :data:`GROUPS`.
        baseline: Label of the best baseline; None without one.
        baseline_leads: Of each fine-tuned model, by label, its difference from the best baseline, its number of
            ``seeds``, and ``p_holm``: of a method corrected over the methods, of the reference as it is, None with too
            few seeds or without scores by row. JSON values.
    """

    use: str | None
    why: str
    says: str = ""
    candidate: str | None = None
    reference: str | None = None
    lead: Estimate | None = None
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    baseline: str | None = None
    baseline_leads: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite end of an interval is None."""
        lead = {} if self.lead is None else self.lead.as_dict("value")
        return {
            **{"use": self.use, "why": self.why, "baseline": self.baseline},
            "lead": {"candidate": self.candidate, "reference": self.reference, **lead},
            "groups": {group: list(labels) for group, labels in self.groups.items()},
            "baseline_leads": {label: dict(found) for label, found in self.baseline_leads.items()},
        }


class Facts:
    """What the rules are about, of rows of ``method_rows``, plain fine-tuning first, with the margin of equivalence."""

    def __init__(self, rows: Sequence[MethodRow], margin: float) -> None:
        self.margin = margin
        self.tuned, baselines = ([row for row in rows if row.is_baseline is which] for which in (False, True))
        self.plain, *self.methods = self.tuned
        # Groups of methods, by their difference from plain fine-tuning.
        tested = [row for row in self.methods if row.pairs >= MIN_SEEDS and row.p_holm is not None]
        shown = [row for row in tested if (row.p_holm or 0) <= ALPHA]
        self.untested = [row for row in self.methods if row not in tested]
        self.behind = [row for row in shown if gain_of(row) < 0]
        self.ahead = [row for row in shown if gain_of(row) > 0 and not self.is_within(row.difference)]
        unclear = [row for row in tested if row not in self.ahead and row not in self.behind]
        self.equivalent = [row for row in unclear if self.is_within(row.difference)]
        self.inconclusive = [row for row in unclear if row not in self.equivalent]
        # Among the fine-tuned models: the cheapest of the best, or of those that are equivalent.
        self.best_tuned = self.plain
        if self.ahead:
            self.best_tuned = self.cheapest_of_best(self.ahead, self.plain)
        elif self.equivalent and not self.inconclusive:
            cheapest = min(self.equivalent, key=cost_of)
            if cost_of(cheapest) < _CHEAPER * cost_of(self.plain):
                self.best_tuned = cheapest
        # The best baseline, None without one; the best fine-tuned model, with its lead; and those that are over it.
        # A baseline that trains the encoder must be significantly ahead of those that do not.
        self.base = max(baselines, key=gain_of, default=None)
        if self.base is not None:
            simple = max((row for row in baselines if row.method in CHEAP), key=gain_of, default=self.base)
            lead = self.base.versus(simple)
            self.base = self.base if lead and self.is_over(lead, self.corrected({"": lead}).get("")) else simple
        found = {row.label: row.versus(self.base) for row in self.tuned} if self.base else {}
        self.leads = {label: lead for label, lead in found.items() if lead is not None}
        self.p_values = self.corrected(self.leads)
        if not self.leads:
            self.base = None
            return
        enough = min(MIN_SEEDS, max(lead.n for lead in self.leads.values()))
        known = [row for row in self.tuned if row.label in self.leads]
        self.leader = max((row for row in known if self.leads[row.label].n >= enough), key=gain_of)
        self.lead = self.leads[self.leader.label]
        self.over = [row for row in known if self.is_over(self.leads[row.label], self.p_values.get(row.label))]
        if self.base is not None and self.over:
            first = self.plain in self.over
            self.best_over = self.plain if first else self.cheapest_of_best(self.over, self.base)

    def corrected(self, leads: Mapping[str, PairedDifference]) -> dict[str, float | None]:
        """Return the p values of leads over a baseline that have enough seeds, those of methods corrected by Holm.

        That of plain fine-tuning is not: it was not chosen among the methods.
        """
        p_values = {label: lead.p_value for label, lead in leads.items() if lead.n >= MIN_SEEDS}
        methods = [row.label for row in self.methods if row.label in p_values]
        p_holm = holm([1.0 if (p := p_values[label]) is None else p for label in methods])
        return p_values | {label: p for label, p in zip(methods, p_holm, strict=True) if p_values[label] is not None}

    def is_over(self, lead: PairedDifference, p: float | None) -> bool:
        """Whether a lead is significant, and not practically zero."""
        return p is not None and p <= ALPHA and lead.mean.value > 0 and not self.is_within(lead)

    def cheapest_of_best(self, rows: Sequence[MethodRow], other: MethodRow) -> MethodRow:
        """Choose the cheapest of the methods whose lead over another is within the margin of the largest."""
        leads = {row.label: found.mean.value for row in rows if (found := row.versus(other)) is not None}
        return min((row for row in rows if max(leads.values()) - leads[row.label] <= self.margin), key=cost_of)

    def is_within(self, difference: PairedDifference | None) -> bool:
        """Whether a whole interval is practically zero.

        Few rows may not show a real difference: what occurs in none of n rows may still occur in 3 / n of all. Of many
        rows, there are fewer blocks than usual only if each is of rows that belong together: then they count, not rows.
        """
        known = None if difference is None else difference.components
        if difference is None or (known and (known.rows < _ROWS_TO_BE_EQUIVALENT or known.units < BLOCKS)):
            return False
        return -self.margin < difference.mean.low and difference.mean.high < self.margin


def gain_of(row: MethodRow) -> float:
    """Return the mean difference from the reference."""
    return 0.0 if row.is_reference else -math.inf if row.difference is None else row.difference.mean.value


def cost_of(row: MethodRow) -> float:
    """Return the time of training, relative to the reference; infinite if unknown."""
    return math.inf if row.cost is None else row.cost


def decide(rows: Sequence[MethodRow], margin: float) -> Verdict:
    """Recommend a baseline, the reference, or a method, given rows of ``method_rows``: the first of :data:`RULES`."""
    if not rows or not rows[0].is_reference:
        return Verdict(None, "no reference")
    facts = Facts(rows, margin)
    rule = next(rule for rule in RULES if rule.holds(facts))
    decided = rule.decides(facts)
    use, candidate, reference = (None if row is None else row.label for row in decided)
    lead = None if decided[1] is None or decided[2] is None else decided[1].versus(decided[2])
    groups = {group: tuple(row.label for row in getattr(facts, group)) for group in GROUPS}
    leads = {
        label: {"seeds": lead.n, **lead.mean.as_dict("value"), "p_holm": facts.p_values.get(label)}
        for label, lead in facts.leads.items()
    }
    mean, base = None if lead is None else lead.mean, None if facts.base is None else facts.base.label
    return Verdict(use, rule.why, rule.says, candidate, reference, mean, groups, base, leads)


# The decision in words -----------------------------------------------------------------------------------------------


def sentences(verdict: Verdict, rows: Mapping[str, MethodRow], reference: str, metric: str, margin: float) -> list[str]:
    """Word a verdict on rows, by label: the decision with its reason, then the figures that it rests on.

    Differences are those of the metric, with 95 % intervals over seeds and examples; those of errors (``neg_...``) are
    of scores, of which the higher is the better.
    """
    if verdict.why == "no reference":
        if not rows:
            return ["No recommendation: no run has a score on evaluation rows."]
        told = f"{name(reference)}, the reference, has no score on evaluation rows"
        return [f"No recommendation: {told}; `attendrop report FOLDER --reference LABEL` compares with another method."]
    digits, plain = decimals(margin, DECIMALS), next(iter(rows.values()))
    labels = (verdict.use, verdict.candidate, verdict.reference, verdict.baseline)
    use, candidate, other, baseline = (rows.get(label or "") for label in labels)
    words = {"margin": number(margin, digits), "least": str(MIN_SEEDS)}

    def tested(row: MethodRow, other: MethodRow, p: float | None) -> str:
        lead = row.versus(other)
        assert lead is not None
        ahead = f"ahead in {sum(value > ROUNDING for value in lead.values)} of {counted(lead.n, 'seed')}"
        if p is None:
            return f"{ahead}, not tested"
        shown = p_text(p)
        sign = f"{shown[0]} {shown[1:]}" if shown[0] in "<>" else f"= {shown}"
        return f"{ahead}, p {sign}{' (Holm)' * (not row.is_reference)}"

    if candidate is not None and other is not None:
        lead = candidate.versus(other)
        words |= {"candidate": name(candidate.label), "reference": title(other)}
        words |= {"seeds": counted(0 if lead is None else lead.n, "seed")}
        words |= {"gain": "" if lead is None else f"{metric} {interval(lead, digits)}"}
    reason = verdict.says.format(**words)
    lines = [f"{opening(use)} {reason}"]
    if use is None:
        return lines
    if candidate is not None and other is plain:
        told = tested(candidate, plain, candidate.p_holm)
        lines.append(f"Against {name(plain.label)}, {candidate.label} is {told}; it takes {cost(candidate)} the time.")
        for group, title_of_group in GROUPS.items():
            if others := [label for label in verdict.groups[group] if label != candidate.label]:
                lines.append(f"{title_of_group.format(**words)}: {', '.join(others)}.")
    own = candidate if use.is_baseline else use
    if own is not None and baseline is not None and own.label in verdict.baseline_leads:
        lead = own.versus(baseline)
        assert lead is not None
        told = tested(own, baseline, verdict.baseline_leads[own.label]["p_holm"])
        time = "" if baseline.cost is None else f", which takes {cost(baseline)} the time of {name(plain.label)}"
        gain = "" if other is baseline else f": {metric} {interval(lead, digits)}"
        line = f"Against the best baseline, {title(baseline)}{time}, {name(own.label)} is {told}{gain}"
        if own is use and cost_of(baseline) < cost_of(use) and lead.mean.value < margin:
            line += f"; use the baseline where the time of training counts for more than {words['margin']}"
        lines.append(f"{line}.")
    return lines


def opening(use: MethodRow | None) -> str:
    """Return the decision without its reason: what to use; None if there is no recommendation."""
    return "No recommendation yet." if use is None else f"Use {title(use)}."


def title(row: MethodRow) -> str:
    """Name a model as sentences about decisions do, such as "the TF-IDF model (tfidf)"."""
    return f"{BASELINES_IN_WORDS[row.method]} ({row.label})" if row.is_baseline else name(row.label)


def name(label: str) -> str:
    """Name a model by its label, and the reference in words."""
    return "plain fine-tuning" if label == "finetune" else label


def number(value: float, digits: int = DECIMALS) -> str:
    """Format a score, zero without a sign; errors of large numbers, such as prices, without decimals."""
    size = abs(value)
    return f"{value:z.{digits}f}" if size < 10 else f"{value:.0f}" if 1000 <= size < _HUGE else f"{value:.4g}"


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
    if row.cost is None:
        return "-"
    return "<0.01x" if row.cost < 0.01 else f"{row.cost:.2g}x" if row.cost < 10 else f"{row.cost:.0f}x"
