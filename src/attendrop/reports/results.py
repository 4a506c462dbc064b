"""Finished runs of a study or a comparison, by setting, with the answer of each setting."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import METRICS, read_json, read_metrics
from attendrop.studies.answer import MIN_SEEDS, Answer, answer, method_label, number, scored_data
from attendrop.studies.executor import COMPARED, LABEL, REFERENCE, RUNS, read_failures
from attendrop.studies.learning_curve import CURVE, LearningCurve
from attendrop.studies.screening import ENCODERS, Screening
from attendrop.studies.statistics import ALPHA
from attendrop.studies.study import OverallRow, overall_rows
from attendrop.wording import NAMES_LEFT, counted, csv_table, in_latex, in_markdown, markdown_table

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
    top, runs = folder / RUNS if (folder / RUNS).is_dir() else folder, []
    for path, folders, files in os.walk(top):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "checkpoint-")))
        try:
            metrics = read_metrics(Path(path)) if METRICS in files else None
        except AttendropError:  # a file of another program
            continue
        if metrics is not None and "pruned" not in metrics:  # a pruned copy has the options of its run
            runs.append(ReportedRun(os.path.relpath(path, top), method_label(metrics), metrics))
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
        compared = listed["settings"]
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
            every = [{**run.metrics, LABEL: run.label} for run in group]
            every += [each | {"error": failed[at]} for at, each in gone.items()]
            found = answer(every, reference or against)
            settings.append(ReportedSetting(name or scored_data(group[0].metrics), found, tuple(group)))
    if listed is not None:
        names = {at for own in compared.values() for at in own}
        if missing := len(names - present - set(failed)):
            notes.append(f"{missing} of {len(names)} runs of the answer are missing or damaged, and left out.")
        halved = {Path(run.folder).name for run in runs if run.metrics["config"].get("halvings")}  # of the curves
        if more := len(present - names - halved):
            notes.append(
                f"{more} other finished runs are not part of the answer: they belong to a search or a curve, to other "
                "data or seeds, or to a study or a comparison that was not run to its end again."
            )
    if unscored := [each.name for each in settings if not each.answer.rows]:
        notes.append(f"{'; '.join(unscored)}: {_UNSCORED}")
    overall = overall_rows({each.name: each.answer for each in settings}) if len(settings) > 1 else ()
    screened = read_json(folder / ENCODERS, {"found": dict})
    encoders = None if screened is None else Screening.from_dict(screened["found"])
    drawn = read_json(folder / CURVE, {"curves": list}) or {"curves": []}
    curves = tuple(map(LearningCurve.from_dict, drawn["curves"]))
    return Results(folder, tuple(settings), overall, tuple(notes), encoders, curves)


def _grouped(runs: Sequence[ReportedRun]) -> dict[str, list[ReportedRun]]:
    """Collect the runs of each setting, whose options differ only in method and seed, by its name.

    A setting is named by its data, and by what settings on data of the same name differ in.
    """
    groups: dict[str, list[ReportedRun]] = {}
    values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for run in runs:
        given = {"metric": run.metrics["metric"], **run.options}
        groups.setdefault(json.dumps(given, sort_keys=True), []).append(run)
        for name, value in given.items():
            values[scored_data(run.metrics), name].add(repr(value))
    found = {}
    for group in groups.values():
        data, given = scored_data(group[0].metrics), {"metric": group[0].metrics["metric"], **group[0].options}
        varied = [f"{name}={value}" for name, value in given.items() if len(values[data, name]) > 1]
        found[", ".join([data, *varied])] = group
    return found


AHEAD, BEHIND, FLATTERED = "†", "‡", "*"
_LATEX_MARKS = {AHEAD: r"\dagger", BEHIND: r"\ddagger", FLATTERED: r"\ast"}
_AVERAGE = "average"
_CSV = ["method", "setting", "metric", "seeds", "mean", "std", "best", "marks"]


@dataclass(frozen=True)
class ResultTable:
    """Scores of methods on tasks.

    Attributes:
        cells: For each method and column of the table: ``method``, ``column`` (its number), ``setting``, ``metric``,
            ``seeds``, ``mean``, ``std`` (None for one seed, and for an average), ``text`` (both, and the number of
            seeds where other methods have more), ``best`` (1 if no other mean of the column is higher, of those with
            all seeds), ``marks`` (signs for the difference from the reference and for scores that flatter).
        methods: Labels in the order of the rows.
        headers: Names of the settings with their metrics where these differ, and "average" if the settings differ in
            the task alone and their scores are not errors.
    """

    cells: Sequence[Mapping[str, Any]]
    methods: tuple[str, ...]
    headers: tuple[str, ...]
    caption: str

    def wide(self, shown: Callable[[str, bool, str], str]) -> list[list[str]]:
        """Return the texts of the table by row, with the methods, ``shown`` by text, whether it is best, and marks."""
        cells = {(each["method"], each["column"]): each for each in self.cells}
        found = {at: shown(each["text"], each["best"], each["marks"]) for at, each in cells.items()}
        return [[label, *(found.get((label, i), "-") for i in range(len(self.headers)))] for label in self.methods]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = self.wide(lambda text, best, marks: (f"**{text}**" if best else text) + in_markdown(marks))
        rows = [[in_markdown(label), *row] for label, *row in rows]
        table = markdown_table([*map(in_markdown, ("method", *self.headers))], rows, NAMES_LEFT)
        return f"{table}\n\n{in_markdown(self.caption)}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""

        def cell(text: str, best: bool, marks: str) -> str:
            text = (text.replace("-", "$-$") if text.startswith("-") else text).replace("±", r"$\pm$")
            signs = "".join(_LATEX_MARKS[mark] for mark in marks)
            return (rf"\textbf{{{text}}}" if best else text) + (f"$^{{{signs}}}$" if signs else "")

        rows = [[in_latex(label), *row] for label, *row in self.wide(cell)]
        frame = pd.DataFrame(rows, columns=[*map(in_latex, ("method", *self.headers))])
        caption = in_latex(self.caption).replace(AHEAD, r"$\dagger$").replace(BEHIND, r"$\ddagger$")
        return str(frame.to_latex(index=False, column_format="l" + "r" * len(self.headers), caption=caption))

    def csv(self) -> str:
        """Return the table as CSV: a line for each method and column, the scores in full precision and not scaled."""
        cells = sorted(self.cells, key=lambda each: (self.methods.index(each["method"]), each["column"]))
        return csv_table(_CSV, ([each[name] for name in _CSV] for each in cells))


def make_result_table(results: Results) -> ResultTable:
    """Make the table of all settings.

    The marks follow the p values of :func:`attendrop.studies.answer.method_rows`; with several settings those of
    :func:`attendrop.studies.study.overall_rows`, which are corrected over all of them. A method has an average
    if it has a score in every setting.
    """
    overall = {(name, row.label): p for row in results.overall for name, p in row.p_values.items()}
    answers = [each.answer for each in results.settings]
    cells, counts = list[dict[str, Any]](), set()
    for column, setting in enumerate(results.settings):
        of = setting.answer
        scale, most = score_scale(of.metric), max((row.n for row in of.rows), default=0)
        counts.add(most)
        for row in of.rows:
            p, marks = overall.get((setting.name, row.label)) if overall else row.p_holm, ""
            if p is not None and p <= ALPHA and row.difference is not None and row.difference.n >= MIN_SEEDS:
                marks = AHEAD if row.difference.mean.value > 0 else BEHIND
            values = [row.mean] if row.std is None else [row.mean, row.std]
            texts = [number(value, of.decimals) if scale == 1 else f"{scale * value:z.1f}" for value in values]
            text = " ± ".join(texts) + (f" ({row.n})" if row.n < most else "")
            marks += FLATTERED * row.selected_on_reported
            cell = {"method": row.label, "column": column, "setting": setting.name, "metric": of.metric, "text": text}
            cell |= {"seeds": row.n, "mean": row.mean, "std": row.std, "partial": row.n < most, "marks": marks}
            cells.append(cell)
    models, tasks = {found.model for found in answers}, {found.data or found.task for found in answers}
    metrics = list(dict.fromkeys(found.metric for found in answers))
    headers = [each.name + (f", {each.answer.metric}" if len(metrics) > 1 else "") for each in results.settings]
    if len(models) == 1 < len(tasks) == len(answers) and all(score_scale(metric) != 1 for metric in metrics):
        metric = metrics[0] if len(metrics) == 1 else _AVERAGE
        for label in results.labels:
            own = [each for each in cells if each["method"] == label]
            if len(own) == len(answers):
                mean, seeds = fmean(each["mean"] for each in own), min(each["seeds"] for each in own)
                cell = {"method": label, "column": len(answers), "setting": _AVERAGE, "metric": metric, "seeds": seeds}
                cell |= {"mean": mean, "std": None, "partial": any(each["partial"] for each in own)}
                cell["text"] = f"{score_scale(_AVERAGE) * mean:z.1f}" + (f" ({seeds})" if cell["partial"] else "")
                cell["marks"] = FLATTERED * any(FLATTERED in each["marks"] for each in own)
                cells.append(cell)
        headers.append(_AVERAGE)
    for cell in cells:
        whole = [each["mean"] for each in cells if each["column"] == cell["column"] and not each["partial"]]
        cell["best"] = int(not cell["partial"] and cell["mean"] == max(whole))
    every = "".join(each["marks"] for each in cells)
    seeds_told = " or ".join(str(count) for count in sorted(counts - {0}))
    spread = "of one seed" if seeds_told == "1" else f"mean ± standard deviation of {seeds_told} seeds"
    reference = next((row.label for found in answers for row in found.rows if row.is_reference), "the reference")
    rows = f" on {answers[0].scored_on}" if len(answers) == 1 else ""
    scaled = "" if all(score_scale(metric) == 1 for metric in metrics) else " times 100"
    of_models = ", ".join(dict.fromkeys(Path(found.model).name for found in answers))
    parts = [f"{', '.join(metrics)}{scaled} of {of_models}{rows}, {spread}; the best in bold"]
    if any(each["partial"] for each in cells):
        parts.append("In parentheses: the number of seeds, if fewer")
    if AHEAD in every or BEHIND in every:
        over = ", Holm's correction over all methods and tasks" if results.overall else " after Holm's correction"
        parts.append(f"{AHEAD} ahead of and {BEHIND} behind {reference}, p ≤ {ALPHA}{over}; of methods only")
    if FLATTERED in every:
        parts.append(f"{FLATTERED} chosen on the rows of the score, which is optimistic")
    return ResultTable(cells, tuple(results.labels), tuple(headers), f"{'. '.join(parts)}.")


def score_scale(metric: str) -> float:
    """Return the factor with which scores are shown: 100, or 1 for errors, ``neg_...``, which are shown as they are."""
    return 1.0 if metric.startswith("neg_") else 100.0
