"""`attendrop attend`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_METHOD
from attendrop.runs.run_folder import input_files, read_run
from attendrop.support.files import check_output, write_text

_FILE = "attention.html"


@ui.app.command()
def attend(
    model: Annotated[str, ui.path_argument("Folder of a finished run or of a model, hub id, or minilm.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="One or more texts.")],
    text_pair: ui.TextPair = None,
    method: Annotated[
        str | None,
        typer.Option(help="Cross out what this method drops.", show_default=f"that of the run, or {DEFAULT_METHOD}"),
    ] = None,
    settings: ui.MethodSettings = None,
    attribution: Annotated[str, typer.Option(help="gradient or integrated_gradient.")] = "gradient",
    layers: Annotated[str, typer.Option(help="Layers to show: all, first, or numbers such as 0,5.")] = "all",
    max_length: Annotated[int | None, typer.Option(help="In tokens.", show_default="that of the run, or 128")] = None,
    seed: Annotated[int, typer.Option(help="Seed of random drops.")] = 0,
    output: Annotated[str | None, typer.Option(help="The page, HTML.", show_default=f"RUN/{_FILE}, or {_FILE}")] = None,
    overwrite: ui.Overwrite = False,
    device: ui.Device = "auto",
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Show attention, attribution and what a method drops for texts of your own, as one HTML page."""
    from attendrop.methods.core.registry import build_method
    from attendrop.reports.attention_maps import load_stages
    from attendrop.reports.attention_viewer import attention_page, show_texts

    options = ui.read_settings(settings or [])
    chosen = None if method is None else build_method(method, options)
    folder = Path(model)
    is_run = folder.is_dir() and read_run(folder) is not None
    file = Path(output or (folder / _FILE if is_run else _FILE))
    check_output(file, input_files(folder), overwrite=overwrite)
    if not file.parent.is_dir():
        raise AttendropError(f"'{file}' cannot be written; name a file in a folder that exists.")
    with ui.messages(quiet=quiet):
        stages = load_stages(model, chosen, build_method(DEFAULT_METHOD), settings=options, seed=seed, device=device)
        shown = show_texts(
            stages, texts, text_pair or [], attribution=attribution, layers=layers, max_length=max_length
        )
        page = attention_page(folder.absolute().name, stages, shown, attribution)
    write_text(file, page)
    told: list[dict[str, Any]] = []
    lines = []
    for each in shown:
        of_stages = list(zip(stages.stages, each.stages, strict=True))
        found: dict[str, Any] = {"text": each.text, "tokens": each.tokens, "note": each.note}
        found["predictions"] = {stage.name: dict(maps.prediction) for stage, maps in of_stages}
        told.append(found | {"predicted": [maps.predicted for maps in each.stages]})
        lines.append(f"{each.text} ({each.tokens} tokens)")
        lines += [f"  {stage.name}: {maps.predicted}" for stage, maps in of_stages]
    crossed = None if stages.method is None else stages.method.name
    lines.append("No method drops anything." if crossed is None else f"Crossed out: what {crossed} drops.")
    size = len(page.encode())
    lines.append(f"Wrote {file}, {size / 1e6:.1f} MB; open it in a browser.")
    found = {"model": model, "output": str(file), "bytes": size, "method": crossed, "texts": told}
    ui.show(found, "\n".join(lines), quiet=quiet, as_json=as_json)
