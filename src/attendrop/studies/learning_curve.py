"""What more training rows would bring: a power law through the scores at a quarter, a half and all of the rows.

The rows of a quarter are among those of a half, drawn by class, groups as a whole, anew for each seed. All are scored
on the same evaluation rows, so that the gains of both doublings are paired by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from scipy import stats

from attendrop.studies.answer import DECIMALS, IN_WORDS, Answer, ends, has_score, method_label, name, signed, span_of
from attendrop.studies.executor import REFERENCE, Event, RunSpec
from attendrop.studies.statistics import Array, CrossedMean, Estimate, paired_difference
from attendrop.tasks.metrics import RowScores
from attendrop.wording import decimals

# How often the rows are halved, the fewest rows first, and how many times as many rows are predicted.
HALVINGS, FACTORS = (2, 1, 0), (2, 4)
SEEDS, MODELS = 3, 2
# Up to this, a gain is little, whatever its sign; of errors, as a share of that with all rows.
LITTLE = 0.01


@dataclass(frozen=True)
class LearningCurve:
    """Scores of a method over the number of training rows.

    Attributes:
        label: Label of the method or baseline.
        sizes, scores: Numbers of training rows, the smallest first, and the mean scores over seeds.
        gains: By how many times as many rows: the score there minus that of all rows, with its 90 % interval; empty if
            it is not known.
        why_not: Why it is not known; empty if it is.
    """

    label: str
    metric: str
    sizes: tuple[float, ...]
    scores: tuple[float, ...]
    gains: Mapping[int, Estimate] = field(default_factory=dict)
    why_not: str = ""

    @property
    def scale(self) -> float:
        """How far scores may differ: 1, or of errors, which have no limit, that with all rows."""
        return abs(self.scores[-1]) if self.metric.startswith("neg_") else 1.0

    @property
    def decimals(self) -> int:
        """How many decimals scores are shown with."""
        return decimals(LITTLE * self.scale if self.scores else LITTLE, DECIMALS)

    @property
    def sentence(self) -> str:
        """Say what twice as many rows would give, or that it is not known."""
        model = IN_WORDS.get(self.label, name(self.label))
        if not self.gains:
            return f"What twice as many rows would give {model} is not known: {self.why_not}."
        gain, rows, digits = self.gains[2], f"Twice as many rows ({2 * self.sizes[-1]:,.0f})", self.decimals
        if gain.low <= 0 <= gain.high:
            span = f"{self.metric} {signed(gain.low, digits)} to {signed(gain.high, digits)} (90 % interval)"
            if max(-gain.low, gain.high) <= LITTLE * self.scale:
                return f"{rows} would give {model} little: {span}."
            return f"What twice as many rows would give {model} is not known: {span}."
        told = f"{signed(gain.value, digits)} {ends(gain, digits)} {self.metric}"
        return f"{rows} would give {model} about {told} (90 % interval)."

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """Read what ``asdict`` returned, in JSON."""
        gains = {int(factor): Estimate(**gain) for factor, gain in found["gains"].items()}
        return cls(**{**found, "sizes": tuple(found["sizes"]), "scores": tuple(found["scores"]), "gains": gains})


def learning_curves(
    found: Answer, results: Sequence[Event], perform: Callable[[list[RunSpec]], list[Event]]
) -> list[LearningCurve]:
    """Run the recommended method and the best baseline on fewer rows, and predict what more rows would bring.

    If a baseline is recommended, the best fine-tuned model stands beside it.
    """
    verdict, own = found.verdict, {method_label(each.run): each for each in results if each.metrics is not None}
    wanted = [row and row.label for row in (verdict.use, verdict.base, verdict.candidate)]
    curves = []
    for label in [each for each in dict.fromkeys([*wanted, REFERENCE]) if each in own][:MODELS]:
        spec, metrics = own[label].spec, own[label].metrics or {}
        # What the data decided for all rows holds for fewer, too.
        fewer = {} if spec.baseline else {"options": metrics["options"]}
        specs = [
            replace(spec, config=replace(spec.config, seed=seed, **({"halvings": each, **fewer} if each else {})))
            for seed in range(SEEDS)
            for each in HALVINGS
        ]
        runs = [each.metrics for each in perform(specs)]
        complete = [runs[at : at + len(HALVINGS)] for at in range(0, len(runs), len(HALVINGS))]
        scored = [[run for run in each if run is not None and has_score(run)] for each in complete]
        curves.append(curve_of(label, found.metric, [each for each in scored if len(each) == len(HALVINGS)]))
    return curves


def curve_of(label: str, metric: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> LearningCurve:
    """Make the curve of a model from the ``metrics.json`` of its runs, those of each seed by the number of rows."""
    if not runs:
        return LearningCurve(label, metric, (), (), why_not="no seed has a score at each number of rows")
    scores = np.array([[run["score"] for run in own] for own in runs])
    sizes = np.mean([[run["data"]["rows"]["train"] for run in own] for own in runs], axis=0)
    curve = LearningCurve(label, metric, tuple(sizes.tolist()), tuple(scores.mean(axis=0).tolist()))
    if len(runs) < 2:
        return replace(curve, why_not="one seed does not tell how much chance there is")
    if np.any(sizes[1:] < 1.5 * sizes[:-1]) or sizes[0] < len(runs[0][0]["data"].get("classes", ())):
        return replace(curve, why_not="there are too few rows to take a quarter of, with rows of each class")
    by_row = [RowScores.from_dict(run["row_scores"]) for own in runs for run in own if run.get("row_scores")]
    if len(by_row) < scores.size or len({len(each.by_unit) for each in by_row}) > 1:
        return replace(curve, why_not="there are no scores by row")
    best, of, scale = 0.0 if metric.startswith("neg_") else 1.0, by_row[0], curve.scale
    of_units = np.reshape(np.stack([each.by_unit for each in by_row]), (*scores.shape, -1))
    risen = paired_difference(
        scores[:, -1].tolist(), scores[:, 0].tolist(), of_units[:, -1] - of_units[:, 0], of.rows,
        groups=of.groups, scale=scale, span=span_of(metric),
    ).mean  # fmt: skip
    if risen.low <= 0 and max(-risen.low, risen.high) > LITTLE * scale:
        found = (
            "all of the rows are behind a quarter of them" if risen.high < 0 else "a quarter and all are not told apart"
        )
        told = f"{metric} {signed(risen.value, curve.decimals)} {ends(risen, curve.decimals)}"
        return replace(curve, why_not=f"{found} ({told})")
    return replace(curve, gains=predict_gains(sizes, scores, of_units, of.groups or of.rows, best, scale))


def predict_gains(
    sizes: Array, scores: Array, by_unit: Array, rows: int, best: float = 1.0, scale: float = 1.0
) -> dict[int, Estimate]:
    """Predict the gains of two and four times as many rows by a power law, ``score(n) = top - b * n ** -c``.

    The gains of the two doublings that were seen, with the covariance of their errors, weigh the laws of a grid:
    exponents ``c`` from 0.1 to 1 by their logarithm, gains of the last doubling from 0, and a ``top`` that is not above
    the best score. The interval is that of these laws, of how far real gains are from a law, and of how far the gain of
    a few further rows is from that of all such rows. Returns the median of the gain by factor, with its 90 % interval.

    ``sizes`` are numbers of training rows, ``(3,)``, each about twice the one before. The ``scores``, ``(seeds, 3)``,
    are divided among evaluation rows, groups or blocks in ``by_unit``, ``(seeds, 3, units)``; there are ``rows``
    evaluation rows, or groups of them. ``best`` is the best score, and ``scale`` how far scores of a row may differ.
    """
    seen = np.diff(scores, axis=1)  # (seeds, 2)
    of_units = np.diff(by_unit, axis=1)  # (seeds, 2, units)
    seeds, _, units = of_units.shape
    # A sample of rows moves the score by the sum of what each row does, so that the scores of halves and quarters vary
    # around that of all rows with variances that are 1 and 3 times that of all rows around that of infinitely many.
    first, second = (CrossedMean.of(of_units[:, step], float(seen[:, step].mean()), rows) for step in (0, 1))
    of_sample = (first.of_seeds / 2 + second.of_seeds) / 2
    covariance = np.cov(of_units.mean(axis=0)) / units + np.diag([2.0, 1.0]) * of_sample / seeds
    covariance += np.eye(2) * (scale / rows) ** 2  # where no evaluation row differs, others may
    # The gain of the last doubling is b * n ** -c * (share - 1), in which the first factor is what is left to the top.
    error = math.sqrt(covariance[1, 1])
    gains = np.linspace(0, max(seen[:, 1].mean(), 0) + 6 * error, 201)[:, None]
    exponents = np.geomspace(0.1, 1.0, 40)  # of the same weight
    quarter, half = ((sizes[-1] / sizes[step]) ** exponents for step in (0, 1))
    left = gains / (half - 1)  # (gains, exponents)
    expected = np.stack([left * (quarter - half), np.broadcast_to(gains, left.shape)], axis=-1)
    weights = stats.multivariate_normal(np.zeros(2), covariance).logpdf(expected - seen.mean(axis=0))
    most = max(best - float(scores[:, -1].mean()), 0) + 1e-9
    weights = np.where(left <= most, weights, -np.inf)
    weights = np.exp(weights - weights.max()).ravel()
    generator = np.random.default_rng(0)
    drawn = generator.choice(weights.size, 20_000, p=weights / weights.sum())
    exponents = np.tile(exponents, len(gains))[drawn]
    found = {}
    for factor in FACTORS:
        misfit, chance = generator.standard_normal((2, len(drawn)))
        # How far real gains are from such a law: 0.25 is the standard deviation of their logarithm.
        gain = left.ravel()[drawn] * (1 - factor**-exponents) * np.exp(0.25 * misfit)
        gain = np.minimum(np.minimum(gain, most) + math.sqrt(of_sample * (1 - 1 / factor)) * chance, most)
        low, middle, high = np.quantile(gain, [(1 - 0.9) / 2, 0.5, (1 + 0.9) / 2])
        found[factor] = Estimate(float(middle), float(low), float(high))
    return found
