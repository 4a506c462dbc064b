"""Tables of a study: the answer of each setting, and methods over all settings."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from statistics import fmean
from typing import Any, Self

import numpy as np

from attendrop.studies.answer import Answer, answer
from attendrop.studies.method_rows import LABEL, MethodRow, method_label, p_value
from attendrop.studies.statistics import (
    Array,
    CrossedMean,
    Estimate,
    PairedDifference,
    crossed_test,
    holm,
    mean_interval,
    paired_difference,
)
from attendrop.studies.study_file import Study
from attendrop.studies.units import Result, Unit
from attendrop.studies.verdict import ends, interval
from attendrop.text_tables import markdown_table


@dataclass(frozen=True)
class OverallRow:
    """A method over all settings of a study in which it has seeds in common with the reference.

    Attributes:
        label: The method with its options.
        p_values: p value of the difference in each setting, corrected by Holm over all methods and settings.
        mean: The difference averaged over the settings, compared seed by seed; None if no seed is complete.
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
        for name, value in asdict(found.mean).items():
            record["difference" if name == "value" else f"difference_{name}"] = value if isfinite(value) else None
        return record | {"differences": list(found.values), "p": found.p_value}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what :meth:`as_dict` returned."""
        if "differences" not in record:  # no seed is complete, or the file is an older one
            return cls(record["label"], {} if "difference" in record else record["p_holm"], None)
        low, high = record["difference_low"], record["difference_high"]
        mean = Estimate(record["difference"], -inf if low is None else low, inf if high is None else high)
        values = tuple(map(float, record["differences"]))
        found = PairedDifference(values, mean_interval(values), mean, record["p"])
        return cls(record["label"], record["p_holm"], found)


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
            "failed": [{"folder": str(result.folder), **_failure(result)} for result in self.failed],
        }

    def json(self) -> str:
        """Return everything as JSON."""
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def markdown(self) -> str:
        """Return all tables and the failed runs as Markdown."""
        parts = [f"## {name}\n\n{found.markdown()}" for name, found in self.answers.items()]
        if self.overall:
            parts.insert(0, _overall_markdown(self.overall))
        if self.failed:
            listed = (f"- `{result.folder.name}`: {result.error}" for result in self.failed)
            parts.append("## Failed runs\n\n" + "\n".join(listed) + "\n")
        return "\n".join(parts)

    def lines(self) -> list[str]:
        """Return all tables and the failed runs for a console."""
        lines: list[str] = []
        for name, found in self.answers.items():
            lines += [f"{name}:" if len(self.answers) > 1 else "", *found.lines(), ""]
        if self.overall:
            lines += [_overall_markdown(self.overall)]
        if self.failed:
            lines += ["Failed runs:", *(f"{result.folder.name}: {result.error}" for result in self.failed)]
        return lines

    def csv(self) -> str:
        """Return the tables of all settings as one CSV."""
        records = [
            {"setting": name, **record}
            for name, found in self.answers.items()
            for record in csv.DictReader(io.StringIO(found.csv()))
        ]
        text = io.StringIO()
        columns = dict.fromkeys(column for record in records for column in record)
        writer = csv.DictWriter(text, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()


def make_report(study: Study, results: Mapping[str, Sequence[Result]]) -> StudyReport:
    """Compare the methods in each setting and over all of them.

    Args:
        study: The study.
        results: The results of each setting by its name.
    """
    answers = {}
    for setting in study.settings:
        labelled = [(result, {LABEL: setting.labels.get(result.unit.key())}) for result in results[setting.name]]
        metrics = [{**result.metrics, **label} for result, label in labelled if result.metrics is not None]
        failed = [_failure(result) | label for result, label in labelled if result.error is not None]
        if metrics:
            answers[setting.name] = answer(metrics, study.reference, failed=failed)
    failures = {result.folder: result for found in results.values() for result in found if result.error is not None}
    overall = overall_rows(answers) if len(study.settings) > 1 else ()
    return StudyReport(answers, overall, tuple(failures.values()))


def overall_rows(answers: Mapping[str, Answer]) -> tuple[OverallRow, ...]:
    """Compare each method with the reference over all settings."""
    rows = {(name, row.label): row for name, found in answers.items() for row in found.rows}
    compared = {at: row for at, row in rows.items() if row.difference is not None and not row.is_baseline}
    p_values = {at: p for at, row in compared.items() if (p := p_value(row.difference)) is not None}
    corrected = dict(zip(p_values, holm(list(p_values.values())), strict=True))
    references = {name: row for (name, _), row in rows.items() if row.is_reference}
    found = []
    for label in dict.fromkeys(label for _, label in compared):
        settings = [name for name, other in compared if other == label]
        mean = _mean_difference([(rows[name, label], references[name]) for name in settings])
        judged = {name: corrected[name, label] for name in settings if (name, label) in corrected}
        found.append(OverallRow(label, judged, mean))
    return tuple(found)


def _mean_difference(pairs: Sequence[tuple[MethodRow, MethodRow]]) -> PairedDifference | None:
    """Compare the scores averaged over settings, on the seeds that all settings have."""
    seeds = sorted(set.intersection(*(row.scores.keys() & other.scores.keys() for row, other in pairs)))
    if not seeds:
        return None
    method, reference = ([fmean(pair[side].scores[seed] for pair in pairs) for seed in seeds] for side in (0, 1))
    found = paired_difference(method, reference)
    # Settings with the same evaluation rows, such as two sizes of a training set, are not independent.
    groups: dict[str, list[tuple[Array, list[float], int]]] = {}
    for row, other in pairs:
        if (by_row := row.row_differences(other, seeds)) is None or len(seeds) < 2:
            return found
        scores = [row.scores[seed] - other.scores[seed] for seed in seeds]
        first = row.by_row[seeds[0]]
        groups.setdefault(first.data, []).append((by_row, scores, first.rows))
    if any(len({each[0].shape for each in group}) > 1 for group in groups.values()):
        return found  # of different metrics: their rows are divided in different ways
    means = [
        CrossedMean.of(np.mean([each[0] for each in group], axis=0), float(np.mean([each[1] for each in group])), rows)
        for group in groups.values()
        for rows in [group[0][2]]
    ]
    mean, p = crossed_test(means, [len(group) / len(pairs) for group in groups.values()])
    return replace(found, mean=mean, p_value=p)


def _failure(result: Result) -> dict[str, Any]:
    unit = result.unit
    return {"method": unit.method, "options": unit.options, "seed": unit.config.seed, "error": result.error}


def _overall_markdown(rows: Sequence[OverallRow]) -> str:
    header = ("method", "mean difference [95 % on new rows]", "on these rows", "p by setting (Holm over all)")
    lines = [
        (
            row.label,
            "-" if row.mean is None else interval(row.mean),
            "-" if row.mean is None else ends(row.mean.these_rows),
            ", ".join(f"{name}: {p:.2g}" for name, p in row.p_values.items()),
        )
        for row in rows
    ]
    return f"## All settings\n\n{markdown_table(header, lines)}\n"


def method_of(unit: Unit) -> str:
    """Name the method of a unit with the options that are not its defaults."""
    return method_label({"method": unit.method, "options": unit.options})
