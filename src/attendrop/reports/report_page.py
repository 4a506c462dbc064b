"""The page of a study or a comparison: its answer, its methods, its figures, and each run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import attendrop
from attendrop.reports.attention_section import AttentionPart, PartOfSize
from attendrop.reports.charts.chart import Chart
from attendrop.reports.finished_runs import Results
from attendrop.reports.html_page import MOST_BYTES, Section, render, render_page
from attendrop.reports.page_tables import methods_table, runs_table
from attendrop.reports.result_table import ResultTable
from attendrop.reports.run_details import RunDetails, common_options, run_details
from attendrop.studies.statistics import ALPHA
from attendrop.studies.verdict import MIN_SEEDS, interval

if TYPE_CHECKING:
    from markupsafe import Markup

_STYLES, _SCRIPTS = ("report.css",), ("tables.js", "figures.js", "details.js")


class PageFigure(NamedTuple):
    """A chart in the page."""

    chart: Chart
    identifier: str
    svg: Markup


class ReportPage(NamedTuple):
    """A page.

    Attributes:
        html: The page.
        attention: Its part on attention; None: there is none.
    """

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


def _tables(results: Results, table: ResultTable) -> list[Section]:
    methods = render("sortable_table.html", identifier="methods-table", table=methods_table(results))
    every = [Section("table", "Table", render("result_table.html", table=table))] if len(results.settings) > 1 else []
    return [Section("methods", "Methods", methods), *every]


def _figures(charts: Sequence[Chart], left_out: Sequence[str]) -> Markup:
    from markupsafe import Markup

    figures = []
    for count, chart in enumerate(charts, 1):
        identifier = f"figure-{count}"
        figures.append(PageFigure(chart, identifier, Markup(chart.inline_svg(identifier))))
    groups = [(name, list(group)) for name, group in groupby(figures, key=lambda figure: figure.chart.setting)]
    return render("figures.html", groups=groups, left_out=left_out)


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
