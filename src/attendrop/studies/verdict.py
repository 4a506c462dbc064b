"""What a comparison recommends, in words, and never more than its figures bear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from attendrop.studies.baseline_names import DESCRIPTIONS
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA, PairedDifference, seeds_needed, smallest_sign_flip_p

# The t test holds its level from here on, also where scores are fractions of few rows: tests/studies.
MIN_SEEDS = 4
# The sign-flip test can fall below 0.05 from here on: 2 / 2**6 = 0.03.
SIGN_FLIP_SEEDS = 6
_MANY_SEEDS = 1000

Kind = Literal["baseline", "method", "reference", "tie", "too few seeds", "no reference"]


@dataclass(frozen=True)
class Verdict:
    """Recommendation of a comparison.

    Attributes:
        kind: "baseline": no fine-tuned model is ahead of a baseline, or by practically nothing; "method": a method is
            shown to be ahead of the reference; "reference": all methods are shown to be behind it, or there is no
            other; "tie": no method is shown to be ahead; "too few seeds" and "no reference": nothing is recommended.
        use: Label of the recommended method or baseline; None if there is none.
        sentences: The recommendation in words, then the figures that it rests on.
    """

    kind: Kind
    use: str | None
    sentences: tuple[str, ...]


def judge(rows: Sequence[MethodRow], margin: float) -> Verdict:
    """Recommend a method.

    A method is recommended if it is shown to be ahead of the reference: with a p value of the paired t test, corrected
    by Holm over the methods, of at most 0.05, from at least :data:`MIN_SEEDS` common seeds, and if the interval of the
    difference does not lie below ``margin`` as a whole. Of several, the cheapest of those within ``margin`` of the
    best. If there is none, the reference is recommended, or what is cheaper where all differences are practically
    nothing. A baseline goes before all of these if no fine-tuned model is ahead of it by ``margin``.

    Args:
        rows: From :func:`attendrop.studies.method_rows.method_rows`.
        margin: Differences below this are practically nothing.
    """
    if not rows or not rows[0].is_reference:
        return Verdict("no reference", None, ("No recommendation: no run of the reference has a score.",))
    reference, tuned = rows[0], [row for row in rows if not row.is_baseline]
    verdict = _judge_methods(reference, tuned[1:], margin)
    baselines = [row for row in rows if row.is_baseline]
    return _judge_baseline(verdict, tuned, max(baselines, key=_gain), margin) if baselines else verdict


# Fine-tuned models ---------------------------------------------------------------------------------------------------


def _judge_methods(reference: MethodRow, methods: Sequence[MethodRow], margin: float) -> Verdict:
    """Recommend one of the fine-tuned models."""
    use = f"Use {title(reference)}:"
    if not methods:
        return Verdict("reference", reference.label, (f"{use} no other method was run.",))
    tested = [row for row in methods if _pairs(row) >= MIN_SEEDS]
    if not tested:
        return Verdict("too few seeds", None, _too_few(methods, margin))
    ahead = [row for row in tested if _is_shown(row) and _gain(row) > 0 and not _is_within(row, margin)]
    behind = [row for row in tested if _is_shown(row) and _gain(row) < 0]
    unclear = [row for row in tested if row not in ahead and row not in behind]
    figures = [f"Behind {title(reference)}: {_listed(behind)}."] if behind else []
    if ahead:
        return _judge_ahead(reference, ahead, margin, figures)
    if not unclear:
        return Verdict("reference", reference.label, (f"{use} every method here is behind it.", *figures))
    if all(_is_within(row, margin) for row in unclear):
        cheapest = min((reference, *unclear), key=_cost)
        first = f"Use {title(cheapest)}: the differences are practically nothing, and it is the cheapest."
        return Verdict("tie", cheapest.label, (first, f"Below {number(margin)}: {_listed(unclear)}.", *figures))
    found = "shown to be ahead of" if behind else "distinguishable from"
    plan = _plan(unclear, margin, len(methods))
    return Verdict("tie", reference.label, (f"{use} nothing here is {found} it.", *plan, *figures))


def _judge_ahead(reference: MethodRow, ahead: Sequence[MethodRow], margin: float, figures: Sequence[str]) -> Verdict:
    """Recommend one of the methods that are shown to be ahead of the reference."""
    best = max(ahead, key=_gain)
    use = min((row for row in ahead if _gain(best) - _gain(row) < margin), key=_cost)
    difference, others = _difference(use), [row for row in ahead if row is not use]
    wins = sum(value > 0 for value in difference.values)
    sentences = [
        f"Use {use.label}: it is ahead of {title(reference)}{', by little' if _gain(use) < margin else ''}.",
        f"The difference is {interval(difference)} (95 % interval), ahead in {wins} of {seeds(difference.n)}, "
        f"p = {use.p_holm:.2g} after Holm's correction{_time(use)}.",
    ]
    if others:
        reason = "" if use is best else f"; below {number(margin)} apart, the cheaper is recommended"
        sentences.append(f"Also ahead: {_listed(others)}{reason}.")
    if difference.n < SIGN_FLIP_SEEDS:
        sentences.append(
            f"With {seeds(difference.n)} the sign-flip test, which assumes no distribution, cannot fall below "
            f"{smallest_sign_flip_p(difference.n):.2g}: this rests on the t test."
        )
    return Verdict("method", use.label, (*sentences, *figures))


def _too_few(methods: Sequence[MethodRow], margin: float) -> tuple[str, ...]:
    most = max(_pairs(row) for row in methods)
    return (
        f"No recommendation of a method: {seeds(most)} to compare on {'is' if most == 1 else 'are'} too few.",
        f"Run at least {MIN_SEEDS}, better {SIGN_FLIP_SEEDS}: of n seeds the smallest p of the sign-flip test is "
        f"2/2^n, which is below {ALPHA} from {SIGN_FLIP_SEEDS} on.",
        *_plan([row for row in methods if _pairs(row) > 1], margin, len(methods)),
    )


def _plan(rows: Sequence[MethodRow], margin: float, methods: int) -> list[str]:
    """Say how many more seeds would show the largest difference, or ``margin`` if that is larger."""
    best = max(rows, key=_gain, default=None)
    if best is None or max(_gain(best), margin) <= 0:
        return []
    values, effect = _difference(best).values, max(_gain(best), margin)
    needed = max(MIN_SEEDS, seeds_needed(values, effect, alpha=ALPHA / methods))
    more = max(1, needed - len(values))
    count = f"about {more} more seed{'s' * (more > 1)}" if more <= _MANY_SEEDS else f"over {_MANY_SEEDS} more seeds"
    return [
        f"The best of the others is {_listed([best])}; with {count} a difference of {number(effect)} would probably "
        "show."
    ]


# Baselines -----------------------------------------------------------------------------------------------------------


def _judge_baseline(verdict: Verdict, tuned: Sequence[MethodRow], baseline: MethodRow, margin: float) -> Verdict:
    """Put the best baseline first, unless a fine-tuned model is ahead of it by ``margin``; then say by how much."""
    best = max(tuned, key=_gain)
    lead = baseline.versus(best)
    if lead is None:
        return verdict
    if lead.mean.value <= -margin:
        used = next((row for row in tuned if row.label == verdict.use), best)
        return replace(verdict, sentences=(*verdict.sentences, *_behind(used, baseline)))
    by = "" if lead.mean.value > 0 else f" by {number(margin)}"
    figures = f"{baseline.label} against the best of them, {title(best)}: {interval(lead)}{_time(baseline)}."
    if lead.n < MIN_SEEDS:
        first = f"So far no fine-tuned model is ahead of {title(baseline)}{by}."
        return Verdict("too few seeds", None, (first, figures, *verdict.sentences))
    first, second = f"Use {title(baseline)}: no fine-tuned model is ahead of it{by}.", verdict.sentences[0]
    among = f"Of the fine-tuned models: {second[0].lower()}{second[1:]}"
    return Verdict("baseline", baseline.label, (first, figures, among, *verdict.sentences[1:]))


def _behind(used: MethodRow, baseline: MethodRow) -> list[str]:
    difference = used.versus(baseline)
    if difference is None:
        return []
    shown = difference.n >= MIN_SEEDS and difference.p_value <= ALPHA and difference.mean.value > 0
    name = title(used).replace("plain", "Plain")
    return [
        f"{name} is {'' if shown else 'not shown to be '}ahead of the best baseline, "
        f"{title(baseline)}: {interval(difference)}{_time(baseline)}."
    ]


# In words ------------------------------------------------------------------------------------------------------------


def title(row: MethodRow) -> str:
    """Name a method, or a baseline with what it is."""
    if row.is_baseline:
        return f"{row.label} ({DESCRIPTIONS[row.method]})"
    return "plain fine-tuning" if row.label == "finetune" else row.label


def number(value: float) -> str:
    """Format a score."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def interval(difference: PairedDifference) -> str:
    """Format a mean difference with its 95 % interval."""
    low, value, high = (
        f"{'+' if each > 0 else ''}{number(each)}"
        for each in (difference.mean.low, difference.mean.value, difference.mean.high)
    )
    return f"{value} [{low}, {high}]" if difference.n > 1 else f"{value} (one seed)"


