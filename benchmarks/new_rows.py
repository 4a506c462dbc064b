"""Level, coverage and power of what a comparison says of new rows: ``python benchmarks/new_rows.py [METRIC ...]``.

Simulates runs of plain fine-tuning and of methods on a sample of evaluation rows, draws the rows anew each time, and
counts how often a method that is not ahead is called ahead, how often the 95 % interval covers the true difference, and
how often a true difference is shown. Prints the tables of docs/compare.md; half an hour on one core.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendrop.studies.statistics import ALPHA, CrossedMean, Estimate, crossed_test, holm, mean_interval

Array = np.ndarray[Any, np.dtype[Any]]
METRICS = ("accuracy", "accuracy, 5 rows of a text", "Matthews", "Pearson")
ROWS, SEEDS, METHODS, SYSTEMATIC = (100, 300, 1000, 3000), (4, 10), (2, 8), (0.0, 0.01, 0.022, 0.04)
BLOCKS = 100
# Of the simulated runs: fraction of right rows, of rows that a run has otherwise than others of its method, and the
# standard deviation of that fraction's logarithm, which makes some runs better than others.
_RIGHT, _NOISE, _SPREAD = 0.8, 0.03, 0.3


@dataclass(frozen=True)
class Cell:
    """What is simulated.

    Attributes:
        metric: One of :data:`METRICS`.
        rows: Number of evaluation rows.
        seeds: Number of seeds.
        methods: Number of methods besides plain fine-tuning.
        systematic: Fraction of rows on which a method and plain fine-tuning differ in all seeds, in either direction.
        effect: Fraction of rows that the methods get right and plain fine-tuning does not.
    """

    metric: str
    rows: int
    seeds: int
    methods: int
    systematic: float
    effect: float = 0.0


@dataclass(frozen=True)
class Found:
    """Fractions of the simulations.

    Attributes:
        ahead: In which a method is shown to be ahead: false without an effect, otherwise the power.
        covered: Of the intervals that cover the true difference.
        seeds_ahead: As ``ahead``, judged by seeds alone.
        seeds_covered: As ``covered``, of intervals over seeds alone.
    """

    ahead: float
    covered: float
    seeds_ahead: float
    seeds_covered: float


def simulate(cell: Cell, simulations: int) -> Found:
    """Simulate comparisons."""
    generator = np.random.default_rng([*cell.metric.encode(), cell.rows, cell.seeds, cell.methods])
    truth = _truth(cell) if cell.effect else 0.0
    found = np.array([_judged(_differences(cell, generator), cell, truth) for _ in range(simulations)])
    return Found(*found.mean(axis=0).tolist())


def _judged(by_row: Array, cell: Cell, truth: float) -> tuple[float, float, float, float]:
    """Judge methods by rows and seeds, and by seeds alone; ``by_row`` is ``(methods, seeds, rows or blocks)``."""
    tested = [crossed_test([CrossedMean.of(each, float(each.mean()), cell.rows)]) for each in by_row]
    seeds = [_test_of_seeds(each.mean(axis=1)) for each in by_row]

    def ahead(results: list[tuple[Estimate, float]]) -> bool:
        shown = holm([p for _, p in results])
        return any(p <= ALPHA and each.value > 0 for p, (each, _) in zip(shown, results, strict=True))

    def covered(results: list[tuple[Estimate, float]]) -> float:
        return float(np.mean([each.low <= truth <= each.high for each, _ in results]))

    return ahead(tested), covered(tested), ahead(seeds), covered(seeds)


def _test_of_seeds(values: Array) -> tuple[Estimate, float]:
    from scipy import stats

    return mean_interval(values), float(stats.ttest_1samp(values, 0).pvalue) if np.ptp(values) else 1.0


def _differences(cell: Cell, generator: np.random.Generator) -> Array:
    """Draw rows and runs; return the methods' scores divided among rows or blocks, minus those of the reference."""
    scores = _SCORES[cell.metric](cell, generator)
    return scores[1:] - scores[0]


def _truth(cell: Cell, rows: int = 200_000) -> float:
    """Compute the true difference from very many rows."""
    large = Cell(cell.metric, rows, 2, 2, cell.systematic, cell.effect)
    generator = np.random.default_rng(0)
    return float(np.mean([_differences(large, generator).mean() for _ in range(20)]))


# Runs ----------------------------------------------------------------------------------------------------------------


