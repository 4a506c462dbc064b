"""Write training files whose rows of a class resemble each other: ``python benchmarks/alike_rows.py FOLDER``.

Needs ``ATTENDROP_DATA``. Of Banking77 and HWU64, for each number of rows per class ``k``, degree of likeness and draw,
the file is ``FOLDER/DATA/DEGREE/K/DRAW.csv``. Of each class, it has a random row and ``k - 1`` others: random ones, the
nearest of ``4 k`` random rows, or the nearest of all, by the cosine of their texts' TF-IDF vectors.

``FOLDER/banking77/20-classes/DRAW.csv`` has five random rows of each of 20 random classes, and ``DRAW-test.csv`` the
test rows of these classes. ``FOLDER/paraphrases/train.csv`` has the training pairs of MRPC, ``test.csv`` the
development pairs of PAWS-X, whose sentences share their words whether they are paraphrases or not.
"""

import csv
import os
import random
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer

from attendrop.tasks.registry import load_task

DATA = {"banking77": "category", "hwu64": "intent"}
DEGREES = ("random", "nearest-of-4k", "nearest")
SIZES, DRAWS = (3, 5, 10, 20), (1, 2, 3, 4, 5)
FEW_CLASSES, DRAWS_OF_FEW = 20, range(1, 9)


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


def files_of_few_classes(
    classes: Mapping[str, Sequence[str]], test: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the name of each training and test file, and its texts with their classes."""
    for number in DRAWS_OF_FEW:
        chosen = random.Random(f"{number} classes").sample(sorted(classes), FEW_CLASSES)
        train = [(text, name) for name in chosen for text in draw(classes[name], 5, "random", f"{number} {name}")]
        yield f"20-classes/{number}.csv", train
        yield f"20-classes/{number}-test.csv", [(text, name) for name in chosen for text in test[name]]


def read(data: str, file: str) -> dict[str, list[str]]:
    """Read the different texts of each class."""
    classes: dict[str, list[str]] = defaultdict(list)
    with (Path(os.environ["ATTENDROP_DATA"]) / data / file).open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows):
            if row["text"] not in classes[row[DATA[data]]]:
                classes[row[DATA[data]]].append(row["text"])
    return classes


def write(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file in its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def main() -> None:
    """Write the files of all data sets."""
    for data, column in DATA.items():
        classes = read(data, "train.csv")
        files = training_files(classes)
        if data == "banking77":
            files = chain(files, files_of_few_classes(classes, read(data, "test.csv")))
        for name, rows in files:
            write(Path(sys.argv[1]) / data / name, [("text", column), *rows])
    paraphrases = Path(sys.argv[1]) / "paraphrases"
    for task, split, file in (("mrpc", "train", "train.csv"), ("pawsx", "dev", "test.csv")):
        load_task(task, splits=(split,)).splits[split].select_columns(["text", "text_pair", "label"]).to_csv(
            paraphrases / file
        )


if __name__ == "__main__":
    main()
