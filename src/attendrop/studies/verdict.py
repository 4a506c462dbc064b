"""Decision rule of a comparison.

What a comparison recommends follows from the scores by :func:`judge`, and :mod:`attendrop.studies.words` words it. The
reason, ``why``, names the branch of the rule; "shown" is a p value of at most 0.05, by Holm for methods, from four
common seeds or more, and "within" an interval that lies within the margin as a whole.

| ``why`` | rule | sentence begins |
|---|---|---|
| "no reference" | the reference has no score | No recommendation: plain fine-tuning, with which |
| "few seeds" | the pair has fewer than four common seeds | 3 runs of each are too few to tell |
| "no row scores" | the pair has no scores by row | The runs have no scores by row |
| "alone" | there is no method but the reference | No other method has a result. |
| "ahead" | a method's lead over the reference is shown, and not within | It gets 3 more of 100 right than |
| "all behind" | all methods are shown to be behind the reference | Every other method here is behind it |
| "negligible" | the differences of all open methods are within | The differences are practically nothing |
| "undecided" | some are not | No other method here is told apart from it |

Against the best baseline, if what is recommended is not shown to be ahead of it:

| ``why`` | rule | sentence begins |
|---|---|---|
| "others not ahead" | another fine-tuned model is | Unlike METHOD, it is shown to be ahead of |
| "behind" | the best fine-tuned model is behind it on average | Fine-tuning does not, or is not shown to, pay |
| "negligible" | its lead is within | Fine-tuning does not pay here: ..., which is practically nothing. |
| "undecided" | its lead is not within | Fine-tuning is not shown to pay here |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA, ROUNDING, Estimate, PairedDifference, holm
from attendrop.studies.units import CHEAP
from attendrop.tasks.row_scores import BLOCKS

# Fewer seeds say too little of how seeds vary; from here on the test holds its level: docs/compare.md.
MIN_SEEDS = 4
# A method takes the place of the reference for its time alone if it takes less than this fraction: times are noisy.
_CHEAPER = 0.9
# On fewer rows, nothing is said to be practically nothing: 3 / 600 = 0.005.
_ROWS_FOR_NOTHING = 600

Kind = Literal["baseline", "method", "reference", "tie", "too few seeds", "no reference"]
Why = Literal[
    "no reference", "few seeds", "no row scores", "alone", "ahead", "all behind", "negligible", "undecided", "behind",
    "others not ahead", "",
]  # fmt: skip
# Why more seeds would not distinguish models: all scores are at the best possible one, or equal.
Limit = Literal["at best", "equal", ""]
_TEXTS = ("kind", "use", "why", "challenger", "incumbent", "limit", "baseline")
_LABELS = ("also_ahead", "slight", "behind", "not_judged")


@dataclass(frozen=True)
class BaselineLead:
    """Difference of a fine-tuned model from the best baseline, and its p value by which it is judged.

    Attributes:
        seeds: Number of common seeds.
        lead: Mean difference, with its interval on new rows.
        p_holm: p value on new rows; of a method corrected by Holm over the methods, of the reference as it is. None
            with fewer than :data:`MIN_SEEDS` seeds, or without scores by row.
    """

    seeds: int
    lead: Estimate
    p_holm: float | None

    @property
    def is_shown(self) -> bool:
        """Whether the model is shown to be ahead."""
        return self.p_holm is not None and self.p_holm <= ALPHA and self.lead.value > 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON values; an infinite end of an interval is None."""
        return {"seeds": self.seeds, **self.lead.as_dict("value"), "p_holm": self.p_holm}


