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


@dataclass(frozen=True)
class Words:
    """The words for a verdict on some rows, by label, compared with those of the label ``reference``.

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
        found = {} if verdict.challenger is None else self.completions(verdict)
        parts = [opening(self.rows.get(verdict.use or "")), verdict.says.format(**found)]
        if verdict.limit == "at best":
            within = f"{number(self.margin, self.digits)} of {number(self.best)}"
            best = f"What is not told apart is within {within}, the best possible score"
            parts.append(f"{best}: harder evaluation rows may tell more, more seeds will not.")
        elif verdict.limit == "equal":
            same = "What is not told apart has the same scores"
            parts.append(f"{same}: other evaluation rows may tell more, more seeds hardly.")
        if verdict.why != "ahead" and (over := self.over(verdict)):
            parts.append(f"{_capital(self.gains(None, *over))}{self.little(*over)}.")
        return (" ".join(parts), *self.figures(verdict))

    def without_reference(self) -> str:
        """Say why nothing is recommended, and the command that compares with another method, if there is one."""
        if not self.rows:
            return "no run has a score on evaluation rows"
        other = next((row.label for row in self.rows.values() if not row.is_baseline), None)
        remedy = other and f"; attendrop report FOLDER --reference {shlex.quote(other)} compares with that instead"
        return f"{name(self.reference)}, with which all others are compared, has no score{remedy or ''}"

    def completions(self, verdict: Verdict) -> dict[str, str]:
        """Return what completes the sentences of the rules, by name, for a verdict that rests on a pair."""
        challenger, incumbent = self.rows[verdict.challenger or ""], self.rows[verdict.incumbent or ""]
        lead = 0.0 if verdict.lead is None else verdict.lead.value
        methods = [row for row in self.rows.values() if not row.is_baseline]
        leads = [(lead, title(incumbent)), *self.over(verdict)]
        gains = self.gains(title(challenger), (lead, ""))
        runs, count = "each", max((row.pairs for row in methods), default=0)
        if incumbent.is_baseline:
            runs, count = (
                f"{title(challenger)} and {title(incumbent)}",
                self.versus(challenger.label, incumbent.label).n,
            )
        in_common = count < min(challenger.n, incumbent.n)
        few = f"{counted(count, 'seed')} in common" if in_common else f"{counted(count, 'run')} of {runs}"
        enough = "" if verdict.limit else f": take {MIN_SEEDS} seeds or more"
        # By how much fine-tuning would have to improve to be level.
        level, needs = "it gets as many right", f"it would have to get {self.amount(-lead)} right to be level"
        if self.metric not in _FRACTIONS_RIGHT:
            its = f"its {self.metric.removeprefix(_ERROR)}"
            level, needs = f"{its} is the same", f"{its} would have to be {self.amount(-lead)} to be level"
        needs = level if lead >= -ROUNDING else needs
        unlike = " and ".join(name(label) for label, each in verdict.baseline_leads.items() if not each.is_shown)
        p_holm = verdict.baseline_leads[challenger.label].p_holm if challenger.label in verdict.baseline_leads else None
        # Methods that cannot be judged yet, or whose lead is practically nothing, may be ahead of the best open one.
        most = max((row.difference.mean.value for row in methods if row.difference), default=0.0)
        is_best = verdict.why == "all behind" or most <= lead + ROUNDING
        others = self.listed(verdict.not_judged)
        open_yet = ["are behind"] * bool(verdict.behind) + ["cannot be judged yet"] * bool(others)
        apart = "shown to be ahead" if verdict.behind or verdict.slight else "told apart from it"
        return {
            "incumbent": title(incumbent),
            "few": f"{few} {'is' if count == 1 else 'are'} too few to tell{enough}.",
            "so_far": f"So far fine-tuning is not ahead of {title(incumbent)}: {needs}. " if lead <= ROUNDING else "",
            "needs": needs,
            "gains": gains,
            "it_gains": f"{_capital(self.gains(None, *leads))}{self.little(*leads)}",
            "gains_so": f"{self.gains(None, (lead, ''))}{self.little((lead, ''))}",
            "unlike": f"Unlike {unlike}, it" if unlike else "It",
            "does_not": "does not" if p_holm is not None and p_holm <= ALPHA else "is not shown to",
            "best_method": f"the best {'of them' if is_best else 'of those that are open'}: {gains}",
            "but": f" but {others}, which cannot be judged yet," if others else "",
            "those": f"Apart from methods that {' or '.join(open_yet)}, the" if open_yet else "The",
            "cheapest": "no other is clearly cheaper" if verdict.use == incumbent.label else "it is the cheapest",
            "apart": f"{apart} by {self.amount(self.margin, sign=False)}" if verdict.slight else apart,
            "by_chance": ", which may be chance" if abs(lead) > ROUNDING else "",
        }

    def over(self, verdict: Verdict) -> list[tuple[float, str]]:
        """Return the lead of the recommendation over the best baseline, and its name; empty if there is none."""
        use, baseline = verdict.use, verdict.baseline
        if baseline is None or use is None:
            return []
        best = max(row.mean for row in self.rows.values() if row.is_baseline)
        which = " that trains no encoder" if self.rows[baseline].mean < best else ""
        return [(self.versus(use, baseline).mean.value, f"the best baseline{which}, {title(self.rows[baseline])}")]

    def little(self, *leads: tuple[float, str]) -> str:
        return ": little, but more than chance" if any(lead < self.margin for lead, _ in leads) else ""

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
        lines: list[str] = []
        challenger, incumbent, baseline = verdict.challenger, verdict.incumbent, verdict.baseline
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
