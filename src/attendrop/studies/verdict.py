"""What a comparison recommends, in words, and never more than its figures bear."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from attendrop.studies.baseline_names import DESCRIPTIONS
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA, PairedDifference, holm, seeds_needed, smallest_sign_flip_p

# The t test holds its level from here on, also where scores are fractions of few rows: tests/studies.
MIN_SEEDS = 4
# The sign-flip test can fall below 0.05 from here on: 2 / 2**6 = 0.03.
SIGN_FLIP_SEEDS = 6
_MANY_SEEDS = 1000

# Scores that are less apart than this differ by rounding only.
_ROUNDING = 1e-9

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


class Evaluation(NamedTuple):
    """What bounds the differences that scores can show.

    Attributes:
        rows: Number of rows that are scored; None: unknown, or the score is no fraction of rows.
        best: The best score that there is.
    """

    rows: int | None = None
    best: float = math.inf


def judge(rows: Sequence[MethodRow], margin: float, evaluation: Evaluation | None = None) -> Verdict:
    """Recommend a baseline, the reference, or a method.

    What takes more must be shown to be ahead of what takes less: with a p value of the paired t test of at most 0.05,
    corrected by Holm over the methods, from at least :data:`MIN_SEEDS` common seeds, and unless the interval of the
    difference lies below ``margin`` as a whole.

    Of the fine-tuned models, a method is recommended if it is shown to be ahead of the reference; of several, the
    cheapest of those within ``margin`` of the best. If there is none, it is the reference, or what is cheaper where all
    differences are practically nothing. What is recommended so must be shown to be ahead of the best baseline, too. If
    it is not, another fine-tuned model that is takes its place; if there is none, the baseline does.

    Args:
        rows: From :func:`attendrop.studies.method_rows.method_rows`.
        margin: Differences below this are practically nothing.
        evaluation: What bounds the differences; None: nothing is known.
    """
    evaluation = evaluation or Evaluation()
    if not rows or not rows[0].is_reference:
        return Verdict("no reference", None, ("No recommendation: no run of the reference has a score.",))
    reference, tuned = rows[0], [row for row in rows if not row.is_baseline]
    verdict = _judge_methods(reference, tuned[1:], margin, evaluation)
    baselines = [row for row in rows if row.is_baseline]
    return _judge_baseline(verdict, tuned, max(baselines, key=_gain), margin, evaluation) if baselines else verdict


# Fine-tuned models ---------------------------------------------------------------------------------------------------


def _judge_methods(
    reference: MethodRow, methods: Sequence[MethodRow], margin: float, evaluation: Evaluation
) -> Verdict:
    """Recommend one of the fine-tuned models."""
    use = f"Use {title(reference)}:"
    if not methods:
        return Verdict("reference", reference.label, (f"{use} no other method was run.",))
    tested = [row for row in methods if _pairs(row) >= MIN_SEEDS]
    if not tested:
        return Verdict("too few seeds", None, _too_few(reference, methods, margin, evaluation))
    ahead = [row for row in tested if _is_shown(row) and _gain(row) > 0 and not _is_within(_difference(row), margin)]
    behind = [row for row in tested if _is_shown(row) and _gain(row) < 0]
    unclear = [row for row in tested if row not in ahead and row not in behind]
    figures = [f"Behind {title(reference)}: {_listed(behind)}."] if behind else []
    if ahead:
        return _judge_ahead(reference, ahead, margin, figures)
    if not unclear:
        return Verdict("reference", reference.label, (f"{use} every method here is behind it.", *figures))
    if all(_is_within(_difference(row), margin) for row in unclear):
        cheapest = min((reference, *unclear), key=_cost)
        first = f"Use {title(cheapest)}: the differences are practically nothing, and it is the cheapest."
        limit = _limit((reference, *unclear), margin, margin, evaluation)
        return Verdict("tie", cheapest.label, (first, f"Below {number(margin)}: {_listed(unclear)}.", *limit, *figures))
    found = "shown to be ahead of" if behind else "distinguishable from"
    plan = _plan(reference, unclear, margin, len(methods), evaluation)
    return Verdict("tie", reference.label, (f"{use} nothing here is {found} it.", *plan, *figures))


def _judge_ahead(reference: MethodRow, ahead: Sequence[MethodRow], margin: float, figures: Sequence[str]) -> Verdict:
    """Recommend one of the methods that are shown to be ahead of the reference."""
    best = max(ahead, key=_gain)
    use = _cheapest_of_best(ahead, reference, margin)
    difference, others = _difference(use), [row for row in ahead if row is not use]
    wins = sum(value > 0 for value in difference.values)
    sentences = [
        f"Use {use.label}: it is ahead of {title(reference)}{_by_little(difference, margin)}.",
        f"The difference is {interval(difference)} (95 % interval), ahead in {wins} of {seeds(difference.n)}, "
        f"p = {use.p_holm:.2g} after Holm's correction{_time(use)}.",
    ]
    if others:
        reason = "" if use is best else f"; below {number(margin)} apart, the cheaper is recommended"
        sentences.append(f"Also ahead: {_listed(others)}{reason}.")
    return Verdict("method", use.label, (*sentences, *_t_test_alone(difference.n), *figures))


def _cheapest_of_best(rows: Sequence[MethodRow], other: MethodRow, margin: float) -> MethodRow:
    """Choose the cheapest of the methods whose lead over another is within ``margin`` of the largest."""
    leads = {row.label: _versus(row, other).mean.value for row in rows}
    return min((row for row in rows if max(leads.values()) - leads[row.label] < margin), key=_cost)


def _t_test_alone(count: int) -> list[str]:
    """Say that the sign-flip test cannot tell anything of so few seeds."""
    if count >= SIGN_FLIP_SEEDS:
        return []
    return [
        f"With {seeds(count)} the sign-flip test, which assumes no distribution, cannot fall below "
        f"{smallest_sign_flip_p(count):.2g}: this rests on the t test."
    ]


def _too_few(
    reference: MethodRow, methods: Sequence[MethodRow], margin: float, evaluation: Evaluation
) -> tuple[str, ...]:
    most = max(_pairs(row) for row in methods)
    first = f"No recommendation of a method: {seeds(most)} to compare on {_are(most)} too few."
    repeated = [row for row in methods if _pairs(row) > 1]
    if repeated and (limit := _limit((reference, *repeated), math.inf, margin, evaluation)):
        return (first, *limit)
    return (
        first,
        f"Run at least {MIN_SEEDS}, better {SIGN_FLIP_SEEDS}: of n seeds the smallest p of the sign-flip test is "
        f"2/2^n, which is below {ALPHA} from {SIGN_FLIP_SEEDS} on.",
        *_plan(reference, repeated, margin, len(methods), evaluation),
    )


def _plan(
    reference: MethodRow, rows: Sequence[MethodRow], margin: float, methods: int, evaluation: Evaluation
) -> list[str]:
    """Say how many more seeds would show the largest difference, or ``margin`` if that is larger; or why none would."""
    best = max(rows, key=_gain, default=None)
    if best is None or max(_gain(best), margin) <= 0:
        return []
    effect, found = max(_gain(best), margin), f"The best of the others is {_listed([best])}"
    if limit := _limit((reference, *rows), effect, margin, evaluation):
        return [f"{found}.", *limit]
    return [f"{found}; with {_more_seeds(_difference(best), effect, methods)} would probably show."]


def _limit(rows: Sequence[MethodRow], effect: float, margin: float, evaluation: Evaluation) -> list[str]:
    """Say why more seeds would not show that rows differ by ``effect``: only other evaluation rows can; or nothing."""
    if all(evaluation.best - row.mean < margin for row in rows):
        return [
            f"All are within {number(margin)} of {number(evaluation.best)}, the best score that there is: harder "
            "evaluation rows may tell them apart, more seeds will not."
        ]
    if len(rows) > 1 and all(is_equal(_versus(row, rows[0])) for row in rows[1:]):
        return ["All have the same scores: other evaluation rows may tell them apart, more seeds hardly."]
    if evaluation.rows is not None and effect * evaluation.rows < 1 - _ROUNDING:
        return [
            f"Of {evaluation.rows} evaluation rows a single one is worth {number(1 / evaluation.rows)}: to show a "
            f"difference of {number(effect)} takes more rows, not only more seeds."
        ]
    return []


def _more_seeds(difference: PairedDifference, effect: float, methods: int) -> str:
    """Say how many more seeds are needed for what difference."""
    needed = max(MIN_SEEDS, seeds_needed(difference.values, effect, alpha=ALPHA / methods))
    more = max(1, needed - difference.n)
    count = f"about {more} more seed{'s' * (more > 1)}" if more <= _MANY_SEEDS else f"over {_MANY_SEEDS} more seeds"
    return f"{count} a difference of {number(effect)}"


# Baselines -----------------------------------------------------------------------------------------------------------


def _judge_baseline(
    verdict: Verdict, tuned: Sequence[MethodRow], baseline: MethodRow, margin: float, evaluation: Evaluation
) -> Verdict:
    """Put the best baseline first, unless a fine-tuned model is shown to be ahead of it."""
    paired = {row.label: lead.n for row in tuned if (lead := row.versus(baseline)) is not None}
    most = [row for row in tuned if paired.get(row.label, 0) >= min(MIN_SEEDS, max(paired.values(), default=0))]
    reference, best = tuned[0], max(most, key=_gain)
    lead = best.versus(baseline)
    if lead is None:
        return verdict
    if lead.n < MIN_SEEDS:
        return _too_few_against(verdict, best, baseline, margin)
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
            *_t_test_alone(lead.n),
        ]
        kind: Kind = "reference" if use is reference else "method"
        return Verdict(kind, use.label, (*sentences, *_among(verdict)))
    sentences = [
        f"Use {title(baseline)}: no fine-tuned model is {_missing(lead, margin)} of it.",
        f"{_against(best, baseline, baseline.label, ahead, margin)}{_time(baseline)}.",
    ]
    if lead.mean.value > 0 and not _is_within(lead, margin):
        effect = max(lead.mean.value, margin)
        more = [f"With {_more_seeds(lead, effect, len(tuned))} would probably show."]
        sentences += _limit((baseline, best), effect, margin, evaluation) or more
    return Verdict("baseline", baseline.label, (*sentences, *_among(verdict)))


def _ahead_of(baseline: MethodRow, tuned: Sequence[MethodRow], margin: float) -> list[MethodRow]:
    """List the fine-tuned models that are shown to be ahead of a baseline.

    Methods are corrected for their number. The reference is not: it was not chosen among them.
    """
    leads = {row.label: lead for row in tuned if (lead := row.versus(baseline)) is not None and lead.n >= MIN_SEEDS}
    methods = [row.label for row in tuned[1:] if row.label in leads]
    p_values = {label: lead.p_value for label, lead in leads.items()}
    p_values |= dict(zip(methods, holm([p_values[label] for label in methods]), strict=True))
    shown = [row for row in tuned if p_values.get(row.label, 1) <= ALPHA and leads[row.label].mean.value > 0]
    return [row for row in shown if not _is_within(leads[row.label], margin)]


def _too_few_against(verdict: Verdict, best: MethodRow, baseline: MethodRow, margin: float) -> Verdict:
    """Recommend nothing, because there are too few seeds to compare with a baseline on."""
    lead = _versus(best, baseline)
    figures = f"{_against(best, baseline, baseline.label, (), margin)}{_time(baseline)}."
    if lead.mean.value <= 0:
        first = f"So far no fine-tuned model is ahead of {title(baseline)}."
        return Verdict("too few seeds", None, (first, figures, *verdict.sentences))
    if verdict.kind == "too few seeds":
        return replace(verdict, sentences=(*verdict.sentences, figures))
    first = f"No recommendation: {seeds(lead.n)} to compare with {title(baseline)} on {_are(lead.n)} too few."
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


def is_equal(difference: PairedDifference) -> bool:
    """Whether the scores of all pairs are equal."""
    return all(abs(value) <= _ROUNDING for value in difference.values)


def cost(row: MethodRow) -> str:
    """Format the time of training, relative to the reference."""
    if row.cost is None:
        return "-"
    return "<0.01x" if row.cost < 0.01 else f"{row.cost:.2g}x"


def seeds(count: int) -> str:
    """Format a number of seeds."""
    return f"{count} seed{'s' * (count != 1)}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


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


def _is_shown(row: MethodRow) -> bool:
    return row.p_holm is not None and row.p_holm <= ALPHA


def _is_within(difference: PairedDifference, margin: float) -> bool:
    """Whether a whole interval is practically nothing."""
    return -margin < difference.mean.low and difference.mean.high < margin
