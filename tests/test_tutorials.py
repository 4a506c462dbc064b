"""The tutorials run as they are printed: each in a folder with the examples, block after block."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import attendrop

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs/tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\S+\.\w+)\n")
# Packages without which a page is skipped.
NEEDED = {
    "compare_for_a_paper": "matplotlib",
    "csv_to_served_model": "onnxruntime",
    "method_package": "setuptools",
    "prune_and_serve": "onnxruntime",
    "study_on_ray": "ray",
}


def blocks(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the text of each block that is saved or run, with the arguments of bash or Python that run it.

    A block that begins with a file name, as in ``# serve.py``, is saved. Such a program runs unless a bash block names
    it. What is printed stands in blocks of other languages (console, text).
    """
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    shell = "\n".join(text for language, text in found if language == "bash")
    for language, text in found:
        name = NAMED.match(text)
        if language == "bash":
            yield text, ["bash", "-euo", "pipefail", "-c", text]
        elif language == "python" and name is None:
            yield text, [sys.executable, "-c", text]
        elif name is not None and language in ("python", "toml", "yaml"):
            yield text, [sys.executable, name[1]] if language == "python" and name[1] not in shell else []


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of the blocks: pip installs into the folder, from what is there."""
    installed = folder / "installed"
    pip = {"TARGET": str(installed), "NO_INDEX": "1", "NO_DEPS": "1", "NO_BUILD_ISOLATION": "0", "QUIET": "1"}
    return {
        **os.environ,
        **{f"PIP_{name}": value for name, value in pip.items()},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(Path(attendrop.__file__).parents[1]), str(installed)]),
        "HF_DATASETS_CACHE": str(folder / "cache"),
    }


def run_page(page: Path, folder: Path) -> Iterator[tuple[str, subprocess.CompletedProcess[str]]]:
    """Save and run the blocks of a page in a folder; yield each that ran."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    for text, arguments in blocks(page):
        if name := NAMED.match(text):
            file = folder / name[1]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        if arguments:
            yield (
                text,
                subprocess.run(
                    arguments,
                    cwd=folder,
                    env=environment(folder),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    timeout=900,
                    check=False,
                ),
            )


def test_there_are_tutorials() -> None:
    assert len(PAGES) == 7
    assert all(any(arguments for _, arguments in blocks(page)) for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs(page: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(package := NEEDED.get(page.stem, "attendrop")) is None:
        pytest.skip(f"{package} is not installed")
    for text, result in run_page(page, tmp_path):
        assert result.returncode == 0, f"{text}\n{result.stdout[-3000:]}"
