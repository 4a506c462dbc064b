"""Decision of a comparison: of the table :data:`RULES`, the first rule that holds, with its sentence.

What takes more must be shown to be ahead of what takes less on new rows. "Shown" is a p value of at most 0.05
(:func:`attendrop.studies.statistics.crossed_test`), by Holm for methods, from four common seeds or more; "within" is an
interval that lies within the margin as a whole. Sentences are completed by :mod:`attendrop.studies.words`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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

NO_ROWS = (
    "The runs have no scores by row, or of different rows, so nothing is known of new rows: compare in a new folder, "
    "with two evaluation rows or more."
)
# Why more seeds would not distinguish models: all scores are at the best possible one, or equal.
Limit = Literal["at best", "equal", ""]
_TEXTS = ("kind", "use", "why", "challenger", "incumbent", "limit", "baseline")
_LABELS = ("also_ahead", "slight", "behind", "not_judged")


class Rule(NamedTuple):
    """A rule: when it holds, what is used, the pair that it rests on, the rows that stay open, and the sentence."""

    kind: str
    why: str
    holds: Callable[[Facts], Any]
    use: Callable[[Facts], Any]
    pair: Callable[[Facts], Any]
    open: Callable[[Facts], Any]
    says: str


def _none(facts: Facts) -> Any:
    return ()


RULES = (
    # Fine-tuned models against the best baseline.
    Rule("too few seeds", "few seeds", lambda f: f.base and not f.promising and f.lead.n < MIN_SEEDS,
         lambda f: None, lambda f: (f.leader, f.base), _none, "{so_far}{few}"),
    Rule("too few seeds", "no row scores", lambda f: f.base and not f.promising and f.lead.p_value is None,
         lambda f: None, lambda f: (f.leader, f.base), _none, "{so_far}" + NO_ROWS),
    Rule("", "others not ahead", lambda f: f.judged and f.over and f.best_tuned not in f.over,
         lambda f: f.best_over, lambda f: (f.best_over, f.base), _none,
         "{unlike} is shown to be ahead of {incumbent}: {gains_so}."),
    Rule("baseline", "behind", lambda f: f.judged and not f.over and f.lead.mean.value <= ROUNDING,
         lambda f: f.base, lambda f: (f.leader, f.base), lambda f: () if f.base_shown else (f.leader,),
         "Fine-tuning {does_not} pay here: {needs}."),
    Rule("baseline", "negligible", lambda f: f.judged and not f.over and f.is_within(f.lead),
         lambda f: f.base, lambda f: (f.leader, f.base), _none,
         "Fine-tuning does not pay here: {gains}, which is practically nothing."),
    Rule("baseline", "undecided", lambda f: f.judged and not f.over,
         lambda f: f.base, lambda f: (f.leader, f.base), lambda f: (f.leader,),
         "Fine-tuning is not shown to pay here: {gains}, which may be chance."),
    # Methods against the reference.
    Rule("reference", "alone", lambda f: not f.methods,
         lambda f: f.reference, _none, _none, "No other method has a result."),
    Rule("too few seeds", "few seeds", lambda f: max(row.pairs for row in f.methods) < MIN_SEEDS,
         lambda f: None, lambda f: (max(f.repeated or f.methods, key=_gain), f.reference), lambda f: f.repeated,
         "{few}"),
    Rule("too few seeds", "no row scores", lambda f: not f.tested,
         lambda f: None, lambda f: (max(f.methods, key=_gain), f.reference), _none, NO_ROWS),
    Rule("method", "ahead", lambda f: f.ahead,
         lambda f: f.best_tuned, lambda f: (f.best_tuned, f.reference), _none, "{it_gains}."),
    Rule("reference", "all behind", lambda f: not f.unclear,
         lambda f: f.reference, lambda f: (max(f.behind, key=_gain), f.reference), _none,
         "Every other method here{but} is behind it; {best_method}."),
    Rule("tie", "negligible", lambda f: not f.open_yet,
         lambda f: f.best_tuned, lambda f: (max(f.unclear, key=_gain), f.reference), lambda f: f.unclear,
         "{those} differences are practically nothing, and {cheapest}."),
    Rule("tie", "undecided", lambda f: True,
         lambda f: f.reference, lambda f: (max(f.open_yet, key=_gain), f.reference), lambda f: f.open_yet,
         "No other method here is {apart}; {best_method}{by_chance}."),
)  # fmt: skip


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
        why: The reason: the rule of :data:`RULES` that decides.
        lead: Challenger minus incumbent, with its interval on new rows.
        limit: Why more seeds would not show such a lead.
        also_ahead, behind: Labels of other methods that are shown to be ahead of the reference, or behind it.
        slight: Labels of methods that are shown to be ahead, but by practically nothing, where others are open.
        not_judged: Labels of methods with too few seeds, where others are judged.
        baseline: Label of the best baseline, if the recommendation is shown to be ahead of it, or the challenger not
            yet. None where the baseline is the incumbent.
        says: The sentence of the rule, which :class:`attendrop.studies.words.Words` completes; not written.
        baseline_leads: How each fine-tuned model compares with the best baseline, by label; empty without a baseline.
    """

    kind: str
    use: str | None
    why: str = ""
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
    says: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; an infinite end of an interval is None."""
        return {
            **{name: getattr(self, name) for name in _TEXTS},
            **{name: list(getattr(self, name)) for name in _LABELS},
            "lead": None if self.lead is None else self.lead.as_dict("value"),
            "baseline_leads": {label: found.as_dict() for label, found in self.baseline_leads.items()},
        }


class Facts:
    """What the rules are about, of rows of ``method_rows``, the reference first, with the margin of what is nothing."""

    tuned: list[MethodRow]
    reference: MethodRow
    methods: list[MethodRow]
    repeated: list[MethodRow]  # with several seeds
    tested: list[MethodRow]
    shown: list[MethodRow]
    ahead: list[MethodRow]
    behind: list[MethodRow]
    unclear: list[MethodRow]
    open_yet: list[MethodRow]
    best_tuned: MethodRow
    # The best baseline, None without one; the best fine-tuned model with its lead over it, and those that are ahead.
    base: MethodRow | None
    leader: MethodRow
    lead: PairedDifference
    over: list[MethodRow]
    best_over: MethodRow
    judged: bool
    promising: bool
    base_shown: bool

    def __init__(self, rows: Sequence[MethodRow], margin: float) -> None:
        self.margin = margin
        self.tuned, baselines = ([row for row in rows if row.is_baseline is which] for which in (False, True))
        self.reference, self.methods = self.tuned[0], self.tuned[1:]
        self.repeated = [row for row in self.methods if row.pairs > 1]
        self.tested = [row for row in self.methods if row.pairs >= MIN_SEEDS and row.p_holm is not None]
        self.shown = [row for row in self.tested if (row.p_holm or 0) <= ALPHA]
        self.ahead = [row for row in self.shown if _gain(row) > 0 and not self.is_within(row.difference)]
        self.behind = [row for row in self.shown if _gain(row) < 0]
        self.unclear = [row for row in self.tested if row not in self.ahead and row not in self.behind]
        self.open_yet = [row for row in self.unclear if not self.is_within(row.difference)]
        # Among the fine-tuned models: the cheapest of the best, or of those that are practically equal.
        self.best_tuned = self.reference
        if self.ahead:
            self.best_tuned = self.cheapest_of_best(self.ahead, self.reference)
        elif self.unclear and not self.open_yet:
            cheapest = min(self.unclear, key=_cost)
            self.best_tuned = cheapest if _cost(cheapest) < _CHEAPER * _cost(self.reference) else self.reference
        self.base = self.best_of(baselines) if baselines else None
        found = {row.label: row.versus(self.base) for row in self.tuned} if self.base else {}
        leads = {label: lead for label, lead in found.items() if lead is not None}
        self.leads = self.with_p_values(leads)
        self.judged = self.promising = False
        if self.base is None or not leads:
            self.base = None
            return
        enough = min(MIN_SEEDS, max(lead.n for lead in leads.values()))
        self.leader = max((row for row in self.tuned if row.label in leads and leads[row.label].n >= enough), key=_gain)
        self.lead = leads[self.leader.label]
        self.judged = self.lead.n >= MIN_SEEDS and self.lead.p_value is not None
        # There is nothing to say against fine-tuning yet, and nothing to choose from the fine-tuned models.
        self.promising = self.judged or (self.lead.mean.value > ROUNDING and bool(self.methods) and not self.tested)
        self.base_shown = self.is_within(self.lead) or (self.leads[self.leader.label].p_holm or 0.0) <= ALPHA
        over = [row for row in self.tuned if row.label in leads and self.leads[row.label].is_shown]
        self.over = [row for row in over if not self.is_within(leads[row.label])]
        if self.over:
            first = self.reference in self.over
            self.best_over = self.reference if first else self.cheapest_of_best(self.over, self.base)

    def best_of(self, baselines: Sequence[MethodRow]) -> MethodRow:
        """Choose the best baseline; one that trains the encoder must be shown to be ahead of those that do not."""
        best = max(baselines, key=_gain)
        simple = max((row for row in baselines if row.method in CHEAP), key=_gain, default=best)
        lead = best.versus(simple)
        shown = lead is not None and self.with_p_values({best.label: lead})[best.label].is_shown
        return best if shown and not self.is_within(lead) else simple

    def with_p_values(self, leads: Mapping[str, PairedDifference]) -> dict[str, BaselineLead]:
        """Return the leads over a baseline with their p values, where there are enough seeds.

        Methods are corrected for their number. The reference is not: it was not chosen among them.
        """
        known = {label: lead.p_value for label, lead in leads.items() if lead.n >= MIN_SEEDS}
        methods = [row.label for row in self.methods if row.label in known]
        corrected = holm([1.0 if (p := known[label]) is None else p for label in methods])
        p_holm = known | {label: p for label, p in zip(methods, corrected, strict=True) if known[label] is not None}
        return {label: BaselineLead(lead.n, lead.mean, p_holm.get(label)) for label, lead in leads.items()}

    def cheapest_of_best(self, rows: Sequence[MethodRow], other: MethodRow) -> MethodRow:
        """Choose the cheapest of the methods whose lead over another is within the margin of the largest."""
        leads = {row.label: found.mean.value for row in rows if (found := row.versus(other)) is not None}
        return min((row for row in rows if max(leads.values()) - leads[row.label] <= self.margin), key=_cost)

    def is_within(self, difference: PairedDifference | None) -> bool:
        """Whether a whole interval is practically zero.

        Few rows may not show a real difference: what occurs in none of n rows may still occur in 3 / n of all. Of many
        rows, there are fewer blocks than usual only if each is of rows that belong together: then they count, not rows.
        """
        known = None if difference is None else difference.components
        if difference is None or (known and (known.rows < _ROWS_FOR_NOTHING or known.units < BLOCKS)):
            return False
        return -self.margin < difference.mean.low and difference.mean.high < self.margin


def judge(rows: Sequence[MethodRow], margin: float, best: float = math.inf) -> Verdict:
    """Recommend a baseline, the reference, or a method, given rows of ``method_rows`` and the ``best`` possible score.

    By the first of :data:`RULES` that holds.
    """
    if not rows or not rows[0].is_reference:
        return Verdict("no reference", None, "no reference")
    facts = Facts(rows, margin)
    rule = next(rule for rule in RULES if rule.holds(facts))
    use, pair, of_base = rule.use(facts), rule.pair(facts), rule.pair(facts)[1:] == (facts.base,)
    challenger, incumbent = pair or (None, None)
    lead = None if challenger is None or incumbent is None else challenger.versus(incumbent)
    limit: Limit = ""
    if incumbent is not None and lead is not None and (unclear := rule.open(facts)):
        equal = all((each := row.versus(incumbent)) is not None and each.is_equal for row in unclear)
        at_best = all(best - row.mean < margin for row in (incumbent, *unclear))
        limit = "at best" if at_best else "equal" if equal else ""
    judged = not of_base and facts.tested
    return Verdict(
        rule.kind or ("reference" if use is facts.reference else "method"),
        None if use is None else use.label,
        rule.why,
        None if challenger is None else challenger.label,
        None if incumbent is None else incumbent.label,
        None if lead is None else lead.mean,
        limit,
        also_ahead=() if of_base else tuple(row.label for row in facts.ahead if row is not use),
        slight=tuple(row.label for row in facts.unclear if row in facts.shown) if rule is RULES[-1] else (),
        behind=() if of_base else tuple(row.label for row in facts.behind),
        not_judged=tuple(row.label for row in facts.methods if row not in facts.tested) if judged else (),
        baseline=None if of_base or facts.base is None else facts.base.label,
        baseline_leads=facts.leads,
        says=rule.says,
    )


def _gain(row: MethodRow) -> float:
    """Mean difference to the reference."""
    if row.is_reference:
        return 0.0
    return -math.inf if row.difference is None else row.difference.mean.value


def _cost(row: MethodRow) -> float:
    return math.inf if row.cost is None else row.cost
