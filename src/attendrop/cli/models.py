"""`attendrop attend`, `prune`, `export` and `push`: what is done with a trained model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_METHOD
from attendrop.runs.run_folder import input_files, read_run
from attendrop.support.files import check_output, write_text
from attendrop.wording import counted, counted_rows, interval_of, score_text

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
    from attendrop.reports.attention_viewer import attention_page, load_stages, show_texts

    options = ui.read_settings(settings or [])
    chosen = None if method is None else build_method(method, options)
    folder = Path(model)
    is_run = folder.is_dir() and read_run(folder) is not None
    file = Path(output or (folder / _FILE if is_run else _FILE))
    check_output(file, input_files(folder), overwrite=overwrite)
    if not file.parent.is_dir():
        raise AttendropError(f"'{file}' cannot be written; name a file in a folder that exists.")
    with ui.messages(quiet=quiet):
        stages = load_stages(model, chosen, settings=options, seed=seed, device=device)
        shown = show_texts(
            stages, texts, text_pair or [], attribution=attribution, layers=layers, max_length=max_length
        )
        page = attention_page(folder.absolute().name, stages, shown, attribution)
    write_text(file, page)
    told: list[dict[str, Any]] = []
    lines = []
    for each in shown:
        of_stages = list(zip(stages.stages, each.stages, strict=True))
        found: dict[str, Any] = {"text": each.text, "tokens": len(each.stages[0].tokens), "note": each.note}
        found["predictions"] = {stage.name: dict(maps.prediction) for stage, maps in of_stages}
        told.append(found | {"predicted": [maps.predicted for maps in each.stages]})
        lines.append(f"{each.text} ({len(each.stages[0].tokens)} tokens)")
        lines += [f"  {stage.name}: {maps.predicted}" for stage, maps in of_stages]
    crossed = None if stages.method is None else stages.method.name
    lines.append("No method drops anything." if crossed is None else f"Crossed out: what {crossed} drops.")
    size = len(page.encode())
    lines.append(f"Wrote {file}, {size / 1e6:.1f} MB; open it in a browser.")
    found = {"model": model, "output": str(file), "bytes": size, "method": crossed, "texts": told}
    ui.show(found, "\n".join(lines), quiet=quiet, as_json=as_json)


@ui.app.command()
def prune(
    run: ui.RunFolder,
    output_dir: Annotated[str, typer.Option(help="A new folder for the pruned model.")],
    layers: Annotated[
        str, typer.Option(help="auto; a count (4); a list (0,3,5, or 4, for one); a threshold on pi ('>=0.8').")
    ] = "auto",
    select_by: Annotated[
        str,
        typer.Option(
            help="importance (loss without a layer); method (what it learnt to drop); auto: importance, unless what "
            "the method learnt can be told from noise."
        ),
    ] = "auto",
    tolerance: Annotated[float, typer.Option(help="With auto: allowed loss in selection score.")] = 0.0,
    recover_epochs: Annotated[int, typer.Option(help="Number of epochs of fine-tuning afterwards.")] = 0,
    data_dir: ui.DataDir = None,
    device: ui.Device = "auto",
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Replace attention by constants in some layers, for a smaller and faster model."""
    from attendrop.cli.progress import TrainingProgress
    from attendrop.runs.prune import prune_run

    with ui.messages(quiet=quiet) as console, closing(TrainingProgress(console)) as progress:
        on_pass, callbacks = (None, []) if quiet else (progress.show, [progress])
        found = prune_run(
            run, output_dir, layers=layers, select_by=select_by, tolerance=tolerance, recover_epochs=recover_epochs,
            data_dir=data_dir, device=device, on_pass=on_pass, callbacks=callbacks,
        )  # fmt: skip
    ui.show(found, _summary(found), quiet=quiet, as_json=as_json)


def _summary(metrics: Mapping[str, Any]) -> str:
    """Summarise what was pruned, by which ranking; scores, size and speed before and after."""
    pruned, name = metrics["pruned"], metrics["metric"].replace("_", " ")

    def before_after(values: Mapping[str, Any], shown: Any) -> str:
        return " -> ".join(dict.fromkeys(shown(values[when]) for when in ("before", "after")))

    layers = f"{len(pruned['layers'])} of {pruned['of']} layers{': ' if pruned['layers'] else ''}"
    ranking = "  ".join(f"{key.split('.')[1]}: {value:.3f}" for key, value in pruned["harm"].items())
    lines = {"constant attention": layers + ", ".join(map(str, pruned["layers"]))}
    lines["ranked by"] = f"{pruned['measure']}  {ranking}"
    if pruned["scores"]:  # the trials of auto, and what the rows cannot decide
        rows = f"{name} on {pruned['rows']} rows of {pruned['chosen_on']}"
        lines["tried"] = f"{rows}; differences, 95 % intervals for all at once"
        for count, score in pruned["scores"].items():
            found = pruned["differences"].get(count)
            gap = "" if found is None else f"  {score_text(found['value'], score, '+')}  ({interval_of(found, score)})"
            lines[f"  {counted(int(count), 'layer')}"] = score_text(score) + gap
        lines |= {"not known": pruned["unknown"]} if pruned["unknown"] else {}
    if pruned["recover_epochs"]:
        lines["recovered"] = f"fine-tuned for {counted(pruned['recover_epochs'], 'more epoch')}"
    sets = ({"selection": pruned["selection"]} if pruned["selection"] else {}) | pruned["all_scores"]
    for part, both in sets.items():
        score = both["before"][metrics["metric"]]
        before, after = (score_text(both[when][metrics["metric"]], score) for when in ("before", "after"))
        gap = f"95 % interval of the difference: {interval_of(both['difference'], score)}"
        lines[f"{part} score"] = f"{name} {before}" + (f" -> {after}  ({gap})" if both["difference"] else "")
    lines["parameters"] = before_after(pruned["parameters"], lambda count: f"{count:,}")
    lines["weights on disk"] = before_after(pruned["bytes"], ui.size)
    if speed := pruned["speed"]:
        spread = f"{speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds"
        rows = counted_rows(speed["rows"], f"rows of {pruned['chosen_on']}", speed["windows"])
        form = "" if pruned["fast"] else "; this family has no fast form here"
        measured = f"({spread}; {rows}, {speed['batch_size']} at a time){form}"
        lines["speed"] = f"{speed['median']:.2f} times as fast on {metrics['device']} {measured}"
    if pruned["chosen"] and pruned["chosen_on"] == "dev":
        lines["protocol"] = "layers were chosen on dev, so the dev score is optimistic"
    lines["model"] = metrics["output_dir"]
    return f"{metrics['model']} on {metrics['task']} with {metrics['method']}, pruned\n{ui.lines_of(lines)}"


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
