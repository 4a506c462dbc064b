"""Similarity of rows by their texts: held-out groups of similar rows, and how similar training rows are."""

from __future__ import annotations

import logging
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from attendrop.errors import AttendropError
from attendrop.tasks.groups import GROUP, given_groups, groups_of, text_vectorizer
from attendrop.tasks.splits import divided, subset, take
from attendrop.tasks.values import may_be_missing
from attendrop.wording import counted, counts_of

if TYPE_CHECKING:
    from datasets import Dataset

    from attendrop.tasks.base import Task

logger = logging.getLogger(__name__)

Vectors = np.ndarray[Any, np.dtype[np.float64]]
# Directions of the texts' TF-IDF vectors that are kept (latent semantic analysis).
_DIRECTIONS = 64
# Rows whose likeness is looked at, at most: comparing all rows takes the square of their number.
_SAMPLE = 2000


def hold_out_like(rows: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Hold out rows that are unlike the others of their class.

    The rows of each class are divided into ``1 / fraction`` groups by k-means on their texts' TF-IDF vectors, and one
    group is held out: among those with between half the fraction and half of the class, the one whose nearest kept rows
    are farthest, on average over a sample of 2,000 rows of larger groups. For numbers, all rows form one class. Classes
    with fewer texts than groups are kept. Of rows that belong together (:func:`attendrop.tasks.groups.groups_of`), all
    are held out, or none: as many rows in all, of those with the largest shares of such rows.

    ``fraction`` is about how much of each class to hold out, in (0, 0.5].

    Raises:
        AttendropError: The inputs have no words, or more than half of the classes have too few texts.
    """
    texts = _joined(rows, task)
    groups = max(2, round(1 / fraction))
    strata = task.head.strata_of(rows) if len(task.head.strata) > 1 else [0] * len(rows)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for row, stratum in enumerate(strata):
        members[stratum].append(row)
    enough = {name: found for name, found in members.items() if len({texts[row] for row in found}) >= groups}
    if len(enough) < max(1, len(members) / 2):
        of = f"only {len(enough)} of {len(members)} classes have" if len(members) > 1 else "there are not"
        raise AttendropError(
            f"shift holds out whole groups of similar rows, which needs {groups} different texts or more in most "
            f"classes, but {of} so many; omit it, or name a column to hold out by with shift-column."
        )
    vectors = text_vectors(texts)
    held = {row for found in enough.values() for row in _farthest_group(vectors, found, fraction, groups, seed)}
    numbers = groups_of(rows, task)
    if max(numbers) == 0:
        raise AttendropError("shift holds out whole groups of rows, and all rows belong to one; omit it.")
    inside, sizes = Counter(numbers[row] for row in held), Counter(numbers)
    whole: set[int] = set()
    for number in sorted(inside, key=lambda each: (-inside[each] / sizes[each], each)):
        if not whole or sum(sizes[each] for each in whole) + sizes[number] <= len(held):
            whole.add(number)
    return divided(rows, {row for row, number in enumerate(numbers) if number in whole})


def hold_out_values(rows: Dataset, column: str, values: Sequence[str], fraction: float) -> tuple[Dataset, Dataset]:
    """Hold out the rows of whole values: the last in order, such as the newest of dates; numbers by value.

    ``values`` has the value of each row in ``column``, which is named in messages. Values are held out until their rows
    make up about the fraction; empty ones and placeholders such as "n/a" do not count as values. Texts are in
    alphabetical order, numbers within them by value. Where groups are given (:data:`attendrop.tasks.groups.GROUP`),
    those of held-out rows have no rows among the others: such rows are left out.

    Raises:
        AttendropError: All rows have the same value; no group is without held-out rows; or the order of values is not
            clear: dates in which the year is last or the month is a word, or numbers or dates among which there are
            others.
    """
    values = ["" if may_be_missing(value) else value for value in values]
    counts = Counter(values)
    if len(counts) < 2:
        raise AttendropError(f"shift-column '{column}' has a single value, {next(iter(counts), '')!r}; name another.")
    held: dict[str, int] = {}
    for value in sorted(counts, key=_order(column, [value for value in counts if value]), reverse=True)[:-1]:
        taken = sum(held.values())
        # Nearer to the fraction with this value than without it.
        if held and abs(taken + counts[value] - fraction * len(rows)) >= abs(taken - fraction * len(rows)):
            break
        held[value] = counts[value]
    many = sum(held.values()) > len(rows) / 2
    left = "; less than half are left to train on" if many else ""
    logger.log(
        logging.WARNING if many else logging.INFO,
        f"Held out by column {column}: {counts_of(held)} of {len(rows)} rows{left}.",
    )
    out = {row for row, value in enumerate(values) if value in held}
    if GROUP not in rows.column_names:
        return divided(rows, out)
    groups = given_groups(rows)
    theirs = {groups[row] for row in out}
    kept = [row for row, group in enumerate(groups) if group not in theirs]
    if not kept:
        raise AttendropError(
            f"every group of group-column has rows among those that shift-column '{column}' holds out, so that none is "
            "left to train on; omit one of them."
        )
    if left_out := len(rows) - len(kept) - len(out):
        logger.warning(f"Left out: {counted(left_out, 'other row')} of the groups of the rows held out by {column}.")
    return take(rows, kept), take(rows, out)


_YEAR_FIRST = re.compile(r"\s*(\d{4})[-./](\d{1,2})(?:[-./](\d{1,2}))?\b(.*)")
_MONTH = (
    "jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|(octo|novem|decem)ber|oct|nov|dec"
)
_YEAR_LAST = re.compile(
    rf"\s*(\d{{1,2}}([./-])\d{{1,2}}\2\d{{2,4}}|\d{{1,2}}[/-]\d{{4}})\b|.*\b({_MONTH})\b", re.IGNORECASE
)


def _order(column: str, values: Sequence[str]) -> Callable[[str], Any]:
    """Return the key by which values are sorted, all of them numbers, dates or other texts; an empty one is first."""
    forms: dict[str, Callable[[str], Any]] = {
        "numbers": _number,
        "dates": _date,
        "dates in words or with the year last": _YEAR_LAST.match,
    }
    places: dict[str, Any] = {value: _natural(value) for value in values}
    for form, read in forms.items():
        found = {value: place for value in values if (place := read(value)) is not None}
        if not found or 2 * len(found) < len(values):
            continue
        example = f"shift-column '{column}' has {form} such as {next(iter(found))!r}"
        if read == _YEAR_LAST.match:
            raise AttendropError(f"{example}, whose order is not clear; write them as 2026-03-01 or 2026-03.")
        if other := next((value for value in values if value not in found), None):
            raise AttendropError(f"{example}, and {other!r}, so that their order is not clear; correct or empty it.")
        places = found
        break
    return lambda value: (value in places, places.get(value))


def _number(value: str) -> float | None:
    with suppress(ValueError):
        return number if math.isfinite(number := float(value)) else None
    return None


def _date(value: str) -> tuple[Any, ...] | None:
    if (found := _YEAR_FIRST.fullmatch(value)) is None:
        return None
    *date, rest = found.groups(default="0")
    return (*map(int, date), rest)


def _natural(value: str) -> list[Any]:
    """Divide a text into texts and the numbers between them."""
    parts = re.split(r"(\d+)", value)
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


@dataclass(frozen=True)
class Likeness:
    """Similarity of rows: mean cosines of their texts' TF-IDF vectors."""

    within: float  # of two rows of the same class
    between: float  # of two rows of different classes
    nearest: float  # of a row and the row of its class that is most like it


def class_likeness(rows: Dataset, task: Task) -> Likeness | None:
    """Measure the similarity of the rows of a class by :func:`likeness`; None without classes."""
    if len(task.head.strata) < 2:
        return None
    rows = subset(rows, _SAMPLE, seed=0)
    return likeness(_joined(rows, task), task.head.strata_of(rows))


def likeness(texts: Sequence[str], names: Sequence[Any]) -> Likeness | None:
    """Measure the similarity of texts of the same class; None without words or classes of several rows.

    Of more than 2,000 texts, a sample is looked at: the first ones may all be of the same class.
    """
    rows = _sampled(len(texts), 0)
    try:
        vectors = _tfidf([texts[row] for row in rows]).astype(np.float32)  # their products are the most memory
    except AttendropError:
        return None
    labels = np.unique([names[row] for row in rows], return_inverse=True)[1]
    cosines = (vectors @ vectors.T).toarray()
    same = labels[:, None] == labels[None, :]
    np.fill_diagonal(same, False)
    several = same.any(1)
    other = labels[:, None] != labels[None, :]
    if not several.any() or not other.any():
        return None
    nearest = np.where(same, cosines, -1.0).max(1)[several]
    return Likeness(float(cosines[same].mean()), float(cosines[other].mean()), float(nearest.mean()))


def nearest_texts(texts: Sequence[str], among: Sequence[str]) -> list[tuple[int, float]]:
    """Return for each text the index of the most similar other text, and the cosine of their TF-IDF vectors."""
    vectorizer = text_vectorizer()
    try:
        known = vectorizer.fit_transform(among)
    except ValueError:  # of scikit-learn: an empty vocabulary
        return [(0, 0.0)] * len(texts)
    nearest = NearestNeighbors(n_neighbors=1, metric="cosine").fit(known)
    distances, rows = nearest.kneighbors(vectorizer.transform(texts))
    return [(int(row), 1 - float(distance)) for row, distance in zip(rows[:, 0], distances[:, 0], strict=True)]


def text_vectors(texts: Sequence[str]) -> Vectors:
    """Return unit vectors of texts, ``(texts, directions)``: the first directions of their TF-IDF vectors."""
    counts = _tfidf(texts)
    directions = min(_DIRECTIONS, counts.shape[0] - 1, counts.shape[1] - 1)
    if directions < 2:
        return np.asarray(counts.toarray())
    reduced = TruncatedSVD(directions, random_state=0).fit_transform(counts)
    return np.asarray(normalize(reduced))


def _tfidf(texts: Sequence[str]) -> Any:
    try:
        return text_vectorizer().fit_transform(texts)
    except ValueError:  # of scikit-learn: an empty vocabulary
        raise AttendropError("the texts have no words to compare them by.") from None


def _joined(rows: Dataset, task: Task) -> list[str]:
    return [
        "\n".join(" ".join(part) if isinstance(part, list | tuple) else str(part) for part in parts)
        for parts in task.head.texts(rows)
    ]


def _sampled(rows: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(rows), min(rows, _SAMPLE)))


def _farthest_group(vectors: Vectors, rows: Sequence[int], fraction: float, groups: int, seed: int) -> list[int]:
    own = vectors[list(rows)]
    labels = KMeans(groups, n_init=10, random_state=seed).fit_predict(own)
    found: list[tuple[bool, float, list[int]]] = []
    for group in range(groups):
        inside = labels == group
        size = int(inside.sum())
        if not 0 < size <= len(rows) / 2:
            continue
        fits = size >= math.ceil(fraction * len(rows) / 2)
        looked_at = own[inside][_sampled(size, seed)]
        distances, _ = NearestNeighbors(n_neighbors=1).fit(own[~inside]).kneighbors(looked_at)
        apart = float(distances.mean())
        found.append((fits, apart if fits else size, [row for row, own in zip(rows, inside, strict=True) if own]))
    return max(found)[2] if found else []
