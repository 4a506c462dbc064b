"""Plant each fault of ``tests/planted_faults`` in turn, and see whether the nearest tests fail.

``python tools/plant_faults.py``, or ``make mutants``: reports the faults that survive, and fails if more than one in
twenty does. A fault is a small change that a user would notice and no type checker would::

    - file: training/trainer.py        # below src/attendrop, or attendrop_methods/... below src
      find: "warmup_steps=warmup"      # text that stands there once
      plant: "warmup_steps=0"
      tests: runs/test_every_option.py # below tests; several: a list
      harm: warmup is ignored

Each is tested in a process of its own with a copy of the sources, so that the checkout stays as it is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "planted_faults"
# Imported once, and not by each process.
PRELOADED = ("datasets", "scipy.stats", "sklearn.linear_model", "torch", "transformers.trainer", "pytest", "hypothesis")
TIME_LIMIT = 600
KILLED, SURVIVED, SLOW, BROKEN = "killed", "SURVIVED", "killed: no end", "NO TEST RAN"


@dataclass(frozen=True)
class Fault:
    """A fault: in ``file``, ``find`` is replaced by ``plant``, and one of ``tests`` should fail."""

    file: str
    find: str
    plant: str
    tests: tuple[str, ...]
    harm: str

    @property
    def path(self) -> Path:
        """The file, below src."""
        return Path(self.file) if self.file.startswith("attendrop_methods/") else Path("attendrop", self.file)

    @property
    def name(self) -> str:
        """Its name in lists."""
        return f"{self.file}: {self.harm}"

    def apply(self, source: Path) -> None:
        """Plant it in a copy of the packages."""
        file = source / self.path
        file.write_text(self.planted(file.read_text(encoding="utf-8")), encoding="utf-8")

    def planted(self, text: str) -> str:
        """Return the text of its file with the fault in it."""
        if text.count(self.find) != 1:
            raise SystemExit(f"{self.name}: found {text.count(self.find)} times, not once: {self.find!r}")
        return text.replace(self.find, self.plant)


def faults() -> list[Fault]:
    """Read all lists."""
    entries = [
        entry for file in sorted(LISTS.glob("*.yaml")) for entry in yaml.safe_load(file.read_text(encoding="utf-8"))
    ]
    return [Fault(**entry | {"tests": (*_listed(entry["tests"]),)}) for entry in entries]


def _listed(tests: str | Sequence[str]) -> Sequence[str]:
    return [tests] if isinstance(tests, str) else tests


def run_tests(source: str, tests: Sequence[str], output: str) -> None:
    """Run tests, in a process of its own, with the package in ``source``."""
    # What tests import and start finds the copy first. Bytecode that was copied is valid but for the changed file.
    sys.path.insert(0, source)
    os.environ["PYTHONPATH"] = source
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    with open(output, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    import pytest

    files = [str(ROOT / "tests" / test) for test in tests]
    sys.exit(
        pytest.main(["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=line", f"--rootdir={ROOT}", *files])
    )


@contextmanager
def copied_sources() -> Iterator[Path]:
    """Copy the package into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "src", folder, dirs_exist_ok=True)
        yield Path(folder)


def outcome(fault: Fault | None, tests: Sequence[str]) -> tuple[str, str]:
    """Run tests with a fault, or without; return what became of it, and what the tests printed."""
    context = multiprocessing.get_context("forkserver")
    with copied_sources() as source:
        if fault is not None:
            fault.apply(source)
        output = source / "output"
        process = context.Process(target=run_tests, args=(str(source), tests, str(output)))
        process.start()
        process.join(TIME_LIMIT)
        if process.exitcode is None:
            process.kill()
            return SLOW, ""
        printed = output.read_text(encoding="utf-8") if output.exists() else ""
        if process.exitcode == 1 and not re.search(r"\d+ (failed|error)", printed):  # pytest itself did not end
            return BROKEN, printed
        return {0: SURVIVED, 1: KILLED}.get(process.exitcode, BROKEN), printed


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only faults of files whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--unplanted", action="store_true", help="run the tests first without a fault: they must pass")
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED])
    chosen = [fault for fault in faults() if given.only in fault.file]
    for fault in chosen:
        fault.planted((ROOT / "src" / fault.path).read_text(encoding="utf-8"))
    found: dict[str, list[str]] = {}

    def try_one(fault: Fault | None, tests: Sequence[str]) -> None:
        start = time.monotonic()
        result, printed = outcome(fault, tests)
        name = " ".join(tests) if fault is None else fault.name
        bad = result in ((KILLED, SLOW, BROKEN) if fault is None else (SURVIVED, BROKEN))
        found.setdefault(result, []).append(name)
        if bad or fault is not None:
            print(f"{time.monotonic() - start:5.0f} s  {result:14}  {name}", flush=True)
        if bad and result != SURVIVED:
            print(printed[-2000:], flush=True)

    with ThreadPoolExecutor(given.jobs) as pool:
        if given.unplanted:
            list(pool.map(lambda tests: try_one(None, tests), sorted({fault.tests for fault in chosen})))
            if set(found) != {SURVIVED}:
                return 1
            found.clear()
        list(pool.map(lambda fault: try_one(fault, fault.tests), chosen))
    died = len(found.get(KILLED, [])) + len(found.get(SLOW, []))
    print(f"{died} of {len(chosen)} planted faults die.")
    return int(died < 0.95 * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
