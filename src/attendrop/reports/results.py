"""Finished runs of a study or a comparison, by setting, with the answer of each setting."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import METRICS, read_json, read_metrics
from attendrop.studies.answer import Answer, answer
from attendrop.studies.executor import read_failures
from attendrop.studies.learning_curve import CURVE, LearningCurve
from attendrop.studies.method_rows import method_label, scored_data
from attendrop.studies.run_specs import COMPARED, LABEL, REFERENCE, RUNS
from attendrop.studies.screening import ENCODERS, Screening
from attendrop.studies.study import OverallRow, overall_rows
from attendrop.wording import counted

# Options in which the runs of one setting may differ.
_OF_RUN = ("method", "options", "seed", "output_dir")
_UNSCORED = (
    "no run has a score on evaluation rows, so that methods cannot be compared; give these with --eval-file or "
    "--test-fraction. Scores on held-out rows are those by which an epoch or a number of steps was chosen."
)


@dataclass(frozen=True)
class ReportedRun:
    """A finished run: its folder, relative to that of all runs, the label of its method, and its ``metrics.json``."""

    folder: str
    label: str
    metrics: Mapping[str, Any]

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given to it, but those in which the runs of one setting may differ."""
        return {name: value for name, value in self.metrics["config"].items() if name not in _OF_RUN}

    @property
    def scored_epochs(self) -> list[Mapping[str, Any]]:
        """The epochs that were scored: of the training before, if the model was trained again on all rows."""
        before = self.metrics.get("selection")
        found = before["history"] if before else self.metrics.get("history") or ()
        return [entry for entry in found if entry["selection"]]


@dataclass(frozen=True)
class ReportedSetting:
    """Runs that differ only in method and seed, from which the answer is computed; a name such as "mrpc, shots=5"."""

    name: str
    answer: Answer
    runs: tuple[ReportedRun, ...]

    @property
    def by_label(self) -> dict[str, list[ReportedRun]]:
        """The runs of each method by its label, in the order of their seeds; methods without a score come last."""
        labels = dict.fromkeys([*(row.label for row in self.answer.rows), *(run.label for run in self.runs)])
        runs = sorted(self.runs, key=lambda run: run.metrics["seed"])
        found = {label: [run for run in runs if run.label == label] for label in labels}
        return {label: own for label, own in found.items() if own}


