"""Level, coverage and power of intervals over seeds and examples: ``python benchmarks/new_rows.py [TABLE ...]``.

Simulates runs of plain fine-tuning and of methods on a sample of evaluation rows, draws the rows anew each time, and
counts how often a method that is not ahead is called ahead, how often the 95 % interval covers the true difference, and
how often a true difference is shown. Prints the tables of docs/experiments.md: of each metric, of groups, and of
the power; an hour on one core.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from attendrop.studies.statistics import ALPHA, CrossedMean, Estimate, crossed_test, holm, mean_interval

Array = np.ndarray[Any, np.dtype[Any]]
METRICS = ("accuracy", "Matthews", "Pearson")
ROWS, SEEDS, METHODS, SYSTEMATIC = (100, 300, 1000, 3000), (4, 10), (2, 8), (0.0, 0.01, 0.022, 0.04)
BLOCKS = 100
# Rows of a group on average, whether groups are unequal (from one row to some hundred: sizes are log-normal, with a
# standard deviation of 1 of the logarithm), and which fraction of what a run has otherwise is shared by the group.
STRUCTURES = {
    "5 rows of a group": (5, False, 0.5),
    "20 rows of a group": (20, False, 0.5),
    "20 rows of a group, unequal": (20, True, 0.5),
    "near-duplicates, 4 of each": (4, False, 0.9),
}
GROUP_SEEDS, GROUP_SYSTEMATIC, SHARES = (5, 10), (0.0, 0.022, 0.04), (1.0, 0.3)
# Of the simulated runs: fraction of right rows, of rows that a run has otherwise than others of its method, and the
# standard deviation of that fraction's logarithm, which makes some runs better than others.
_RIGHT, _NOISE, _SPREAD = 0.8, 0.03, 0.3


@dataclass(frozen=True)
class Cell:
    """What is simulated.

    Attributes:
        metric: One of :data:`METRICS`, or of :data:`STRUCTURES`, of accuracy.
        rows: Number of evaluation rows.
        seeds: Number of seeds.
        methods: Number of methods besides plain fine-tuning.
        systematic: Fraction of rows on which a method and plain fine-tuning differ in all seeds, in either direction.
        effect: Fraction of rows that the methods get right and plain fine-tuning does not.
        share: Fraction of the rows of a group that differ where a group does.
    """

    metric: str
    rows: int
    seeds: int
    methods: int
    systematic: float
    effect: float = 0.0
    share: float = 1.0


@dataclass(frozen=True)
class Found:
    """Fractions of the simulations.

    Attributes:
        ahead: In which a method is shown to be ahead: false without an effect, otherwise the power.
        covered: Of the intervals that cover the true difference.
        other_ahead: As ``ahead``, judged by seeds alone; of groups, by rows as if they were independent.
        other_covered: As ``covered``, of such intervals.
    """

    ahead: float
    covered: float
    other_ahead: float
    other_covered: float


def simulate(cell: Cell, simulations: int) -> Found:
    """Simulate comparisons."""
    generator = np.random.default_rng([*cell.metric.encode(), cell.rows, cell.seeds, cell.methods])
    truth = _truth(cell) if cell.effect else 0.0
    judged = _of_groups if cell.metric in STRUCTURES else _of_rows
    found = np.array([judged(cell, generator, truth) for _ in range(simulations)])
    return Found(*found.mean(axis=0).tolist())


def _of_rows(cell: Cell, generator: np.random.Generator, truth: float) -> tuple[float, float, float, float]:
    """Judge methods by rows, or blocks of them, and seeds, and by seeds alone."""
    by_row = _differences(cell, generator)
    tested = [crossed_test([CrossedMean.of(each, float(each.mean()), cell.rows)]) for each in by_row]
    return (*_judged(tested, truth), *_judged([_test_of_seeds(each.mean(axis=1)) for each in by_row], truth))


def _of_groups(cell: Cell, generator: np.random.Generator, truth: float) -> tuple[float, float, float, float]:
    """Judge methods by groups and seeds, as ``attendrop.tasks.metrics`` has them, and by rows and seeds."""
    right, numbers = _grouped(cell, generator)
    units = pseudo_values(lambda sums: sums[..., 0] / sums[..., 1], [right, np.ones_like(right)], numbers)
    tested = []
    for scores, groups in ((units, units.shape[-1]), (right.astype(np.float64), right.shape[-1])):
        means = right[1:].mean((1, 2)) - right[0].mean()
        differences = zip(scores[1:] - scores[0], means.tolist(), strict=True)
        of = [CrossedMean.of(each, mean, right.shape[-1], groups) for each, mean in differences]
        tested.append([crossed_test([each]) for each in of])
    return (*_judged(tested[0], truth), *_judged(tested[1], truth))


def _judged(results: list[tuple[Estimate, float]], truth: float) -> tuple[float, float]:
    """Return whether a method is called ahead, and the fraction of intervals that cover the truth."""
    shown = holm({place: p for place, (_, p) in enumerate(results)})
    ahead = any(shown[place] <= ALPHA and each.value > 0 for place, (each, _) in enumerate(results))
    return ahead, float(np.mean([each.low <= truth <= each.high for each, _ in results]))


def _test_of_seeds(values: Array) -> tuple[Estimate, float]:
    from scipy import stats

    return mean_interval(values), float(stats.ttest_1samp(values, 0).pvalue) if np.ptp(values) else 1.0


def _differences(cell: Cell, generator: np.random.Generator) -> Array:
    """Draw rows and runs; return the methods' scores divided among rows or blocks, minus those of the reference."""
    scores = _SCORES[cell.metric](cell, generator)
    return scores[1:] - scores[0]


