"""Finished runs of a study or a comparison, by setting, with the answer of each setting."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import METRICS, read_metrics
from attendrop.studies.answer import Answer, answer
from attendrop.studies.executor import FAILED, read_failure
from attendrop.studies.method_rows import has_score, method_label, scored_data, trained_data
from attendrop.studies.study import OverallRow, overall_rows, read_answers, read_overall
from attendrop.studies.units import ANSWER, LABEL, REFERENCE, RUNS
from attendrop.wording import counted, score_text

# Options in which the runs of one setting may differ.
_OF_RUN = ("method", "options", "seed", "output_dir")
_UNSCORED = (
    "no run has a score on evaluation rows, so that methods cannot be compared; give these with --eval-file or "
    "--test-fraction. Scores on held-out rows are those by which an epoch or a number of steps was chosen."
)
_SKIPPED_FOLDERS = (".", "checkpoint-")


@dataclass(frozen=True)
class ReportedRun:
    """A finished run: its folder, relative to that of all runs, the label of its method, and its ``metrics.json``."""

    folder: str
    label: str
    metrics: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """Its seed."""
        return int(self.metrics["seed"])

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given to it, but those in which the runs of one setting may differ."""
        return {name: value for name, value in self.metrics["config"].items() if name not in _OF_RUN}

    @property
    def setting(self) -> str:
        """What is the same for all runs of a setting."""
        of = self.metrics
        return json.dumps([of["model"], of["metric"], of["task"], self.options], sort_keys=True)

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        """One entry for each epoch of the training of the reported model; empty for a baseline."""
        found: Sequence[Mapping[str, Any]] = self.metrics.get("history") or ()
        return found

    @property
    def selection_history(self) -> Sequence[Mapping[str, Any]]:
        """The epochs that were scored: of the training before, if the model was trained again on all rows."""
        before = self.metrics.get("selection")
        found = before["history"] if before else self.history
        return [entry for entry in found if entry["selection"]]

    @property
    def selects_on_reported(self) -> bool:
        """Whether the rows that score its epochs are those of its final score: protocol ``paper``."""
        return bool(self.metrics.get("protocol") == "paper")


@dataclass(frozen=True)
class ReportedSetting:
    """Runs that differ only in method and seed, and their answer.

    Attributes:
        name: Such as "mrpc, shots=5".
        runs: The runs of the answer that are in the folder; those of a kept ``answer.json`` may be elsewhere.
    """

    name: str
    answer: Answer
    runs: tuple[ReportedRun, ...]

    @property
    def by_label(self) -> dict[str, list[ReportedRun]]:
        """The runs of each method by its label, in the order of their seeds; methods without a score come last."""
        labels = dict.fromkeys([*(row.label for row in self.answer.rows), *(run.label for run in self.runs)])
        found = {label: [run for run in self.runs if run.label == label] for label in labels}
        return {label: sorted(runs, key=lambda run: run.seed) for label, runs in found.items() if runs}


@dataclass(frozen=True)
class Results:
    """Results of a study or a comparison.

    Attributes:
        overall: Methods over all settings; empty for a single one.
        notes: What the reader must know of how the results were found.
    """

    folder: Path
    settings: tuple[ReportedSetting, ...]
    overall: tuple[OverallRow, ...]
    notes: tuple[str, ...]

    @property
    def of_one_run(self) -> bool:
        """Whether there is a single run, with nothing to compare it with."""
        return sum(max(len(each.runs), *(row.n for row in each.answer.rows), 0) for each in self.settings) == 1

    @property
    def labels(self) -> list[str]:
        """Labels of the methods with a score: the reference, the others, then baselines, as they first appear."""
        rows = [row for each in self.settings for row in each.answer.rows]
        rows.sort(key=lambda row: (not row.is_reference, row.is_baseline))
        return list(dict.fromkeys(row.label for row in rows))


