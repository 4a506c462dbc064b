"""Runs that a study or a comparison asks for, and what became of them.

A run has a folder that is named by the hash of its options and its data.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_TEST_FRACTION, RunConfig, by_content
from attendrop.support.files import known_sha256

RUNS = "runs"
# What an answer calls a run, beside the entries of its ``metrics.json``.
LABEL = "label"
# Files of the answer of a study or a comparison, and the list of the runs from which it can be computed again; in it,
# the only setting of a comparison is called "".
REPORTS = ("answer.md", "answer.json", "answer.csv")
COMPARED = "compared.json"
# The method that others are compared with by default.
REFERENCE = "finetune"
# Begins the label of plain fine-tuning whose texts, unlike those of the other runs, begin with no other columns.
WITHOUT = f"{REFERENCE} without "
# Names of the baselines, see :mod:`attendrop.studies.baselines`, the cheapest first.
MAJORITY, TFIDF, FROZEN, SETFIT = BASELINES = ("majority", "tfidf", "frozen", "setfit")
# Those that cost little compared with fine-tuning.
CHEAP = (MAJORITY, TFIDF, FROZEN)
# File systems allow 255 bytes, of which the hash and the names of temporary folders need some.
_LONGEST_NAME = 220
# A run takes seconds at least: more are a mistake, or a day's work for many machines, and divided among them.
_MOST_RUNS = 10_000


def check_number_of_runs(runs: int, owner: str) -> None:
    """Raise AttendropError if a study or a comparison has more runs than any has time for."""
    if runs > _MOST_RUNS:
        raise AttendropError(f"{owner} has {runs:,} runs, above the {_MOST_RUNS:,} that are allowed; divide it.")


def with_evaluation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Hold out a quarter of a training file for scoring, if the options of a run name no evaluation data.

    Raises AttendropError if they say that none are to be held out: methods are compared on such.
    """
    if not options.get("train_file") or options.get("eval_file") or options.get("test_fraction"):
        return dict(options)
    if options.get("test_fraction") == 0:
        raise AttendropError(
            "test-fraction 0 sets no rows aside, and methods are compared on such: give an eval-file, or omit it for "
            f"{DEFAULT_TEST_FRACTION}."
        )
    return {**options, "test_fraction": DEFAULT_TEST_FRACTION}


@dataclass(frozen=True)
class RunSpec:
    """A run that is asked for: training with a method, or a ``baseline`` instead of it; ``output_dir`` is ignored.

    An answer calls it by its ``label``; empty: by its method and options.
    """

    config: RunConfig
    baseline: str | None = None
    keep_model: bool = False
    label: str = ""

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
        """Name the run's folder, such as ``cola-finetune-seed0-1a2b3c4d``; of a long name, the end is kept."""
        data = self.config.task or Path(self.config.train_file or "").stem
        readable = re.sub(r"[^A-Za-z0-9+._-]", "_", f"{data}-{self.method}-seed{self.config.seed}")
        return f"{readable[-_LONGEST_NAME:]}-{self.key(data_sha256)[:8]}"

    def described(self) -> dict[str, Any]:
        """Return what distinguishes the run from others in an answer, by the names of ``metrics.json``."""
        label = {LABEL: self.label} if self.label else {}
        return {"method": self.method, "options": self.options, "seed": self.config.seed} | label


@dataclass(frozen=True)
class Event:
    """What happened to a run; the last event is its result.

    Attributes:
        kind: ``"kept"``: it was finished before.
        metrics: Of ``"finished"`` and ``"kept"``: the ``metrics.json``.
        text: Of ``"warning"`` and ``"failed"``.
        steps, planned_steps: Optimizer steps of ``"progress"``: taken, and planned.
    """

    kind: Literal["kept", "progress", "warning", "finished", "failed"]
    spec: RunSpec
    folder: Path
    metrics: dict[str, Any] | None = None
    text: str = ""
    steps: int = 0
    planned_steps: int = 0

    @property
    def run(self) -> dict[str, Any]:
        """What an answer is made of: the ``metrics.json``, or ``method``, ``options``, ``seed`` and ``error``."""
        if self.metrics is None:
            return {**self.spec.described(), "error": self.text}
        return {**self.metrics, LABEL: self.spec.label} if self.spec.label else self.metrics


def data_sha256(config: RunConfig) -> str:
    """Hash the files of a run's data; not those that are missing, with which the run fails, nor data from the hub."""
    from attendrop.runs.data import data_files

    digests = [known_sha256(path) if path.is_file() else "" for path in data_files(config)]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()
