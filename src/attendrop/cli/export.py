"""`attendrop export`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attendrop.cli.app import DataDir, Json, Quiet, app, show
from attendrop.cli.console import messages, size
from attendrop.cli.run_options import path_argument
from attendrop.wording import interval_of, score_text


@app.command()
def export(
    run: Annotated[str, path_argument("Folder of a finished run, or of a pruned model.", "RUN")],
    output: Annotated[
        str, typer.Option(help="The file, or a folder for model.onnx; the tokenizer is saved beside it.")
    ],
    format_: Annotated[str, typer.Option("--format", help="onnx or torch (torch.export).")] = "onnx",
    quantize: Annotated[
        str | None, typer.Option(help="int8: a quarter of the size; the loss in score is measured.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file, and the files saved with it.")
    ] = False,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Export a model for programs without attendrop."""
    from attendrop.runs.export import export_run

    with messages(quiet=True):
        found = export_run(run, output, format=format_, quantize=quantize, overwrite=overwrite, data_dir=data_dir)
    show(found, _summary(found), quiet=quiet, as_json=as_json)


def _summary(found: dict[str, Any]) -> str:
    wrote = f"Wrote {found['output']}, {size(found['bytes'])}."
    if "difference" in found:
        wrote += f" On example inputs its logits are within {found['difference']:.1e} of the model's."
    loss = found.get("loss")
    if loss is None:
        return wrote
    before, after = (score_text(loss[when], loss["before"]) for when in ("before", "after"))
    scores = f"{loss['metric'].replace('_', ' ')} {before} -> {after}"
    interval = f"95 % interval of the difference: {interval_of(loss['difference'], loss['before'])}"
    return f"{wrote}\nint8: {scores} on {loss['rows']} rows of {loss['set']} ({interval})."
