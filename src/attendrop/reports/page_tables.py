"""Tables of the page that can be sorted: the methods, and the runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attendrop.reports.finished_runs import Results
from attendrop.reports.run_details import RunDetails
from attendrop.studies.answer import COLUMNS, SHIFTED_COLUMNS, cells
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.verdict import number

_SETTING = "setting"


class TableCell(NamedTuple):
    """Cell of a table: its text, the value to sort by (None: last), and the id that it links to."""

    text: str
    value: float | str | None
    link: str | None = None


@dataclass(frozen=True)
class SortableTable:
    """Table that can be sorted.

    Attributes:
        columns: Titles, and whether the column has numbers.
        rows: Cells.
        caption: What the columns are.
    """

    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[TableCell]]
    caption: str


def methods_table(results: Results) -> SortableTable:
    """Make the table of all methods in all settings."""
    several = len(results.settings) > 1
    setting = [(_SETTING, False)] if several else []
    first, *others = COLUMNS
    if any(each.answer.shifted for each in results.settings):
        others += SHIFTED_COLUMNS
    rows = []
    for each in results.settings:
        of_setting = [TableCell(each.name, each.name)] if several else []
        there = {} if each.answer.shifted is None else {row.label: row for row in each.answer.shifted.rows}
        for row in each.answer.rows:
            label, *found = map(TableCell, cells(row), _sort_values(row))
            if row.label in there:
                found += list(map(TableCell, cells(there[row.label]), _sort_values(there[row.label])))[2:4]
            found += [TableCell("-", None)] * (len(others) - len(found))
            rows.append([label, *of_setting, *found])
    references = (row.label for each in results.settings for row in each.answer.rows if row.is_reference)
    reference = next(references, "the reference, which has no score here")
    caption = (
        f"Mean ± standard deviation over seeds; difference from {reference}, seed by seed, with its 95 % interval on "
        "new rows, and on these; p value on new rows after Holm's correction; share of seeds in which it is ahead; "
        "time of training, relative."
    )
    return SortableTable([(first, False), *setting, *((title, True) for title in others)], rows, caption)


def _sort_values(row: MethodRow) -> list[float | str | None]:
    """Return what the cells of a row are sorted by, in the order of ``COLUMNS``."""
    found = row.difference
    gain = None if found is None else found.mean.value
    low = None if found is None else found.these_rows.low
    ahead = None if found is None else found.ahead
    return [row.label, row.n, row.mean if row.n else None, gain, low, row.p_holm, ahead, row.cost]


def runs_table(results: Results, details: Sequence[RunDetails], linked: Collection[str]) -> SortableTable:
    """Make the table of all runs.

    Args:
        results: The results.
        details: The runs.
        linked: Identifiers of the runs whose details are in the page.
    """
    several = len(results.settings) > 1
    setting = [(_SETTING, False)] if several else []
    numbers = ("seed", "score", "held-out score", "steps", "seconds")
    rows = []
    for run in details:
        of_setting = [TableCell(run.setting, run.setting)] if several else []
        found = [
            TableCell(str(run.seed), run.seed),
            _cell(run.score, number),
            _cell(run.selection_score, number),
            _cell(run.steps, lambda steps: f"{steps:g}"),
            _cell(run.seconds, lambda seconds: f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"),
        ]
        link = run.identifier if run.identifier in linked else None
        rows.append([TableCell(run.label, run.label, link), *of_setting, *found])
    caption = "A run's name leads to its options and curves."
    return SortableTable([("run", False), *setting, *((name, True) for name in numbers)], rows, caption)


def _cell(value: float | None, form: Callable[[float], str]) -> TableCell:
    return TableCell("-" if value is None else form(value), value)