def _right(cell: Cell, generator: np.random.Generator, texts: int = 0) -> Array:
    """Draw which rows the runs are right on, ``(1 + methods, seeds, rows)``; all methods are alike but for the effect.

    A row is right or wrong for all methods, but for the systematic differences, and each run has some rows otherwise.
    With ``texts``, this number of consecutive rows share their difficulty, and systematic differences are of whole
    texts.
    """
    methods, shape = 1 + cell.methods, (1 + cell.methods, cell.seeds, cell.rows)
    units = -(-cell.rows // texts) if texts else cell.rows

    def of_rows(values: Array) -> Array:
        return np.repeat(values, texts, axis=-1)[..., : cell.rows] if texts else values

    base = of_rows(generator.random(units) < _RIGHT)
    own = base ^ of_rows(generator.random((methods, units)) < cell.systematic / 2)
    fixed = generator.random((cell.methods, cell.rows)) < cell.effect / (1 - _RIGHT)
    own[1:] |= fixed & ~base
    rate = _NOISE * np.exp(generator.normal(0, _SPREAD, (methods, cell.seeds, 1)))
    # As many rows become right as become wrong.
    rate = np.where(own[:, None], rate, rate * _RIGHT / (1 - _RIGHT)).astype(np.float32)
    return own[:, None] ^ (generator.random(shape, dtype=np.float32) < rate)


def _accuracy(cell: Cell, generator: np.random.Generator) -> Array:
    return _right(cell, generator).astype(np.float64)


def _of_texts(cell: Cell, generator: np.random.Generator) -> Array:
    """Accuracy, of rows of which five share a text: one value for each block of texts."""
    right = _right(cell, generator, texts=5)
    blocks = np.arange(cell.rows) // 5 % BLOCKS
    return pseudo_values(lambda counts: counts[..., 0] / counts[..., 1], [right, np.ones_like(right)], blocks)


def _matthews(cell: Cell, generator: np.random.Generator) -> Array:
    right = _right(cell, generator)
    label = generator.random(cell.rows) < 0.3
    counts = [right & label, right & ~label, ~right & label, ~right & ~label]
    return pseudo_values(matthews, counts, np.arange(cell.rows) % BLOCKS)


def matthews(counts: Array) -> Array:
    """Compute Matthews' correlation of right rows of class 1 and 0, and wrong ones, ``(..., 4)``."""
    tp, tn, fn, fp = (counts[..., place] for place in range(4))
    bottom = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return np.divide(tp * tn - fp * fn, bottom, out=np.zeros_like(bottom), where=bottom > 0)


def _pearson(cell: Cell, generator: np.random.Generator) -> Array:
    """Draw predicted numbers; the systematic differences have the variance that they have of rows that are right."""
    methods, shape = 1 + cell.methods, (1 + cell.methods, cell.seeds, cell.rows)
    label = generator.normal(size=cell.rows)
    error = 0.5 * generator.normal(size=cell.rows) + np.sqrt(cell.systematic) * generator.normal(
        size=(methods, cell.rows)
    )
    error[1:] *= 1 - 5 * cell.effect
    spread = 0.2 * np.exp(generator.normal(0, _SPREAD, (methods, cell.seeds, 1)))
    predicted = label + error[:, None] + spread * generator.normal(size=shape)
    gold = np.broadcast_to(label, shape)
    sums = [np.ones(shape), gold, predicted, gold**2, predicted**2, gold * predicted]

    def score(sums: Array) -> Array:
        n, x, y, xx, yy, xy = (sums[..., place] for place in range(6))
        return (n * xy - x * y) / np.sqrt((n * xx - x**2) * (n * yy - y**2))

    return pseudo_values(score, sums, np.arange(cell.rows) % BLOCKS)


def pseudo_values(score: Callable[[Array], Array], parts: list[Array], blocks: Array) -> Array:
    """Compute the pseudo-values of blocks, as ``attendrop.tasks.row_scores`` does, of a score of sums over rows."""
    number = int(blocks.max()) + 1
    order = np.argsort(blocks, kind="stable")
    starts = np.searchsorted(blocks[order], np.arange(number))
    sums = np.stack([np.add.reduceat(part[..., order].astype(np.float64), starts, axis=-1) for part in parts], axis=-1)
    every = sums.sum(axis=-2)
    return number * score(every)[..., None] - (number - 1) * score(every[..., None, :] - sums)


_SCORES: dict[str, Callable[[Cell, np.random.Generator], Array]] = dict(
    zip(METRICS, (_accuracy, _of_texts, _matthews, _pearson), strict=True)
)


# Tables --------------------------------------------------------------------------------------------------------------


def cells(metric: str, rows: Sequence[int] = ROWS, fractions: Sequence[float] = SYSTEMATIC) -> list[Cell]:
    """List the cells without an effect, of some numbers of rows and fractions of systematic differences."""
    return [
        Cell(metric, count, seeds, methods, fraction)
        for count in rows for seeds in SEEDS for fraction in fractions for methods in METHODS
    ]  # fmt: skip


def level_table(metric: str, simulations: int) -> list[str]:
    """Make a table of false recommendations and coverage, the worst over systematic differences."""
    found = {cell: simulate(cell, simulations) for cell in cells(metric)}
    lines = []
    for rows in ROWS:
        for seeds in SEEDS:
            worst = []
            for methods in METHODS:
                of = [
                    each
                    for cell, each in found.items()
                    if (cell.rows, cell.seeds, cell.methods) == (rows, seeds, methods)
                ]
                worst += [
                    f"{max(each.ahead for each in of):.3f}, {min(each.covered for each in of):.3f}",
                    f"{max(each.seeds_ahead for each in of):.3f}, {min(each.seeds_covered for each in of):.3f}",
                ]
            lines.append(f"| {metric} | {rows} | {seeds} | {' | '.join(worst)} |")
    return lines


def power_table(simulations: int) -> list[str]:
    """Make a table of the power to show a difference of accuracy, of two methods, 2.2 % of rows differing."""
    effects = (0.005, 0.01, 0.02, 0.04)
    lines = []
    for rows in (*ROWS, 10000):
        found = [simulate(Cell("accuracy", rows, s, 2, 0.022, e), simulations) for s in SEEDS for e in effects]
        lines.append(f"| {rows} | {' | '.join(f'{each.ahead:.2f}' for each in found)} |")
    return lines


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("metric", nargs="*", default=METRICS, help=f"of {', '.join(METRICS)}")
    parser.add_argument("--simulations", type=int, default=1000)
    given = parser.parse_args()
    for metric in given.metric:
        print("\n".join(level_table(metric, given.simulations)), flush=True)
    print("\n".join(power_table(given.simulations)))


if __name__ == "__main__":
    main()