@dataclass(frozen=True)
class Results:
    """Results of a study or a comparison.

    Attributes:
        overall: Methods over all settings; empty for a single one.
        notes: What the reader must know of how the results were found.
        encoders: How the encoder of a comparison was chosen; None if it was given.
        curves: What more rows would bring, if a comparison was asked.
    """

    folder: Path
    settings: tuple[ReportedSetting, ...]
    overall: tuple[OverallRow, ...]
    notes: tuple[str, ...]
    encoders: Screening | None = None
    curves: tuple[LearningCurve, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Labels of the methods with a score: the reference, the others, then baselines, as they first appear."""
        rows = [row for each in self.settings for row in each.answer.rows]
        rows.sort(key=lambda row: (not row.is_reference, row.is_baseline))
        return list(dict.fromkeys(row.label for row in rows))


def read_results(folder: Path, reference: str | None = None) -> Results:
    """Read the results in a folder.

    The answers are computed from the ``metrics.json`` of the finished runs below the folder, whatever was written as
    the answer. The list of a study or a comparison, ``compared.json``, says which of them it compares, by setting;
    without one, runs that differ only in method and seed form a setting.

    Args:
        folder: Folder of a study or a comparison, or any folder of runs.
        reference: Label of the method to compare with. Default: that of the study or the comparison, or "finetune".

    Raises:
        AttendropError: There is no such folder, no finished run in it, or no run of the reference given.
    """
    if not folder.is_dir():
        raise AttendropError(f"There is no folder '{folder}'; name that of a study or a comparison.")
    # The model that a comparison keeps is beside the folder of its runs.
    runs = list(_finished_runs(folder / RUNS if (folder / RUNS).is_dir() else folder))
    failed = {name: failure["error"] for name, failure in read_failures(folder).items()}
    listed = read_json(folder / COMPARED, {"reference": str, "settings": dict})
    against, compared, notes = REFERENCE, dict[str, dict[str, dict[str, Any]]](), []
    if listed is None:
        groups = _grouped(runs)
        finished = counted(len(runs), "finished run")
        notes.append(f"Computed from the {finished} in the folder, which has no list of what belongs together.")
        if failed:
            notes.append(f"Without a result: {'; '.join(f'{name} ({error})' for name, error in failed.items())}.")
    else:
        try:
            for name, own in listed["settings"].items():
                compared[name] = {at: {LABEL: str(of[LABEL]), "seed": int(of["seed"])} for at, of in own.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise AttendropError(f"'{folder / COMPARED}' was not written by attendrop; remove it.") from None
        against = listed["reference"]
        groups = {
            name: [replace(run, label=found[at][LABEL]) for run in runs if (at := Path(run.folder).name) in found]
            for name, found in compared.items()
        }
    labels = dict.fromkeys(run.label for own in groups.values() for run in own)
    if reference is not None and reference not in labels:
        raise AttendropError(f"'{folder}' holds no run of '{reference}', but of {', '.join(labels) or 'none'}.")
    if not labels:
        raise AttendropError(f"'{folder}' holds no finished run; name the folder of a study or a comparison.")
    present, settings = {Path(run.folder).name for run in runs}, []
    for name, group in groups.items():
        if group:
            gone = {at: each for at, each in compared.get(name, {}).items() if at in failed and at not in present}
            errors = [each | {"error": failed[at]} for at, each in gone.items()]
            metrics = [{**run.metrics, LABEL: run.label} for run in group]
            found = answer(metrics, reference or against, failed=errors)
            settings.append(ReportedSetting(name or scored_data(group[0].metrics), found, tuple(group)))
    if listed is not None:
        names = {at for own in compared.values() for at in own}
        if missing := len(names - present - set(failed)):
            notes.append(f"{missing} of {len(names)} runs of the answer are missing or damaged, and left out.")
        halved = {Path(run.folder).name for run in runs if run.metrics["config"].get("halvings")}  # of the curves
        if more := len(present - names - halved):
            notes.append(
                f"{more} other finished runs are not part of the answer: they belong to a search or a curve, to other data or "
                "seeds, or to a study or a comparison that was not run to its end again."
            )
    if unscored := [each.name for each in settings if not each.answer.rows]:
        notes.append(f"{'; '.join(unscored)}: {_UNSCORED}")
    overall = overall_rows({each.name: each.answer for each in settings}) if len(settings) > 1 else ()
    screened = read_json(folder / ENCODERS, {"found": dict})
    encoders = None if screened is None else Screening.from_dict(screened["found"])
    drawn = read_json(folder / CURVE, {"curves": list}) or {"curves": []}
    curves = tuple(map(LearningCurve.from_dict, drawn["curves"]))
    return Results(folder, tuple(settings), overall, tuple(notes), encoders, curves)


def _finished_runs(folder: Path) -> Iterator[ReportedRun]:
    """Yield the finished runs below a folder in the order of their paths; files of other programs are left out."""
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        if METRICS in files:
            try:
                metrics = read_metrics(Path(path))
            except AttendropError:
                continue
            if metrics is not None and "pruned" not in metrics:  # a pruned copy has the options of its run
                yield ReportedRun(os.path.relpath(path, folder), method_label(metrics), metrics)


def _grouped(runs: Sequence[ReportedRun]) -> dict[str, list[ReportedRun]]:
    """Collect the runs of each setting, whose options differ only in method and seed, by its name.

    A setting is named by its data, and by the options in which settings with the same data differ; if the data have the
    same name, such as files in several folders, by a number and the file, too.
    """
    groups: dict[str, list[ReportedRun]] = {}
    values: defaultdict[tuple[Any, ...], set[str]] = defaultdict(set)
    for run in runs:
        of, options = run.metrics, run.options
        key = json.dumps([of["model"], of["metric"], of["task"], options], sort_keys=True)
        groups.setdefault(key, []).append(run)
        for name, value in options.items():
            values[options.get("task"), options.get("train_file"), name].add(repr(value))
    names = []
    for run, *_ in groups.values():
        data = run.options.get("task"), run.options.get("train_file")
        varied = [f"{name}={value}" for name, value in run.options.items() if len(values[*data, name]) > 1]
        names.append(", ".join([scored_data(run.metrics), *varied]))
    counts, found = Counter(names), {}
    for number, (name, group) in enumerate(zip(names, groups.values(), strict=True), start=1):
        if counts[name] > 1:
            name += f" ({number}: {group[0].options.get('train_file') or group[0].metrics['metric']})"
        found[name] = group
    return found
