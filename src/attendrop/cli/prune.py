"""`attendrop prune`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Annotated, Any

import typer

from attendrop.cli.app import DataDir, Device, Json, Quiet, RunFolder, app, show
from attendrop.cli.console import lines_of, messages, size
from attendrop.wording import counted, counted_rows, interval_of, score_text


@app.command()
def prune(
    run: RunFolder,
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
    data_dir: DataDir = None,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Replace attention by constants in some layers, for a smaller and faster model."""
    from attendrop.cli.progress import TrainingProgress
    from attendrop.runs.prune import prune_run

    with messages(quiet=quiet) as console, closing(TrainingProgress(console)) as progress:
        on_pass, callbacks = (None, []) if quiet else (progress.show, [progress])
        found = prune_run(
            run, output_dir, layers=layers, select_by=select_by, tolerance=tolerance, recover_epochs=recover_epochs,
            data_dir=data_dir, device=device, on_pass=on_pass, callbacks=callbacks,
        )  # fmt: skip
    show(found, _summary(found), quiet=quiet, as_json=as_json)


def _summary(metrics: Mapping[str, Any]) -> str:
    """Summarise what was pruned, by which ranking; scores, size and speed before and after."""
    pruned, metric = metrics["pruned"], metrics["metric"]
    name = metric.replace("_", " ")
    lines = {
        "constant attention": f"{len(pruned['layers'])} of {pruned['of']} layers{': ' if pruned['layers'] else ''}"
        + ", ".join(map(str, pruned["layers"])),
        "ranked by": _ranking(pruned),
    }
    lines |= _trials(pruned, name)
    if pruned["recover_epochs"]:
        lines["recovered"] = f"fine-tuned for {counted(pruned['recover_epochs'], 'more epoch')}"
    sets = ({"selection": pruned["selection"]} if pruned["selection"] else {}) | pruned["all_scores"]
    lines |= {f"{part} score": f"{name} {_change(both, metric)}" for part, both in sets.items()}
    lines["parameters"] = _before_after(*(f"{pruned['parameters'][when]:,}" for when in ("before", "after")))
    lines["weights on disk"] = _before_after(*(size(pruned["bytes"][when]) for when in ("before", "after")))
    if pruned["speed"]:
        lines["speed"] = _speed(pruned, metrics["device"])
    if pruned["chosen"] and pruned["chosen_on"] == "dev":
        lines["protocol"] = "layers were chosen on dev, so the dev score is optimistic"
    lines["model"] = metrics["output_dir"]
    return f"{metrics['model']} on {metrics['task']} with {metrics['method']}, pruned\n{lines_of(lines)}"


def _trials(pruned: Mapping[str, Any], metric: str) -> dict[str, str]:
    """List the trials of ``auto``, and what the rows cannot decide."""
    if not pruned["scores"]:
        return {}
    rows = f"{metric} on {pruned['rows']} rows of {pruned['chosen_on']}"
    lines = {"tried": f"{rows}; differences, 95 % intervals for all at once"}
    for count, score in pruned["scores"].items():
        found = pruned["differences"].get(count)
        change = "" if found is None else f"  {score_text(found['value'], score, '+')}  ({interval_of(found, score)})"
        lines[f"  {counted(int(count), 'layer')}"] = f"{score_text(score)}{change}"
    return lines | ({"not known": pruned["unknown"]} if pruned["unknown"] else {})


def _speed(pruned: Mapping[str, Any], device: str) -> str:
    speed = pruned["speed"]
    spread = f"{speed['low']:.2f} to {speed['high']:.2f} in {speed['rounds']} rounds"
    rows = counted_rows(speed["rows"], f"rows of {pruned['chosen_on']}", speed["windows"])
    rows = f"{rows}, {speed['batch_size']} at a time"
    form = "" if pruned["fast"] else "; this family has no fast form here"
    return f"{speed['median']:.2f} times as fast on {device} ({spread}; {rows}){form}"


def _ranking(pruned: Mapping[str, Any]) -> str:
    values = "  ".join(f"{key.split('.')[1]}: {value:.3f}" for key, value in pruned["harm"].items())
    return f"{pruned['measure']}  {values}"


def _change(both: Mapping[str, Any], metric: str) -> str:
    score = both["before"][metric]
    before, after = (score_text(both[when][metric], score) for when in ("before", "after"))
    interval = f"95 % interval of the difference: {interval_of(both['difference'], score)}"
    return f"{before} -> {after}  ({interval})" if both["difference"] else before


def _before_after(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"
