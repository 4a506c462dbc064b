"""Units of a study: single runs, each in a folder named by the hash of its options and its data."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from attendrop.errors import AttendropError, check_count
from attendrop.runs.config import RunConfig, by_content
from attendrop.wording import counted

RUNS = "runs"
# What an answer calls a run, beside the entries of its ``metrics.json``.
LABEL = "label"
# Files of the answer of a study or a comparison, and the list of the runs from which it can be computed again; in it,
# the only setting of a comparison is called "".
REPORTS = ("answer.md", "answer.json", "answer.csv")
COMPARED = "compared.json"
# The method that others are compared with by default.
REFERENCE = "finetune"
# Names of the baselines, see :mod:`attendrop.studies.baselines`, the cheapest first.
MAJORITY, TFIDF, FROZEN, SETFIT = BASELINES = ("majority", "tfidf", "frozen", "setfit")
# Those that cost little compared with fine-tuning.
CHEAP = (MAJORITY, TFIDF, FROZEN)
# File systems allow 255 bytes, of which the hash and the names of temporary folders need some.
_LONGEST_NAME = 220
DEFAULT_TEST_FRACTION = 0.25
# A run takes seconds at least: more are a mistake, or a day's work for many machines, and divided among them.
MOST_RUNS = 10_000
# Worker processes of a core, and of a machine with few cores: each loads PyTorch and a model.
_MOST_WORKERS_OF_CORE, _MOST_WORKERS = 4, 16


def check_number_of_runs(runs: int, owner: str) -> None:
    """Raise AttendropError if a study or a comparison has more runs than any has time for."""
    if runs > MOST_RUNS:
        raise AttendropError(f"{owner} has {runs:,} runs, above the {MOST_RUNS:,} that are allowed; divide it.")


def check_workers(count: int | None) -> None:
    """Raise AttendropError unless a number of worker processes of this machine is 0 or more, and not far too many."""
    if count is None:
        return
    check_count("workers", count, 0)
    cores = available_cores()
    if count > (most := max(_MOST_WORKERS, _MOST_WORKERS_OF_CORE * cores)):
        raise AttendropError(
            f"workers={count} are too many for {counted(cores, 'core')}: each loads PyTorch and a model; give at most "
            f"{most}, or omit it."
        )


def available_cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_evaluation(options: Mapping[str, Any]) -> None:
    """Raise AttendropError where no rows are to be set aside to score on, and none are given."""
    if options.get("test_fraction") == 0 and options.get("train_file") and not options.get("eval_file"):
        raise AttendropError(
            "test-fraction 0 sets no rows aside, and methods are compared on such: give an eval-file, or omit it for "
            f"{DEFAULT_TEST_FRACTION}."
        )


def with_evaluation(config: RunConfig) -> RunConfig:
    """Hold out a quarter of a training file for scoring, if there are no other evaluation data."""
    if config.train_file is None or config.eval_file is not None or config.test_fraction:
        return config
    return replace(config, test_fraction=DEFAULT_TEST_FRACTION)


@dataclass(frozen=True)
class Unit:
    """One run of a study: training with a method, or a ``baseline`` instead of it; ``output_dir`` is ignored."""

    config: RunConfig
    baseline: str | None = None
    keep_model: bool = False

    @property
    def method(self) -> str:
        """Name of the method or of the baseline."""
        return self.baseline or self.config.method

    @property
    def options(self) -> dict[str, Any]:
        """All options of the method; a baseline has none."""
        return {} if self.baseline else dict(self.config.options)

    def key(self, data_sha256: str = "") -> str:
        """Hash all options, and the data, see :func:`data_sha256`: SHA-256, in hexadecimal.

        Options that are None are left out, so that a new option of the library changes no older hash; so are, where
        the data's hash is given, the folders of data, and that of a local model, whose content is in it.
        """
        config = self.config.as_dict()
        del config["output_dir"]
        if data_sha256:
            config = by_content(config)
            if Path(self.config.model).is_dir():
                config["model"] = Path(self.config.model).name
        config = {name: value for name, value in config.items() if value is not None}
        content = {"config": config, "baseline": self.baseline, "keep_model": self.keep_model, "data": data_sha256}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def folder_name(self, data_sha256: str) -> str:
        """Name the unit's folder, such as ``cola-finetune-seed0-1a2b3c4d``; of a long name, the end is kept."""
        data = self.config.task or Path(self.config.train_file or "").stem
        readable = f"{data}-{self.method}-seed{self.config.seed}"
        readable = re.sub(r"[^A-Za-z0-9+._-]", "_", readable)[-_LONGEST_NAME:]
        return f"{readable}-{self.key(data_sha256)[:8]}"

    def described(self) -> dict[str, Any]:
        """Return what distinguishes the unit from others in a comparison, by the names of ``metrics.json``."""
        return {"method": self.method, "options": self.options, "seed": self.config.seed}


@dataclass(frozen=True)
class Event:
    """What happened to a unit.

    Attributes:
        kind: ``"kept"``: it was finished before.
        steps, planned_steps: Optimizer steps of ``"progress"``: taken, and planned.
        text: Of ``"warning"`` and ``"failed"``.
        metrics: Of ``"finished"`` and ``"kept"``: the ``metrics.json``.
    """

    kind: Literal["kept", "progress", "warning", "finished", "failed"]
    unit: Unit
    folder: Path
    steps: int = 0
    planned_steps: int = 0
    text: str = ""
    metrics: dict[str, Any] | None = None


@dataclass(frozen=True)
class Result:
    """Result of a unit: its ``metrics.json``, or an error; and what an answer calls it, if not by its options."""

    unit: Unit
    folder: Path
    metrics: dict[str, Any] | None
    error: str | None = None
    label: str | None = None

    @property
    def run(self) -> dict[str, Any]:
        """What an answer is made of: the ``metrics.json``, or ``method``, ``options``, ``seed`` and ``error``."""
        found = self.metrics or {**self.unit.described(), "error": self.error}
        return found if self.label is None else {**found, LABEL: self.label}


def data_sha256(config: RunConfig) -> str:
    """Hash the files of a run's data.

    Missing files are ignored: the run itself fails, with an error that says more. So are data from the hub.
    """
    from attendrop.runs.data import data_files, digest

    digests = [digest(path) for path in data_files(config)]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
