"""Groups of rows that belong together: those of one customer or thread, and those of nearly the same text.

A split keeps them whole, and they, not rows, are the examples of a comparison's intervals.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.feature_extraction.text import TfidfVectorizer

from attendrop.tasks.values import UNSPACED, plain

if TYPE_CHECKING:
    from datasets import Dataset

    from attendrop.tasks.base import Task

# Column of the rows with the values of ``group_column`` as text; empty where a row belongs to no group.
GROUP = "group_values"
# Cosine of TF-IDF vectors from which texts are nearly the same: about one word in ten differs.
_NEARLY_THE_SAME = 0.9
# Maximum number of different texts that are compared, and of nonzero entries that are multiplied at a time.
_MOST_COMPARED = 20_000
_AT_A_TIME = 4_000_000
# If near-duplicates leave fewer groups, as where one template makes all texts, they say nothing of what is alike.
_LEAST_GROUPS = 5
# Words; letters of scripts without spaces are words of their own, so that pairs of words are pairs of letters.
_TERM = rf"[{UNSPACED}]|[^\W{UNSPACED}]+"


def groups_of(rows: Dataset, task: Task) -> list[int]:
    """Number the groups of rows from 0, in the order of their first rows.

    Rows belong together if they have the same text, nearly the same (:func:`near_duplicates`), or the same value in
    :data:`GROUP`, and if both belong to a third.
    """
    texts = task.type.texts(rows)
    known = [texts, given_groups(rows)] if GROUP in rows.column_names else [texts]
    joined = [" ".join(part if isinstance(part, str) else " ".join(map(str, part)) for part in row) for row in texts]
    numbers = merged(*known, near_duplicates(joined))
    return numbers if max(numbers, default=0) + 1 >= _LEAST_GROUPS else merged(*known)


def given_groups(rows: Dataset) -> list[Hashable]:
    """Return the value of each row in :data:`GROUP`; the row's number where it has none."""
    return [value or row for row, value in enumerate(rows[GROUP][:])]


def merged(*columns: Sequence[Hashable]) -> list[int]:
    """Number the groups of rows that share a value in one column or more, also by way of other rows, from 0."""
    count = len(columns[0])
    if len(columns) == 1 or not count:
        return numbered(columns[0])
    values = [np.array(numbered(column)) for column in columns]
    first = count + np.cumsum([0, *(column.max() + 1 for column in values)])  # rows are nodes, and so are all values
    edges = np.concatenate([column + start for column, start in zip(values, first, strict=False)])
    ends = np.tile(np.arange(count), len(columns)), edges
    graph = sparse.coo_array((np.ones(len(edges)), ends), shape=(first[-1], first[-1]))
    return numbered(connected_components(graph, directed=False)[1][:count].tolist())


def numbered(values: Sequence[Hashable]) -> list[int]:
    """Number values from 0, in the order in which they first occur."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def near_duplicates(texts: Sequence[str]) -> list[int]:
    """Number groups of texts that differ in case, spaces and punctuation only, or have a TF-IDF cosine of 0.9 or more.

    Cosines are those of words and pairs of words. Of more than 20,000 different texts, none are computed.
    """
    known: dict[str, int] = {}
    found = [known.setdefault(" ".join(re.findall(r"\w+", low)) or low, len(known)) for low in map(plain, texts)]
    if not 1 < len(known) <= _MOST_COMPARED:
        return found
    try:
        vectors = text_vectorizer().fit_transform(list(known)).tocsr()
    except ValueError:  # of scikit-learn: an empty vocabulary
        return found
    # Two texts are only compared if they share one of the rarest terms of the first, those without which the rest of
    # its vector is too short for the cosine (prefix filtering: Bayardo, Ma and Srikant, 2007).
    row, column = np.repeat(np.arange(len(known)), np.diff(vectors.indptr)), vectors.indices
    order = np.lexsort((column, np.bincount(column)[column], row))  # by row, the rarest terms first
    column, squares = column[order], vectors.data[order] ** 2
    before = np.cumsum(squares) - squares
    before -= before[np.minimum(vectors.indptr[:-1], len(before) - 1)][row]
    needed = 1 - before > _NEARLY_THE_SAME**2 - 1e-9
    rarest = sparse.csr_array((np.ones(needed.sum()), (row[needed], column[needed])), shape=vectors.shape)
    having, alike = vectors.T.tocsr(), [np.zeros((0, 2), dtype=int)]
    step = max(1, _AT_A_TIME // len(known))
    at_once = max(1, _AT_A_TIME * len(known) // vectors.nnz)
    for start in range(0, len(known), step):
        sharing = (rarest[start : start + step] @ having).tocoo()
        pairs = np.stack([sharing.row + start, sharing.col], axis=1)
        pairs = pairs[pairs[:, 0] < pairs[:, 1]]
        for place in range(0, len(pairs), at_once):
            part = pairs[place : place + at_once]
            cosines = vectors[part[:, 0]].multiply(vectors[part[:, 1]]).sum(axis=1)
            alike.append(part[np.asarray(cosines).ravel() >= _NEARLY_THE_SAME])
    pairs = np.concatenate(alike)
    graph = sparse.coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(len(known), len(known)))
    components = connected_components(graph, directed=False)[1]
    return [int(components[text]) for text in found]


def ungrouped(column: str, groups: int, rows: int) -> str:
    """Say that rows look as if they belonged together, where no column of groups is given."""
    return (
        f"Column {column!r} has {groups} values in {rows} rows: if the rows of one belong together, intervals on new "
        f"rows are too narrow, and held-out rows too easy; --group-column {shlex.quote(column)} takes them together."
    )


def text_vectorizer() -> TfidfVectorizer:
    """Make what computes TF-IDF vectors of words and pairs of words."""
    return TfidfVectorizer(sublinear_tf=True, token_pattern=_TERM, ngram_range=(1, 2))
