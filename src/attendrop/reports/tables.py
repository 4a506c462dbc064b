"""The table of methods on tasks, for papers and for the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from attendrop.studies.answer import MIN_SEEDS, number
from attendrop.studies.results import Results
from attendrop.studies.statistics import ALPHA
from attendrop.wording import NAMES_LEFT, csv_table, in_latex, in_markdown, markdown_table

AHEAD, BEHIND, FLATTERED = "†", "‡", "*"
_LATEX_MARKS = {AHEAD: r"\dagger", BEHIND: r"\ddagger", FLATTERED: r"\ast"}
_AVERAGE = "average"
_CSV = ["method", "setting", "metric", "seeds", "mean", "std", "best", "marks"]


@dataclass(frozen=True)
class ResultTable:
    """Scores of methods on tasks.

    Attributes:
        cells: For each method and column of the table: ``method``, ``column`` (its number), ``setting``, ``metric``,
            ``seeds``, ``mean``, ``std`` (None for one seed, and for an average), ``text`` (both, and the number of
            seeds where other methods have more), ``best`` (1 if no other mean of the column is higher, of those with
            all seeds), ``marks`` (signs for the difference from the reference and for scores that flatter).
        methods: Labels in the order of the rows.
        headers: Names of the settings with their metrics where these differ, and "average" if the settings differ in
            the task alone and their scores are not errors.
    """

    cells: Sequence[Mapping[str, Any]]
    methods: tuple[str, ...]
    headers: tuple[str, ...]
    caption: str

    def wide(self, shown: Callable[[str, bool, str], str]) -> list[list[str]]:
        """Return the texts of the table by row, with the methods, ``shown`` by text, whether it is best, and marks."""
        cells = {(each["method"], each["column"]): each for each in self.cells}
        found = {at: shown(each["text"], each["best"], each["marks"]) for at, each in cells.items()}
        return [[label, *(found.get((label, i), "-") for i in range(len(self.headers)))] for label in self.methods]

    def markdown(self) -> str:
        """Return the table as Markdown."""
        rows = self.wide(lambda text, best, marks: (f"**{text}**" if best else text) + in_markdown(marks))
        rows = [[in_markdown(label), *row] for label, *row in rows]
        table = markdown_table([*map(in_markdown, ("method", *self.headers))], rows, NAMES_LEFT)
        return f"{table}\n\n{in_markdown(self.caption)}\n"

    def latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""

        def cell(text: str, best: bool, marks: str) -> str:
            text = (text.replace("-", "$-$") if text.startswith("-") else text).replace("±", r"$\pm$")
            signs = "".join(_LATEX_MARKS[mark] for mark in marks)
            return (rf"\textbf{{{text}}}" if best else text) + (f"$^{{{signs}}}$" if signs else "")

        rows = [[in_latex(label), *row] for label, *row in self.wide(cell)]
        frame = pd.DataFrame(rows, columns=[*map(in_latex, ("method", *self.headers))])
        caption = in_latex(self.caption).replace(AHEAD, r"$\dagger$").replace(BEHIND, r"$\ddagger$")
        return str(frame.to_latex(index=False, column_format="l" + "r" * len(self.headers), caption=caption))

    def csv(self) -> str:
        """Return the table as CSV: a line for each method and column, the scores in full precision and not scaled."""
        cells = sorted(self.cells, key=lambda each: (self.methods.index(each["method"]), each["column"]))
        return csv_table(_CSV, ([each[name] for name in _CSV] for each in cells))


def make_result_table(results: Results) -> ResultTable:
    """Make the table of all settings.

    The marks follow the p values of :func:`attendrop.studies.answer.method_rows`; with several settings those of
    :func:`attendrop.studies.study.overall_rows`, which are corrected over all of them. A method has an average
    if it has a score in every setting.
    """
    overall = {(name, row.label): p for row in results.overall for name, p in row.p_values.items()}
    answers = [each.answer for each in results.settings]
    cells, counts = list[dict[str, Any]](), set()
    for column, setting in enumerate(results.settings):
        of = setting.answer
        scale, most = score_scale(of.metric), max((row.n for row in of.rows), default=0)
        counts.add(most)
        for row in of.rows:
            p, marks = overall.get((setting.name, row.label)) if overall else row.p_holm, ""
            if p is not None and p <= ALPHA and row.difference is not None and row.difference.n >= MIN_SEEDS:
                marks = AHEAD if row.difference.mean.value > 0 else BEHIND
            values = [row.mean] if row.std is None else [row.mean, row.std]
            texts = [number(value, of.decimals) if scale == 1 else f"{scale * value:z.1f}" for value in values]
            text = " ± ".join(texts) + (f" ({row.n})" if row.n < most else "")
            marks += FLATTERED * row.selected_on_reported
            cell = {"method": row.label, "column": column, "setting": setting.name, "metric": of.metric, "text": text}
            cell |= {"seeds": row.n, "mean": row.mean, "std": row.std, "partial": row.n < most, "marks": marks}
            cells.append(cell)
    models, tasks = {found.model for found in answers}, {found.data or found.task for found in answers}
    metrics = list(dict.fromkeys(found.metric for found in answers))
    headers = [each.name + (f", {each.answer.metric}" if len(metrics) > 1 else "") for each in results.settings]
    if len(models) == 1 < len(tasks) == len(answers) and all(score_scale(metric) != 1 for metric in metrics):
        metric = metrics[0] if len(metrics) == 1 else _AVERAGE
        for label in results.labels:
            own = [each for each in cells if each["method"] == label]
            if len(own) == len(answers):
                mean, seeds = fmean(each["mean"] for each in own), min(each["seeds"] for each in own)
                cell = {"method": label, "column": len(answers), "setting": _AVERAGE, "metric": metric, "seeds": seeds}
                cell |= {"mean": mean, "std": None, "partial": any(each["partial"] for each in own)}
                cell["text"] = f"{score_scale(_AVERAGE) * mean:z.1f}" + (f" ({seeds})" if cell["partial"] else "")
                cell["marks"] = FLATTERED * any(FLATTERED in each["marks"] for each in own)
                cells.append(cell)
        headers.append(_AVERAGE)
    for cell in cells:
        whole = [each["mean"] for each in cells if each["column"] == cell["column"] and not each["partial"]]
        cell["best"] = int(not cell["partial"] and cell["mean"] == max(whole))
    every = "".join(each["marks"] for each in cells)
    seeds_told = " or ".join(str(count) for count in sorted(counts - {0}))
    spread = "of one seed" if seeds_told == "1" else f"mean ± standard deviation of {seeds_told} seeds"
    reference = next((row.label for found in answers for row in found.rows if row.is_reference), "the reference")
    rows = f" on {answers[0].scored_on}" if len(answers) == 1 else ""
    scaled = "" if all(score_scale(metric) == 1 for metric in metrics) else " times 100"
    of_models = ", ".join(dict.fromkeys(Path(found.model).name for found in answers))
    parts = [f"{', '.join(metrics)}{scaled} of {of_models}{rows}, {spread}; the best in bold"]
    if any(each["partial"] for each in cells):
        parts.append("In parentheses: the number of seeds, if fewer")
    if AHEAD in every or BEHIND in every:
        over = ", Holm's correction over all methods and tasks" if results.overall else " after Holm's correction"
        parts.append(f"{AHEAD} ahead of and {BEHIND} behind {reference}, p ≤ {ALPHA}{over}; of methods only")
    if FLATTERED in every:
        parts.append(f"{FLATTERED} chosen on the rows of the score, which is optimistic")
    return ResultTable(cells, tuple(results.labels), tuple(headers), f"{'. '.join(parts)}.")


def score_scale(metric: str) -> float:
    """Return the factor with which scores are shown: 100, or 1 for errors, ``neg_...``, which are shown as they are."""
    return 1.0 if metric.startswith("neg_") else 100.0
