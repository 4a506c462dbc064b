"""Table in the layout of papers: methods as rows, tasks as columns, mean ± standard deviation, and the average."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from attendrop.reports.results import Results
from attendrop.studies.answer import Answer
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA
from attendrop.studies.verdict import MIN_SEEDS
from attendrop.studies.words import number
from attendrop.text_tables import NAMES_LEFT, csv_table, in_latex, latex_table, markdown_table

AHEAD, BEHIND, FLATTERED = "†", "‡", "*"
_LATEX_MARKS = {AHEAD: r"\dagger", BEHIND: r"\ddagger", FLATTERED: r"\ast"}
# Bars within the table are escaped by `markdown_table`, and need no escape in the caption.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#])")
# Errors are shown as they are, all other scores times 100.
_ERROR = "neg_"
_AVERAGE = "average"


@dataclass(frozen=True)
class Cell:
    """Score of a method on a task.

    Attributes:
        mean: Mean over seeds.
        std: Standard deviation over seeds; None for one seed, and for an average.
        seeds: Number of seeds.
        is_partial: Whether other methods of the column have more seeds.
        is_best: Whether no other mean of the column is higher, of those with all seeds.
        marks: Signs for the difference from the reference, and for scores that flatter.
    """

    mean: float
    std: float | None = None
    seeds: int = 1
    is_partial: bool = False
    is_best: bool = False
    marks: str = ""


class CellText(NamedTuple):
    """A formatted cell: the score, its marks, and whether it is the best of its column."""

    value: str
    marks: str = ""
    is_best: bool = False


@dataclass(frozen=True)
class ResultTable:
    """Scores of methods on tasks.

    Attributes:
        columns: Names of the settings, and "average" if they differ in the task alone and their scores are no errors.
        scales: Factor of each column, 100 or 1.
        metrics: Metric of each column.
        rows: Cells by column, by label of the method.
        caption: What the scores and marks are.
    """

    columns: tuple[str, ...]
    scales: tuple[float, ...]
    metrics: tuple[str, ...]
    rows: Mapping[str, tuple[Cell | None, ...]]
    caption: str

    @property
    def headers(self) -> tuple[str, ...]:
        """The columns, with their metrics where these differ."""
        if len({metric for metric in self.metrics if metric != _AVERAGE}) < 2:
            return self.columns
        pairs = zip(self.columns, self.metrics, strict=True)
        return tuple(name if metric == _AVERAGE else f"{name}, {metric}" for name, metric in pairs)

    def texts(self) -> Iterator[tuple[str, list[CellText]]]:
        """Yield the label of each row and its formatted cells."""
        for label, row in self.rows.items():
            yield label, [_text(cell, scale) for cell, scale in zip(row, self.scales, strict=True)]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = ([_in_markdown(label), *map(_markdown_cell, row)] for label, row in self.texts())
        table = markdown_table([*map(_in_markdown, ("method", *self.headers))], rows, NAMES_LEFT)
        return f"{table}\n\n{_in_markdown(self.caption)}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        header = [*map(_in_latex, ("method", *self.headers))]
        rows = ([_in_latex(label), *map(_latex_cell, row)] for label, row in self.texts())
        return latex_table(header, rows, _in_latex(self.caption))

    def csv(self) -> str:
        """Return the table as CSV: a line for each method and column, the scores in full precision and not scaled."""
        header = ("method", "setting", "metric", "seeds", "mean", "std", "best", "marks")
        return csv_table(
            header,
            (
                (label, column, metric, cell.seeds, cell.mean, cell.std, int(cell.is_best), cell.marks)
                for label, row in self.rows.items()
                for column, metric, cell in zip(self.columns, self.metrics, row, strict=True)
                if cell is not None
            ),
        )


def make_result_table(results: Results) -> ResultTable:
    """Make the table of all settings.

    The marks follow the p values of :func:`attendrop.studies.method_rows.method_rows`; with several settings those of
    :func:`attendrop.studies.study.overall_rows`, which are corrected over all of them. A method has an average
    if it has a score in every setting.
    """
    rows = {(each.name, row.label): row for each in results.settings for row in each.answer.rows}
    overall = {(name, row.label): p for row in results.overall for name, p in row.p_values.items()}
    p_values = overall or {at: row.p_holm for at, row in rows.items() if row.p_holm is not None}
    names = [each.name for each in results.settings]
    metrics = [each.answer.metric for each in results.settings]
    most = {each.name: max((row.n for row in each.answer.rows), default=0) for each in results.settings}
    cells = {
        label: [_cell(rows.get((name, label)), p_values.get((name, label)), most[name]) for name in names]
        for label in results.labels
    }
    if _are_averaged([each.answer for each in results.settings]):
        names, metrics = [*names, _AVERAGE], [*metrics, metrics[0] if len(set(metrics)) == 1 else _AVERAGE]
        for found in cells.values():
            found.append(_average(found))
    marked = _with_best(cells)
    scales = tuple(map(score_scale, metrics))
    return ResultTable(tuple(names), scales, tuple(metrics), marked, _caption(results, marked))


def score_scale(metric: str) -> float:
    """Return the factor with which scores are shown: 100, or 1 for errors."""
    return 1.0 if metric.startswith(_ERROR) else 100.0


def _are_averaged(answers: Sequence[Answer]) -> bool:
    """Whether settings have an average: they differ in the task alone, and no score is an error."""
    same_model = len({found.model for found in answers}) == 1
    tasks = len({found.task for found in answers})
    return 1 < tasks == len(answers) and same_model and all(score_scale(found.metric) != 1 for found in answers)


def _average(cells: Sequence[Cell | None]) -> Cell | None:
    """Average a method over settings; None if it lacks one."""
    known = [cell for cell in cells if cell is not None]
    if len(known) < len(cells):
        return None
    marks = FLATTERED if any(FLATTERED in cell.marks for cell in known) else ""
    partial = any(cell.is_partial for cell in known)
    return Cell(fmean(cell.mean for cell in known), None, min(cell.seeds for cell in known), partial, marks=marks)


def _cell(row: MethodRow | None, p: float | None, most: int) -> Cell | None:
    if row is None or not row.scores:
        return None
    marks = ""
    if p is not None and p <= ALPHA and row.difference is not None and row.difference.n >= MIN_SEEDS:
        marks = AHEAD if row.difference.mean.value > 0 else BEHIND
    marks += FLATTERED * row.selected_on_reported
    return Cell(row.mean, row.std, row.n, row.n < most, marks=marks)


def _with_best(cells: Mapping[str, Sequence[Cell | None]]) -> dict[str, tuple[Cell | None, ...]]:
    """Mark the highest mean of each column."""
    best = [
        max((cell.mean for cell in column if cell is not None and not cell.is_partial), default=None)
        for column in zip(*cells.values(), strict=True)
    ]
    return {
        label: tuple(
            None if cell is None else replace(cell, is_best=not cell.is_partial and cell.mean == highest)
            for cell, highest in zip(found, best, strict=True)
        )
        for label, found in cells.items()
    }


def _caption(results: Results, cells: Mapping[str, Sequence[Cell | None]]) -> str:
    answers = [each.answer for each in results.settings]
    counts = sorted({max((row.n for row in found.rows), default=0) for found in answers})
    spread = "of one seed" if counts == [1] else f"mean ± standard deviation of {' or '.join(map(str, counts))} seeds"
    reference = next((row.label for found in answers for row in found.rows if row.is_reference), "the reference")
    known = [cell for row in cells.values() for cell in row if cell is not None]
    metrics = ", ".join(dict.fromkeys(found.metric for found in answers))
    models = ", ".join(dict.fromkeys(Path(found.model).name for found in answers))
    rows = f" on {answers[0].scored_on}" if len(answers) == 1 else ""
    scaled = "" if all(score_scale(found.metric) == 1 for found in answers) else " times 100"
    marks = "".join(cell.marks for cell in known)
    over = ", Holm's correction over all methods and tasks" if results.overall else " after Holm's correction"
    parts = [f"{metrics}{scaled} of {models}{rows}, {spread}; the best in bold"]
    if any(cell.is_partial for cell in known):
        parts.append("In parentheses: the number of seeds, if fewer")
    if AHEAD in marks or BEHIND in marks:
        parts.append(f"{AHEAD} ahead of and {BEHIND} behind {reference}, p ≤ {ALPHA}{over}; of methods only")
    if FLATTERED in marks:
        parts.append(f"{FLATTERED} chosen on the rows of the score, which flatters it")
    return f"{'. '.join(parts)}."


def _text(cell: Cell | None, scale: float) -> CellText:
    if cell is None:
        return CellText("-")
    spread = "" if cell.std is None else f" ± {_scaled(cell.std, scale)}"
    value = _scaled(cell.mean, scale) + spread + (f" ({cell.seeds})" if cell.is_partial else "")
    return CellText(value, cell.marks, cell.is_best)


def _scaled(value: float, scale: float) -> str:
    return number(value) if scale == 1 else f"{scale * value:.1f}"


def _in_markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _markdown_cell(cell: CellText) -> str:
    return (f"**{cell.value}**" if cell.is_best else cell.value) + _in_markdown(cell.marks)


def _in_latex(text: str) -> str:
    escaped = in_latex(text)
    for sign in (AHEAD, BEHIND):
        escaped = escaped.replace(sign, f"${_LATEX_MARKS[sign]}$")
    return escaped


def _latex_cell(cell: CellText) -> str:
    value, marks, is_best = cell
    text = value.replace("-", "$-$") if value.startswith("-") and value != "-" else value
    text = text.replace("±", r"$\pm$")
    signs = "".join(_LATEX_MARKS[mark] for mark in marks)
    return (rf"\textbf{{{text}}}" if is_best else text) + (f"$^{{{signs}}}$" if signs else "")
