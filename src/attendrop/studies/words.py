"""Wording of verdicts, and format of their figures."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA, ROUNDING, Estimate, PairedDifference
from attendrop.studies.verdict import MIN_SEEDS, Verdict
from attendrop.wording import counted, decimals

BASELINES_IN_WORDS = {
    "majority": "the constant answer",
    "tfidf": "the TF-IDF model",
    "frozen": "the linear model on the frozen encoder",
    "setfit": "the linear model on an encoder that was trained on pairs",
}
# Metrics that are the fraction of right answers.
_FRACTIONS_RIGHT = ("accuracy", "exact_match")
_ERROR = "neg_"
# Differences from here on are given as a number out of 100 rows, smaller ones out of 1,000.
_OF_HUNDRED = 0.0195
# Decimals of scores, but for small errors.
_DECIMALS = 3
# Scores from here on are shown with an exponent.
_HUGE = 1e9
_NO_ROW_SCORES = (
    "The runs have no scores by row, or of different rows, so nothing is known of new rows: compare in a new folder, "
    "with two evaluation rows or more."
)


@dataclass(frozen=True)
class Words:
    """The words for verdicts on some rows, by label, compared with those of the label ``reference``.

    Differences below ``margin`` are practically nothing; ``best`` is the best possible score.
    """

    rows: dict[str, MethodRow]
    reference: str
    metric: str
    margin: float
    best: float

    @property
    def digits(self) -> int:
        """How many decimals scores are shown with."""
        return decimals_of(self.margin)

    def sentences(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the decision and its reason for readers without statistics, then the figures behind it."""
        if verdict.kind == "no reference":
            return (f"No recommendation: {self.without_reference()}.",)
        decision = " ".join([opening(self.rows.get(verdict.use or "")), *self.reason(verdict)])
        return (decision, *self.figures(verdict))

    def without_reference(self) -> str:
        """Say why nothing is recommended, and the command that compares with another method, if there is one."""
        if not self.rows:
            return "no run has a score on evaluation rows"
        other = next((row.label for row in self.rows.values() if not row.is_baseline), None)
        remedy = other and f"; attendrop report FOLDER --reference {shlex.quote(other)} compares with that instead"
        return f"{name(self.reference)}, with which all others are compared, has no score{remedy or ''}"

    # The decision ----------------------------------------------------------------------------------------------------

    def reason(self, verdict: Verdict) -> list[str]:
        """Return the reason, why more seeds would not settle it, and the lead over the best baseline."""
        over, settles = [], [] if (text := self.settles(verdict)) is None else [text]
        if verdict.baseline is not None and verdict.use is not None:
            lead = self.versus(verdict.use, verdict.baseline).mean.value
            best = max(row.mean for row in self.rows.values() if row.is_baseline)
            which = " that trains no encoder" if self.rows[verdict.baseline].mean < best else ""
            over = [(lead, f"the best baseline{which}, {self.title(verdict.baseline)}")]
        if verdict.why == "ahead" and verdict.lead is not None:
            leads = [(verdict.lead.value, self.title(verdict.incumbent or "")), *over]
            return [f"{_capital(self.gains(None, *leads))}{self.little(*leads)}."]
        also = [f"{_capital(self.gains(None, *over))}{self.little(*over)}."] if over else []
        if verdict.challenger is None or verdict.incumbent is None:
            return ["No other method has a result.", *also]
        if self.rows[verdict.incumbent].is_baseline:
            return [*self.reason_against_baseline(verdict), *settles]
        return [self.reason_among_tuned(verdict), *settles, *also]

    def reason_among_tuned(self, verdict: Verdict) -> str:
        lead = 0.0 if verdict.lead is None else verdict.lead.value
        leads = [row.difference.mean.value for row in self.rows.values() if not row.is_baseline and row.difference]
        # Methods that cannot be judged yet, or whose lead is practically nothing, may be ahead of the best open one.
        is_best = verdict.why == "all behind" or max(leads, default=0.0) <= lead + ROUNDING
        which = "of them" if is_best else "of those that are open"
        best = f"the best {which}: {self.gains(name(verdict.challenger or ''), (lead, ''))}"
        match verdict.why:
            case "few seeds":
                pairs = max(row.pairs for row in self.rows.values() if not row.is_baseline)
                return self.too_few(pairs, "each", verdict)
            case "no row scores":
                return _NO_ROW_SCORES
            case "all behind":
                others = self.listed(verdict.not_judged)
                but = f" but {others}, which cannot be judged yet," if others else ""
                return f"Every other method here{but} is behind it; {best}."
            case "negligible":
                is_reference = verdict.use == verdict.incumbent
                cheapest = "no other is clearly cheaper" if is_reference else "it is the cheapest"
                apart = ["are behind"] * bool(verdict.behind) + ["cannot be judged yet"] * bool(verdict.not_judged)
                those = f"Apart from methods that {' or '.join(apart)}, the" if apart else "The"
                return f"{those} differences are practically nothing, and {cheapest}."
        what = "shown to be ahead" if verdict.behind or verdict.slight else "told apart from it"
        if verdict.slight:
            what += f" by {self.amount(self.margin, sign=False)}"
        return f"No other method here is {what}; {best}{', which may be chance' if abs(lead) > ROUNDING else ''}."

    def reason_against_baseline(self, verdict: Verdict) -> list[str]:
        challenger, incumbent = self.title(verdict.challenger or ""), self.title(verdict.incumbent or "")
        found = self.versus(verdict.challenger or "", verdict.incumbent or "")
        lead = found.mean.value
        gains = self.gains(challenger, (lead, ""))
        match verdict.why:
            case "few seeds" | "no row scores":
                few = self.too_few(found.n, f"{challenger} and {incumbent}", verdict)
                so_far = f"So far fine-tuning is not ahead of {incumbent}: {self.needs(-lead)}."
                return [so_far] * (lead <= ROUNDING) + [few if verdict.why == "few seeds" else _NO_ROW_SCORES]
            case "others not ahead":
                others = [name(label) for label, each in verdict.baseline_leads.items() if not each.is_shown]
                unlike = f"Unlike {' and '.join(others)}, it" if others else "It"
                gains = self.gains(None, (lead, ""))
                return [f"{unlike} is shown to be ahead of {incumbent}: {gains}{self.little((lead, ''))}."]
            case "behind":
                p_holm = verdict.baseline_leads[verdict.challenger or ""].p_holm
                shown = p_holm is not None and p_holm <= ALPHA
                return [f"Fine-tuning {'does not' if shown else 'is not shown to'} pay here: {self.needs(-lead)}."]
            case "negligible":
                return [f"Fine-tuning does not pay here: {gains}, which is practically nothing."]
        return [f"Fine-tuning is not shown to pay here: {gains}, which may be chance."]

    def too_few(self, count: int, runs: str, verdict: Verdict) -> str:
        enough = "." if verdict.limit else f": take {MIN_SEEDS} seeds or more."
        fewest = min(self.rows[label].n for label in (verdict.challenger, verdict.incumbent) if label is not None)
        few = f"{counted(count, 'seed')} in common" if count < fewest else f"{counted(count, 'run')} of {runs}"
        return f"{few} {'is' if count == 1 else 'are'} too few to tell{enough}"

    def little(self, *leads: tuple[float, str]) -> str:
        return ": little, but more than chance" if any(lead < self.margin for lead, _ in leads) else ""

    def settles(self, verdict: Verdict) -> str | None:
        """Return why more seeds would not settle an open decision; None if they may."""
        if verdict.limit == "at best":
            within = f"{number(self.margin, self.digits)} of {number(self.best)}"
            best = f"What is not told apart is within {within}, the best possible score"
            return f"{best}: harder evaluation rows may tell more, more seeds will not."
        if verdict.limit == "equal":
            return "What is not told apart has the same scores: other evaluation rows may tell more, more seeds hardly."
        return None

    def gains(self, subject: str | None, *leads: tuple[float, str]) -> str:
        """Return by how much a model is ahead of or behind others; an empty name is left out."""
        fraction = self.metric in _FRACTIONS_RIGHT
        parts: list[str] = []
        for lead, other in leads:
            than = ("as" if abs(lead) <= ROUNDING else "than") + " that of" * (not fraction)
            right = "" if parts or not fraction else " right"
            parts.append(f"{self.amount(lead)}{right}{f' {than} {other}' if other else ''}")
        if fraction:
            return f"{subject or 'it'} gets {', and '.join(parts)}"
        metric = self.metric.removeprefix(_ERROR)
        return f"{f'the {metric} of {subject}' if subject else f'its {metric}'} is {', and '.join(parts)}"

    def needs(self, behind: float) -> str:
        """Return by how much fine-tuning would have to improve to be level."""
        if self.metric in _FRACTIONS_RIGHT:
            if behind <= ROUNDING:
                return "it gets as many right"
            return f"it would have to get {self.amount(behind)} right to be level"
        if behind <= ROUNDING:
            return f"its {self.metric.removeprefix(_ERROR)} is the same"
        return f"its {self.metric.removeprefix(_ERROR)} would have to be {self.amount(behind)} to be level"

    def amount(self, lead: float, *, sign: bool = True) -> str:
        """Format a difference, such as "3 more of 100" for a fraction of right answers, or "0.030 higher"."""
        size = abs(lead)
        if size <= ROUNDING:
            return "as many" if self.metric in _FRACTIONS_RIGHT else "the same"
        if self.metric not in _FRACTIONS_RIGHT:
            higher = " lower" if (lead < 0) is not self.metric.startswith(_ERROR) else " higher"
            smallest = 10.0**-self.digits
            shown = f"less than {smallest:.{self.digits}f}" if size < smallest / 2 else number(size, self.digits)
            return f"{shown}{higher if sign else ''}"
        whole = 100 if size >= _OF_HUNDRED else 1000
        count = round(whole * size)
        more = " fewer" if lead < 0 else " more"
        return f"{count or 'less than 1'}{more if sign else ''} of {whole:,}"

    # The figures -----------------------------------------------------------------------------------------------------

    def figures(self, verdict: Verdict) -> list[str]:
        """Return the differences with their intervals, p values and times, and the result for other methods."""
        challenger, incumbent = verdict.challenger, verdict.incumbent
        lines: list[str] = []
        baseline = verdict.baseline
        if challenger is not None and incumbent is not None and self.rows[incumbent].is_baseline:
            baseline = incumbent
        elif challenger is not None and self.rows[challenger].difference is not None:
            row = self.rows[challenger]
            takes = "" if row.p_holm is None or row.cost is None else f"; it takes {cost(row)} the time"
            lines.append(f"{self.difference(challenger, incumbent or '', row.p_holm)}{takes}.")
        if verdict.also_ahead:
            best = max((challenger or "", *verdict.also_ahead), key=lambda label: self.rows[label].mean)
            margin = number(self.margin, self.digits)
            cheaper = f"; below {margin} apart, the cheaper is recommended" * (best != challenger)
            lines.append(f"Also ahead: {self.listed(verdict.also_ahead)}{cheaper}.")
        if verdict.slight:
            lines.append(f"Ahead, but by practically nothing: {self.listed(verdict.slight)}.")
        if others := [label for label in verdict.behind if label != challenger]:
            lines.append(f"Behind {name(incumbent or '')}: {self.listed(others)}.")
        if baseline is not None:
            lines += self.against(verdict, baseline)
        return lines

    def against(self, verdict: Verdict, baseline: str) -> list[str]:
        """Return the difference of the recommendation, or of what comes next, from the best baseline."""
        row, reference = self.rows[baseline], next(iter(self.rows))
        first = verdict.challenger if verdict.baseline is None else verdict.use or verdict.challenger
        label = first or reference
        lines = []
        if self.rows[label].versus(row) is not None:
            lines.append(self.difference(label, baseline, verdict.baseline_leads[label].p_holm))
        if lines and row.cost is not None:
            lines[-1] += f"; {baseline} takes {cost(row)} the time of {name(reference)}"
        used = self.rows[verdict.use or baseline]
        is_cheaper = row.cost is not None and used.cost is not None and row.cost < used.cost
        if is_cheaper and self.versus(used.label, baseline).mean.value < self.margin:
            margin = number(self.margin, self.digits)
            lines.append(f"Where the time of training counts for more than {margin}, use {baseline}")
        return [f"{line}." for line in lines]

    def difference(self, label: str, other: str, p_value: float | None) -> str:
        """Return the difference of two models and, if tested, how often the first is ahead, and the p value."""
        found = self.versus(label, other)
        text = f"On new rows, {name(label)} minus {name(other)} is {interval(found, self.digits)}"
        if p_value is None:
            return text
        ahead, p = sum(value > ROUNDING for value in found.values), p_text(p_value)
        p = f"{p[0]} {p[1:]}" if p[0] in "<>" else f"= {p}"
        corrected = "" if self.rows[label].is_reference else " (Holm)"
        return f"{text}; ahead in {ahead} of {counted(found.n, 'seed')}, p {p}{corrected}"

    def listed(self, labels: Iterable[str]) -> str:
        differences = {label: self.rows[label].difference for label in labels}
        return ", ".join(
            f"{label} ({interval(found, self.digits) if found else 'no seed in common'})"
            for label, found in differences.items()
        )

    def versus(self, label: str, other: str) -> PairedDifference:
        found = self.rows[label].versus(self.rows[other])
        assert found is not None
        return found

    def title(self, label: str) -> str:
        return title(self.rows[label])


