"""Checks an installed distribution: what is in the archives, and the quick start, in an empty folder.

    python tools/use_distribution.py dist

Runs with the interpreter of an environment in which the wheel is installed with the extra ``demo``.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TEXTS = {
    "refund": "I want my money back for order {}",
    "delivery": "When will parcel {} arrive",
    "praise": "Thank you, number {} is wonderful",
}


def check_archives(dist: Path) -> None:
    """See that the wheel holds the packages with their data files, and the source distribution tests and licence."""
    (wheel,), (source,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert any(name.endswith(".html") for name in names), "the wheel lacks the templates of pages"
    for package in ("attendrop", "attendrop_methods"):
        assert f"{package}/py.typed" in names, f"the wheel does not say that {package} is typed"
    assert not [name for name in names if not name.startswith("attendrop")], "the wheel holds more than the packages"
    with tarfile.open(source) as archive:
        inside = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"src", "tests", "LICENSE", "README.md", "CHANGELOG.md"} <= inside, inside


def use(folder: Path) -> None:
    """Train on a small file, score, predict and import, with the commands of the README."""
    for split, numbers in {"train": range(8), "dev": range(8, 12)}.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            rows = [(text.format(number), label) for number in numbers for label, text in TEXTS.items()]
            csv.writer(file).writerows([("text", "label"), *rows])
    attendrop = str(Path(sys.executable).with_name("attendrop"))
    data = ["--text-columns", "text", "--label-column", "label"]
    run([attendrop, "--version"], folder)
    run([attendrop, "methods", "sam"], folder)  # of the second package
    run([attendrop, "train", "--train-file", "train.csv", "--eval-file", "dev.csv", *data, "--max-steps", "20",
         "--output-dir", "run"], folder)  # fmt: skip
    run([attendrop, "evaluate", "run", "--report"], folder)
    run(
        [attendrop, "predict", "run", "--predict-file", "dev.csv", "--text-columns", "text", "--output", "out.csv"],
        folder,
    )
    run([sys.executable, "-c", "import attendrop; print(attendrop.ADDrop(), attendrop.__file__)"], folder)
    with (folder / "out.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 12


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder, and show it."""
    print("$", " ".join(command), flush=True)
    subprocess.run(command, cwd=folder, check=True)


if __name__ == "__main__":
    check_archives(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        use(Path(folder))
    print("The distribution works.")
