"""Write training files whose rows of a class resemble each other: ``python benchmarks/alike_rows.py FOLDER``.

Needs ``ATTENDROP_DATA``. Of Banking77 and HWU64, for each number of rows per class ``k``, degree of likeness and draw,
the file is ``FOLDER/DATA/DEGREE/K/DRAW.csv``. Of each class, it has a random row and ``k - 1`` others: random ones, the
nearest of ``4 k`` random rows, or the nearest of all, by the cosine of their texts' TF-IDF vectors.
"""

import csv
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer

DATA = {"banking77": "category", "hwu64": "intent"}
DEGREES = ("random", "nearest-of-4k", "nearest")
SIZES, DRAWS = (3, 5, 10, 20), (1, 2, 3, 4, 5)


def draw(texts: Sequence[str], k: int, degree: str, seed: str) -> list[str]:
    """Choose ``k`` texts of a class, or all if there are no more; the same for the same seed."""
    order = list(texts)
    random.Random(seed).shuffle(order)
    if degree == "nearest-of-4k":
        order = order[: 4 * k]
    if degree != "random" and len(order) > k:
        vectors = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), token_pattern=r"\w+").fit_transform(order)
        cosines = (vectors @ vectors[0].T).toarray()[:, 0]
        order = [order[i] for i in sorted(range(len(order)), key=lambda i: (i != 0, -cosines[i], i))]
    return order[:k]


def training_files(classes: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the name of each file, and its texts with their classes."""
    for degree in DEGREES:
        for k in SIZES:
            for number in DRAWS:
                rows = [
                    (text, name)
                    for name, texts in classes.items()
                    for text in draw(texts, k, degree, f"{number} {name}")
                ]
                yield f"{degree}/{k}/{number}.csv", rows


def main() -> None:
    """Write the files of both data sets."""
    for data, column in DATA.items():
        classes: dict[str, list[str]] = defaultdict(list)
        with (Path(os.environ["ATTENDROP_DATA"]) / data / "train.csv").open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["text"] not in classes[row[column]]:
                    classes[row[column]].append(row["text"])
        for name, rows in training_files(classes):
            path = Path(sys.argv[1]) / data / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("text", column), *rows])


if __name__ == "__main__":
    main()