def opening(use: MethodRow | None) -> str:
    """Return the decision without its reason: what to use; None if there is no recommendation."""
    return "No recommendation yet." if use is None else f"Use {title(use)}."


def title(row: MethodRow) -> str:
    """Name a model as sentences about decisions do, such as "the TF-IDF model (tfidf)"."""
    return f"{BASELINES_IN_WORDS[row.method]} ({row.label})" if row.is_baseline else name(row.label)


def name(label: str) -> str:
    """Name a model by its label, and the reference in words."""
    return "plain fine-tuning" if label == "finetune" else label


# Figures -------------------------------------------------------------------------------------------------------------


def decimals_of(margin: float) -> int:
    """Return how many decimals scores are shown with: three, or more where less than that makes a difference."""
    return decimals(margin, _DECIMALS)


def number(value: float, digits: int = _DECIMALS) -> str:
    """Format a score, zero without a sign; errors of large numbers, such as prices, without decimals."""
    size = abs(value)
    return f"{value:z.{digits}f}" if size < 10 else f"{value:.0f}" if 1000 <= size < _HUGE else f"{value:.4g}"


def signed(value: float, digits: int = _DECIMALS) -> str:
    """Format a difference of scores, with the sign that it had before it was rounded."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{number(abs(value), digits)}"


def interval(difference: PairedDifference, digits: int = _DECIMALS) -> str:
    """Format a mean difference with its 95 % interval on new rows."""
    mean = signed(difference.mean.value, digits)
    if difference.p_value is None:
        return f"{mean} ({'one seed' if difference.n == 1 else 'rows not known'})"
    return f"{mean} {ends(difference.mean, digits)}"


def ends(found: Estimate, digits: int = _DECIMALS) -> str:
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


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
