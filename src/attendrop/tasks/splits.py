"""Few-shot samples, subsets and held-out rows, determined by a seed; rows that belong together; how alike rows are."""

from __future__ import annotations

import logging
import math
import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from sklearn.cluster import KMeans
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import normalize

from attendrop.errors import AttendropError
from attendrop.tasks.class_names import same_text
from attendrop.tasks.table import MARKS, UNSPACED, may_be_missing
from attendrop.wording import counted, counts_of

if TYPE_CHECKING:
    from datasets import Dataset

    from attendrop.tasks.base import Task

logger = logging.getLogger(__name__)
# Rows whose likeness is looked at, at most: comparing all rows takes the square of their number.
_SAMPLE = 2000
# Column of the rows with the values of ``group_column`` as text; empty where a row belongs to no group.
GROUP = "group_values"
# Cosine of TF-IDF vectors from which texts are nearly the same: about one word in ten differs.
_NEARLY_THE_SAME = 0.9
_AT_A_TIME = 4_000_000  # nonzero entries that are multiplied


def groups_of(rows: Dataset, task: Task) -> list[int]:
    """Number the groups of rows from 0, in the order of their first rows.

    Rows belong together if they have the same text, nearly the same (:func:`near_duplicates`), or the same value in
    :data:`GROUP`, and if both belong to a third.
    """
    texts = task.type.texts(rows)
    known = [texts, given_groups(rows)] if GROUP in rows.column_names else [texts]
    numbers = merged(*known, near_duplicates(["\n".join(parts) for parts in texts]))
    # If these leave fewer groups, as where one template makes all texts, they say nothing of what is alike.
    return numbers if max(numbers, default=0) + 1 >= 5 else merged(*known)


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
    words = list(map(same_text, texts))
    found, known = numbered(words), list(dict.fromkeys(words))
    if not 1 < len(known) <= 20_000:
        return found
    try:
        vectors = text_vectorizer().fit_transform(known).tocsr()
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


def text_vectorizer() -> TfidfVectorizer:
    """Make what computes TF-IDF vectors of words and pairs of words, or of letters in scripts without spaces."""
    words = rf"[{UNSPACED}]|(?:[^\W{UNSPACED}]|[{MARKS}])+"
    return TfidfVectorizer(sublinear_tf=True, token_pattern=words, ngram_range=(1, 2))


# Samples and held-out rows -------------------------------------------------------------------------------------------


def few_shot(dataset: Dataset, task: Task, k: int, seed: int) -> Dataset:
    """Sample ``k`` rows of every class (regression: ``k`` rows in all), in their original order; refuse less than 1.

    If a class has fewer rows, all are taken, with a warning. With the same seed, the rows of a smaller ``k`` are among
    those of a larger one.
    """
    if k < 1:
        raise AttendropError(f"the number of shots must be at least 1, not {k}.")
    strata, names = task.type.strata_of(dataset), task.type.strata
    rows_of: dict[int, list[int]] = {stratum: [] for stratum in range(len(names))}
    for row in _shuffled(len(dataset), seed):
        rows_of[strata[row]].append(row)
    if few := [f"{len(rows)} of {name}" for name, rows in zip(names, rows_of.values(), strict=True) if len(rows) < k]:
        more = ", ..." if len(few) > 5 else ""
        warnings.warn(f"Fewer than {k} rows, so all: {', '.join(few[:5])}{more}.", stacklevel=2)
    return dataset.select(sorted(row for rows in rows_of.values() for row in rows[:k]))


def subset(dataset: Dataset, n: int, seed: int) -> Dataset:
    """Sample ``n`` rows, in their original order, or all; raise AttendropError if ``n`` is less than 1."""
    if n < 1:
        raise AttendropError(f"the number of rows must be at least 1, not {n}.")
    return dataset.select(sorted(_shuffled(len(dataset), seed)[:n]))