@dataclass(frozen=True)
class Verdict:
    """Recommendation of a comparison.

    It rests on one pair: a challenger, which takes more, must be shown to be ahead of an incumbent, which takes less.

    Attributes:
        kind: "baseline": no fine-tuned model is shown to be ahead of the best baseline; "method": a method is shown to
            be ahead of the reference, or of the best baseline where the reference is not; "reference": all methods are
            shown to be behind it, or there is no other; "tie": no method is shown to be ahead; "too few seeds" and
            "no reference": nothing is recommended.
        use: Label of the recommended method or baseline; None if there is none.
        why: The reason: the branch of the decision rule, in the table of this module.
        lead: Challenger minus incumbent, with its interval on new rows.
        limit: Why more seeds would not show such a lead.
        also_ahead, behind: Labels of other methods that are shown to be ahead of the reference, or behind it.
        slight: Labels of methods that are shown to be ahead, but by practically nothing, where others are open.
        not_judged: Labels of methods with too few seeds, where others are judged.
        baseline: Label of the best baseline, if the recommendation is shown to be ahead of it, or the challenger not
            yet. None where the baseline is the incumbent.
        baseline_leads: How each fine-tuned model compares with the best baseline, by label; empty without a baseline.
    """

    kind: Kind
    use: str | None
    why: Why = ""
    challenger: str | None = None
    incumbent: str | None = None
    lead: Estimate | None = None
    limit: Limit = ""
    also_ahead: tuple[str, ...] = ()
    slight: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()
    baseline: str | None = None
    baseline_leads: Mapping[str, BaselineLead] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite end of an interval is None."""
        return {
            **{name: getattr(self, name) for name in _TEXTS},
            **{name: list(getattr(self, name)) for name in _LABELS},
            "lead": None if self.lead is None else self.lead.as_dict("value"),
            "baseline_leads": {label: found.as_dict() for label, found in self.baseline_leads.items()},
        }


def judge(rows: Sequence[MethodRow], margin: float, best: float = math.inf) -> Verdict:
    """Recommend a baseline, the reference, or a method, given rows of ``method_rows`` and the ``best`` possible score.

    What takes more must be shown to be ahead of what takes less on new rows: with a p value of at most 0.05
    (:func:`attendrop.studies.statistics.crossed_test`), corrected by Holm over the methods, from at least
    :data:`MIN_SEEDS` common seeds, and unless the interval of the difference is entirely below ``margin``.

    Of the fine-tuned models, a method is recommended if it is shown to be ahead of the reference; of several, the
    cheapest of those within ``margin`` of the best. If there is none, it is the reference, or what takes a tenth less
    time if all differences are practically nothing. This recommendation must be shown to be ahead of the best baseline,
    too. If it is not, another fine-tuned model that is takes its place; if there is none, the baseline does. A baseline
    that trains the encoder, as SetFit does, counts as the best only if it is shown to be ahead of those that do not.
    """
    if not rows or not rows[0].is_reference:
        return Verdict("no reference", None, "no reference")
    tuned, baselines = ([row for row in rows if row.is_baseline is which] for which in (False, True))
    judging = _Judging(tuned, margin, best)
    verdict = judging.of_tuned()
    return judging.with_baseline(verdict, judging.best_of(baselines)) if baselines else verdict


@dataclass(frozen=True)
class _Judging:
    """The fine-tuned models, the reference first, with the margin and the best possible score."""

    tuned: Sequence[MethodRow]
    margin: float
    best: float

    def of_tuned(self) -> Verdict:
        """Recommend one of the fine-tuned models."""
        reference, methods = self.tuned[0], self.tuned[1:]
        if not methods:
            return Verdict("reference", reference.label, "alone")
        if max(row.pairs for row in methods) < MIN_SEEDS:
            repeated = [row for row in methods if row.pairs > 1]
            leader = max(repeated or methods, key=_gain)
            return self._pair("too few seeds", None, "few seeds", leader, reference, repeated)
        tested = [row for row in methods if row.pairs >= MIN_SEEDS and row.p_holm is not None]
        if not tested:
            return self._pair("too few seeds", None, "no row scores", max(methods, key=_gain), reference)
        shown = [row for row in tested if (row.p_holm or 0) <= ALPHA]
        ahead = [row for row in shown if _gain(row) > 0 and not self._is_within(row.difference)]
        behind = [row for row in shown if _gain(row) < 0]
        unclear = [row for row in tested if row not in ahead and row not in behind]
        if ahead:
            use = self._cheapest_of_best(ahead, reference)
            verdict = self._pair("method", use.label, "ahead", use, reference)
            verdict = replace(verdict, also_ahead=tuple(row.label for row in ahead if row is not use))
        elif not unclear:
            verdict = self._pair("reference", reference.label, "all behind", max(behind, key=_gain), reference)
        elif all(self._is_within(row.difference) for row in unclear):
            cheapest, leader = min(unclear, key=_cost), max(unclear, key=_gain)
            use = cheapest if _cost(cheapest) < _CHEAPER * _cost(reference) else reference
            verdict = self._pair("tie", use.label, "negligible", leader, reference, unclear)
        else:
            open_yet = [row for row in unclear if not self._is_within(row.difference)]
            verdict = self._pair("tie", reference.label, "undecided", max(open_yet, key=_gain), reference, open_yet)
            verdict = replace(verdict, slight=tuple(row.label for row in unclear if row in shown))
        not_judged = tuple(row.label for row in methods if row not in tested)
        return replace(verdict, behind=tuple(row.label for row in behind), not_judged=not_judged)

    def best_of(self, baselines: Sequence[MethodRow]) -> MethodRow:
        """Choose the best baseline; one that trains the encoder must be shown to be ahead of those that do not."""
        best = max(baselines, key=_gain)
        simple = max((row for row in baselines if row.method in CHEAP), key=_gain, default=best)
        lead = best.versus(simple)
        shown = lead is not None and self._tested({best.label: lead})[best.label].is_shown
        return best if shown and not self._is_within(lead) else simple

    def with_baseline(self, verdict: Verdict, baseline: MethodRow) -> Verdict:
        """Put the best baseline first, unless a fine-tuned model is shown to be ahead of it."""
        leads = {row.label: lead for row in self.tuned if (lead := row.versus(baseline)) is not None}
        if not leads:
            return verdict
        tested = self._tested(leads)
        return replace(self._against(verdict, baseline, leads, tested), baseline_leads=tested)

    def _against(
        self,
        verdict: Verdict,
        baseline: MethodRow,
        leads: Mapping[str, PairedDifference],
        tested: Mapping[str, BaselineLead],
    ) -> Verdict:
        enough = min(MIN_SEEDS, max(lead.n for lead in leads.values()))
        leader = max((row for row in self.tuned if row.label in leads and leads[row.label].n >= enough), key=_gain)
        lead = leads[leader.label]
        if lead.n < MIN_SEEDS or lead.p_value is None:
            if lead.mean.value > ROUNDING and verdict.kind == "too few seeds":
                return replace(verdict, baseline=baseline.label)
            why: Why = "few seeds" if lead.n < MIN_SEEDS else "no row scores"
            return self._pair("too few seeds", None, why, leader, baseline)
        ahead = [row for row in self.tuned if row.label in leads and tested[row.label].is_shown]
        ahead = [row for row in ahead if not self._is_within(leads[row.label])]
        used = next((row for row in self.tuned if row.label == verdict.use), self.tuned[0])
        if used in ahead:
            return replace(verdict, baseline=baseline.label)
        if ahead:
            use = self.tuned[0] if self.tuned[0] in ahead else self._cheapest_of_best(ahead, baseline)
            kind: Kind = "reference" if use.is_reference else "method"
            return self._pair(kind, use.label, "others not ahead", use, baseline)
        within, gains = self._is_within(lead), lead.mean.value > ROUNDING
        why = "behind" if not gains else "negligible" if within else "undecided"
        open_yet = not within and (gains or (tested[leader.label].p_holm or 0.0) > ALPHA)
        return self._pair("baseline", baseline.label, why, leader, baseline, (leader,) if open_yet else ())

    def _pair(
        self,
        kind: Kind,
        use: str | None,
        why: Why,
        challenger: MethodRow,
        incumbent: MethodRow,
        unclear: Sequence[MethodRow] = (),
    ) -> Verdict:
        """Make a verdict from a pair, with why more seeds would not distinguish ``unclear`` rows from the incumbent."""
        lead = challenger.versus(incumbent)
        found = Verdict(kind, use, why, challenger.label, incumbent.label, None if lead is None else lead.mean)
        if not unclear or lead is None:
            return found
        if all(self.best - row.mean < self.margin for row in (incumbent, *unclear)):
            return replace(found, limit="at best")
        if all((each := row.versus(incumbent)) is not None and each.is_equal for row in unclear):
            return replace(found, limit="equal")
        return found

    def _tested(self, leads: Mapping[str, PairedDifference]) -> dict[str, BaselineLead]:
        """Return the leads over a baseline with their p values, where there are enough seeds.

        Methods are corrected for their number. The reference is not: it was not chosen among them.
        """
        known = {label: lead.p_value for label, lead in leads.items() if lead.n >= MIN_SEEDS}
        methods = [row.label for row in self.tuned[1:] if row.label in known]
        corrected = holm([1.0 if (p := known[label]) is None else p for label in methods])
        p_holm = known | {label: p for label, p in zip(methods, corrected, strict=True) if known[label] is not None}
        return {label: BaselineLead(lead.n, lead.mean, p_holm.get(label)) for label, lead in leads.items()}

    def _cheapest_of_best(self, rows: Sequence[MethodRow], other: MethodRow) -> MethodRow:
        """Choose the cheapest of the methods whose lead over another is within the margin of the largest."""
        leads = {row.label: found.mean.value for row in rows if (found := row.versus(other)) is not None}
        return min((row for row in rows if max(leads.values()) - leads[row.label] <= self.margin), key=_cost)

    def _is_within(self, difference: PairedDifference | None) -> bool:
        """Whether a whole interval is practically zero.

        Few rows may not show a real difference: what occurs in none of n rows may still occur in 3 / n of all. Of many
        rows, there are fewer blocks than usual only if each is of rows that belong together: then they count, not rows.
        """
        known = None if difference is None else difference.components
        if difference is None or (known and (known.rows < _ROWS_FOR_NOTHING or known.units < BLOCKS)):
            return False
        return -self.margin < difference.mean.low and difference.mean.high < self.margin


def _gain(row: MethodRow) -> float:
    """Mean difference to the reference."""
    if row.is_reference:
        return 0.0
    return -math.inf if row.difference is None else row.difference.mean.value


def _cost(row: MethodRow) -> float:
    return math.inf if row.cost is None else row.cost
