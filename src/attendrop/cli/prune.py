"""`attendrop prune`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.wording import counted, counted_rows, interval_of, score_text


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
