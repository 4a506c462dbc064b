"""What a comparison recommends, in words, and never more than its figures bear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attendrop.studies.method_rows import MethodRow, p_value
from attendrop.studies.statistics import ALPHA, MANY_SEEDS, POWER, CrossedMean, Estimate, PairedDifference, holm

# Fewer seeds say too little of how seeds vary; from here on the test holds its level: docs/compare.md.
MIN_SEEDS = 4
# On fewer rows, nothing is said to be practically nothing: 3 / 600 = 0.005.
_ROWS_FOR_NOTHING = 600
_BASELINES = {
    "majority": "the same answer always",
    "tfidf": "a linear model on TF-IDF",
    "frozen": "a linear model on the frozen encoder",
    "setfit": "a linear model on an encoder that was trained on pairs",
}

Kind = Literal["baseline", "method", "reference", "tie", "too few seeds", "no reference"]


@dataclass(frozen=True)
class Verdict:
    """Recommendation of a comparison.

    Attributes:
        kind: "baseline": no fine-tuned model is shown to be ahead of the best baseline; "method": a method is shown to
            be ahead of the reference, or of the best baseline where the reference is not; "reference": all methods are
            shown to be behind it, or there is no other; "tie": no method is shown to be ahead; "too few seeds" and
            "no reference": nothing is recommended.
        use: Label of the recommended method or baseline; None if there is none.
        sentences: The recommendation in words, then the figures that it rests on.
    """

    kind: Kind
    use: str | None
    sentences: tuple[str, ...]


def judge(rows: Sequence[MethodRow], margin: float, best: float = math.inf) -> Verdict:
    """Recommend a baseline, the reference, or a method.

    What takes more must be shown to be ahead of what takes less on new rows: with a p value of at most 0.05
    (:func:`attendrop.studies.statistics.crossed_test`), corrected by Holm over the methods, from at least
    :data:`MIN_SEEDS` common seeds, and unless the interval of the difference lies below ``margin`` as a whole.

    Of the fine-tuned models, a method is recommended if it is shown to be ahead of the reference; of several, the
    cheapest of those within ``margin`` of the best. If there is none, it is the reference, or what is cheaper where all
    differences are practically nothing. What is recommended so must be shown to be ahead of the best baseline, too. If
    it is not, another fine-tuned model that is takes its place; if there is none, the baseline does.

    Args:
        rows: From :func:`attendrop.studies.method_rows.method_rows`.
        margin: Differences below this are practically nothing.
        best: The best score that there is.
    """
    if not rows or not rows[0].is_reference:
        return Verdict("no reference", None, ("No recommendation: no run of the reference has a score.",))
    reference, tuned = rows[0], [row for row in rows if not row.is_baseline]
    verdict = _judge_methods(reference, tuned[1:], margin, best)
    baselines = [row for row in rows if row.is_baseline]
    return _judge_baseline(verdict, tuned, max(baselines, key=_gain), margin, best) if baselines else verdict


# Fine-tuned models ---------------------------------------------------------------------------------------------------


def _judge_methods(reference: MethodRow, methods: Sequence[MethodRow], margin: float, best: float) -> Verdict:
    """Recommend one of the fine-tuned models."""
    use = f"Use {title(reference)}:"
    if not methods:
        return Verdict("reference", reference.label, (f"{use} no other method was run.",))
    tested = [row for row in methods if _pairs(row) >= MIN_SEEDS and row.p_holm is not None]
    if not tested:
        if max(map(_pairs, methods)) >= MIN_SEEDS:
            first = "No recommendation of a method: the runs have no scores by row; compare in a new folder."
            return Verdict("too few seeds", None, (first,))
        return Verdict("too few seeds", None, _too_few(reference, methods, margin, best))
    shown = [row for row in tested if row.p_holm is not None and row.p_holm <= ALPHA]
    ahead = [row for row in shown if _gain(row) > 0 and not _is_within(_difference(row), margin)]
    behind = [row for row in shown if _gain(row) < 0]
    unclear = [row for row in tested if row not in ahead and row not in behind]
    figures = [f"Behind {title(reference)}: {_listed(behind)}."] if behind else []
    if ahead:
        return _judge_ahead(reference, ahead, margin, figures)
    if not unclear:
        others = _listed([row for row in methods if row not in tested])
        which = f"every method here{f' but {others}, which cannot be judged yet,' if others else ''}"
        return Verdict("reference", reference.label, (f"{use} {which} is behind it.", *figures))
    if all(_is_within(_difference(row), margin) for row in unclear):
        cheapest = min((reference, *unclear), key=_cost)
        first = f"Use {title(cheapest)}: the differences are practically nothing, and it is the cheapest."
        limit = _limit((reference, *unclear), margin, best)
        return Verdict("tie", cheapest.label, (first, f"Below {number(margin)}: {_listed(unclear)}.", *limit, *figures))
    found = "shown to be ahead of" if behind else "distinguishable from"
    plan = _plan(reference, unclear, margin, len(methods), best)
    return Verdict("tie", reference.label, (f"{use} nothing here is {found} it.", *plan, *figures))


def _judge_ahead(reference: MethodRow, ahead: Sequence[MethodRow], margin: float, figures: Sequence[str]) -> Verdict:
    """Recommend one of the methods that are shown to be ahead of the reference."""
    leader = max(ahead, key=_gain)
    use = _cheapest_of_best(ahead, reference, margin)
    difference, others = _difference(use), [row for row in ahead if row is not use]
    wins = sum(value > 0 for value in difference.values)
    p = "< 0.0001" if (use.p_holm or 0) < 0.0001 else f"= {use.p_holm:.2g}"
    sentences = [
        f"Use {use.label}: it is ahead of {title(reference)}{_by_little(difference, margin)}.",
        f"On new rows the difference is {interval(difference)} (95 % interval); it is ahead in {wins} of "
        f"{seeds(difference.n)}, p {p} after Holm's correction{_time(use)}.",
    ]
    if others:
        reason = "" if use is leader else f"; below {number(margin)} apart, the cheaper is recommended"
        sentences.append(f"Also ahead: {_listed(others)}{reason}.")
    return Verdict("method", use.label, (*sentences, *figures))


def _cheapest_of_best(rows: Sequence[MethodRow], other: MethodRow, margin: float) -> MethodRow:
    """Choose the cheapest of the methods whose lead over another is within ``margin`` of the largest."""
    leads = {row.label: _versus(row, other).mean.value for row in rows}
    return min((row for row in rows if max(leads.values()) - leads[row.label] < margin), key=_cost)


def _too_few(reference: MethodRow, methods: Sequence[MethodRow], margin: float, best: float) -> tuple[str, ...]:
    most = max(_pairs(row) for row in methods)
    first = f"No recommendation of a method: {seeds(most)} to compare on {'is' if most == 1 else 'are'} too few."
    repeated = [row for row in methods if _pairs(row) > 1]
    if repeated and (limit := _limit((reference, *repeated), margin, best)):
        return (first, *limit)
    return (first, f"Run at least {MIN_SEEDS}.", *_plan(reference, repeated, margin, len(methods), best))


def _plan(reference: MethodRow, rows: Sequence[MethodRow], margin: float, methods: int, best: float) -> list[str]:
    """Say what would show the largest difference, or ``margin`` if that is larger; or why nothing would."""
    leader = max(rows, key=_gain, default=None)
    if leader is None or max(_gain(leader), margin) <= 0:
        return []
    found = f"The best of the others is {_listed([leader])}"
    limit = _limit((reference, *rows), margin, best)
    more = limit or _what_would_show(_difference(leader), max(_gain(leader), margin), methods)
    return [f"{found}.", *more]


def _limit(rows: Sequence[MethodRow], margin: float, best: float) -> list[str]:
    """Say why more seeds would not tell rows apart; or nothing."""
    if all(best - row.mean < margin for row in rows):
        return [
            f"All are within {number(margin)} of {number(best)}, the best score that there is: harder "
            "evaluation rows may tell them apart, more seeds will not."
        ]
    if len(rows) > 1 and all(_versus(row, rows[0]).is_equal for row in rows[1:]):
        return ["All have the same scores: other evaluation rows may tell them apart, more seeds hardly."]
    return []


def _what_would_show(difference: PairedDifference, effect: float, methods: int) -> list[str]:
    """Say how many more seeds, or evaluation rows, would show what difference with a probability of 0.8."""
    found = difference.components
    if found is None:
        return []
    alpha, named = ALPHA / methods, f"a difference of {number(effect)}"
    if found.power(effect, alpha, seeds=max(found.seeds, MIN_SEEDS), rows=found.rows) >= POWER:
        if found.seeds < MIN_SEEDS:
            return [f"On {MIN_SEEDS} seeds and as many rows, {named} would probably show."]
        return [f"On as many seeds and rows, {named} would probably have shown."]
    seeds_needed, rows_needed = found.seeds_needed(effect, alpha), found.rows_needed(effect, alpha)
    more_seeds = None if seeds_needed is None else _more(seeds_needed - found.seeds, "seed")
    more_rows = None if rows_needed is None else _more(rows_needed - found.rows, "labelled evaluation row")
    if more_seeds and more_rows:
        return [f"About {more_seeds}, or about {more_rows}, would probably show {named}."]
    if more_seeds or more_rows:
        other = "rows" if more_seeds else "seeds"
        return [f"About {more_seeds or more_rows} would probably show {named}; no number of {other} alone would."]
    return [_of_both(found, effect, alpha, named)]


def _of_both(found: CrossedMean, effect: float, alpha: float, named: str) -> str:
    """Say how many seeds and rows together would show a difference."""
    trained = found.seeds
    while (trained := 2 * trained) <= MANY_SEEDS:
        if (rows := found.rows_needed(effect, alpha, seeds=trained)) is not None:
            return (
                f"{trained} seeds on {_rounded(rows)} evaluation rows would probably show {named}; neither alone would."
            )
    return f"No number of seeds and rows that can be run would show {named}."


def _more(count: int, what: str) -> str:
    return f"{_rounded(count)} more {what}{'s' * (count != 1)}"


def _rounded(count: int) -> str:
    """Format a planned number with two digits: it is no better known."""
    return f"{round(count, 2 - len(str(count))) if count >= 100 else count:,}"


# Baselines -----------------------------------------------------------------------------------------------------------


def _judge_baseline(
    verdict: Verdict, tuned: Sequence[MethodRow], baseline: MethodRow, margin: float, best: float
) -> Verdict:
    """Put the best baseline first, unless a fine-tuned model is shown to be ahead of it."""
    paired = {row.label: lead.n for row in tuned if (lead := row.versus(baseline)) is not None}
    most = [row for row in tuned if paired.get(row.label, 0) >= min(MIN_SEEDS, max(paired.values(), default=0))]
    reference, leader = tuned[0], max(most, key=_gain)
    lead = leader.versus(baseline)
    if lead is None:
        return verdict
    if lead.n < MIN_SEEDS or lead.p_value is None:
        return _too_few_against(verdict, leader, baseline, margin)
    ahead = _ahead_of(baseline, tuned, margin)
    used = next((row for row in tuned if row.label == verdict.use), reference)
    if used in ahead:
        against = _against(used, baseline, f"the best baseline, {title(baseline)}", ahead, margin)
        return replace(
            verdict, sentences=(*verdict.sentences, f"{against}{_time(baseline)}.", *_cheap(used, baseline, margin))
        )
    if ahead:
        use = reference if reference in ahead else _cheapest_of_best(ahead, baseline, margin)
        sentences = [
            f"Use {title(use)}: unlike {title(used)}, it is shown to be ahead of {title(baseline)}.",
            f"{_against(use, baseline, baseline.label, ahead, margin)}.",
            f"{_against(used, baseline, baseline.label, ahead, margin)}{_time(baseline)}.",
            *_cheap(use, baseline, margin),
        ]
        kind: Kind = "reference" if use is reference else "method"
        return Verdict(kind, use.label, (*sentences, *_among(verdict)))
    sentences = [
        f"Use {title(baseline)}: no fine-tuned model is {_missing(lead, margin)} of it.",
        f"{_against(leader, baseline, baseline.label, ahead, margin)}{_time(baseline)}.",
    ]
    if lead.mean.value > 0 and not _is_within(lead, margin):
        effect = max(lead.mean.value, margin)
        sentences += _limit((baseline, leader), margin, best) or _what_would_show(lead, effect, len(tuned))
    return Verdict("baseline", baseline.label, (*sentences, *_among(verdict)))


def _ahead_of(baseline: MethodRow, tuned: Sequence[MethodRow], margin: float) -> list[MethodRow]:
    """List the fine-tuned models that are shown to be ahead of a baseline.

    Methods are corrected for their number. The reference is not: it was not chosen among them.
    """
    leads = {row.label: lead for row in tuned if (lead := row.versus(baseline)) is not None and lead.n >= MIN_SEEDS}
    methods = [row.label for row in tuned[1:] if row.label in leads]
    p_values = {label: 1.0 if (p := p_value(lead)) is None else p for label, lead in leads.items()}
    p_values |= dict(zip(methods, holm([p_values[label] for label in methods]), strict=True))
    shown = [row for row in tuned if p_values.get(row.label, 1) <= ALPHA and leads[row.label].mean.value > 0]
    return [row for row in shown if not _is_within(leads[row.label], margin)]


def _too_few_against(verdict: Verdict, best: MethodRow, baseline: MethodRow, margin: float) -> Verdict:
    """Recommend nothing, because there are too few seeds, or no scores by row, to compare with a baseline on."""
    lead = _versus(best, baseline)
    figures = f"{_against(best, baseline, baseline.label, (), margin)}{_time(baseline)}."
    if lead.mean.value <= 0:
        first = f"So far no fine-tuned model is ahead of {title(baseline)}."
        return Verdict("too few seeds", None, (first, figures, *_among(verdict)))
    if verdict.kind == "too few seeds":
        return replace(verdict, sentences=(*verdict.sentences, figures))
    few = f"{seeds(lead.n)} to compare with {title(baseline)} on {'is' if lead.n == 1 else 'are'} too few."
    first = f"No recommendation: {few}"
    if lead.n >= MIN_SEEDS:
        first = f"No recommendation: {best.label} and {title(baseline)} have no scores by row; compare in a new folder."
    return Verdict("too few seeds", None, (first, figures, *_among(verdict)))


def _against(row: MethodRow, baseline: MethodRow, named: str, ahead: Sequence[MethodRow], margin: float) -> str:
    """Say where a fine-tuned model stands against a baseline, which is ``named`` so."""
    lead = _versus(row, baseline)
    stands = f"{_missing(lead, margin)} of {named}"
    if row in ahead:
        stands = f"ahead of {named}{_by_little(lead, margin)}"
    return f"{title(row).replace('plain', 'Plain')} is {'' if row in ahead else 'not '}{stands}: {interval(lead)}"


def _cheap(used: MethodRow, baseline: MethodRow, margin: float) -> list[str]:
    """Name a baseline that is nearly as good, for less time."""
    if _versus(used, baseline).mean.value >= margin or _cost(baseline) >= _cost(used):
        return []
    return [f"Where the time of training counts for more than {number(margin)}, use {baseline.label}."]


def _missing(lead: PairedDifference, margin: float) -> str:
    """Say what a fine-tuned model is not."""
    if lead.mean.value <= 0:
        return "ahead"
    return f"{number(margin)} ahead" if _is_within(lead, margin) else "shown to be ahead"


def _by_little(difference: PairedDifference, margin: float) -> str:
    return ", by little" if difference.mean.value < margin else ""


def _among(verdict: Verdict) -> tuple[str, ...]:
    """Return the sentences of a verdict on the fine-tuned models, as such."""
    first, *others = verdict.sentences
    if verdict.use is not None:
        return f"Of the fine-tuned models it would be {first.removeprefix('Use ')}", *others
    return f"Of the fine-tuned models: {first[0].lower()}{first[1:]}", *others


# In words ------------------------------------------------------------------------------------------------------------


def title(row: MethodRow) -> str:
    """Name a method, or a baseline with what it is."""
    if row.is_baseline:
        return f"{row.label} ({_BASELINES[row.method]})"
    return "plain fine-tuning" if row.label == "finetune" else row.label


def number(value: float) -> str:
    """Format a score."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def interval(difference: PairedDifference) -> str:
    """Format a mean difference with its 95 % interval on new rows."""
    if difference.p_value is None:
        return f"{_signed(difference.mean.value)} ({'one seed' if difference.n == 1 else 'rows not known'})"
    return f"{_signed(difference.mean.value)} {ends(difference.mean)}"


