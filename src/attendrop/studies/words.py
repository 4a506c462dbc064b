"""Names of models and formats of figures, as answers and reports show them."""

from __future__ import annotations

import math

from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA, Estimate, PairedDifference
from attendrop.wording import decimals

BASELINES_IN_WORDS = {
    "majority": "the constant answer",
    "tfidf": "the TF-IDF model",
    "frozen": "the linear model on the frozen encoder",
    "setfit": "the linear model on an encoder that was trained on pairs",
}
# Decimals of scores, but for small errors.
_DECIMALS = 3
# Scores from here on are shown with an exponent.
_HUGE = 1e9


def title(row: MethodRow) -> str:
    """Name a model as sentences about decisions do, such as "the TF-IDF model (tfidf)"."""
    return f"{BASELINES_IN_WORDS[row.method]} ({row.label})" if row.is_baseline else name(row.label)


def name(label: str) -> str:
    """Name a model by its label, and the reference in words."""
    return "plain fine-tuning" if label == "finetune" else label


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
