"""Few-shot samples, subsets and held-out splits, all determined by a seed."""

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
    """Sample ``k`` rows of every class (regression: ``k`` rows in all), in their original order.

    If a class has fewer rows, all are taken, with a warning. With the same seed, the rows of a smaller ``k`` are among
    those of a larger one.

    Args:
        dataset: The rows to sample from.
        task: The task.
        k: Number of rows per class.
        seed: Seed of the sample.

    Raises:
        AttendropError: ``k`` is less than 1.
    """
    if k < 1:
        raise AttendropError(f"the number of shots must be at least 1, not {k}.")
    strata, names = task.head.strata_of(dataset), task.head.strata
    rows_of: dict[int, list[int]] = {stratum: [] for stratum in range(len(names))}
    for row in _shuffled(len(dataset), seed):
        rows_of[strata[row]].append(row)
    for name, rows in zip(names, rows_of.values(), strict=True):
        if len(rows) < k:
            warnings.warn(f"{name} has only {len(rows)} of the {k} requested rows: all were taken.", stacklevel=2)
    return _take(dataset, (row for rows in rows_of.values() for row in rows[:k]))


def subset(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Sample ``n`` rows, in their original order; all of them if there are no more.

    Args:
        dataset: The rows to sample from.
        n: Number of rows.
        seed: Seed of the sample.

    Raises:
        AttendropError: ``n`` is less than 1.
    """
    if n < 1:
        raise AttendropError(f"the number of rows must be at least 1, not {n}.")
    return _take(dataset, _shuffled(len(dataset), seed)[:n])


def hold_out(dataset: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """Hold out a fraction of the rows, stratified by class.

    The held-out part has ``floor(fraction * rows)`` rows, but at least one for each class of two or more rows; a class
    of a single row is kept. If no class can be split, or the kept part would lack a class, the rows are sampled without
    stratification, with a warning. Regression is never stratified.

    Args:
        dataset: The rows to split.
        task: The task.
        fraction: In [0, 1).
        seed: Seed of the sample.

    Returns:
        The kept and the held-out rows, both in their original order; the second is None if ``fraction`` is 0.

    Raises:
        AttendropError: ``fraction`` is out of range, or there are fewer than two rows.
    """
    if not 0 <= fraction < 1:
        raise AttendropError(f"the fraction to hold out must be at least 0 and below 1, not {fraction}.")
    if fraction == 0:
        return dataset, None
    if len(dataset) < 2:
        raise AttendropError(f"{len(dataset)} row cannot be split; hold out a fraction of 0, or add data.")
    count = max(1, math.floor(len(dataset) * fraction + 1e-6))
    if len(task.head.strata) > 1:
        held = set(_stratified(task.head.strata_of(dataset), count, seed))
    else:
        held = set(_shuffled(len(dataset), seed)[:count])
    return _take(dataset, (row for row in range(len(dataset)) if row not in held)), _take(dataset, held)


def _stratified(labels: Sequence[int], count: int, seed: int) -> list[int]:
    """Sample about ``count`` rows, stratified by class if possible, otherwise unstratified with a warning."""
    sizes = Counter(labels)
    divisible = [row for row, label in enumerate(labels) if sizes[label] > 1]
    classes = sum(size > 1 for size in sizes.values())
    enough = max(count, classes)
    if not divisible or enough > len(divisible) - classes:
        warnings.warn(
            f"{len(labels)} rows of {len(sizes)} classes are too few to hold out {count} by class: "
            "they were sampled without stratification.",
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