def _grouped(cell: Cell, generator: np.random.Generator) -> tuple[Array, Array]:
    """Draw which rows the runs are right on, and the number of the group of each row."""
    size, unequal, shared = STRUCTURES[cell.metric]
    sizes = np.full(max(2, cell.rows // size), size)
    if unequal:
        drawn = np.exp(generator.normal(size=len(sizes)))
        sizes = np.maximum(1, np.round(drawn / drawn.sum() * cell.rows)).astype(int)
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    return _right(cell, generator, numbers, shared), numbers


def _truth(cell: Cell, rows: int = 200_000) -> float:
    """Compute the true difference from very many rows."""
    metric = "accuracy" if cell.metric in STRUCTURES else cell.metric  # groups change no mean
    return _mean_difference(Cell(metric, rows, 2, 2, cell.systematic, cell.effect))


@cache
def _mean_difference(cell: Cell) -> float:
    generator = np.random.default_rng(0)
    return float(np.mean([_differences(cell, generator).mean() for _ in range(20)]))


# Runs ----------------------------------------------------------------------------------------------------------------


def _right(cell: Cell, generator: np.random.Generator, groups: Array | None = None, shared: float = 0.0) -> Array:
    """Draw which rows the runs are right on, ``(1 + methods, seeds, rows)``; all methods are alike but for the effect.

    A row is right or wrong for all methods, but for the systematic differences, and each run has some rows otherwise.
    Given the ``groups`` of rows, these share their difficulty, systematic differences are of a ``share`` of the rows of
    a group, and so is the effect; a fraction, ``shared``, of what a run has otherwise is the same in a group.
    """
    numbers = np.arange(cell.rows) if groups is None else groups
    methods, rows, units = 1 + cell.methods, len(numbers), int(numbers.max()) + 1
    shape = (methods, cell.seeds, rows)

    def some(fraction: float, count: int) -> Array:
        """Draw rows for some models: whole groups of them, or a share of the rows of more groups."""
        of_groups = generator.random((count, units)) < fraction / cell.share
        return of_groups[:, numbers] & (cell.share == 1 or generator.random((count, rows)) < cell.share)

    base = (generator.random(units) < _RIGHT)[numbers]
    own = base ^ some(cell.systematic / 2, methods)
    fixed = some(cell.effect / (1 - _RIGHT), cell.methods)
    own[1:] |= fixed & ~base
    rate = _NOISE * np.exp(generator.normal(0, _SPREAD, (methods, cell.seeds, 1)))
    # As many rows become right as become wrong.
    rate = np.where(own[:, None], rate, rate * _RIGHT / (1 - _RIGHT)).astype(np.float32)
    drawn = generator.random(shape, dtype=np.float32)
    if shared:
        alike = generator.random((methods, cell.seeds, units), dtype=np.float32)[..., numbers]
        drawn = np.where(generator.random(shape, dtype=np.float32) < shared, alike, drawn)
    return own[:, None] ^ (drawn < rate)


def _accuracy(cell: Cell, generator: np.random.Generator) -> Array:
    return _right(cell, generator).astype(np.float64)


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
    """Compute the pseudo-values of blocks, as ``attendrop.tasks.metrics`` does, of a score of sums over rows."""
    number = int(blocks.max()) + 1
    order = np.argsort(blocks, kind="stable")
    starts = np.searchsorted(blocks[order], np.arange(number))
    sums = np.stack([np.add.reduceat(part[..., order].astype(np.float64), starts, axis=-1) for part in parts], axis=-1)
    every = sums.sum(axis=-2)
    return number * score(every)[..., None] - (number - 1) * score(every[..., None, :] - sums)


_SCORES: dict[str, Callable[[Cell, np.random.Generator], Array]] = dict(
    zip(METRICS, (_accuracy, _matthews, _pearson), strict=True)
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
                    f"{max(each.other_ahead for each in of):.3f}, {min(each.other_covered for each in of):.3f}",
                ]
            lines.append(f"| {metric} | {rows} | {seeds} | {' | '.join(worst)} |")
    return lines


def group_cells(
    structure: str, rows: Sequence[int] = ROWS, fractions: Sequence[float] = GROUP_SYSTEMATIC, effect: float = 0.0
) -> list[Cell]:
    """List the cells of a structure with two methods, of some numbers of rows and fractions."""
    return [
        Cell(structure, count, seeds, 2, fraction, effect, share)
        for count in rows for seeds in GROUP_SEEDS
        for fraction in fractions for share in (SHARES if fraction else SHARES[:1])
    ]  # fmt: skip


def group_table(simulations: int) -> list[str]:
    """Make a table of false recommendations and coverage of groups, the worst over systematic differences."""
    lines = []
    for structure in STRUCTURES:
        for rows in ROWS:
            cells_of = {0.0: group_cells(structure, [rows]), 0.02: group_cells(structure, [rows], (0.022,), 0.02)}
            null, gain = ({cell: simulate(cell, simulations) for cell in each} for each in cells_of.values())
            for seeds in GROUP_SEEDS:
                of, with_gain = ([e for cell, e in f.items() if cell.seeds == seeds] for f in (null, gain))
                entries = (
                    f"{max(each.ahead for each in of):.3f}, {min(each.covered for each in of):.3f}",
                    f"{max(each.other_ahead for each in of):.3f}, {min(each.other_covered for each in of):.3f}",
                    f"{min(each.covered for each in with_gain):.3f}",
                )
                groups = rows // STRUCTURES[structure][0]
                lines.append(f"| {structure} | {rows} | {groups} | {seeds} | {' | '.join(entries)} |")
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
    tables = (*METRICS, "groups", "power")
    parser.add_argument("table", nargs="*", default=tables, help=f"of {', '.join(tables)}")
    parser.add_argument("--simulations", type=int, default=1000)
    given = parser.parse_args()
    for table in given.table:
        make = {"groups": group_table, "power": power_table}.get(table, partial(level_table, table))
        print("\n".join(make(given.simulations)), flush=True)


if __name__ == "__main__":
    main()
