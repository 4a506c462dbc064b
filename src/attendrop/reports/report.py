"""Report of a study or a comparison: tables, figures and a page, in a folder of their own."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import attendrop
from attendrop.errors import AttendropError
from attendrop.reports.attention_viewer import DEFAULT_VIEWER, ViewerOptions, attention_part
from attendrop.reports.figures import SCORES, Figure, make_figures
from attendrop.reports.page import MOST_BYTES, Section, render, render_page
from attendrop.reports.results import ReportedSetting, Results, read_results
from attendrop.reports.tables import ResultTable, make_result_table
from attendrop.runs.run_folder import check_writable
from attendrop.studies.answer import COLUMNS, OOD_COLUMNS, Answer, cells
from attendrop.studies.run_specs import REFERENCE
from attendrop.studies.statistics import ALPHA
from attendrop.studies.verdict import MIN_SEEDS, cost, ends, interval, number, signed
from attendrop.support.files import finite, sha256, write_bytes, write_json
from attendrop.tasks.error_analysis import remarks, worst_classes
from attendrop.wording import counted

FOLDER = "report"
PAGE = "report.html"
# Lists the files of a report with their hashes; written last.
CONTENTS = "report.json"
_LONGEST_SLUG = 60
# More methods are counted, not named, in the sentence that says what was compared.
_MOST_NAMES = 6
# Classes, confusions and errors of a setting that are shown; metrics.json has more.
_CLASSES, _CONFUSIONS, _ERRORS = 12, 8, 5


@dataclass(frozen=True)
class Report:
    """Written report.

    Attributes:
        files: Names of the files, the page first.
        left_out: Which figures, tables or viewer were not made, and why: a line for each.
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
    viewer: ViewerOptions | None = DEFAULT_VIEWER,
) -> Report:
    """Write the tables, the figures and the page of a study or a comparison.

    Files of an earlier report in the same folder are replaced.

    Args:
        folder: Folder of the study or the comparison.
        output: Folder of the report. None: ``report`` in the former.
        reference: See :func:`attendrop.reports.results.read_results`.
        overwrite: Also replace files with these names that no report wrote, or that were changed since.
        viewer: What the attention viewer shows of the model that a comparison kept; None: there is no viewer.

    Raises:
        AttendropError: There is nothing to report, the output is a file or holds files that would be replaced, or
            Altair is not installed; or texts for the viewer are given and cannot be shown.
    """
    folder = Path(folder)
    output = folder / FOLDER if output is None else Path(output)
    if output.exists() and not output.is_dir():
        raise AttendropError(f"The output '{output}' is a file; name a folder.")
    check_writable(output)
    results = read_results(folder, reference)
    figures, missing = make_figures(results)
    # Most figures compare runs: of a single one, those that can be made are all there is to say.
    left_out = [] if results.of_one_run else missing
    table = make_result_table(results)
    sections = _sections(results, table, figures, left_out)
    if viewer is not None:
        room = MOST_BYTES - len(_page(results, sections).encode())
        attention, reason = attention_part(results, viewer, room)
        sections.insert(-1, attention)
    contents = {PAGE: _page(results, sections).encode()}
    if len(table.cells):
        texts = {"table.md": table.markdown(), "table.tex": table.latex(), "table.csv": table.csv()}
        contents |= {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    elif not results.of_one_run:
        left_out.append("Tables: no run has a score on evaluation rows.")
    for name, figure in _named(figures).items():
        contents |= {f"{name}.{suffix}": content for suffix, content in figure.files().items()}
    _write(output, contents, overwrite=overwrite)
    if viewer is not None and reason:
        left_out.append(f"Attention viewer: {reason}")
    return Report(output, results, tuple(contents), tuple(left_out))


def _named(figures: Sequence[Figure]) -> dict[str, Figure]:
    """Name the files of figures by their content and subject, and by their setting if there are several.

    A digest replaces what is too long, has other letters, or differs from another name in punctuation only.
    """
    several = len({figure.setting for figure in figures if figure.setting}) > 1

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]

    names: dict[str, Figure] = {}
    for figure in figures:
        details, parts = (figure.detail, figure.setting if several else ""), [figure.kind]
        for text in filter(None, details):
            slug = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
            is_whole = text.isascii() and len(slug) <= _LONGEST_SLUG
            parts.append(slug if is_whole else f"{slug[:_LONGEST_SLUG]}_{digest(text)}".lstrip("_"))
        name = "-".join(parts)
        names[f"{name}-{digest(' '.join(details))}" if name in names else name] = figure
    return names


