"""Few-shot samples, subsets and held-out splits, all determined by a seed."""

from __future__ import annotations

import math
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from sklearn.model_selection import train_test_split

from attendrop.errors import AttendropError
from attendrop.tasks.groups import GROUP, groups_of

if TYPE_CHECKING:
    from datasets import Dataset

    from attendrop.tasks.base import Task

# Number of classes of too few rows that warnings name.
_SHOWN = 5


def few_shot(dataset: Dataset, task: Task, k: int, seed: int) -> Dataset:
    """Sample ``k`` rows of every class (regression: ``k`` rows in all), in their original order.

    If a class has fewer rows, all are taken, with a warning. With the same seed, the rows of a smaller ``k`` are among
    those of a larger one.

    Raises:
        AttendropError: ``k`` is less than 1.
    """
    if k < 1:
        raise AttendropError(f"the number of shots must be at least 1, not {k}.")
    strata, names = task.head.strata_of(dataset), task.head.strata
    rows_of: dict[int, list[int]] = {stratum: [] for stratum in range(len(names))}
    for row in _shuffled(len(dataset), seed):
        rows_of[strata[row]].append(row)
    few = {name: len(rows) for name, rows in zip(names, rows_of.values(), strict=True) if len(rows) < k}
    for name, count in islice(few.items(), _SHOWN):
        warnings.warn(f"{name} has only {count} of the {k} requested rows: all were taken.", stacklevel=2)
    if len(few) > _SHOWN:
        warnings.warn(f"{len(few)} classes have fewer than the {k} requested rows: all were taken.", stacklevel=2)
    return take(dataset, (row for rows in rows_of.values() for row in rows[:k]))


def subset(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Sample ``n`` rows, in their original order, or all; raise AttendropError if ``n`` is less than 1."""
    if n < 1:
        raise AttendropError(f"the number of rows must be at least 1, not {n}.")
    return take(dataset, _shuffled(len(dataset), seed)[:n])


def hold_out(dataset: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """Hold out a fraction of the rows, stratified by class; rows that belong together are in the same part.

    These are rows with equal texts, with nearly the same, and those of a given group, see
    :func:`attendrop.tasks.groups.groups_of`; below, each counts as one text. The held-out part has
    ``floor(fraction * rows)`` rows, but at least one for each class of two or more texts; a class of a single text is
    kept. It has a few more where a text with several rows does not fit. If no class can be split, or the kept part
    would lack a class, the rows are sampled without stratification, with a warning. Regression is never stratified.

    Returns:
        The kept and the held-out rows, both in their original order; the second is None if ``fraction`` is 0.

    Raises:
        AttendropError: ``fraction`` is not in [0, 1), or there are fewer than two rows, or than two different texts.
    """
    if not 0 <= fraction < 1:
        raise AttendropError(f"the fraction to hold out must be at least 0 and below 1, not {fraction}.")
    if fraction == 0:
        return dataset, None
    if len(dataset) < 2:
        raise AttendropError(f"{len(dataset)} row cannot be split; hold out a fraction of 0, or add data.")
    texts = groups_of(dataset, task)
    if max(texts) == 0:
        same = "group" if GROUP in dataset.column_names else "text"
        raise AttendropError(
            f"{len(dataset)} rows of the same {same} cannot be split; hold out a fraction of 0, or add data."
        )
    count = max(1, math.floor(len(dataset) * fraction + 1e-6))
    # In the order of their first rows, large groups would mostly be held out.
    places = _shuffled(max(texts) + 1, seed) if GROUP in dataset.column_names else None
    held = None
    if len(task.head.strata) > 1:
        held = _stratified(task.head.strata_of(dataset), texts, places, count, seed)
    if held is None:
        held = _whole_texts(_shuffled(len(texts), seed), count, [0] * len(texts), texts, places)
    return divided(dataset, held)


def divided(dataset: Dataset, held: Collection[int]) -> tuple[Dataset, Dataset]:
    """Return the rows that are not held out, and those that are, in their original order."""
    return take(dataset, (row for row in range(len(dataset)) if row not in held)), take(dataset, held)


def _stratified(
    labels: Sequence[int], texts: Sequence[int], places: Sequence[int] | None, count: int, seed: int
) -> set[int] | None:
    """Sample about ``count`` rows, stratified by class; None, with a warning, if that is not possible."""
    classes_of = _classes_of(labels, texts)
    sizes = Counter(label for classes in classes_of.values() for label in classes)
    divisible = [row for row, text in enumerate(texts) if all(sizes[label] > 1 for label in classes_of[text])]
    strata = [labels[row] for row in divisible]
    rows_of = Counter(strata)
    enough = max(count, len(rows_of))
    if enough > len(divisible) - len(rows_of) or min(rows_of.values(), default=0) < 2:
        warnings.warn(
            f"{len(labels)} rows of {len(sizes)} classes are too few to hold out {count} by class: "
            "they were sampled without stratification.",
            stacklevel=3,
        )
        return None
    kept, held = train_test_split(divisible, test_size=enough, stratify=strata, random_state=seed)
    return _whole_texts([*held, *kept], enough, labels, texts, places)


def _whole_texts(
    order: Sequence[int], count: int, labels: Sequence[int], texts: Sequence[int], places: Sequence[int] | None
) -> set[int]:
    """Take the first ``count`` rows; where texts repeat, instead as many rows of each class, with all rows of a text.

    At least one text of each class is left. A text of more rows than are still wanted is taken only where none fits.
    Texts are taken in the order of their ``places``; None: of their first rows.
    """
    if max(texts) == len(texts) - 1:
        return set(order[:count])
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        rows_of[text].append(row)
    texts_of: defaultdict[int, dict[int, None]] = defaultdict(dict)  # by class, each once, in the order
    for row in order if places is None else sorted(order, key=lambda row: places[texts[row]]):
        texts_of[labels[row]][texts[row]] = None
    classes_of = _classes_of(labels, texts)
    left = Counter(label for classes in classes_of.values() for label in classes)
    held, covered = set[int](), set[int]()

    def free(text: int) -> bool:
        return rows_of[text][0] not in held and all(left[label] > 1 for label in classes_of[text])

    def hold(text: int) -> None:
        held.update(rows_of[text])
        covered.update(classes_of[text])
        left.subtract(classes_of[text])

    wanted = 0  # with the classes before: rows that these have too many are not taken of the next
    for label, quota in Counter(labels[row] for row in order[:count]).items():
        wanted += quota
        for text in texts_of[label]:
            if len(held) + len(rows_of[text]) <= wanted and free(text):
                hold(text)
        others = [text for text in texts_of[label] if free(text)]
        if others and (len(held) < wanted or label not in covered):
            hold(min(others, key=lambda text: len(rows_of[text])))
    return held


def _classes_of(labels: Sequence[int], texts: Sequence[int]) -> dict[int, set[int]]:
    """Return the classes of each text; rows may contradict each other."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for text, label in zip(texts, labels, strict=True):
        found[text].add(label)
    return found


def _shuffled(n: int, seed: int) -> list[int]:
    rows = list(range(n))
    random.Random(seed).shuffle(rows)
    return rows


def take(dataset: Dataset, rows: Iterable[int]) -> Dataset:
    """Take rows, in their original order."""
    return dataset.select(sorted(rows))