def read_results(folder: Path, reference: str | None = None) -> Results:
    """Read the results in a folder.

    The answers are those in ``answer.json``; with another reference, its runs are compared anew. If there is no such
    file, or it names no runs, the finished runs below the folder are compared: runs that differ only in method and seed
    form a setting.

    Args:
        folder: Folder of a study or a comparison, or any folder of runs.
        reference: Label of the method to compare with. Default: that of ``answer.json``, or "finetune".

    Raises:
        AttendropError: There is no such folder, no finished run and no answer in it, or no run of the reference given.
    """
    if not folder.is_dir():
        raise AttendropError(f"There is no folder '{folder}'; name that of a study or a comparison.")
    answers = read_answers(folder / ANSWER)
    runs = list(_finished_runs(runs_folder(folder)))
    names = {name for found in (answers or {}).values() for row in found.rows for name in row.folders.values()}
    settings = [_recorded(name, found, runs) for name, found in (answers or {}).items() if names or not runs]
    recorded = bool(settings) and _have_reference(answers or {}, reference)
    if recorded:
        notes = _notes(runs, names)
    else:
        own = [run for each in settings for run in each.runs] or runs
        labels = dict.fromkeys(run.label for run in own)
        if reference is not None and reference not in labels:
            raise AttendropError(f"'{folder}' holds no run of '{reference}', but of {', '.join(labels) or 'none'}.")
        if own is runs:
            settings = _grouped(runs, reference or REFERENCE)
            finished = counted(len(runs), "finished run")
            notes = [f"Computed from the {finished} in the folder, which has no answer that names them."]
        else:
            settings = [replace(each, answer=_answer(each.runs, str(reference))) for each in settings if each.runs]
            notes = [f"Computed from the {len(own)} runs of the answer, which lacks the reference {reference}."]
        failures = _failures(runs_folder(folder))
        if own is runs and len(runs) == 1 and not failures and reference is None:
            return Results(folder, (_of_one_run(settings[0], runs[0]),), (), ())
        notes += failures
    if not settings:
        raise AttendropError(f"'{folder}' holds no finished run; name the folder of a study or a comparison.")
    if unscored := [each.name for each in settings if each.runs and not each.answer.rows]:
        notes.append(f"{'; '.join(unscored)}: {_UNSCORED}")
    overall = read_overall(folder / ANSWER) if recorded else None
    if overall is None and len(settings) > 1:
        overall = overall_rows({each.name: each.answer for each in settings})
    return Results(folder, tuple(settings), overall or (), tuple(notes))


def runs_folder(folder: Path) -> Path:
    """Return the folder of all runs: not that of the model that a comparison keeps beside them."""
    return folder / RUNS if (folder / RUNS).is_dir() else folder


