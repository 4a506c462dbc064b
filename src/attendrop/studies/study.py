"""Studies: units are run, and compared in each setting and over all settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from attendrop.errors import AttendropError
from attendrop.runs.run_folder import LOCK, check_writable, read_json
from attendrop.studies.answer import Answer, answer
from attendrop.studies.executor import LOCAL, OnEvent, open_runner
from attendrop.studies.method_rows import MethodRow, method_label
from attendrop.studies.statistics import Array, CrossedMean, PairedDifference, crossed_test, holm, paired_difference
from attendrop.studies.study_file import Study
from attendrop.studies.units import COMPARED, LABEL, REPORTS, RUNS, Result, Unit
from attendrop.studies.words import ends, interval, p_text
from attendrop.support.files import write_json, write_text
from attendrop.wording import csv_of_records, in_markdown, markdown_table


def run_study(
    study: Study,
    folder: str | Path,
    *,
    file: str | None = None,
    workers: int | None = None,
    backend: str = LOCAL,
    on_event: OnEvent = lambda event: None,
) -> StudyReport:
    """Run the unfinished units of a study, and write ``answer.md``, ``answer.json`` and ``answer.csv``.

    ``file`` is the one that the study was read from, which is recorded. See
    :func:`attendrop.studies.executor.open_runner` for the other options.

    Raises:
        AttendropError: The folder holds something else, or another process uses it.
    """
    folder, units = Path(folder), study.units
    check_study_folder(folder, file=file)
    with open_runner(folder, workers=workers, backend=backend) as runner:
        results = runner.run(units, on_event)
    of_unit = {unit.key(): result for unit, result in zip(units, results, strict=True)}
    labelled = {
        each.name: [replace(of_unit[key], label=each.labels.get(key)) for key in map(Unit.key, each.units)]
        for each in study.settings
    }
    report = make_report(study, labelled)
    write_compared(folder, labelled, study.reference, file)
    tables = {name: found.records() for name, found in report.answers.items()}
    table = csv_of_records([{"setting": name, **record} for name, records in tables.items() for record in records])
    write_reports(folder, report.markdown(), report.as_dict(), table)
    return report


def write_compared(
    folder: Path, settings: Mapping[str, Sequence[Result]], reference: str, file: str | None = None
) -> None:
    """Record which runs are compared, by setting, so that the answer can be computed again; and the study file.

    For each run, by the name of its folder: its label and its seed, which a failed one does not tell itself.
    """
    runs = {
        name: {each.folder.name: {LABEL: method_label(each.run), "seed": each.unit.config.seed} for each in results}
        for name, results in settings.items()
    }
    of_file = {} if file is None else {"file": str(Path(file).absolute())}
    write_json(folder / COMPARED, {"reference": reference, "settings": runs} | of_file)


def write_reports(folder: Path, markdown: str, found: dict[str, Any], table: str) -> None:
    """Write the files of an answer, for people and their programs: attendrop reads none of them."""
    for name, content in zip(REPORTS, (markdown, json.dumps(found, indent=2) + "\n", table), strict=True):
        write_text(folder / name, content)


def check_study_folder(folder: Path, *, comparison: bool = False, file: str | None = None) -> None:
    """Raise AttendropError if a folder holds other files than a study's, or a comparison, or the other way round.

    The default folder of a study ``file`` may hold the answer of another file of that name, and is refused then.
    """
    if folder.exists() and not folder.is_dir():
        raise AttendropError(f"The output folder '{folder}' is a file.")
    check_writable(folder)
    found = read_json(folder / COMPARED, {"settings": dict})
    known = found is not None or (folder / RUNS).is_dir()
    if folder.exists() and not known and any(path.name != LOCK for path in folder.iterdir()):
        raise AttendropError(f"The output folder '{folder}' holds other files; name an empty or a new one.")
    if found is None and (strange := next(filter(Path.exists, (folder / name for name in REPORTS)), None)):
        raise AttendropError(f"'{strange}' was not written by attendrop, and would be replaced; name another folder.")
    if found is not None and ("" in found["settings"]) != comparison:
        other = "study" if comparison else "comparison"
        raise AttendropError(f"The output folder '{folder}' holds the answer of a {other}; name another one.")
    noted = (found or {}).get("file")
    if file is None or noted is None or folder != default_folder(file) or not Path(noted).exists():
        return
    if not Path(noted).samefile(file):
        raise AttendropError(
            f"The output folder '{folder}' holds the answer of '{noted}', which would be replaced; name another one "
            "with --output-dir."
        )


def default_folder(file: str) -> Path:
    """Return the folder of a study whose file is given, and no folder."""
    return Path("runs", Path(file).stem)


@dataclass(frozen=True)
class OverallRow:
    """A method over all settings of a study in which it has seeds in common with the reference.

    Attributes:
        label: The method with its options.
        p_values: p value of the difference in each setting, corrected by Holm over all methods and settings.
        mean: The difference averaged over the settings, compared seed by seed; None if no seed is complete, or for
            errors of several tasks.
    """

    label: str
    p_values: Mapping[str, float]
    mean: PairedDifference | None

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON values; an infinite end of an interval is None."""
        found = self.mean
        record = {"label": self.label, "p_holm": dict(self.p_values), "seeds": found.n if found else 0}
        if found is None:
            return record
        return record | found.mean.as_dict("difference") | {"differences": list(found.values), "p": found.p_value}