def _write(output: Path, contents: Mapping[str, bytes], *, overwrite: bool) -> None:
    """Write files, and delete those that only an earlier report had."""
    try:
        found = json.loads((output / CONTENTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        found = {}
    earlier = {name: digest for name, digest in found.items() if Path(name).name == name}
    names = [name for name in {**earlier, **contents} if (output / name).exists()]
    foreign = [name for name in names if sha256(output / name) != earlier.get(name)]
    if foreign and not overwrite:
        raise AttendropError(
            f"'{output}' holds files that no report wrote, or that were changed since: {', '.join(sorted(foreign))}. "
            "--overwrite replaces them, or name another --output-dir."
        )
    output.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_bytes(output / name, content)
    for name in earlier.keys() - contents.keys():
        if name not in foreign:
            (output / name).unlink(missing_ok=True)
    write_json(output / CONTENTS, {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})


# The page: the decision with its figures, then errors, methods, figures, and each run --------------------------------


def _page(results: Results, sections: Sequence[Section]) -> str:
    models = ", ".join(dict.fromkeys(Path(each.answer.model).name for each in results.settings))
    names = "; ".join(each.name for each in results.settings[:3])
    names += f"; and {len(results.settings) - 3} more settings" if len(results.settings) > 3 else ""
    count = counted(sum(len(each.runs) for each in results.settings), "run")
    metrics = ", ".join(dict.fromkeys(each.answer.metric for each in results.settings))
    summary = f"{metrics} of {models} on {names}; {count}; attendrop {attendrop.__version__}."
    return render_page(f"Report of {results.folder.resolve().name}", sections, summary=summary)


def _sections(
    results: Results, table: ResultTable, figures: Sequence[Figure], left_out: Sequence[str]
) -> list[Section]:
    """Make the sections of the page; the last one is about the runs."""
    drawn = [(figure, f"figure-{count}") for count, figure in enumerate(figures, 1)]
    charts = {identifier: figure.spec() for figure, identifier in drawn}
    above = [(figure, identifier) for figure, identifier in drawn if figure.kind == SCORES]
    content = _answer(results, above)
    sections = [Section("answer", "Answer", content, {identifier: charts[identifier] for _, identifier in above})]
    if errors := [part for each in results.settings if (part := _errors(results, each))]:
        sections.append(Section("errors", "What goes wrong", render("report.html", "errors", parts=errors)))
    if len(table.cells) and not results.of_one_run:
        header, rows, caption = methods_table(results)
        shown = {"caption": caption, "header": header, "rows": rows, "right": 1 + (len(results.settings) > 1)}
        sections.append(Section("methods", "Methods", render("report.html", "captioned", **shown)))
        if len(results.settings) > 1:
            rows = table.wide(lambda text, _, marks: text + marks)
            shown = {"caption": table.caption, "header": ("method", *table.headers), "rows": rows, "right": 1}
            sections.append(Section("table", "Table", render("report.html", "captioned", **shown)))
    below = [each for each in drawn if each not in above]
    groups = [(name, list(group)) for name, group in groupby(below, key=lambda each: each[0].setting)]
    content = render("report.html", "figures", groups=groups, left_out=left_out)
    sections.append(Section("figures", "Figures", content, {identifier: charts[identifier] for _, identifier in below}))
    return [*sections, Section("runs", "Runs", _runs(results))]


def _answer(results: Results, drawn: Sequence[tuple[Figure, str]]) -> Any:
    # The name of a setting may be that of another with another metric, which is the second column of the values.
    found = {(figure.setting, figure.values.columns[1]): (figure, identifier) for figure, identifier in drawn}
    shown = [
        {
            "name": each.name,
            "answer": each.answer,
            "compared": "" if results.of_one_run else _compared(each.answer),
            "numbers": _key_numbers(each.answer),
            "figure": found.get((each.name, each.answer.metric)),
        }
        for each in results.settings
    ]
    rows = ((each.name, row) for each in results.settings for row in each.answer.rows)
    pairs = {(name, row.label): row.difference.n for name, row in rows if row.difference}
    overall, digits = [], max((each.answer.decimals for each in results.settings), default=0)
    for row in results.overall:
        if len(row.p_values) > 1:
            judged = [p for name, p in row.p_values.items() if pairs[name, row.label] >= MIN_SEEDS]
            told = f"{sum(p <= ALPHA for p in judged)} of {len(judged)}" if judged else "too few seeds"
            overall.append((row.label, "-" if row.mean is None else interval(row.mean, digits), told))
    return render("report.html", "answer", settings=shown, overall=overall, remarks=results.notes)


def _compared(found: Answer) -> str:
    """Describe in a sentence what was compared."""
    named = []
    for what, is_baseline in (("fine-tuning method", False), ("baseline", True)):
        if labels := [row.label for row in found.rows if row.is_baseline is is_baseline]:
            listed = f" ({', '.join(labels)})" if len(found.rows) <= _MOST_NAMES else ""
            named.append(counted(len(labels), what) + listed)
    seeds, counts = "", sorted({row.n for row in found.rows})
    if counts:
        few = f"{counts[0]} to " if len(counts) > 1 else ""
        seeds = f", with {few}{counted(counts[-1], 'seed')} each"
    return f"Compared: {' and '.join(named) or 'nothing'}{seeds}, by their {found.metric} on {found.scored_on}."


def _key_numbers(found: Answer) -> list[tuple[str, str, str]]:
    """Return the three numbers of a decision, each with a caption and a note: score, lead and cost."""
    rows, verdict = {row.label: row for row in found.rows}, found.verdict
    main = rows.get(verdict.use or verdict.candidate or "", next(iter(rows.values()), None))
    if main is None:
        return []
    spread = "one seed" if main.std is None else f"± {number(main.std, found.decimals)} over {main.n} seeds"
    numbers = [(number(main.mean, found.decimals), f"{found.metric} of {main.label}", spread)]
    if verdict.lead is not None and verdict.candidate is not None:
        span = ends(verdict.lead, found.decimals)
        note = "no 95 % CI (seeds × examples)" if span == "-" else f"95 % CI (seeds × examples): {span}"
        difference = f"{verdict.candidate} minus {verdict.reference}"
        numbers.append((signed(verdict.lead.value, found.decimals), difference, note))
    reference = next((row.label for row in found.rows if row.is_reference), "the reference")
    reference = "plain fine-tuning" if reference == REFERENCE else reference
    pair = (rows.get(label or "", main) for label in (main.label, verdict.candidate, verdict.reference))
    if len(rows) > 1 and (timed := next((row for row in pair if not row.is_reference), None)) is not None:
        numbers.append((cost(timed), f"time of training of {timed.label}", f"relative to {reference}"))
    return numbers


def _errors(results: Results, setting: ReportedSetting) -> dict[str, Any] | None:
    """Describe the errors of the first run of the recommended method, otherwise of the best one that knows them."""
    scores = {row.label: row.mean for row in setting.answer.rows if row.n}
    runs = setting.by_label
    labels = sorted(runs, key=lambda label: (label != setting.answer.use, -scores.get(label, -math.inf)))
    run = next((run for label in labels for run in runs[label] if run.metrics.get("report")), None)
    if run is None:
        return None
    report = run.metrics["report"]
    worst = [each for each in worst_classes(report) if each["rows"]]
    rates = ("precision", "recall", "f1")
    confusions = report.get("confusions", ())[:_CONFUSIONS]
    return {
        "title": f"{run.label}, seed {run.seed}" + (f", {setting.name}" if len(results.settings) > 1 else ""),
        "classes": [
            (each["class"], each["rows"], each["predicted"], *(f"{each[name]:.2f}" for name in rates))
            for each in worst[:_CLASSES]
        ],
        "hidden": len(worst[_CLASSES:]),
        "confusions": [(each["class"], each["predicted"], each["rows"]) for each in confusions],
        "sentences": remarks(report),
        "errors": report.get("errors", ())[:_ERRORS],
    }


def methods_table(results: Results) -> tuple[list[str], list[list[str]], str]:
    """Make the table of all methods in all settings: its header, its rows, and what the columns are."""
    first, *others = COLUMNS
    if has_ood := any(each.answer.ood for each in results.settings):
        others += OOD_COLUMNS
    several, rows = len(results.settings) > 1, []
    for each in results.settings:
        unlike = each.answer.ood
        there = {} if unlike is None else {row.label: cells(row, unlike.decimals) for row in unlike.rows}
        for row in each.answer.rows:
            label, *found = cells(row, each.answer.decimals)
            found += there.get(row.label, [])[2:4]
            found += ["-"] * (len(others) - len(found))
            # An interval stays on one line.
            texts = (text.replace(", ", ",\xa0").replace(" ± ", "\xa0±\xa0") for text in found)
            rows.append([label, *([each.name] if several else []), *texts])
    references = (row.label for each in results.settings for row in each.answer.rows if row.is_reference)
    reference = next(references, "the reference, which has no score here")
    caption = (
        f"Mean ± standard deviation over seeds; difference from {reference}, seed by seed, with its 95 % intervals "
        "over seeds and examples, and over seeds only; p value after Holm's correction; share of seeds in which it is "
        f"ahead; time of training, relative{'; the same on the out-of-distribution split' if has_ood else ''}."
    )
    return [first, *(["setting"] if several else []), *others], rows, caption


def _runs(results: Results) -> Any:
    """Show all runs with their folders, in the order of the settings, the methods and the seeds."""
    several, rows = len(results.settings) > 1, []
    for setting in results.settings:
        for run in (run for own in setting.by_label.values() for run in own):
            # A run whose epoch was chosen on the rows of its score has no selection score.
            selected = None if run.selects_on_reported else run.metrics.get("selection_score")
            values = [finite(value) for value in (run.metrics.get("score"), selected, run.metrics.get("train_seconds"))]
            *scores, seconds = values
            told = ["-" if value is None else number(value, setting.answer.decimals) for value in scores]
            steps = run.metrics.get("steps")
            told += ["-" if steps is None else f"{steps:g}", "-" if seconds is None else f"{seconds:.3g}"]
            rows.append([run.label, *([setting.name] if several else []), str(run.seed), *told, run.folder])
    header = ["run", *(["setting"] if several else []), "seed", "score", "held-out score", "steps", "seconds", "folder"]
    caption = "A run's folder has its options, `run.yaml`, and its curves, `metrics.json`."
    return render("report.html", "captioned", caption=caption, header=header, rows=rows, right=1 + several)
