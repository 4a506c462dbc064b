"""`attendrop report`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli import app as ui


@ui.app.command()
def report(
    folder: Annotated[str, ui.path_argument("Folder of a study, a comparison or a run.", "DIR")],
    output_dir: Annotated[str | None, typer.Option(help="Folder of the files.", show_default="DIR/report")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Method to compare with, by its label.", show_default="that of the answer, or finetune"),
    ] = None,
    overwrite: ui.Overwrite = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Make tables, figures and an HTML page of finished runs."""
    from attendrop.reports.report import PAGE, write_report

    with ui.messages(quiet=quiet):
        found = write_report(folder, output_dir, reference=reference, overwrite=overwrite)
    settings = found.results.settings
    figures = [name for name in found.files if name.endswith(".svg")]
    tables = [str(found.folder / name) for name in found.files if name.startswith("table.")]
    lines = [
        *(f"{each.name}: " * (len(settings) > 1) + each.answer.sentences[0] for each in settings),
        "",
        *found.results.notes,
        *(f"Not made: {line}" for line in found.left_out),
        *([f"Tables: {', '.join(tables)}"] if tables else []),
        f"Figures: {len(figures)} in {found.folder}, as PDF, PNG and SVG",
        f"Page: {found.folder / PAGE}",
    ]
    ui.show(found.as_dict(), "\n".join(lines), quiet=quiet, as_json=as_json)