def cost(row: MethodRow) -> str:
    """Format the time of training, relative to the reference."""
    if row.cost is None:
        return "-"
    return "<0.01x" if row.cost < 0.01 else f"{row.cost:.2g}x"


def seeds(count: int) -> str:
    """Format a number of seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def _listed(rows: Sequence[MethodRow]) -> str:
    return ", ".join(f"{row.label} ({interval(_difference(row))})" for row in rows)


def _time(row: MethodRow) -> str:
    return "" if row.cost is None else f"; {row.label} takes {cost(row)} the time of plain fine-tuning"


# Figures -------------------------------------------------------------------------------------------------------------


def _difference(row: MethodRow) -> PairedDifference:
    assert row.difference is not None
    return row.difference


def _pairs(row: MethodRow) -> int:
    return 0 if row.difference is None else row.difference.n


def _gain(row: MethodRow) -> float:
    """Mean difference to the reference."""
    if row.is_reference:
        return 0.0
    return -math.inf if row.difference is None else row.difference.mean.value


def _cost(row: MethodRow) -> float:
    return math.inf if row.cost is None else row.cost


def _is_shown(row: MethodRow) -> bool:
    return row.p_holm is not None and row.p_holm <= ALPHA


def _is_within(row: MethodRow, margin: float) -> bool:
    return -margin < _difference(row).mean.low and _difference(row).mean.high < margin
