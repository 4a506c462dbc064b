"""Report of a study or a comparison: tables, figures and a page, in a folder of their own.

Pages are self-contained: styles, figures and the library that draws them in one file, which needs no network. Every
value that is put into a template of ``templates/`` is escaped. The page forbids the browser to load anything, and to
run scripts other than its own two (Content-Security-Policy): Vega, which draws the figures, and the lines that call it.
Vega interprets its expressions (``ast``), so that no text can become code.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import attendrop
from attendrop.errors import AttendropError
from attendrop.reports.figures import SCORES, Figure, make_figures
from attendrop.reports.tables import ResultTable, make_result_table
from attendrop.studies.answer import Answer, cost, ends, name, number, signed
from attendrop.studies.executor import LABEL
from attendrop.studies.results import ReportedSetting, Results, read_results
from attendrop.support.files import check_writable, finite, sha256, write_bytes, write_json
from attendrop.tasks.error_analysis import remarks, worst_classes
from attendrop.wording import counted

# Maximum size of an HTML page, in bytes; Vega has 0.9 million of them.
MOST_BYTES = 6_000_000
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# JSON within a script element: no end of the element, and no line separators, which scripts once took for line ends.
_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
_DRAW = """
(async () => {
  const theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : undefined;
  const actions = {export: true, source: false, compiled: false, editor: false};
  for (const place of document.querySelectorAll("[data-chart]")) {
    const spec = JSON.parse(document.getElementById(place.dataset.chart).textContent);
    const renderer = place.dataset.renderer || "svg";
    await vegaEmbed(place, spec, {ast: true, theme, renderer, actions, config: {background: "transparent"}});
  }
})();
"""


@dataclass(frozen=True)
class Section:
    """Section of a page: its id, for links, its heading, its HTML, from :func:`render`, and its figures in Vega-Lite.

    An element with ``data-chart="ID"`` shows the figure of this id.
    """

    identifier: str
    heading: str
    content: Markup
    charts: Mapping[str, Any] = field(default_factory=dict)


def render(macro: str, **values: Any) -> Markup:
    """Fill a macro of ``templates/sections.html``; values are escaped, unless they are ``Markup``."""
    return Markup(getattr(_ENVIRONMENT.get_template("sections.html").module, macro)(**values))


def render_page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """Make the HTML of a page of sections, with a title and a sentence below it."""
    charts = {name: script_json(chart) for section in sections for name, chart in section.charts.items()}
    scripts: list[str] = []
    if charts:
        from vl_convert import javascript_bundle

        scripts = [javascript_bundle(), _DRAW]  # type: ignore[call-arg]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    scripts, told = [Markup(script) for script in scripts], {"title": title, "summary": summary}
    template = _ENVIRONMENT.get_template("page.html")
    page = template.render(sections=sections, charts=charts, scripts=scripts, hashes=hashes, **told)
    # Half of a character, as JSON may hold, has no encoding.
    return page.encode("utf-8", "replace").decode()


def script_json(value: Any) -> Markup:
    """Write a value as JSON that may stand in a ``<script>`` element; NaN and infinite numbers become null."""
    text = json.dumps(finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_ESCAPES))


PAGE = "report.html"
# Lists the files of a report with their hashes; written last.
CONTENTS = "report.json"


@dataclass(frozen=True)
class Report:
    """Written report.

    Attributes:
        files: Names of the files, the page first.
        left_out: Which figures or tables were not made, and why: a line for each.
    """

    folder: Path
    results: Results
    files: tuple[str, ...]
    left_out: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "folder": str(self.folder),
            "page": str(self.folder / PAGE),
            "files": list(self.files),
            "not_made": list(self.left_out),
            "answers": {each.name: list(each.answer.sentences) for each in self.results.settings},
            "notes": list(self.results.notes),
        }


def write_report(
    folder: str | Path,
    output: str | Path | None = None,
    *,
    reference: str | None = None,
    overwrite: bool = False,
) -> Report:
    """Write the tables, the figures and the page of a study or a comparison.

    Files of an earlier report in the same folder are replaced, and deleted if this one has none of their names.

    Args:
        folder: Folder of the study or the comparison.
        output: Folder of the report. None: ``report`` in the former.
        reference: See :func:`attendrop.studies.results.read_results`.
        overwrite: Also replace files with these names that no report wrote, or that were changed since.

    Raises:
        AttendropError: There is nothing to report, the output is a file or holds files that would be replaced, or
            Altair is not installed.
    """
    folder = Path(folder)
    output = folder / "report" if output is None else Path(output)
    if output.exists() and not output.is_dir():
        raise AttendropError(f"The output '{output}' is a file; name a folder.")
    check_writable(output)
    results = read_results(folder, reference)
    if not results.settings:
        raise AttendropError(f"'{folder}' holds no finished run; name the folder of a study or a comparison.")
    figures, left_out = make_figures(results)
    table = make_result_table(results)
    sections = _sections(results, table, figures)
    answers = [each.answer for each in results.settings]
    models = ", ".join(dict.fromkeys(Path(each.model).name for each in answers))
    rows = list(dict.fromkeys(each.scored_on for each in answers))
    rows_told = "; ".join(rows[:3]) + (f"; and {len(rows) - 3} more" if len(rows) > 3 else "")
    metrics = ", ".join(dict.fromkeys(each.metric for each in answers))
    runs = counted(sum(len(each.runs) for each in results.settings), "run")
    summary = f"{metrics} of {models} on {rows_told}; {runs}; attendrop {attendrop.__version__}."
    page = render_page(f"Report of {results.folder.resolve().name}", sections, summary=summary)
    contents = {PAGE: page.encode()}
    if len(table.cells):
        tables = {"table.md": table.markdown(), "table.tex": table.latex(), "table.csv": table.csv()}
        contents |= {file: text.encode("utf-8", "replace") for file, text in tables.items()}
    else:
        left_out.append("Tables: no run has a score on evaluation rows.")
    several = len({figure.setting for figure in figures if figure.setting}) > 1
    for figure in figures:
        details = filter(None, (figure.detail, figure.setting if several else ""))
        slugs = [re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")[:60] for text in details]
        stem = whole = "-".join([figure.kind, *slugs])
        count = 1
        while f"{stem}.svg" in contents:  # names that differ in punctuation, other letters or their ends only
            count += 1
            stem = f"{whole}-{count}"
        contents |= {f"{stem}.{suffix}": content for suffix, content in figure.files().items()}
    # Write them, and delete those that only an earlier report had.
    try:
        found = json.loads((output / CONTENTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        found = {}
    found = found if isinstance(found, dict) else {}
    earlier = {file: digest for file, digest in found.items() if Path(file).name == file}
    names = [file for file in {**earlier, **contents} if (output / file).exists()]
    foreign = [file for file in names if sha256(output / file) != earlier.get(file)]
    if foreign and not overwrite:
        raise AttendropError(
            f"'{output}' holds files that no report wrote, or that were changed since: {', '.join(sorted(foreign))}. "
            "--overwrite replaces them, or name another --output-dir."
        )
    output.mkdir(parents=True, exist_ok=True)
    record = earlier
    for file, content in contents.items():
        write_bytes(output / file, content)
        record = record | {file: hashlib.sha256(content).hexdigest()}
        write_json(output / CONTENTS, record)  # after each, so that an interrupted report is known as one
    for file in earlier.keys() - contents.keys():
        if file not in foreign:
            (output / file).unlink(missing_ok=True)
    write_json(output / CONTENTS, {file: record[file] for file in contents})
    return Report(output, results, tuple(contents), tuple(left_out))


# The page: the decision with its figures, then errors, methods, figures, and each run --------------------------------


def _sections(results: Results, table: ResultTable, figures: Sequence[Figure]) -> list[Section]:
    """Make the sections of the page."""
    drawn = [(figure, f"figure-{count}") for count, figure in enumerate(figures, 1)]
    above, below = ([each for each in drawn if (each[0].kind == SCORES) is is_above] for is_above in (True, False))
    # The name of a setting may be that of another with another metric, which is the second column of the values.
    of_setting = {(figure.setting, figure.values.columns[1]): (figure, identifier) for figure, identifier in above}
    settings = [
        (each, each.answer, _key_numbers(each.answer), of_setting.get((each.name, each.answer.metric)))
        for each in results.settings
    ]
    content = render("answer", settings=settings, remarks=results.notes)
    sections = [Section("answer", "Answer", content, {identifier: figure.spec() for figure, identifier in above})]
    if results.encoders is not None:
        header, *lines = results.encoders.table()
        caption = " ".join([*results.encoders.sentences, f"The table: {results.encoders.title[:-1]}."])
        content = render("captioned", caption=caption, header=header, rows=lines, right=1)
        sections.append(Section("encoders", "Encoders", content))
    if errors := [part for each in results.settings if (part := _errors(results, each))]:
        sections.append(Section("errors", "What goes wrong", render("errors", parts=errors)))
    if len(results.settings) > 1 and len(table.cells):
        wide = table.wide(lambda text, _, marks: text + marks)
        shown = {"caption": table.caption, "header": ("method", *table.headers), "rows": wide, "right": 1}
        sections.append(Section("table", "Table", render("captioned", **shown)))
    groups = [(setting, list(group)) for setting, group in groupby(below, key=lambda each: each[0].setting)]
    content = render("figures", groups=groups)
    sections.append(Section("figures", "Figures", content, {identifier: figure.spec() for figure, identifier in below}))
    several, rows = len(results.settings) > 1, []
    for setting in results.settings:
        for run in (run for own in setting.by_label.values() for run in own):
            # A run whose epoch was chosen on the rows of its score has no selection score.
            selected = None if run.get("protocol") == "paper" else run.get("selection_score")
            values = [finite(value) for value in (run.get("score"), selected)]
            told = ["-" if value is None else number(value, setting.answer.decimals) for value in values]
            own = [run[LABEL], *([setting.name] if several else []), str(run["seed"])]
            rows.append([*own, *told, run["folder"]])
    names = ["run", *(["setting"] if several else []), "seed", "score", "held-out score", "folder"]
    caption = "A run's folder has its options, `run.yaml`, and its curves, `metrics.json`."
    content = render("captioned", caption=caption, header=names, rows=rows, right=1 + several)
    return [*sections, Section("runs", "Runs", content)]


def _key_numbers(found: Answer) -> list[tuple[str, str, str]]:
    """Return the three numbers of a decision, each with a caption and a note: score, lead and cost."""
    verdict = found.verdict
    main = verdict.use or verdict.candidate or next(iter(found.rows), None)
    if main is None:
        return []
    spread = "one seed" if main.std is None else f"± {number(main.std, found.decimals)} over {main.n} seeds"
    numbers = [(number(main.mean, found.decimals), f"{found.metric} of {main.label}", spread)]
    if verdict.lead is not None and verdict.candidate is not None and verdict.reference is not None:
        span = ends(verdict.lead.mean, found.decimals)
        note = "no 95 % CI (seeds × examples)" if span == "-" else f"95 % CI (seeds × examples): {span}"
        difference = f"{verdict.candidate.label} minus {verdict.reference.label}"
        numbers.append((signed(verdict.lead.mean.value, found.decimals), difference, note))
    reference = next((name(row.label) for row in found.rows if row.is_reference), "the reference")
    pair = (row or main for row in (main, verdict.candidate, verdict.reference))
    if len(found.rows) > 1 and (timed := next((row for row in pair if not row.is_reference), None)) is not None:
        numbers.append((cost(timed), f"time of training of {timed.label}", f"relative to {reference}"))
    return numbers


def _errors(results: Results, setting: ReportedSetting) -> dict[str, Any] | None:
    """Describe the errors of the first run of the recommended method, otherwise of the best one that knows them.

    Classes, confusions and errors are the first of those in its ``metrics.json``.
    """
    scores = {row.label: row.mean for row in setting.answer.rows}
    runs = setting.by_label
    labels = sorted(runs, key=lambda label: (label != setting.answer.use, -scores.get(label, -math.inf)))
    run = next((run for label in labels for run in runs[label] if run.get("report")), None)
    if run is None:
        return None
    report = run["report"]
    worst = [each for each in worst_classes(report) if each["rows"]][:12]
    confusions = report.get("confusions", ())[:8]
    setting_told = f", {setting.name}" if len(results.settings) > 1 else ""
    rates = ("precision", "recall", "f1")
    return {
        "title": f"{run[LABEL]}, seed {run['seed']}{setting_told}",
        "classes": [
            (each["class"], each["rows"], each["predicted"], *(f"{each[rate]:.2f}" for rate in rates)) for each in worst
        ],
        "confusions": [(each["class"], each["predicted"], each["rows"]) for each in confusions],
        "sentences": remarks(report),
        "errors": report.get("errors", ())[:5],
    }
