"""Finished runs of a study or a comparison by setting, with the answer of each, and methods over all settings."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import METRICS, read_json, read_metrics
from attendrop.studies.answer import (
    COLUMNS,
    Answer,
    MethodRow,
    answer,
    ends,
    interval,
    method_label,
    p_text,
    scored_data,
)
from attendrop.studies.comparison import ENCODERS, RECORD
from attendrop.studies.executor import COMPARED, LABEL, REFERENCE, RUNS, read_failures
from attendrop.studies.learning_curve import LearningCurve
from attendrop.studies.screening import Screening
from attendrop.studies.statistics import CrossedMean, PairedDifference, crossed_test, holm, paired_difference
from attendrop.wording import counted, in_markdown, markdown_table

# Options in which the runs of one setting may differ.
OF_RUN = ("method", "options", "seed", "output_dir")


@dataclass(frozen=True)
class ReportedSetting:
    """Runs that differ only in method and seed, from which the answer is computed; a name such as "mrpc, shots=5".

    A run is its ``metrics.json`` with its ``label`` and its ``folder``, relative to that of all runs.
    """

    name: str
    answer: Answer
    runs: tuple[Mapping[str, Any], ...]

    @property
    def by_label(self) -> dict[str, list[Mapping[str, Any]]]:
        """The runs of each method by its label, in the order of their seeds; methods without a score come last."""
        labels = dict.fromkeys([*(row.label for row in self.answer.rows), *(run[LABEL] for run in self.runs)])
        runs = sorted(self.runs, key=lambda run: run["seed"])
        found = {label: [run for run in runs if run[LABEL] == label] for label in labels}
        return {label: own for label, own in found.items() if own}


@dataclass(frozen=True)
class OverallRow:
    """A method over all settings of a study in which it has seeds in common with the reference.

    Attributes:
        label: The method with its options.
        settings: Number of these settings.
        p_values: p value of the difference in each setting, corrected by Holm over all methods and settings.
        mean: The difference averaged over the settings, compared seed by seed; None if no seed is complete, or for
            errors of several tasks.
    """

    label: str
    settings: int
    p_values: Mapping[str, float]
    mean: PairedDifference | None


@dataclass(frozen=True)
class Results:
    """Results of a study or a comparison.

    Attributes:
        settings: Those with a finished run.
        overall: Methods over all settings; empty for a single one.
        failed: The runs that failed: their ``folder``, ``error``, method, options and seed.
        notes: What the reader must know of how the results were found.
        missing: Number of runs of the answer that are there no more.
        encoders: How the encoder of a comparison was chosen; None if it was given.
        curves: What more rows would bring, if a comparison was asked.
    """

    folder: Path
    settings: tuple[ReportedSetting, ...]
    overall: tuple[OverallRow, ...]
    failed: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]
    missing: int = 0
    encoders: Screening | None = None
    curves: tuple[LearningCurve, ...] = ()

    @property
    def labels(self) -> list[str]:
        """Labels of the methods with a score: the reference, the others, then baselines, as they first appear."""
        rows = [row for each in self.settings for row in each.answer.rows]
        rows.sort(key=lambda row: (not row.is_reference, row.is_baseline))
        return list(dict.fromkeys(row.label for row in rows))

    def as_dict(self) -> dict[str, Any]:
        """Return the answers, methods over all settings, and the failed runs as JSON values."""
        overall = []
        for row in self.overall:
            told = {"label": row.label, "settings": row.settings, "seeds": row.mean.n if row.mean else 0}
            told["p_holm"] = dict(row.p_values)
            if (found := row.mean) is not None:
                told |= found.mean.as_dict("difference") | {"differences": list(found.values), "p": found.p_value}
            overall.append(told)
        answers = {each.name: each.answer.as_dict() for each in self.settings}
        failed = [dict(each) for each in self.failed]
        return {"settings": answers, "overall": overall, "failed": failed, "notes": list(self.notes)}

    def markdown(self) -> str:
        """Return all tables and the failed runs as Markdown."""
        parts = [f"## {in_markdown(each.name)}\n\n{each.answer.markdown()}" for each in self.settings]
        parts[:0] = self.overall_table()
        if self.failed:
            listed = (f"- `{Path(each['folder']).name}`: {in_markdown(each['error'])}" for each in self.failed)
            parts.append("## Failed runs\n\n" + "\n".join(listed) + "\n")
        return "\n".join([*parts, *(f"{in_markdown(note)}\n" for note in self.notes)])

    def lines(self) -> list[str]:
        """Return all tables and the failed runs for a console."""
        lines: list[str] = []
        for each in self.settings:
            lines += [f"{each.name}:" if len(self.settings) > 1 else "", *each.answer.lines(), ""]
        lines += self.overall_table()
        if self.failed:
            lines += ["Failed runs:", *(f"{Path(each['folder']).name}: {each['error']}" for each in self.failed)]
        return [*lines, *self.notes]

    def overall_table(self) -> list[str]:
        """Return the table over all settings as Markdown; nothing for a single one."""
        digits = max((each.answer.decimals for each in self.settings), default=0)
        difference, seeds_only = COLUMNS[3:5]
        header = ("method", "settings", "seeds", f"mean {difference}", seeds_only, "p by setting (Holm over all)")
        lines = []
        for row in self.overall:
            mean = row.mean
            told = [str(mean.n), interval(mean, digits), ends(mean.seeds_only, digits)] if mean else ["-"] * 3
            p_values = "; ".join(f"{in_markdown(name)}: {p_text(p)}" for name, p in row.p_values.items())
            lines.append([in_markdown(row.label), str(row.settings), *told, p_values])
        return [f"## All settings\n\n{markdown_table(header, lines)}\n"] if lines else []


def read_results(folder: Path, reference: str | None = None) -> Results:
    """Read the results in a folder.

    The answers are computed from the ``metrics.json`` of the finished runs below the folder, whatever was written as
    the answer. The list of a study or a comparison, ``compared.json``, says which of them it compares, by setting;
    without one, runs that differ only in method and seed form a setting.

    Args:
        folder: Folder of a study or a comparison, or any folder of runs.
        reference: Label of the method to compare with. Default: that of the study or the comparison, or "finetune".

    Raises:
        AttendropError: There is no such folder, or no run of the reference given.
    """
    if not folder.is_dir():
        raise AttendropError(f"There is no folder '{folder}'; name that of a study or a comparison.")
    # The model that a comparison keeps is beside the folder of its runs.
    top, runs = folder / RUNS if (folder / RUNS).is_dir() else folder, dict[str, dict[str, Any]]()
    for path, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        try:
            metrics = read_metrics(Path(path)) if METRICS in files else None
        except AttendropError:  # a file of another program
            continue
        if metrics is not None and "pruned" not in metrics:  # a pruned copy has the options of its run
            runs[path] = metrics | {LABEL: method_label(metrics), "folder": os.path.relpath(path, top)}
    failures = {name: failure["error"] for name, failure in read_failures(folder).items()}
    listed = read_json(folder / COMPARED, {"reference": str, "settings": dict})
    groups, failed, notes = dict[str, list[Mapping[str, Any]]](), dict[str, list[Mapping[str, Any]]](), []
    missing = 0
    if listed is None:
        groups = _grouped(list(runs.values()))
        finished = counted(len(runs), "finished run")
        notes.append(f"Computed from the {finished} in the folder, which has no list of what belongs together.")
        if failures:
            notes.append(f"Without a result: {'; '.join(f'{name} ({error})' for name, error in failures.items())}.")
    else:
        present = {Path(path).name: run for path, run in runs.items()}
        for name, own in listed["settings"].items():
            groups[name] = [present[at] | {LABEL: each[LABEL]} for at, each in own.items() if at in present]
            failed[name] = [
                {"folder": str(top / at), **each, "error": failures.get(at, each.get("error"))}
                for at, each in own.items()
                if at not in present and (at in failures or "error" in each)
            ]
        for name in (name for name, own in failed.items() if own and not groups[name]):
            notes.append(f"{name}: no run has a result; the first error: {failed[name][0]['error']}")
        names = {at for own in listed["settings"].values() for at in own}
        lost = {Path(each["folder"]).name for own in failed.values() for each in own}
        if missing := len(names - present.keys() - lost):
            notes.append(f"{missing} of {len(names)} runs of the answer are missing or damaged, and left out.")
        halved = {at for at, run in present.items() if run["config"].get("halvings")}  # of the curves
        if more := len(present.keys() - names - halved):
            notes.append(
                f"{more} other finished runs are not part of the answer: they belong to a search or a curve, to other "
                "data or seeds, or to a study or a comparison that was not run to its end again."
            )
    labels = dict.fromkeys(run[LABEL] for own in groups.values() for run in own)
    if reference is not None and reference not in labels:
        raise AttendropError(f"'{folder}' holds no run of '{reference}', but of {', '.join(labels) or 'none'}.")
    against = reference or (REFERENCE if listed is None else listed["reference"])
    settings = tuple(
        ReportedSetting(name or scored_data(group[0]), answer([*group, *failed.get(name, ())], against), tuple(group))
        for name, group in groups.items()
        if group
    )
    if unscored := [each.name for each in settings if not each.answer.rows]:
        notes.append(
            f"{'; '.join(unscored)}: no run has a score on evaluation rows, so that methods cannot be compared; give "
            "these with --eval-file or --test-fraction. Scores on held-out rows are those by which an epoch or a "
            "number of steps was chosen."
        )
    overall = overall_rows({each.name: each.answer for each in settings}) if len(settings) > 1 else ()
    if overall:
        notes.append(
            "Each setting's decision is corrected over its own methods, and the table of all settings over all."
        )
    of_folders = {each["folder"]: each for own in failed.values() for each in own}
    screened = (read_json(folder / RECORD, {}) or {}).get(ENCODERS)
    encoders = None if screened is None else Screening.from_dict(screened["found"])
    curves = tuple(map(LearningCurve.from_dict, (listed or {}).get("curves", ())))
    return Results(folder, settings, overall, tuple(of_folders.values()), tuple(notes), missing, encoders, curves)


def _grouped(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Collect the runs of each setting, whose options differ only in method and seed, by its name.

    A setting is named by its data, and by what settings on data of the same name differ in. An option that is None and
    one that a run of another version does not have are the same.
    """
    names = dict.fromkeys(name for run in runs for name in run["config"] if name not in OF_RUN)
    groups: dict[str, tuple[dict[str, Any], list[Mapping[str, Any]]]] = {}
    values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for run in runs:
        given = {"metric": run["metric"], **{name: run["config"].get(name) for name in names}}
        groups.setdefault(json.dumps(given, sort_keys=True), (given, []))[1].append(run)
        for name, value in given.items():
            values[scored_data(run), name].add(repr(value))
    found = {}
    for given, group in groups.values():
        data = scored_data(group[0])
        varied = [f"{name}={value}" for name, value in given.items() if len(values[data, name]) > 1]
        found[", ".join([data, *varied])] = group
    return found


