"""The page of a report: the decision with its figures, then the methods, the figures, and each run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

import attendrop
from attendrop.methods.core.registry import flat_options
from attendrop.reports.attention_section import PartOfSize
from attendrop.reports.charts import SCORES
from attendrop.reports.error_section import error_section
from attendrop.reports.figures import Chart, Picture
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.reports.results import ReportedRun, Results
from attendrop.reports.tables import ResultTable
from attendrop.studies.answer import COLUMNS, SHIFTED_COLUMNS, Answer, cells
from attendrop.studies.method_rows import MethodRow
from attendrop.studies.statistics import ALPHA
from attendrop.studies.units import REFERENCE
from attendrop.studies.verdict import MIN_SEEDS
from attendrop.studies.words import cost, ends, interval, number, signed
from attendrop.support.files import finite
from attendrop.wording import counted, decimals

_STYLES, _SCRIPTS = ("report.css",), ("tables.js", "figures.js", "details.js")
# More methods are counted, not named, in the sentence that says what was compared.
_MOST_NAMES = 6


def report_page(
    results: Results,
    table: ResultTable,
    charts: Sequence[Chart],
    left_out: Sequence[str],
    attention: PartOfSize | None = None,
) -> tuple[str, str]:
    """Make the page; if it would be larger than 6 MB, with the details of fewer runs.

    The table of all settings is shown if there are several, and a method has a score. The attention section, before
    that of the runs, gets the room that the rest leaves. Also returns what that section lacks.
    """
    drawn = [(chart, f"figure-{count}", chart.picture()) for count, chart in enumerate(charts, 1)]
    above = [Section("answer", "Answer", _answer(results, drawn)), error_section(results)]
    if table.rows and not results.of_one_run:
        methods = render("sortable_table.html", identifier="methods-table", table=methods_table(results))
        above.append(Section("methods", "Methods", methods))
    if table.rows and len(results.settings) > 1:
        above.append(Section("table", "Table", render("result_table.html", table=table)))
    groups = groupby((each for each in drawn if each[0].kind != SCORES), key=lambda each: each[0].setting)
    figures = render("figures.html", groups=[(name, list(group)) for name, group in groups], left_out=left_out)
    above.append(Section("figures", "Figures", figures))
    details = _run_details(results)

    def page(kept: int, room: int) -> tuple[str, str]:
        section, missing = (None, "") if attention is None else attention(room)
        runs = Section("runs", "Runs", _runs(results, details, kept)) if details else None
        title, every = f"Report of {results.folder.resolve().name}", [*above, section, runs]
        shown = [each for each in every if each is not None]
        return render_page(title, shown, summary=_summary(results), styles=_STYLES, scripts=_SCRIPTS), missing

    kept = len(details)
    least = page(kept, 0)
    while (room := MOST_BYTES - len(least[0].encode())) < 0 and kept:
        kept //= 2
        least = page(kept, 0)
    return least if attention is None or room <= 0 else page(kept, room)


def _summary(results: Results) -> str:
    models = ", ".join(dict.fromkeys(Path(each.answer.model).name for each in results.settings))
    names = "; ".join(each.name for each in results.settings[:3])
    more = len(results.settings) - 3
    names += f"; and {more} more settings" if more > 0 else ""
    count = sum(len(each.runs) for each in results.settings)
    metrics = ", ".join(dict.fromkeys(each.answer.metric for each in results.settings))
    return f"{metrics} of {models} on {names}; {counted(count, 'run')}; attendrop {attendrop.__version__}."


# The decision --------------------------------------------------------------------------------------------------------


def _answer(results: Results, drawn: Sequence[tuple[Chart, str, Picture]]) -> Markup:
    # The name of a setting may be that of another with another metric, which is the second column of the values.
    scores = {(each[0].setting, each[0].header[1]): each for each in drawn if each[0].kind == SCORES}
    shown = [
        {
            "name": each.name,
            "answer": each.answer,
            "compared": "" if results.of_one_run else _compared(each.answer),
            "numbers": _key_numbers(each.answer),
            "figure": scores.get((each.name, each.answer.metric)),
        }
        for each in results.settings
    ]
    rows = ((each.name, row) for each in results.settings for row in each.answer.rows)
    pairs = {(name, row.label): row.difference.n for name, row in rows if row.difference}
    overall, digits = [], max((each.answer.decimals for each in results.settings), default=0)
    for row in results.overall:
        if len(row.p_values) < 2:
            continue
        judged = [p for name, p in row.p_values.items() if pairs[name, row.label] >= MIN_SEEDS]
        told = f"{sum(p <= ALPHA for p in judged)} of {len(judged)}" if judged else "too few seeds"
        overall.append((row.label, "-" if row.mean is None else interval(row.mean, digits), told))
    return render("answer.html", settings=shown, overall=overall, notes=results.notes)


def _compared(found: Answer) -> str:
    """Describe in a sentence what was compared."""
    rows = found.rows
    tuned, baselines = ([row.label for row in rows if row.is_baseline is which] for which in (False, True))
    groups = [("fine-tuning method", tuned), ("baseline", baselines)]
    named = [
        counted(len(labels), what) + (f" ({', '.join(labels)})" if len(rows) <= _MOST_NAMES else "")
        for what, labels in groups
        if labels
    ]
    numbers = sorted({row.n for row in rows})
    seeds = (
        ""
        if not numbers
        else f", with {' to '.join(map(str, numbers[:: len(numbers) - 1 or 1]))} seed{'s' * (numbers[-1] > 1)} each"
    )
    return f"Compared: {' and '.join(named) or 'nothing'}{seeds}, by their {found.metric} on {found.scored_on}."


def _key_numbers(found: Answer) -> list[tuple[str, str, str]]:
    """Return the three numbers of a decision, each with a caption and a note: score, lead and cost."""
    rows, verdict = {row.label: row for row in found.rows}, found.verdict
    main = rows.get(verdict.use or verdict.challenger or "", next(iter(rows.values()), None))
    if main is None:
        return []
    spread = "one seed" if main.std is None else f"± {number(main.std, found.decimals)} over {main.n} seeds"
    numbers = [(number(main.mean, found.decimals), f"{found.metric} of {main.label}", spread)]
    if verdict.lead is not None and verdict.challenger is not None:
        span = ends(verdict.lead, found.decimals)
        note = "no interval on new rows" if span == "-" else f"95 % interval on new rows: {span}"
        difference = f"{verdict.challenger} minus {verdict.incumbent}"
        numbers.append((signed(verdict.lead.value, found.decimals), difference, note))
    reference = next((row.label for row in found.rows if row.is_reference), "the reference")
    reference = "plain fine-tuning" if reference == REFERENCE else reference
    pair = (rows.get(label or "", main) for label in (main.label, verdict.challenger, verdict.incumbent))
    if len(rows) > 1 and (timed := next((row for row in pair if not row.is_reference), None)) is not None:
        numbers.append((cost(timed), f"time of training of {timed.label}", f"relative to {reference}"))
    return numbers


# Tables that can be sorted ------------------------------------------------------------------------------------------


class TableCell(NamedTuple):
    """Cell of a table: its text, the value to sort by (None: last), and the id that it links to."""

    text: str
    value: float | str | None
    link: str | None = None


class SortableTable(NamedTuple):
    """Table that can be sorted: titles, each with whether its column has numbers, rows, and what the columns are."""

    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[TableCell]]
    caption: str


def methods_table(results: Results) -> SortableTable:
    """Make the table of all methods in all settings."""
    first, *others = COLUMNS
    if is_shifted := any(each.answer.shifted for each in results.settings):
        others += SHIFTED_COLUMNS
    rows = []
    for each in results.settings:
        unlike = each.answer.shifted
        there = {} if unlike is None else {row.label: _cells(row, unlike.decimals) for row in unlike.rows}
        for row in each.answer.rows:
            label, *found = _cells(row, each.answer.decimals)
            found += there.get(row.label, [])[2:4]
            found += [TableCell("-", None)] * (len(others) - len(found))
            rows.append([label, TableCell(each.name, each.name), *found])
    references = (row.label for each in results.settings for row in each.answer.rows if row.is_reference)
    reference = next(references, "the reference, which has no score here")
    caption = (
        f"Mean ± standard deviation over seeds; difference from {reference}, seed by seed, with its 95 % interval on "
        "new rows, and on these; p value on new rows after Holm's correction; share of seeds in which it is ahead; "
        "time of training, relative"
        + ("; score and difference on rows unlike the training rows." if is_shifted else ".")
    )
    return _table((first, "setting", *others), rows, caption, several=len(results.settings) > 1)


def _table(titles: Sequence[str], rows: list[list[TableCell]], caption: str, *, several: bool) -> SortableTable:
    """Make a table of numbers by name and by setting, unless there are not several."""
    columns = [(title, place > 1) for place, title in enumerate(titles)]
    if not several:
        columns, rows = columns[:1] + columns[2:], [row[:1] + row[2:] for row in rows]
    return SortableTable(columns, rows, caption)


def _cells(row: MethodRow, digits: int) -> list[TableCell]:
    """Return the cells of a row in the order of ``COLUMNS``; an interval stays on one line."""
    found = row.difference
    gain, low, ahead = (None,) * 3 if found is None else (found.mean.value, finite(found.these_rows.low), found.ahead)
    values = (row.label, row.n, row.mean if row.n else None, gain, low, row.p_holm, ahead, row.cost)
    texts = (text.replace(", ", ",\xa0").replace(" ± ", "\xa0±\xa0") for text in cells(row, digits)[1:])
    return list(map(TableCell, (row.label, *texts), values))


def _runs_table(details: Sequence[RunDetails], kept: int, *, several: bool) -> SortableTable:
    """Make the table of all runs; the names of those kept lead to their details."""
    rows = []
    for place, each in enumerate(details):
        metrics = each.run.metrics
        steps, seconds = metrics.get("steps"), finite(metrics.get("train_seconds"))
        rows.append(
            [
                TableCell(each.run.label, each.run.label, each.identifier if place < kept else None),
                TableCell(each.setting, each.setting),
                TableCell(str(each.run.seed), each.run.seed),
                TableCell(_number(each.score, each.decimals), each.score),
                TableCell(_number(each.selection_score, each.decimals), each.selection_score),
                TableCell("-" if steps is None else f"{steps:g}", steps),
                TableCell("-" if seconds is None else f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}", seconds),
            ]
        )
    titles = ("run", "setting", "seed", "score", "held-out score", "steps", "seconds")
    return _table(titles, rows, "A run's name leads to its options and curves.", several=several)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else number(value, digits)


# Details of runs ---------------------------------------------------------------------------------------------------

# The area of a curve, in the units of its SVG.
_WIDTH, _HEIGHT, _MARGIN = 200.0, 60.0, 4.0


class RunDetails(NamedTuple):
    """A run in the page.

    Attributes:
        identifier: Its id in the page.
        score, selection_score: None if not known. A run whose epoch was chosen on the rows of its score has no
            selection score.
        values: Names and texts: its folder, all scores, and the options that not all runs have in common.
        curves: Points of SVG polylines, each with what it shows in words.
    """

    identifier: str
    setting: str
    run: ReportedRun
    score: float | None
    selection_score: float | None
    values: Sequence[tuple[str, str]]
    curves: Sequence[tuple[str, str]]
    decimals: int


def _runs(results: Results, details: Sequence[RunDetails], kept: int) -> Markup:
    several = len(results.settings) > 1
    groups = groupby(details[:kept], key=lambda each: each.run.label + (f", {each.setting}" if several else ""))
    return render(
        "runs.html",
        table=_runs_table(details, kept, several=several),
        groups=[(title, list(group)) for title, group in groups],
        common=_common_options(results),
        number=number,
        hidden=len(details) - kept,
    )


def _run_details(results: Results) -> list[RunDetails]:
    """Describe all runs, in the order of the settings, the methods and the seeds."""
    common = dict(_common_options(results))
    runs = [(each, run) for each in results.settings for own in each.by_label.values() for run in own]
    found = []
    for count, (setting, run) in enumerate(runs, 1):
        metrics = run.metrics
        selected = None if run.selects_on_reported else finite(metrics.get("selection_score"))
        values = [("folder", run.folder)]
        for part, scores in metrics["all_scores"].items():
            values += [(f"{part} {name}", _text(value)) for name, value in scores.items()]
        if fit := metrics.get("train_fit"):
            values.append((f"{fit['metric']} on {fit['rows']} training rows", _text(fit["score"])))
        values += [(name, _text(value)) for name, value in flat_options(metrics["options"]).items()]
        values += [(name, value) for name, value in _options(run).items() if common.get(name) != value]
        score = finite(metrics.get("score"))
        about = (score, selected, values, _curves(run), setting.answer.decimals)
        found.append(RunDetails(f"run-{count}", setting.name, run, *about))
    return found


def _common_options(results: Results) -> list[tuple[str, str]]:
    """List the options that all runs have, with the same value."""
    options = [_options(run) for each in results.settings for run in each.runs]
    first = options[0] if options else {}
    return [item for item in first.items() if all(found.get(item[0]) == item[1] for found in options)]


def _options(run: ReportedRun) -> dict[str, str]:
    """Return the options of a run as texts: those that were given, replaced by what they resolved to."""
    resolved = {"model": run.metrics["model"], **run.options, **(run.metrics.get("training") or {})}
    return {name: _text(value) for name, value in resolved.items() if value is not None}


def _curves(run: ReportedRun) -> list[tuple[str, str]]:
    metric = str(run.metrics["metric"])
    scored, rows = run.selection_history, "evaluation" if run.selects_on_reported else "held-out"
    found = [
        ("training loss", [entry["train_loss"] for entry in run.history]),
        ("validation loss", [entry.get("selection_loss") for entry in scored]),
        (f"{metric} on {rows} rows", [entry["selection"].get(metric) for entry in scored]),
    ]
    return [curve for name, values in found if (curve := _curve(name, values)) is not None]


def _curve(name: str, values: Sequence[float | None]) -> tuple[str, str] | None:
    known = [value for value in map(finite, values) if value is not None]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    across = (_WIDTH - 2 * _MARGIN) / (len(known) - 1)
    up = (_HEIGHT - 2 * _MARGIN) / ((high - low) or 1.0)
    points = " ".join(
        f"{_MARGIN + across * index:.1f},{_HEIGHT - _MARGIN - up * (value - low):.1f}"
        for index, value in enumerate(known)
    )
    digits = decimals(max(abs(low), abs(high)) / 100, 3)
    first, last, least, most = (number(value, digits) for value in (known[0], known[-1], low, high))
    return points, f"{name}: {first} to {last} in {len(known)} epochs, between {least} and {most}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
