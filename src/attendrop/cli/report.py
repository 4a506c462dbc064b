"""`attendrop report`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli.app import Json, Overwrite, Quiet, app, show


@app.command()
def report(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of a study or a comparison.")],
    output_dir: Annotated[str | None, typer.Option(help="Folder of the files.", show_default="DIR/report")] = None,
    reference: Annotated[str, typer.Option(help="Method to compare with, where DIR has no answer.json.")] = "finetune",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make tables, figures and an HTML page of finished runs."""
    from attendrop.reports.report import PAGE, write_report

    found = write_report(folder, output_dir, reference=reference, overwrite=overwrite)
    lines = []
    for setting in found.results.settings:
        name = f"{setting.name}: " if len(found.results.settings) > 1 else ""
        lines.append(f"{name}{setting.answer.verdict.sentences[0]}")
    lines += ["", *found.results.notes]
    lines += [f"Not made: {line}" for line in found.left_out]
    pictures = [name for name in found.files if name.endswith((".png", ".svg"))]
    lines += [
        f"Tables: {', '.join(str(found.folder / f'table.{kind}') for kind in ('md', 'tex', 'csv'))}",
        f"Figures: {len(pictures) // 2} in {found.folder}, as PNG and SVG",
        f"Page: {found.folder / PAGE}",
    ]
    show(found.as_dict(), "\n".join(lines), quiet=quiet, as_json=as_json)
