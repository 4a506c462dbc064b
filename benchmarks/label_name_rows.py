"""Write the controls of names of classes as training rows: ``python benchmarks/label_name_rows.py FOLDER``.

Needs ``ATTENDROP_DATA``. Of Banking77 and HWU64, ``FOLDER/DATA/wrong-DRAW.csv`` has for each class the name of another
one, a random derangement, for ``label_names``; ``FOLDER/DATA/codes.csv`` gives the classes codes, for ``label_map``, so
that ``auto`` adds no names; ``FOLDER/imdb/names.csv`` has the names of its classes, also for more rows than ``auto``.
"""

import csv
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from alike_rows import DATA, write

from attendrop.tasks.class_names import in_words

DRAWS = range(1, 6)


def deranged(names: Sequence[str], seed: str) -> list[str]:
    """Return the names in a random order in which none is at its place."""
    generator, found = random.Random(seed), list(names)
    while any(name == other for name, other in zip(names, found, strict=True)):
        generator.shuffle(found)
    return found


def main() -> None:
    """Write the files of both data sets."""
    for data, column in DATA.items():
        with (Path(os.environ["ATTENDROP_DATA"]) / data / "train.csv").open(encoding="utf-8", newline="") as rows:
            names = sorted({row[column] for row in csv.DictReader(rows)})
        tables = {"codes": [("label", "meaning"), *((name, f"C{number}") for number, name in enumerate(names))]}
        for draw in DRAWS:
            others = map(in_words, deranged(names, f"{data} {draw}"))
            tables[f"wrong-{draw}"] = [("label", "text"), *zip(names, others, strict=True)]
        for name, table in tables.items():
            write(Path(sys.argv[1]) / data / f"{name}.csv", table)
    write(Path(sys.argv[1]) / "imdb" / "names.csv", [("label", "text"), ("neg", "neg"), ("pos", "pos")])


if __name__ == "__main__":
    main()
