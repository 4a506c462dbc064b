"""`attendrop report`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError


@ui.app.command()
def report(
    folder: Annotated[str, ui.path_argument("Folder of a study, a comparison or a run.", "DIR")],
    output_dir: Annotated[str | None, typer.Option(help="Folder of the files.", show_default="DIR/report")] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="Method to compare with, by its label.", show_default="that of the answer, or finetune"),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="Text whose attention is shown with the model in DIR/best; may be repeated.",
            show_default="three evaluation rows",
        ),
    ] = None,
    text_pair: ui.TextPair = None,
    no_viewer: Annotated[bool, typer.Option("--no-viewer", help="Show no attention, and load no model.")] = False,
    device: ui.Device = "auto",
    overwrite: ui.Overwrite = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Make tables, figures and an HTML page of finished runs, with the attention of the model that was kept."""
    if no_viewer and (text or text_pair):
        raise AttendropError("--no-viewer shows no texts; omit it, or --text.")
    from attendrop.reports.report import PAGE, write_report

    shown: dict[str, Any] = {"viewer": not no_viewer, "texts": text or (), "pairs": text_pair or (), "device": device}
    with ui.messages(quiet=quiet):
        found = write_report(folder, output_dir, reference=reference, overwrite=overwrite, **shown)
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
