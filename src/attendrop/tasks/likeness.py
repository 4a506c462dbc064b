"""Likeness of rows by their texts: groups of like rows that are held out, and how alike training rows are."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from attendrop.errors import AttendropError
from attendrop.tasks.splits import divided, subset

if TYPE_CHECKING:
    from datasets import Dataset

    from attendrop.tasks.base import Task

Vectors = np.ndarray[Any, np.dtype[np.float64]]
# Directions of the texts' TF-IDF vectors that are kept (latent semantic analysis).
_DIRECTIONS = 64
# Rows whose likeness is looked at.
_SAMPLE = 2000


def hold_out_like(rows: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Hold out rows that are unlike the others of their class.

    The rows of each class are divided into ``1 / fraction`` groups by k-means on their texts' TF-IDF vectors, and one
    group is held out: that of which the nearest rows that are kept are farthest, among those of between half the
    fraction and half of the class. Of numbers, all rows are one class. Classes of fewer texts than groups are kept.

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
            f"shift holds out whole groups of like rows, which takes {groups} different texts or more in most classes, "
            f"and {of} so many; leave it out, or name a column whose values tell rows apart with shift-column."
        )
    vectors = text_vectors(texts)
    held = {row for found in enough.values() for row in _farthest_group(vectors, found, fraction, groups, seed)}
    return divided(rows, held)


def hold_out_values(rows: Dataset, column: str, values: Sequence[str], fraction: float) -> tuple[Dataset, Dataset]:
    """Hold out the rows of whole values: the last in sorted order, such as the newest of dates; numbers by value.

    ``values`` has that of each row, of a column with a name for messages. Values are held out until their rows are
    about the fraction.

    Raises:
        AttendropError: All rows have the same value; or values are dates in which the year is last, whose order is not
            theirs as text, and of which 01/02 may be January or February.
    """
    counts = Counter(values)
    if len(counts) < 2:
        raise AttendropError(f"shift-column '{column}' has a single value, {next(iter(counts), '')!r}; name another.")
    known = [value for value in counts if value.strip()]
    if known and all(map(_YEAR_LAST.match, known)):
        raise AttendropError(
            f"shift-column '{column}' has dates such as {known[0]!r}, whose order is not clear; write them "
            "as 2026-03-01."
        )
    held: set[str] = set()
    for value in sorted(counts, key=_order(known), reverse=True)[:-1]:
        taken = sum(counts[each] for each in held)
        # Nearer to the fraction with this value than without it.
        if held and abs(taken + counts[value] - fraction * len(rows)) >= abs(taken - fraction * len(rows)):
            break
        held.add(value)
    return divided(rows, {row for row, value in enumerate(values) if value in held})


_YEAR_FIRST = re.compile(r"\s*(\d{4})[-./](\d{1,2})(?:[-./](\d{1,2}))?\b(.*)")
_YEAR_LAST = re.compile(r"\s*\d{1,2}([./-])\d{1,2}\1\d{2,4}\b")


def _order(values: Iterable[str]) -> Callable[[str], Any]:
    """Return the key by which values are sorted, numbers and dates by value if all are; blank ones come first."""
    dates = {value: _YEAR_FIRST.fullmatch(value) for value in values}
    places: dict[str, Any] = {value: value for value in dates}
    if all(dates.values()):
        groups = {value: date.groups(default="0") for value, date in dates.items() if date is not None}
        places = {value: (*map(int, date), rest) for value, (*date, rest) in groups.items()}
    with suppress(ValueError):
        places = {value: float(value) for value in dates}
    return lambda value: (value in places, places.get(value))


@dataclass(frozen=True)
class Likeness:
    """How alike rows are: mean cosines of their texts' TF-IDF vectors."""

    within: float  # of two rows of the same class
    between: float  # of two rows of different classes
    nearest: float  # of a row and the row of its class that is most like it


def class_likeness(rows: Dataset, task: Task) -> Likeness | None:
    """Measure how alike the rows of a class are, as :func:`likeness`; None for inputs that are not texts, too."""
    if len(task.head.strata) < 2 or task.head.input_name != "text":
        return None
    rows = subset(rows, _SAMPLE, seed=0)
    return likeness(_joined(rows, task), task.head.strata_of(rows))


def likeness(texts: Sequence[str], names: Sequence[Any]) -> Likeness | None:
    """Measure how alike texts of the same class are; None where there are no words or no classes of several rows.

    The first 2,000 texts are looked at.
    """
    try:
        vectors = _tfidf(texts[:_SAMPLE])
    except AttendropError:
        return None
    labels = np.unique(names[:_SAMPLE], return_inverse=True)[1]
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
    """Return for each text the number of the one most like it among others, and the cosine of their TF-IDF vectors."""
    vectorizer = _vectorizer()
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


def _vectorizer() -> TfidfVectorizer:
    return TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+", ngram_range=(1, 2))


def _tfidf(texts: Sequence[str]) -> Any:
    try:
        return _vectorizer().fit_transform(texts)
    except ValueError:  # of scikit-learn: an empty vocabulary
        raise AttendropError("the texts have no words by which they could be like others.") from None


def _joined(rows: Dataset, task: Task) -> list[str]:
    if task.head.input_name != "text":
        raise AttendropError(f"shift groups rows by their texts, and {task.head.input_name}s have none; leave it out.")
    return [
        "\n".join(" ".join(part) if isinstance(part, list | tuple) else str(part) for part in parts)
        for parts in task.head.texts(rows)
    ]


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
        distances, _ = NearestNeighbors(n_neighbors=1).fit(own[~inside]).kneighbors(own[inside])
        apart = float(distances.mean())
        found.append((fits, apart if fits else size, [row for row, own in zip(rows, inside, strict=True) if own]))
    return max(found)[2] if found else []
