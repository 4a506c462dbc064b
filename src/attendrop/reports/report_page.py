"""The page of a report: its answer, its methods, its figures, and each run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import attendrop
from attendrop.methods.core.registry import flat_options
from attendrop.reports.attention_section import AttentionPart, PartOfSize
from attendrop.reports.figures import Chart
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.reports.results import FinishedRun, Results
from attendrop.reports.tables import ResultTable
from attendrop.studies.answer import COLUMNS, SHIFTED_COLUMNS, cells
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA
from attendrop.studies.verdict import MIN_SEEDS
from attendrop.studies.words import interval, number

if TYPE_CHECKING:
    from markupsafe import Markup

_STYLES, _SCRIPTS = ("report.css",), ("tables.js", "figures.js", "details.js")


class ReportPage(NamedTuple):
    """A page, and its part on attention; None: there is none."""

    html: str
    attention: AttentionPart | None


def report_page(
    results: Results,
    table: ResultTable,
    charts: Sequence[Chart],
    left_out: Sequence[str],
    attention: PartOfSize | None = None,
) -> ReportPage:
    """Make the page; if it would be larger than 6 MB, with the details of fewer runs.

    The section of attention gets what room the rest leaves.

    Args:
        results: The results.
        table: The table of all settings; shown if there are several, and a method has a score.
        charts: The figures.
        left_out: Which figures were not made, and why.
        attention: Makes the part on attention, which stands before that of the runs; None: there is none.
    """
    details = run_details(results)
    above = [
        Section("answer", "Answer", _answer(results)),
        *(_tables(results, table) if table.rows else []),
        Section("figures", "Figures", _figures(charts, left_out)),
    ]

    def page(kept: int, room: int) -> ReportPage:
        part = None if attention is None else attention(room)
        between = [] if part is None else [part.section]
        runs = [Section("runs", "Runs", _runs(results, details, kept))] if details else []
        title = f"Report of {results.folder.resolve().name}"
        every = [*above, *between, *runs]
        html = render_page(title, every, summary=_summary(results), styles=_STYLES, scripts=_SCRIPTS)
        return ReportPage(html, part)

    kept = len(details)
    least = page(kept, 0)
    while len(least.html.encode()) > MOST_BYTES and kept:
        kept //= 2
        least = page(kept, 0)
    room = MOST_BYTES - len(least.html.encode())
    return least if attention is None or room <= 0 else page(kept, room)


def _summary(results: Results) -> str:
    models = ", ".join(dict.fromkeys(Path(each.answer.model).name for each in results.settings))
    names = "; ".join(each.name for each in results.settings[:3])
    more = len(results.settings) - 3
    names += f"; and {more} more settings" if more > 0 else ""
    count = sum(sum(row.n for row in each.answer.rows) or len(each.runs) for each in results.settings)
    metrics = ", ".join(dict.fromkeys(each.answer.metric for each in results.settings))
    return f"{metrics} of {models} on {names}; {count} runs; attendrop {attendrop.__version__}."


def _answer(results: Results) -> Markup:
    rows = [(each.name, row) for each in results.settings for row in each.answer.rows]
    pairs = {(name, row.label): row.difference.n for name, row in rows if row.difference is not None}
    overall = []
    for row in results.overall:
        if len(row.p_values) < 2:
            continue
        judged = [p for name, p in row.p_values.items() if pairs[name, row.label] >= MIN_SEEDS]
        told = f"{sum(p <= ALPHA for p in judged)} of {len(judged)}" if judged else "too few seeds"
        mean = "-" if row.mean is None else interval(row.mean)
        overall.append((row.label, mean, told))
    return render("answer.html", settings=results.settings, overall=overall, notes=results.notes)


def _figures(charts: Sequence[Chart], left_out: Sequence[str]) -> Markup:
    figures = [(chart, f"figure-{count}", chart.picture()) for count, chart in enumerate(charts, 1)]
    groups = [(name, list(group)) for name, group in groupby(figures, key=lambda figure: figure[0].setting)]
    return render("figures.html", groups=groups, left_out=left_out)


def _tables(results: Results, table: ResultTable) -> list[Section]:
    methods = render("sortable_table.html", identifier="methods-table", table=methods_table(results))
    every = [Section("table", "Table", render("result_table.html", table=table))] if len(results.settings) > 1 else []
    return [Section("methods", "Methods", methods), *every]


def _runs(results: Results, details: Sequence[RunDetails], kept: int) -> Markup:
    shown = details[:kept]
    groups = [(title, list(group)) for title, group in groupby(shown, key=lambda run: run.group)]
    return render(
        "runs.html",
        table=runs_table(results, details, {run.identifier for run in shown}),
        groups=groups,
        common=common_options(results),
        hidden=len(details) - kept,
    )


# Tables that can be sorted ------------------------------------------------------------------------------------------

_SETTING = "setting"


class TableCell(NamedTuple):
    """Cell of a table: its text, the value to sort by (None: last), and the id that it links to."""

    text: str
    value: float | str | None
    link: str | None = None


class SortableTable(NamedTuple):
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
    compared = [None] * 3 if found is None else [found.mean.value, found.these_rows.low, found.ahead]
    gain, low, ahead = compared
    return [row.label, row.n, row.mean if row.n else None, gain, low, row.p_holm, ahead, row.cost]


def runs_table(results: Results, details: Sequence[RunDetails], linked: Collection[str]) -> SortableTable:
    """Make the table of all runs."""
    several = len(results.settings) > 1
    setting = [(_SETTING, False)] if several else []
    numbers = ("seed", "score", "held-out score", "steps", "seconds")
    rows = []
    for run in details:
        of_setting = [TableCell(run.setting, run.setting)] if several else []
        found = [
            TableCell(str(run.seed), run.seed),
            _sortable(run.score, number),
            _sortable(run.selection_score, number),
            _sortable(run.steps, lambda steps: f"{steps:g}"),
            _sortable(run.seconds, lambda seconds: f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"),
        ]
        link = run.identifier if run.identifier in linked else None
        rows.append([TableCell(run.label, run.label, link), *of_setting, *found])
    caption = "A run's name leads to its options and curves."
    return SortableTable([("run", False), *setting, *((name, True) for name in numbers)], rows, caption)


def _sortable(value: float | None, form: Callable[[float], str]) -> TableCell:
    return TableCell("-" if value is None else form(value), value)


# Details of runs ---------------------------------------------------------------------------------------------------

# The area of a curve, in the units of its SVG.
_WIDTH, _HEIGHT, _MARGIN = 200.0, 60.0, 4.0
# Told elsewhere: in the title of the run, or as the options of the method.
_NOT_SHOWN = ("method", "options", "seed", "output_dir")


class Curve(NamedTuple):
    """Curve of a run: the points of an SVG polyline, and what it shows in words."""

    points: str
    text: str


class RunDetails(NamedTuple):
    """A run in the page.

    Attributes:
        identifier: Its id in the page.
        label, setting, seed: What was run.
        group: Title of the runs of the same method and setting.
        title: Its seed and score.
        score, selection_score, steps, seconds: Of its ``metrics.json``; None if not known. A run whose epoch was chosen
            on the rows of its score has no selection score.
        values: Names and texts: its folder, all scores, and the options that not all runs have in common.
        curves: Its curves over epochs.
    """

    identifier: str
    label: str
    setting: str
    seed: int
    group: str
    title: str
    score: float | None
    selection_score: float | None
    steps: int | None
    seconds: float | None
    values: Sequence[tuple[str, str]]
    curves: Sequence[Curve]


def run_details(results: Results) -> list[RunDetails]:
    """Describe all runs, in the order of the settings, the methods and the seeds."""
    common = dict(common_options(results))
    runs = [(each.name, run) for each in results.settings for own in each.by_label.values() for run in own]
    several = len(results.settings) > 1
    return [
        _details(f"run-{count}", setting, run, common, several=several) for count, (setting, run) in enumerate(runs, 1)
    ]


def common_options(results: Results) -> list[tuple[str, str]]:
    """List the options that all runs have, with the same value."""
    options = [_options(run.metrics) for each in results.settings for run in each.runs]
    return [
        (name, value)
        for name, value in (options[0].items() if options else ())
        if all(found.get(name) == value for found in options)
    ]


def _options(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a run as texts: those that were given, replaced by what they resolved to."""
    given = {name: value for name, value in metrics["config"].items() if name not in _NOT_SHOWN}
    resolved = {"model": metrics["model"], **given, **(metrics.get("training") or {})}
    return {name: _text(value) for name, value in resolved.items() if value is not None}