def ends(found: Estimate) -> str:
    """Format an interval; "-" for none."""
    return f"[{_signed(found.low)}, {_signed(found.high)}]" if math.isfinite(found.low) else "-"


def p_text(p: float) -> str:
    """Format a p value."""
    return "<0.0001" if p < 0.0001 else f"{p:.2g}"


def cost(row: MethodRow) -> str:
    """Format the time of training, relative to the reference."""
    if row.cost is None:
        return "-"
    return "<0.01x" if row.cost < 0.01 else f"{row.cost:.2g}x"


def seeds(count: int) -> str:
    """Format a number of seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{number(value)}"


def _listed(rows: Sequence[MethodRow]) -> str:
    return ", ".join(f"{row.label} ({interval(_difference(row))})" for row in rows)


def _time(row: MethodRow) -> str:
    return "" if row.cost is None else f"; {row.label} takes {cost(row)} the time of plain fine-tuning"


# Figures -------------------------------------------------------------------------------------------------------------


def _difference(row: MethodRow) -> PairedDifference:
    assert row.difference is not None
    return row.difference


def _versus(row: MethodRow, other: MethodRow) -> PairedDifference:
    found = row.versus(other)
    assert found is not None
    return found


def _pairs(row: MethodRow) -> int:
    return 0 if row.difference is None else row.difference.n


def _gain(row: MethodRow) -> float:
    """Mean difference to the reference."""
    if row.is_reference:
        return 0.0
    return -math.inf if row.difference is None else row.difference.mean.value


def _cost(row: MethodRow) -> float:
    return math.inf if row.cost is None else row.cost


def _is_within(difference: PairedDifference, margin: float) -> bool:
    """Whether a whole interval is practically nothing.

    Of few rows none need show a difference that there is: what none of n shows may still be in 3 / n of all.
    """
    if difference.components is not None and difference.components.rows < _ROWS_FOR_NOTHING:
        return False
    return -margin < difference.mean.low and difference.mean.high < margin
