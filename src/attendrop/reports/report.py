"""Report of a study or a comparison: tables, figures and a page, in a folder of their own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attendrop.errors import AttendropError
from attendrop.files.output_files import sha256, write_bytes, write_json
from attendrop.reports.attention_section import DEFAULT_VIEWER, ViewerOptions, attention_part
from attendrop.reports.charts import LeftOut, make_charts
from attendrop.reports.figures import Chart
from attendrop.reports.report_page import report_page
from attendrop.reports.results import Results, read_results
from attendrop.reports.tables import make_result_table
from attendrop.runs.run_folder import check_writable

FOLDER = "report"
PAGE = "report.html"
# Lists the files of a report; written last.
CONTENTS = "report.json"
_LONGEST_SLUG = 60


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
            matplotlib is not installed; or texts for the viewer are given and cannot be shown.
    """
    folder = Path(folder)
    output = folder / FOLDER if output is None else Path(output)
    if output.exists() and not output.is_dir():
        raise AttendropError(f"The output '{output}' is a file; name a folder.")
    check_writable(output)
    results = read_results(folder, reference)
    charts, missing = make_charts(results)
    # Most figures compare runs: of a single one, those that can be made are all there is to say.
    left_out = () if results.of_one_run else tuple(_in_lines(missing, len(results.settings)))
    table = make_result_table(results)
    attention = None if viewer is None else attention_part(results, viewer)
    page, missing_maps = report_page(results, table, charts, left_out, attention)
    texts = {PAGE: page}
    if table.rows:
        texts |= {"table.md": table.markdown(), "table.tex": table.latex(), "table.csv": table.csv()}
    elif not results.of_one_run:
        left_out += ("Tables: no run has a score on evaluation rows.",)
    contents = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    for name, chart in _named(charts).items():
        contents |= {f"{name}.png": chart.png(), f"{name}.svg": chart.svg()}
    _write(output, contents, overwrite=overwrite)
    if missing_maps:
        left_out += (f"Attention viewer: {missing_maps}",)
    return Report(output, results, tuple(contents), left_out)


def _named(charts: Sequence[Chart]) -> dict[str, Chart]:
    """Name the files of figures by their content and subject, and by their setting if there are several."""
    several = len({chart.setting for chart in charts if chart.setting}) > 1
    names: dict[str, Chart] = {}
    for chart in charts:
        details = (chart.detail, chart.setting if several else "")
        name = "-".join([chart.kind, *(_slug(detail) for detail in details if detail)])
        if name in names:  # details that differ in punctuation only
            name += f"-{_digest(' '.join(details))}"
        names[name] = chart
    return names


def _slug(text: str) -> str:
    """Return a text as part of a file name; a digest replaces what is too long or has other letters."""
    slug = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    is_whole = text.isascii() and len(slug) <= _LONGEST_SLUG
    return slug if is_whole else f"{slug[:_LONGEST_SLUG]}_{_digest(text)}".lstrip("_")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def _in_lines(left_out: Iterable[LeftOut], settings: int) -> list[str]:
    """List the figures that were not made, one per line."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in left_out:
        found.setdefault((each.title, each.reason), []).append(each.setting)
    lines = []
    for (title, reason), names in found.items():
        of_some = names != [""] and len(names) < settings
        where = f" ({'; '.join(names)})" if of_some else ""
        lines.append(f"{title}{where}: {reason}.")
    return lines


def _write(output: Path, contents: Mapping[str, bytes], *, overwrite: bool) -> None:
    """Write files, and delete those that only an earlier report had."""
    earlier = _earlier(output)
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


def _earlier(output: Path) -> dict[str, str]:
    """Read the files of an earlier report with their hashes; none if there is none."""
    try:
        found = json.loads((output / CONTENTS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: digest for name, digest in found.items() if Path(name).name == name and isinstance(digest, str)}
