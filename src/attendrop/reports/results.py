"""Finished runs of a study or a comparison, by setting, with the answer of each setting."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import METRICS, read_json, read_metrics
from attendrop.studies.answer import Answer, answer
from attendrop.studies.executor import read_failures
from attendrop.studies.method_rows import has_score, method_label, scored_data
from attendrop.studies.run_specs import COMPARED, LABEL, REFERENCE, RUNS
from attendrop.studies.study import OverallRow, overall_rows
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
        runs: The runs that the answer is computed from.
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
        return sum(len(each.runs) for each in self.settings) == 1

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
    runs = list(_finished_runs(runs_folder(folder)))
    failed = {name: failure["error"] for name, failure in read_failures(folder).items()}
    listed = _read_compared(folder)
    if listed is None:
        groups = {"": runs}
    else:
        groups = {
            name: [replace(run, label=found[at][LABEL]) for run in runs if (at := Path(run.folder).name) in found]
            for name, found in listed[1].items()
        }
    labels = dict.fromkeys(run.label for own in groups.values() for run in own)
    if reference is not None and reference not in labels:
        raise AttendropError(f"'{folder}' holds no run of '{reference}', but of {', '.join(labels) or 'none'}.")
    if not labels:
        raise AttendropError(f"'{folder}' holds no finished run; name the folder of a study or a comparison.")
    if listed is None:
        settings = _grouped(runs, reference or REFERENCE)
        if len(runs) == 1 and not failed and reference is None:
            return Results(folder, (_of_one_run(settings[0], runs[0]),), (), ())
        finished = counted(len(runs), "finished run")
        notes = [f"Computed from the {finished} in the folder, which has no list of those that belong together."]
        if failed:
            notes.append(f"Without a result: {'; '.join(f'{name} ({error})' for name, error in failed.items())}.")
    else:
        against, compared = listed
        settings = []
        for name, own in groups.items():
            if own:
                gone = compared[name].keys() - {Path(run.folder).name for run in own}
                errors = [
                    each | {"error": failed[at]} for at, each in compared[name].items() if at in gone & set(failed)
                ]
                shown = name or scored_data(own[0].metrics)
                settings.append(ReportedSetting(shown, _answer(own, reference or against, errors), tuple(own)))
        notes = _notes(runs, {at for found in compared.values() for at in found}, failed)
    if unscored := [each.name for each in settings if not each.answer.rows]:
        notes.append(f"{'; '.join(unscored)}: {_UNSCORED}")
    overall = overall_rows({each.name: each.answer for each in settings}) if len(settings) > 1 else ()
    return Results(folder, tuple(settings), overall, tuple(notes))


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


def _read_compared(folder: Path) -> tuple[str, dict[str, dict[str, dict[str, Any]]]] | None:
    """Read the label of the reference, and label and seed of each run by the name of its folder, by setting."""
    content = read_json(folder / COMPARED, {"reference": str, "settings": dict})
    if content is None:
        return None
    try:
        runs = {
            name: {at: {LABEL: str(each[LABEL]), "seed": int(each["seed"])} for at, each in found.items()}
            for name, found in content["settings"].items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise AttendropError(f"'{folder / COMPARED}' was not written by attendrop; remove it.") from None
    return content["reference"], runs


def _notes(runs: Sequence[ReportedRun], names: Collection[str], failed: Collection[str]) -> list[str]:
    """Describe what is missing of the runs that are compared, which have some names, and what is not among them."""
    present = {Path(run.folder).name for run in runs}
    notes = []
    if missing := len(set(names) - present - set(failed)):
        notes.append(f"{missing} of {len(names)} runs of the answer are missing or damaged, and left out.")
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


def _grouped(runs: Sequence[ReportedRun], reference: str) -> list[ReportedSetting]:
    """Compare runs whose options differ only in method and seed.

    A setting is named by its data, and by the options in which settings with the same data differ; if the data have the
    same name, such as files in several folders, by a number and the file, too.
    """
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        groups.setdefault(run.setting, []).append(run)
    options = [group[0].options for group in groups.values()]
    data = [(own.get("task"), own.get("train_file")) for own in options]
    values: defaultdict[tuple[Any, str], set[str]] = defaultdict(set)
    for name in dict.fromkeys(chain(*options)):
        for of, own in zip(data, options, strict=True):
            values[of, name].add(repr(own.get(name)))
    names = []
    for group, of, own in zip(groups.values(), data, options, strict=True):
        varied = [f"{name}={own[name]}" for name in own if len(values[of, name]) > 1]
        names.append(", ".join([scored_data(group[0].metrics), *varied]))
    counts, found = Counter(names), []
    for number, (name, group, own) in enumerate(zip(names, groups.values(), options, strict=True), start=1):
        if counts[name] > 1:
            name += f" ({number}: {own.get('train_file') or group[0].metrics['metric']})"
        found.append(ReportedSetting(name, _answer(group, reference), tuple(group)))
    return found


def _of_one_run(setting: ReportedSetting, run: ReportedRun) -> ReportedSetting:
    """Say of a single run what its scores are: there is nothing to compare it with, and nothing to recommend."""
    metric, baseline = run.metrics["metric"], run.metrics.get("baseline") or {}
    scores = []
    for part, found in run.metrics["all_scores"].items():
        always = f" ({score_text(baseline[part]['scores'][metric])} for a constant answer)" if part in baseline else ""
        scores.append(f"{metric} {score_text(found[metric])} on {part}{always}")
    told = "; ".join(scores) or "no score, since no rows were held out for one"
    sentence = f"A run of {run.label} with seed {run.seed}: {told}."
    return replace(setting, answer=replace(setting.answer, sentences=(sentence,), notes=(), ood=None))


def _answer(runs: Sequence[ReportedRun], reference: str, failed: Sequence[Mapping[str, Any]] = ()) -> Answer:
    """Compare runs by their labels."""
    return answer([{**run.metrics, LABEL: run.label} for run in runs], reference, failed=failed)