def _finished_runs(folder: Path) -> Iterator[ReportedRun]:
    """Yield the finished runs below a folder in the order of their paths; files of other programs are left out."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(_SKIPPED_FOLDERS))
        if METRICS not in files:
            continue
        try:
            metrics = read_metrics(Path(path))
        except AttendropError:
            continue
        if metrics is not None and "pruned" not in metrics:  # a pruned copy has the options of its run
            yield ReportedRun(os.path.relpath(path, folder), method_label(metrics), metrics)


def _recorded(name: str, found: Answer, runs: Sequence[ReportedRun]) -> ReportedSetting:
    """Collect the runs that an answer names."""
    labels = {folder: row.label for row in found.rows for folder in row.folders.values()}
    own = tuple(replace(run, label=labels[at]) for run in runs if (at := Path(run.folder).name) in labels)
    found = replace(found, data=trained_data(own[0].metrics) if own else "")
    return ReportedSetting(name or (scored_data(own[0].metrics) if own else found.task), found, own)


def _have_reference(answers: Mapping[str, Answer], reference: str | None) -> bool:
    """Whether all answers compare with a reference; None: any."""
    found = {row.label for each in answers.values() for row in each.rows if row.is_reference}
    return reference is None or found == {reference}


def _notes(runs: Sequence[ReportedRun], names: set[str]) -> list[str]:
    """Describe what is missing from the answer, which names some runs."""
    if not runs:
        return ["The folder has the answer, but not its runs: there are no curves."]
    present = {Path(run.folder).name for run in runs}
    notes = []
    if missing := len(names - present):
        notes.append(f"{missing} of {len(names)} runs of the answer are missing or damaged: figures lack their curves.")
    settings = {(run.setting, run.label) for run in runs if Path(run.folder).name in names}
    others = [run for run in runs if Path(run.folder).name not in names]
    newer = [run for run in others if has_score(run.metrics) and (run.setting, run.label) in settings]
    if newer:
        notes.append(
            f"The answer does not include {len(newer)} other finished runs of its methods and settings: unless they "
            "are older ones, of other data or seeds, run the study or the comparison again."
        )
    if more := len(others) - len(newer):
        notes.append(f"{more} other finished runs, such as those of a search, are not part of the answer.")
    return notes


def _failures(folder: Path) -> list[str]:
    """List the failed runs in a folder, with the reason; an answer lists its own."""
    failures = {file.parent.name: read_failure(file.parent) for file in sorted(folder.glob(f"*/{FAILED}"))}
    named = [f"{name} ({failure['error']})" for name, failure in failures.items() if failure]
    return [f"Without a result: {'; '.join(named)}."] if named else []


def _grouped(runs: Sequence[ReportedRun], reference: str) -> list[ReportedSetting]:
    """Compare runs whose options differ only in method and seed."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    found = list(zip(_setting_names([group[0] for group in groups.values()]), groups.values(), strict=True))
    names = Counter(name for name, _ in found)
    return [
        ReportedSetting(
            name if names[name] == 1 else f"{name} ({_told_apart(group[0], number)})",
            _answer(group, reference),
            tuple(group),
        )
        for number, (name, group) in enumerate(found, start=1)
    ]


def _of_one_run(setting: ReportedSetting, run: ReportedRun) -> ReportedSetting:
    """Say of a single run what its scores are: there is nothing to compare it with, and nothing to recommend."""
    metric, baseline = run.metrics["metric"], run.metrics.get("baseline") or {}
    scores = []
    for part, found in run.metrics["all_scores"].items():
        always = f" ({score_text(baseline[part]['scores'][metric])} for a constant answer)" if part in baseline else ""
        scores.append(f"{metric} {score_text(found[metric])} on {part}{always}")
    told = "; ".join(scores) or "no score, since no rows were held out for one"
    sentence = f"A run of {run.label} with seed {run.seed}: {told}."
    return replace(setting, answer=replace(setting.answer, sentences=(sentence,), notes=(), shifted=None))


def _answer(runs: Sequence[ReportedRun], reference: str) -> Answer:
    """Compare runs by their labels."""
    return answer([{**run.metrics, LABEL: run.label} for run in runs], reference)


def _told_apart(run: ReportedRun, number: int) -> str:
    """Distinguish a setting from others whose data have the same name, such as files in several folders."""
    file = run.options.get("train_file")
    return f"{number}: {file or run.metrics['metric']}"


def _setting_names(first: Sequence[ReportedRun]) -> Iterator[str]:
    """Name settings, given a run of each, by their data, and by the options in which those of the same data differ."""
    options = [run.options for run in first]
    data = [(own.get("task"), own.get("train_file")) for own in options]
    values: defaultdict[tuple[Any, str], set[str]] = defaultdict(set)
    for name in dict.fromkeys(chain(*options)):
        for of, own in zip(data, options, strict=True):
            values[of, name].add(repr(own.get(name)))
    for run, of, own in zip(first, data, options, strict=True):
        varied = [name for name in own if len(values[of, name]) > 1]
        yield ", ".join([scored_data(run.metrics), *(f"{name}={own[name]}" for name in varied)])