@dataclass(frozen=True)
class StudyReport:
    """Results of a study.

    Attributes:
        answers: The answer of each setting by its name; a setting without a finished run has none.
        overall: Methods over all settings; empty for a single setting.
        failed: Units without a result.
    """

    answers: Mapping[str, Answer]
    overall: tuple[OverallRow, ...]
    failed: tuple[Result, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "settings": {name: found.as_dict() for name, found in self.answers.items()},
            "overall": [row.as_dict() for row in self.overall],
            "failed": [{"folder": str(result.folder), **result.run} for result in self.failed],
        }

    def markdown(self) -> str:
        """Return all tables and the failed runs as Markdown."""
        parts = [f"## {in_markdown(name)}\n\n{found.markdown()}" for name, found in self.answers.items()]
        if self.overall:
            parts.insert(0, _overall_markdown(self.overall, [*self.answers.values()]))
        if self.failed:
            listed = (f"- `{result.folder.name}`: {in_markdown(str(result.error))}" for result in self.failed)
            parts.append("## Failed runs\n\n" + "\n".join(listed) + "\n")
        return "\n".join(parts)

    def lines(self) -> list[str]:
        """Return all tables and the failed runs for a console."""
        lines: list[str] = []
        for name, found in self.answers.items():
            lines += [f"{name}:" if len(self.answers) > 1 else "", *found.lines(), ""]
        if self.overall:
            lines += [_overall_markdown(self.overall, [*self.answers.values()])]
        if self.failed:
            lines += ["Failed runs:", *(f"{result.folder.name}: {result.error}" for result in self.failed)]
        return lines


def make_report(study: Study, results: Mapping[str, Sequence[Result]]) -> StudyReport:
    """Compare the methods in each setting and over all of them, given the labelled results of each setting."""
    answers = {}
    for name, found in results.items():
        metrics = [result.run for result in found if result.metrics is not None]
        failed = [result.run for result in found if result.metrics is None]
        if metrics:
            answers[name] = answer(metrics, study.reference, failed=failed)
    failures = {result.folder: result for found in results.values() for result in found if result.metrics is None}
    overall = overall_rows(answers) if len(study.settings) > 1 else ()
    return StudyReport(answers, overall, tuple(failures.values()))


def overall_rows(answers: Mapping[str, Answer]) -> tuple[OverallRow, ...]:
    """Compare each method with the reference over all settings; differences with one unit are averaged."""
    rows = {(name, row.label): row for name, found in answers.items() for row in found.rows}
    compared = {at: row for at, row in rows.items() if row.difference is not None and not row.is_baseline}
    tested = {at: row.difference.p_value for at, row in compared.items() if row.difference is not None}
    p_values = {at: p for at, p in tested.items() if p is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    references = {name: row for (name, _), row in rows.items() if row.is_reference}
    found = []
    for label in dict.fromkeys(label for _, label in compared):
        settings = [name for name, other in compared if other == label]
        pairs = [(rows[name, label], references[name]) for name in settings]
        # Scores may be averaged if they are fractions, or the same error of the same numbers.
        scores = [(answers[name].metric, answers[name].data) for name in settings]
        has_unit = len({(metric, data) if metric.startswith("neg_") else None for metric, data in scores}) == 1
        of_settings = {name: corrected[name, label] for name in settings if (name, label) in corrected}
        found.append(OverallRow(label, of_settings, _mean_difference(pairs) if has_unit else None))
    return tuple(found)


def _mean_difference(pairs: Sequence[tuple[MethodRow, MethodRow]]) -> PairedDifference | None:
    """Compare the scores averaged over settings, on the seeds that all settings have."""
    seeds = sorted(set.intersection(*(row.scores.keys() & other.scores.keys() for row, other in pairs)))
    if not seeds:
        return None
    method, reference = ([fmean(pair[side].scores[seed] for pair in pairs) for seed in seeds] for side in (0, 1))
    found = paired_difference(method, reference)
    # Settings with the same evaluation rows, such as two sizes of a training set, are not independent.
    groups: dict[str, list[tuple[Array, list[float], tuple[int, int, float]]]] = {}
    for row, other in pairs:
        if (by_row := row.row_differences(other, seeds)) is None or len(seeds) < 2:
            return found
        scores = [row.scores[seed] - other.scores[seed] for seed in seeds]
        first = row.by_row[seeds[0]]
        size = first.rows, first.groups, max(row.scale, other.scale)
        groups.setdefault(first.data, []).append((by_row, scores, size))
    if any(len({each[0].shape for each in group}) > 1 for group in groups.values()):
        return found  # of different metrics: their rows are divided in different ways
    means = [
        CrossedMean.of(np.mean([each[0] for each in group], axis=0), float(np.mean([each[1] for each in group])), *size)
        for group in groups.values()
        for size in [group[0][2]]
    ]
    mean, p = crossed_test(means, [len(group) / len(pairs) for group in groups.values()])
    return replace(found, mean=mean, p_value=p)


def _overall_markdown(rows: Sequence[OverallRow], answers: Sequence[Answer]) -> str:
    digits = max(found.decimals for found in answers)
    header = ("method", "mean difference [95 % on new rows]", "on these rows", "p by setting (Holm over all)")
    lines = [
        (
            in_markdown(row.label),
            "-" if row.mean is None else interval(row.mean, digits),
            "-" if row.mean is None else ends(row.mean.these_rows, digits),
            "; ".join(f"{in_markdown(name)}: {p_text(p)}" for name, p in row.p_values.items()),
        )
        for row in rows
    ]
    return f"## All settings\n\n{markdown_table(header, lines)}\n"
