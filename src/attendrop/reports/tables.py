"""Table in the layout of papers: methods as rows, tasks as columns, mean ± standard deviation, and the average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from attendrop.reports.results import Results
from attendrop.studies.answer import Answer
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA
from attendrop.studies.verdict import MIN_SEEDS
from attendrop.studies.words import number
from attendrop.wording import NAMES_LEFT, csv_table, in_latex, in_markdown, latex_table, markdown_table

AHEAD, BEHIND, FLATTERED = "†", "‡", "*"
_LATEX_MARKS = {AHEAD: r"\dagger", BEHIND: r"\ddagger", FLATTERED: r"\ast"}
# Errors are shown as they are, all other scores times 100.
_ERROR = "neg_"
_AVERAGE = "average"


@dataclass(frozen=True)
class Cell:
    """Score of a method on a task.

    Attributes:
        std: Standard deviation over seeds; None for one seed, and for an average.
        text: Mean and standard deviation as they are shown, with the number of seeds where others have more.
        is_partial: Whether other methods of the column have more seeds.
        is_best: Whether no other mean of the column is higher, of those with all seeds.
        marks: Signs for the difference from the reference, and for scores that flatter.
    """

    mean: float
    std: float | None
    seeds: int
    text: str
    is_partial: bool = False
    is_best: bool = False
    marks: str = ""


@dataclass(frozen=True)
class ResultTable:
    """Scores of methods on tasks.

    Attributes:
        columns: Names of the settings, and "average" if they differ in the task alone and their scores are not errors.
        rows: Cells by column, by label of the method.
    """

    columns: tuple[str, ...]
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

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = ([in_markdown(label), *map(_markdown_cell, row)] for label, row in self.rows.items())
        table = markdown_table([*map(in_markdown, ("method", *self.headers))], rows, NAMES_LEFT)
        return f"{table}\n\n{in_markdown(self.caption)}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        header = [*map(_in_latex, ("method", *self.headers))]
        rows = ([_in_latex(label), *map(_latex_cell, row)] for label, row in self.rows.items())
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
    overall = {(name, row.label): p for row in results.overall for name, p in row.p_values.items()}
    names, metrics, columns = [], [], []
    for each in results.settings:
        rows = [row for row in each.answer.rows if row.scores]
        p_values = {row.label: overall.get((each.name, row.label)) if overall else row.p_holm for row in rows}
        most = max((row.n for row in rows), default=0)
        names.append(each.name)
        metrics.append(each.answer.metric)
        columns.append({row.label: _cell(row, p_values[row.label], each.answer, most) for row in rows})
    if _are_averaged([each.answer for each in results.settings]):
        names.append(_AVERAGE)
        metrics.append(metrics[0] if len(set(metrics)) == 1 else _AVERAGE)
        columns.append(_averages(columns))
    columns = [_with_best(column) for column in columns]
    cells = {label: tuple(column.get(label) for column in columns) for label in results.labels}
    return ResultTable(tuple(names), tuple(metrics), cells, _caption(results, cells))


def score_scale(metric: str) -> float:
    """Return the factor with which scores are shown: 100, or 1 for errors."""
    return 1.0 if metric.startswith(_ERROR) else 100.0


def _are_averaged(answers: Sequence[Answer]) -> bool:
    """Whether settings have an average: they differ in the task alone, and no score is an error."""
    models, tasks = {found.model for found in answers}, {found.data or found.task for found in answers}
    scaled = all(score_scale(found.metric) != 1 for found in answers)
    return scaled and len(models) == 1 < len(tasks) == len(answers)


def _averages(columns: Sequence[Mapping[str, Cell]]) -> dict[str, Cell]:
    """Average the methods that have a score in every column."""
    found = {}
    for label in set.intersection(*map(set, columns)):
        cells = [column[label] for column in columns]
        mean, seeds = fmean(cell.mean for cell in cells), min(cell.seeds for cell in cells)
        partial = any(cell.is_partial for cell in cells)
        marks = FLATTERED if any(FLATTERED in cell.marks for cell in cells) else ""
        text = f"{score_scale(_AVERAGE) * mean:z.1f}" + (f" ({seeds})" if partial else "")
        found[label] = Cell(mean, None, seeds, text, partial, marks=marks)
    return found


def _cell(row: MethodRow, p: float | None, answer: Answer, most: int) -> Cell:
    marks = ""
    if p is not None and p <= ALPHA and row.difference is not None and row.difference.n >= MIN_SEEDS:
        marks = AHEAD if row.difference.mean.value > 0 else BEHIND
    marks += FLATTERED * row.selected_on_reported
    scale, values = score_scale(answer.metric), (row.mean,) if row.std is None else (row.mean, row.std)
    texts = (number(value, answer.decimals) if scale == 1 else f"{scale * value:z.1f}" for value in values)
    text = " ± ".join(texts) + (f" ({row.n})" if row.n < most else "")
    return Cell(row.mean, row.std, row.n, text, row.n < most, marks=marks)


def _with_best(column: Mapping[str, Cell]) -> dict[str, Cell]:
    """Mark the highest mean of a column."""
    best = max((cell.mean for cell in column.values() if not cell.is_partial), default=None)
    return {label: replace(cell, is_best=not cell.is_partial and cell.mean == best) for label, cell in column.items()}


def _caption(results: Results, cells: Mapping[str, Sequence[Cell | None]]) -> str:
    answers = [each.answer for each in results.settings]
    counts = sorted({max(row.n for row in found.rows) for found in answers if found.rows})
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
        parts.append(f"{FLATTERED} chosen on the rows of the score, which is optimistic")
    return f"{'. '.join(parts)}."


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    return (f"**{cell.text}**" if cell.is_best else cell.text) + in_markdown(cell.marks)


def _in_latex(text: str) -> str:
    escaped = in_latex(text)
    for sign in (AHEAD, BEHIND):
        escaped = escaped.replace(sign, f"${_LATEX_MARKS[sign]}$")
    return escaped


def _latex_cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    text = cell.text.replace("-", "$-$") if cell.text.startswith("-") else cell.text
    text = text.replace("±", r"$\pm$")
    signs = "".join(_LATEX_MARKS[mark] for mark in cell.marks)
    return (rf"\textbf{{{text}}}" if cell.is_best else text) + (f"$^{{{signs}}}$" if signs else "")
