"""Fewer rows, or rows set aside: few-shot samples, subsets and held-out splits, all fixed by a seed."""

import math
import random
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from datasets import Dataset
from sklearn.model_selection import train_test_split

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task


def few_shot(dataset: Dataset, task: Task, k: int, seed: int) -> Dataset:
    """`k` random rows of every class (regression: `k` rows in all), in their original order.

    A class with fewer rows gives all it has, with a warning. With the same seed, a smaller `k` draws from the rows of a
    larger one. Raises AttendropError for k < 1.
    """
    if k < 1:
        raise AttendropError(f"the number of shots must be at least 1, not {k}.")
    strata, names = task.head.strata_of(dataset), task.head.strata
    rows_of: dict[int, list[int]] = {stratum: [] for stratum in range(len(names))}
    for row in _shuffled(len(dataset), seed):
        rows_of[strata[row]].append(row)
    for name, rows in zip(names, rows_of.values(), strict=True):
        if len(rows) < k:
            warnings.warn(f"{name} has only {len(rows)} of the {k} rows asked for: all were taken.", stacklevel=2)
    return _take(dataset, (row for rows in rows_of.values() for row in rows[:k]))


def subset(dataset: Dataset, n: int, seed: int) -> Dataset:
    """`n` random rows in their original order, all of them if there are no more; raises AttendropError for n < 1."""
    if n < 1:
        raise AttendropError(f"the number of rows must be at least 1, not {n}.")
    return _take(dataset, _shuffled(len(dataset), seed)[:n])


def hold_out(dataset: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """Split off `fraction` of the rows, by class: (kept, held out), both in their original order.

    fraction: in [0, 1); 0 holds nothing out, and the second part is None.

    The held-out part has floor(fraction * rows) rows, but at least one for each class that can be divided; a class of a
    single row stays in the kept part. Where no class can be divided, or the kept part would not have a row of each, the
    rows are drawn without regard to class, with a warning. Regression is always drawn so.
    Raises AttendropError for a fraction out of range and for data of fewer than two rows.
    """
    if not 0 <= fraction < 1:
        raise AttendropError(f"the fraction to hold out must be at least 0 and below 1, not {fraction}.")
    if fraction == 0:
        return dataset, None
    if len(dataset) < 2:
        raise AttendropError(f"{len(dataset)} row cannot be divided: hold out a fraction of 0, or bring more data.")
    count = max(1, math.floor(len(dataset) * fraction + 1e-6))
    if len(task.head.strata) > 1:
        held = set(_stratified(task.head.strata_of(dataset), count, seed))
    else:
        held = set(_shuffled(len(dataset), seed)[:count])
    return _take(dataset, (row for row in range(len(dataset)) if row not in held)), _take(dataset, held)


def _stratified(labels: Sequence[int], count: int, seed: int) -> list[int]:
    """About `count` rows, every class by its share; drawn plainly, with a warning, where that cannot be done."""
    sizes = Counter(labels)
    divisible = [row for row, label in enumerate(labels) if sizes[label] > 1]
    classes = sum(size > 1 for size in sizes.values())
    enough = max(count, classes)
    if not divisible or enough > len(divisible) - classes:
        warnings.warn(
            f"{len(labels)} rows of {len(sizes)} classes are too few to hold out {count} by class: "
            "they were drawn without regard to class.",
            stacklevel=3,
        )
        return _shuffled(len(labels), seed)[:count]
    strata = [labels[row] for row in divisible]
    held: list[int] = train_test_split(divisible, test_size=enough, stratify=strata, random_state=seed)[1]
    return held


def _shuffled(n: int, seed: int) -> list[int]:
    rows = list(range(n))
    random.Random(seed).shuffle(rows)
    return rows


def _take(dataset: Dataset, rows: Iterable[int]) -> Dataset:
    return dataset.select(sorted(rows))
