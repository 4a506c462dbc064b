"""`attendrop export` and `attendrop push`."""

from __future__ import annotations

from typing import Annotated

import typer

from attendrop.cli import app as ui
from attendrop.wording import counted, interval_of, score_text


@ui.app.command()
def export(
    run: Annotated[str, ui.path_argument("Folder of a finished run, or of a pruned model.", "RUN")],
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
    data_dir: ui.DataDir = None,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Export a model for programs without attendrop."""
    from attendrop.runs.export import export_run

    with ui.messages(quiet=True):
        found = export_run(run, output, format=format_, quantize=quantize, overwrite=overwrite, data_dir=data_dir)
    shown = f"Wrote {found['output']}, {ui.size(found['bytes'])}."
    if "difference" in found:
        shown += f" On example inputs its logits are within {found['difference']:.1e} of the model's."
    if (loss := found.get("loss")) is not None:
        before, after = (score_text(loss[when], loss["before"]) for when in ("before", "after"))
        interval = f"95 % interval of the difference: {interval_of(loss['difference'], loss['before'])}"
        scores = f"{loss['metric'].replace('_', ' ')} {before} -> {after} on {loss['rows']} rows of {loss['set']}"
        shown += f"\nint8: {scores} ({interval})."
    ui.show(found, shown, quiet=quiet, as_json=as_json)


@ui.app.command()
def push(
    run: ui.RunFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Repository on the hub, such as user/model.")],
    public: Annotated[bool, typer.Option("--public", help="Make a new repository public.")] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Upload a model, its tokenizer and its card, on which its scores are, to the Hugging Face hub; nothing else."""
    from attendrop.runs.export import push_run

    with ui.messages(quiet=quiet):
        found = push_run(run, name, public=public)
    ui.show(found, f"{found['url']}: {counted(len(found['files']), 'file')}", quiet=quiet, as_json=as_json)