def _details(
    identifier: str, setting: str, run: FinishedRun, common: Mapping[str, str], *, several: bool
) -> RunDetails:
    metrics = run.metrics
    score = _finite(metrics.get("score"))
    group = run.label + (f", {setting}" if several else "")
    title = f"Seed {run.seed}" + ("" if score is None else f": {metrics['metric']} {number(score)}")
    values = [("folder", run.folder)]
    for part, scores in metrics["all_scores"].items():
        values += [(f"{part} {name}", _text(value)) for name, value in scores.items()]
    if fit := metrics.get("train_fit"):
        values.append((f"{fit['metric']} on {fit['rows']} training rows", _text(fit["score"])))
    values += [(name, _text(value)) for name, value in flat_options(metrics["options"]).items()]
    values += [(name, value) for name, value in _options(metrics).items() if common.get(name) != value]
    return RunDetails(
        identifier,
        run.label,
        setting,
        run.seed,
        group,
        title,
        score,
        None if run.selects_on_reported else _finite(metrics.get("selection_score")),
        metrics.get("steps"),
        _finite(metrics.get("train_seconds")),
        values,
        _curves(run),
    )


def _curves(run: FinishedRun) -> list[Curve]:
    metric = str(run.metrics["metric"])
    scored, rows = run.selection_history, "evaluation" if run.selects_on_reported else "held-out"
    found = [
        ("training loss", [entry["train_loss"] for entry in run.history]),
        ("validation loss", [entry.get("selection_loss") for entry in scored]),
        (f"{metric} on {rows} rows", [entry["selection"].get(metric) for entry in scored]),
    ]
    return [curve for name, values in found if (curve := _curve(name, values)) is not None]


def _curve(name: str, values: Sequence[float | None]) -> Curve | None:
    known = [value for value in map(_finite, values) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    across = (_WIDTH - 2 * _MARGIN) / (len(known) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    points = " ".join(
        f"{_MARGIN + across * index:.1f},{_HEIGHT - _MARGIN - up * (value - low):.1f}"
        for index, value in enumerate(known)
    )
    between = f", between {number(low)} and {number(high)}"
    return Curve(points, f"{name}: {number(known[0])} to {number(known[-1])} in {len(known)} epochs{between}")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
