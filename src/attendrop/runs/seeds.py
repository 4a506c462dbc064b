"""Runs with several seeds: a folder for each, and a summary of their scores.

``seeds.json`` exists from the first step on, and lists the other files beside these folders with their SHA-256.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import statistics
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.folder_lock import locked
from attendrop.runs.run_file import RUN_FILE, run_file
from attendrop.runs.run_folder import check_folder, digest, is_main_process, read_json, read_run, refuse_foreign
from attendrop.runs.run_trainer import AfterFirstStep
from attendrop.runs.train import train
from attendrop.support.files import write_json, write_text

SEEDS = "seeds.json"
SUMMARY = "summary.json"
logger = logging.getLogger(__name__)


def train_seeds(
    config: RunConfig,
    seeds: Sequence[int],
    *,
    resume: bool = False,
    overwrite: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
) -> dict[str, Any]:
    """Train with each seed in the folder ``seedN`` of ``config.output_dir``.

    ``run.yaml``, which repeats all runs, exists from the first step on, ``summary.json`` when all runs are finished.

    Returns:
        The summary: ``seeds``, ``n``, ``runs`` (their folders), ``task``, ``model``, ``method``, ``metric``, and
        ``selection_score`` and ``all_scores`` with ``mean``, ``std`` (of n-1; None for one seed) and ``values``.

    Raises:
        AttendropError: As for :func:`train`, if possible before the first run starts; or a seed is given twice.
    """
    if len(set(seeds)) < len(seeds):
        raise AttendropError(f"seed {next(s for s in seeds if seeds.count(s) > 1)} is given twice.")
    folder, writes = Path(config.output_dir), is_main_process()
    configs = [dataclasses.replace(config, seed=seed, output_dir=str(seed_folder(folder, seed))) for seed in seeds]
    with locked(folder) if writes else nullcontext():
        if writes:
            _check_summary(folder, replaces=resume or overwrite)
            for each in configs:
                exists = Path(each.output_dir).exists()
                check_folder(Path(each.output_dir), each, resume=resume and exists, overwrite=overwrite and exists)
        begin = [_AtTheStart(lambda: _write(folder, RUN_FILE, run_file(config, seeds)))] if writes else []
        found = []
        for number, each in enumerate(configs, start=1):
            logger.info("Run %d of %d: seed %d.", number, len(configs), each.seed)
            found.append(train(each, resume=resume, overwrite=overwrite, callbacks=[*begin, *callbacks]))
        summary = summarise(found)
        if writes and not (folder / RUN_FILE).exists():  # no run has taken a step
            _write(folder, RUN_FILE, run_file(config, seeds))
        if writes:
            _write(folder, SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary


def seed_folder(folder: Path, seed: int) -> Path:
    """Return the folder of the run with a seed."""
    return folder / f"seed{seed}"


class _AtTheStart(AfterFirstStep):
    """A class of its own: a run has such a callback, and transformers warns of a second one of the same class."""


def summarise(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the scores of runs that differ in their seed, given the ``metrics.json`` of each."""
    first = runs[0]
    return {
        "seeds": [run["seed"] for run in runs],
        "n": len(runs),
        **{name: first[name] for name in ("task", "model", "method", "metric")},
        "selection_score": None
        if first["selection_score"] is None
        else _moments([run["selection_score"] for run in runs]),
        "all_scores": {
            part: {name: _moments([run["all_scores"][part][name] for run in runs]) for name in scores}
            for part, scores in first["all_scores"].items()
        },
        "baseline": first["baseline"],
        "runs": [run["output_dir"] for run in runs],
    }


def _moments(values: list[float]) -> dict[str, Any]:
    std = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "std": std, "values": values}


def _write(folder: Path, name: str, content: str) -> None:
    """Write a file beside the folders of the runs, and record it."""
    files = _files(folder)
    refuse_foreign(folder, {"files": files}, [name])
    (folder / name).unlink(missing_ok=True)  # if interrupted, the file is either as recorded or missing
    write_json(folder / SEEDS, {"files": files | {name: digest(content)}})
    write_text(folder / name, content)


def _files(folder: Path) -> dict[str, str]:
    files: dict[str, str] = (read_json(folder / SEEDS, {"files": dict}) or {"files": {}})["files"]
    return files


def _check_summary(folder: Path, *, replaces: bool) -> None:
    if read_run(folder) is not None:
        raise AttendropError(f"The output folder '{folder}' holds a run of one seed; name another folder.")
    found = read_json(folder / SUMMARY, {"seeds": list, "runs": list, "all_scores": dict})
    refuse_foreign(folder, {"files": _files(folder)}, [RUN_FILE, SUMMARY])
    if found is not None and not replaces:
        raise AttendropError(
            f"'{folder}' holds a summary of runs already; --resume completes them, --overwrite replaces them."
        )
