"""How long a study of small runs takes, beside the same runs as commands one after the other.

The commands are `attendrop train` in a new process each, with the threads that PyTorch takes by itself; the study is
`attendrop study` with its default number of worker processes. Both are measured in turns, so that whatever else the
machine does meets both. What was measured is added to ``study_throughput.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from report import machine

RESULTS = Path(__file__).with_name("study_throughput.json")
TARGET = 0.6
METHODS: dict[str, dict[str, Any]] = {"finetune": {}, "ad-drop": {}, "r-drop": {}}
OPTIONS = {"max_train_samples": 128, "max_steps": 40, "max_length": 64}
# Variables by which a user, or this repository's tests, set the number of threads.
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Spent:
    """Time of a part: by the clock, and of all processors in the processes of that part."""

    seconds: float
    cpu_seconds: float

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


def attendrop(*arguments: str) -> Spent:
    """Run a command, and measure it."""
    environment = {name: value for name, value in os.environ.items() if name not in _THREADS}
    before, start = _cpu_seconds(), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", *arguments, "--quiet"], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"attendrop {' '.join(arguments)} failed:\n{done.stderr}")
    return Spent(time.monotonic() - start, _cpu_seconds() - before)


def train_one_by_one(task: str, seeds: Sequence[int], folder: Path) -> Spent:
    """Train each method with each seed, by a command each."""
    total = Spent(0, 0)
    given = [part for name, value in OPTIONS.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    for seed in seeds:
        for method, options in METHODS.items():
            settings = [part for name, value in options.items() for part in ("--set", f"{name}={str(value).lower()}")]
            place = ["--seed", str(seed), "--output-dir", str(folder / f"{method}-{seed}")]
            what = ["--task", task, "--model", "minilm", "--method", method]
            total += attendrop("train", *what, *settings, *given, *place)
    return total


def study(task: str, seeds: Sequence[int], folder: Path) -> Spent:
    """Run the same as a study."""
    content = {
        "data": [task],
        "models": ["minilm"],
        "methods": [{"name": name, "options": options} for name, options in METHODS.items()],
        "seeds": list(seeds),
        "run": OPTIONS,
    }
    file = folder.with_suffix(".yaml")
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return attendrop("study", str(file), "--output-dir", str(folder))


def largest_difference(commands: Path, of_study: Path) -> float:
    """Return by how much a score of a command differs from the study's; another number of threads changes roundings."""
    one, other = (
        {(run["method"], run["seed"]): run["score"] for run in map(_metrics, folder.rglob("metrics.json"))}
        for folder in (commands, of_study)
    )
    if one.keys() != other.keys():
        raise SystemExit(f"The commands ran {sorted(one)}, and the study {sorted(other)}.")
    return max(abs(one[key] - other[key]) for key in one)


def measure(task: str, runs: int, turns: int) -> Iterator[dict[str, Any]]:
    """Measure both in turns, each with a part of the seeds."""
    seeds = range(runs // len(METHODS))
    size = -(-len(seeds) // turns)
    for first in range(0, len(seeds), size):
        part = seeds[first : first + size]
        folder = Path(tempfile.mkdtemp())
        try:
            commands = train_one_by_one(task, part, folder / "commands")
            of_study = study(task, part, folder / "study")
            difference = largest_difference(folder / "commands", folder / "study")
        finally:
            shutil.rmtree(folder)
        yield {
            "runs": len(part) * len(METHODS),
            "commands": vars(commands),
            "study": vars(of_study),
            "ratio": of_study.seconds / commands.seconds,
            "cpu_ratio": of_study.cpu_seconds / commands.cpu_seconds,
            "largest_difference_of_a_score": difference,
            "load": os.getloadavg()[1],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24, help="number of runs, a multiple of three")
    parser.add_argument("--turns", type=int, default=1, help="in how many parts; each pays for the start of a study")
    parser.add_argument("--task", default="cola")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.runs < len(METHODS) or given.runs % len(METHODS):
        raise SystemExit(f"--runs {given.runs} must be a multiple of {len(METHODS)}, the number of methods.")
    turns = []
    for turn in measure(given.task, given.runs, given.turns):
        print(json.dumps(turn), flush=True)
        turns.append(turn)
    totals = {
        part: {name: round(sum(turn[part][name] for turn in turns), 1) for name in ("seconds", "cpu_seconds")}
        for part in ("commands", "study")
    }
    found = {
        **machine(),
        "cores": len(os.sched_getaffinity(0)),
        "task": given.task,
        "methods": METHODS,
        "options": OPTIONS,
        "runs": given.runs,
        **totals,
        "ratio": round(totals["study"]["seconds"] / totals["commands"]["seconds"], 3),
        "cpu_ratio": round(totals["study"]["cpu_seconds"] / totals["commands"]["cpu_seconds"], 3),
        "target": TARGET,
        "turns": turns,
    }
    given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    seconds = {part: totals[part]["seconds"] for part in totals}
    print(
        f"{given.runs} runs: {seconds['commands']:.0f} s as commands, {seconds['study']:.0f} s as a study: "
        f"{found['ratio']:.2f} (target: at most {TARGET}); CPU time {found['cpu_ratio']:.2f}."
    )


def _metrics(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _cpu_seconds() -> float:
    """Seconds that processors have worked for processes that this one has started, and those that they have started."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