def overall_rows(answers: Mapping[str, Answer]) -> tuple[OverallRow, ...]:
    """Compare each method with the reference over all settings; differences with one unit are averaged."""
    rows = {(name, row.label): row for name, found in answers.items() for row in found.rows}
    compared = {at: row.difference for at, row in rows.items() if row.difference is not None and not row.is_baseline}
    corrected = holm({at: found.p_value for at, found in compared.items()})
    references = {name: row for (name, _), row in rows.items() if row.is_reference}
    found = []
    for label in dict.fromkeys(label for _, label in compared):
        settings = [name for name, other in compared if other == label]
        pairs = [(rows[name, label], references[name]) for name in settings]
        # Scores may be averaged if they are fractions, or the same error of the same numbers.
        scores = [(answers[name].metric, answers[name].data) for name in settings]
        has_unit = len({(metric, data) if metric.startswith("neg_") else None for metric, data in scores}) == 1
        of_settings = {name: corrected[name, label] for name in settings if (name, label) in corrected}
        found.append(OverallRow(label, len(settings), of_settings, _mean_difference(pairs) if has_unit else None))
    return tuple(found)


def _mean_difference(pairs: Sequence[tuple[MethodRow, MethodRow]]) -> PairedDifference | None:
    """Compare the scores averaged over settings, on the seeds that all settings have."""
    seeds = sorted(set.intersection(*(row.scores.keys() & other.scores.keys() for row, other in pairs)))
    if not seeds:
        return None
    method, reference = ([fmean(pair[side].scores[seed] for pair in pairs) for seed in seeds] for side in (0, 1))
    span = max(row.span for row, _ in pairs)
    found = paired_difference(method, reference, span=span)
    # Settings with the same evaluation rows, such as two sizes of a training set, are not independent.
    groups: dict[str, list[tuple[Any, list[float], tuple[int, int, float]]]] = {}
    for row, other in pairs:
        if (by_row := row.row_differences(other, seeds)) is None or len(seeds) < 2:
            return found
        scores = [row.scores[seed] - other.scores[seed] for seed in seeds]
        first = row.by_row[seeds[0]]
        size = first.rows, first.groups, max(row.scale, other.scale)
        groups.setdefault(first.data, []).append((by_row, scores, size))
    if any(len({each[0].shape for each in group}) > 1 for group in groups.values()):
        return found  # of different metrics: their rows are divided in different ways
    means = []
    for group in groups.values():
        by_row, score = np.mean([each[0] for each in group], axis=0), np.mean([each[1] for each in group])
        means.append(CrossedMean.of(by_row, float(score), *group[0][2]))
    mean, p = crossed_test(means, [len(group) / len(pairs) for group in groups.values()])
    return replace(found, mean=mean.within(span), p_value=p)