def hold_out(dataset: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset | None]:
    """Hold out a fraction of the rows, stratified by class; rows that belong together are in the same part.

    These (:func:`groups_of`) count as one text. The held-out part has ``floor(fraction * rows)`` rows, but at least one
    for each class of two or more texts; a class of a single text is kept. It has a few more where a text with several
    rows does not fit. If no class can be split, or the kept part would lack a class, the rows are sampled without
    stratification, with a warning. Regression is never stratified.

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
        raise AttendropError(f"{len(dataset)} rows of the same {same} cannot be split; hold out 0, or add data.")
    count = max(1, math.floor(len(dataset) * fraction + 1e-6))
    places = _shuffled(max(texts) + 1, seed)  # in the order of their first rows, texts of many rows would come first
    order, labels = _shuffled(len(texts), seed), [0] * len(texts)
    if len(task.type.strata) > 1:
        classes = task.type.strata_of(dataset)
        classes_of = _classes_of(classes, texts)
        sizes = Counter(label for each in classes_of.values() for label in each)
        divisible = [row for row, text in enumerate(texts) if all(sizes[label] > 1 for label in classes_of[text])]
        strata = [classes[row] for row in divisible]
        rows_of = Counter(strata)
        enough = max(count, len(rows_of))
        if enough > len(divisible) - len(rows_of) or min(rows_of.values(), default=0) < 2:
            warnings.warn(
                f"{len(classes)} rows of {len(sizes)} classes are too few to hold out {count} by class: they were "
                "sampled without stratification.",
                stacklevel=2,
            )
        else:
            kept, held = train_test_split(divisible, test_size=enough, stratify=strata, random_state=seed)
            order, labels, count = [*held, *kept], list(classes), enough
    return _divided(dataset, _whole_texts(order, count, labels, texts, places))


def _whole_texts(
    order: Sequence[int], count: int, labels: Sequence[int], texts: Sequence[int], places: Sequence[int]
) -> set[int]:
    """Take the first ``count`` rows; where texts repeat, instead as many rows of each class, with all rows of a text.

    At least one text of each class is left. A text of more rows than are still wanted is taken only where none fits.
    Texts are taken in the order of their ``places``.
    """
    if max(texts) == len(texts) - 1:
        return set(order[:count])
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        rows_of[text].append(row)
    texts_of: defaultdict[int, dict[int, None]] = defaultdict(dict)  # by class, each once, in the order
    for row in sorted(order, key=lambda row: places[texts[row]]):
        texts_of[labels[row]][texts[row]] = None
    classes_of = _classes_of(labels, texts)
    left = Counter(label for classes in classes_of.values() for label in classes)
    held, covered, taken = set[int](), set[int](), set[int]()
    wanted = 0  # with the classes before: rows that these have too many are not taken of the next
    for label, quota in Counter(labels[row] for row in order[:count]).items():
        wanted += quota
        smallest_first = sorted(texts_of[label], key=lambda text: len(rows_of[text]))
        for must_fit, text in [*product([True], texts_of[label]), *product([False], smallest_first)]:
            fits = len(held) + len(rows_of[text]) <= wanted
            missing = len(held) < wanted or label not in covered
            free = text not in taken and all(left[label] > 1 for label in classes_of[text])
            if free and (fits if must_fit else missing):
                taken.add(text)
                held.update(rows_of[text])
                covered.update(classes_of[text])
                left.subtract(classes_of[text])
                if not must_fit:
                    break
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


def _divided(dataset: Dataset, held: Collection[int]) -> tuple[Dataset, Dataset]:
    """Return the rows that are not held out, and those that are, in their original order."""
    kept = [row for row in range(len(dataset)) if row not in held]
    return dataset.select(kept), dataset.select(sorted(held))


# Shift ----------------------------------------------------------------------------------------------------------------


def hold_out_like(rows: Dataset, task: Task, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """Hold out rows that are unlike the others of their class.

    The rows of each class (of numbers, all rows) are divided into ``1 / fraction`` groups by k-means on their texts'
    TF-IDF vectors, and one group is held out: among those with between half the fraction, in (0, 0.5], and half of the
    class, the one whose nearest kept rows are farthest, on average over at most 2,000 rows. Classes with fewer texts
    than groups are kept. Of rows that belong together (:func:`groups_of`), all are held out, or none: as many rows in
    all, of those with the largest shares of such rows.

    Raises:
        AttendropError: The inputs have no words, or more than half of the classes have too few texts.
    """
    texts, groups = ["\n".join(parts) for parts in task.type.texts(rows)], max(2, round(1 / fraction))
    strata = task.type.strata_of(rows) if len(task.type.strata) > 1 else [0] * len(rows)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for row, stratum in enumerate(strata):
        members[stratum].append(row)
    enough = [found for found in members.values() if len({texts[row] for row in found}) >= groups]
    if len(enough) < max(1, len(members) / 2):
        of = f"only {len(enough)} of {len(members)} classes have" if len(members) > 1 else "there are not"
        raise AttendropError(
            f"ood holds out whole groups of similar rows, which needs {groups} different texts or more in most "
            f"classes, but {of} so many; omit it, or name a column to hold out by with ood-column."
        )
    try:
        vectors = text_vectorizer().fit_transform(texts)
    except ValueError:  # of scikit-learn: an empty vocabulary
        raise AttendropError("ood needs texts that have words, to compare them by; omit it.") from None
    directions = min(64, vectors.shape[0] - 1, vectors.shape[1] - 1)  # latent semantic analysis
    several = directions > 1
    vectors = (
        normalize(TruncatedSVD(directions, random_state=0).fit_transform(vectors)) if several else vectors.toarray()
    )
    held: set[int] = set()
    for own in enough:  # the rows of a class
        labels = KMeans(groups, n_init=10, random_state=seed).fit_predict(vectors[own])
        found: list[tuple[bool, float, list[int]]] = []
        for group in range(groups):
            inside = labels == group
            size, near = int(inside.sum()), NearestNeighbors(n_neighbors=1)
            if 0 < size <= len(own) / 2:
                fits = size >= math.ceil(fraction * len(own) / 2)
                sample = sorted(random.Random(seed).sample(range(size), min(size, _SAMPLE)))
                distances, _ = near.fit(vectors[own][~inside]).kneighbors(vectors[own][inside][sample])
                apart = float(distances.mean()) if fits else size
                found.append((fits, apart, [own[place] for place in np.flatnonzero(inside)]))
        held |= set(max(found)[2]) if found else set()
    numbers = groups_of(rows, task)
    if max(numbers) == 0:
        raise AttendropError("ood holds out whole groups of rows, and all rows belong to one; omit it.")
    inside, sizes = Counter(numbers[row] for row in held), Counter(numbers)
    whole: set[int] = set()
    for number in sorted(inside, key=lambda each: (-inside[each] / sizes[each], each)):
        if not whole or sum(sizes[each] for each in whole) + sizes[number] <= len(held):
            whole.add(number)
    if not whole:
        raise AttendropError("ood holds out groups of similar rows, and the texts of a class are all alike; omit it.")
    return _divided(rows, {row for row, number in enumerate(numbers) if number in whole})


def hold_out_values(rows: Dataset, column: str, values: Sequence[str], fraction: float) -> tuple[Dataset, Dataset]:
    """Hold out the rows of whole values: the last in order, such as the newest of dates; numbers by value.

    ``values`` has the value of each row in ``column``, which is named in messages. Values are held out until their rows
    make up about the fraction; empty ones and placeholders such as "n/a" do not count as values. Texts are in
    alphabetical order, numbers within them by value. Where groups are given (:data:`GROUP`), those of held-out rows
    have no rows among the others: such rows are left out.

    Raises:
        AttendropError: All rows have the same value; no group is without held-out rows; or the order of values is not
            clear.
    """
    values = ["" if may_be_missing(value) else value for value in values]
    counts = Counter(values)
    if len(counts) < 2:
        raise AttendropError(f"ood-column '{column}' has a single value, {next(iter(counts), '')!r}; name another.")
    held: dict[str, int] = {}
    order, wanted = _order(column, [value for value in counts if value]), fraction * len(rows)
    for value in sorted(counts, key=lambda value: (bool(value), value and order(value)), reverse=True)[:-1]:
        taken = sum(held.values())
        if held and abs(taken + counts[value] - wanted) >= abs(taken - wanted):  # it is nearer without this value
            break
        held[value] = counts[value]
    many = sum(held.values()) > len(rows) / 2
    said = f"Held out by column {column}: {counts_of(held)} of {len(rows)} rows"
    tell = logger.warning if many else logger.info
    tell(f"{said}; less than half are left to train on." if many else f"{said}.")
    out = {row for row, value in enumerate(values) if value in held}
    if GROUP not in rows.column_names:
        return _divided(rows, out)
    groups = given_groups(rows)
    theirs = {groups[row] for row in out}
    kept = [row for row, group in enumerate(groups) if group not in theirs]
    if not kept:
        raise AttendropError(
            f"every group of group-column has rows among those that ood-column '{column}' holds out, so that none is "
            "left to train on; omit one of them."
        )
    if left_out := len(rows) - len(kept) - len(out):
        logger.warning(f"Left out: {counted(left_out, 'other row')} of the groups of the rows held out by {column}.")
    return rows.select(kept), rows.select(sorted(out))


# Dates whose order is not that of their numbers: the year is last, or the month is a word.
_UNORDERED = re.compile(
    r"\s*(\d{1,2}([./-])\d{1,2}\2\d{2,4}|\d{1,2}[/-]\d{4})\b|.*\b(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|"
    r"july?|aug(ust)?|sept?(ember)?|(octo|novem|decem)ber|oct|nov|dec)\b",
    re.IGNORECASE,
)


def _order(column: str, values: Sequence[str]) -> Callable[[str], Any]:
    """Return the key by which values are sorted: numbers by value, also within texts; refuse what is not clear."""
    numbers: dict[str, float] = {}
    for value in values:
        with suppress(ValueError):
            if math.isfinite(number := float(value)):
                numbers[value] = number
    dates = [value for value in values if re.match(r"\s*\d{4}[-./]\d{1,2}([-./]\d{1,2})?\b", value)]
    for form, found in {"numbers": [*numbers], "dates": dates}.items():
        if found and 2 * len(found) >= len(values) and (others := [each for each in values if each not in found]):
            raise AttendropError(
                f"ood-column '{column}' has {form} such as {found[0]!r}, and {others[0]!r}, so that their order "
                "is not clear; correct or empty it."
            )
    unclear = [value for value in values if _UNORDERED.match(value)] if len(numbers) < len(values) else []
    # As in Q1 2024 and 03.2024, of several years.
    ends = [end for value in values if (end := re.fullmatch(r"((?:(?!(?:19|20)\d\d).)*\D)((?:19|20)\d\d)\s*", value))]
    if min(len({end[1] for end in ends}), len({end[2] for end in ends})) > 1:
        unclear = max(unclear, [end[0] for end in ends], key=len)
    if unclear and 2 * len(unclear) >= len(values):
        raise AttendropError(
            f"ood-column '{column}' has dates in words or with the year last such as {unclear[0]!r}, whose order is "
            "not clear; write them as 2026-03-01 or 2026-03."
        )
    if len(numbers) == len(values):
        return numbers.__getitem__
    return lambda value: [int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", value))]


# Likeness -------------------------------------------------------------------------------------------------------------


def class_likeness(rows: Dataset, task: Task) -> dict[str, float] | None:
    """Compute mean cosines of rows' TF-IDF vectors, in a sample of 2,000; None without words or classes of several.

    They are those of two rows ``within`` a class, of two rows ``between`` classes, and of a row and the ``nearest`` of
    its class.
    """
    if len(task.type.strata) < 2:
        return None
    rows = subset(rows, _SAMPLE, seed=0)
    try:
        vectors = text_vectorizer().fit_transform("\n".join(parts) for parts in task.type.texts(rows))
    except ValueError:  # of scikit-learn: an empty vocabulary
        return None
    labels, cosines = np.asarray(task.type.strata_of(rows)), (vectors @ vectors.T).toarray()
    same, other = labels[:, None] == labels[None, :], labels[:, None] != labels[None, :]
    np.fill_diagonal(same, False)
    several = same.any(1)
    if not several.any() or not other.any():
        return None
    nearest = np.where(same, cosines, -1.0).max(1)[several]
    means = {"within": cosines[same], "between": cosines[other], "nearest": nearest}
    return {name: float(values.mean()) for name, values in means.items()}


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
