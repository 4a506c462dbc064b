"""Write texts without labels, for step 7 of docs/experiments.md: ``python benchmarks/unlabelled_rows.py FOLDER``.

Needs ``ATTENDROP_DATA``. Of Banking77 and HWU64, ``FOLDER/DATA/4000.csv`` and ``500.csv`` have random texts of the
training file, whose rows that a run draws are left out by themselves, and ``other.csv``, the control, 4,000 texts of
the other data set.
"""

import csv
import os
import random
import sys
from pathlib import Path

from alike_rows import DATA, write


def texts_of(data: str) -> list[str]:
    """Return the texts of a data set's training file in a random order."""
    with (Path(os.environ["ATTENDROP_DATA"]) / data / "train.csv").open(encoding="utf-8", newline="") as rows:
        texts = [row["text"] for row in csv.DictReader(rows)]
    random.Random(data).shuffle(texts)
    return texts


def main() -> None:
    """Write the files of both data sets."""
    texts = {data: texts_of(data) for data in DATA}
    for data, other in zip(DATA, reversed(DATA), strict=True):
        files = {"500": texts[data][:500], "4000": texts[data][:4000], "other": texts[other][:4000]}
        for name, found in files.items():
            write(Path(sys.argv[1]) / data / f"{name}.csv", [("text",), *((text,) for text in found)])


if __name__ == "__main__":
    main()
