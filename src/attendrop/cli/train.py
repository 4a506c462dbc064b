"""`attendrop train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, MethodSettings, Quiet, app, show
from attendrop.cli.console import continued_by, messages
from attendrop.cli.inspect import announce_files
from attendrop.cli.run_options import (
    DATA,
    Groups,
    file_argument,
    one_file,
    read_options_file,
    read_settings,
    with_run_options,
)
from attendrop.errors import AttendropError
from attendrop.runs.config import DEFAULT_METHOD, RunConfig, default_output_dir
from attendrop.runs.run_file import folder_of_run, preset, read_run_file

_TRAINING = (
    "start",
    "optimization",
    "length",
    "sample",
    "selection",
    "score",
    "logs",
    "checkpoints",
    "seed",
    "machine",
)
# By option on the command line, that of a file or a preset which it excludes, or which would take precedence.
_IN_PLACE_OF = {
    **{"epochs": "max_steps", "shots": "max_train_samples", "max_train_samples": "shots"},
    **{"eval_file": "test_fraction", "test_fraction": "eval_file", "bf16": "fp16", "fp16": "bf16"},
}


@app.command()
@with_run_options
def train(
    *,
    file: Annotated[str | None, file_argument("--train-file")] = None,
    data: Annotated[Mapping[str, Any], Groups(*DATA)],
    method: Annotated[
        str | None,
        typer.Option(help="`attendrop methods` lists them; finetune is the baseline.", show_default=DEFAULT_METHOD),
    ] = None,
    settings: MethodSettings = None,
    options_file: Annotated[
        str | None,
        typer.Option("--options", metavar="FILE", help="JSON file of the method's options; --set overrides it."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="YAML file of these options, such as a run's run.yaml.")
    ] = None,
    preset_: Annotated[
        str | None, typer.Option("--preset", help="paper: training settings of the method's paper.")
    ] = None,
    output_dir: Annotated[str | None, typer.Option(show_default="runs/TASK-METHOD-seedSEED")] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume from the last complete checkpoint; with --config RUN/run.yaml, that run."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in the folder when this one is complete.")
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Upload the model to this private repository on the hub, such as user/model."
        ),
    ] = None,
    training: Annotated[Mapping[str, Any], Groups(*_TRAINING)],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model, and save it with its scores."""
    train_file = one_file(file, "--train-file", data.get("train_file"))
    line = {**data, **training, "train_file": train_file, "method": method, "output_dir": output_dir}
    line = {name: value for name, value in line.items() if value is not None}
    if resume and config is not None and output_dir is None and (own := folder_of_run(config)) is not None:
        line["output_dir"] = own  # the run that is to be resumed, not a new one in the default folder
    run, seeds = _read_run(line, settings or [], options_file, config, preset_, partial(announce_files, quiet=quiet))
    if push_to_hub is not None and len(seeds) > 1:
        raise AttendropError("push-to-hub uploads one model; train with one seed, or use `attendrop push` afterwards.")

    from attendrop.cli.progress import TrainingProgress
    from attendrop.cli.training_summary import run_summary, seeds_summary
    from attendrop.runs.run_folder import is_main_process, last_begun
    from attendrop.runs.seeds import seed_folder, train_seeds
    from attendrop.runs.train import train as train_run

    folder = Path(run.output_dir)
    replaced = [folder] if len(seeds) == 1 else [seed_folder(folder, seed) for seed in seeds]
    before = {each: last_begun(each) for each in replaced} if overwrite else {}

    def again() -> str:
        if any(began and last_begun(each) <= began for each, began in before.items()):  # --resume is of the old run
            return f"Interrupted. Run the same command again to replace what is in {run.output_dir}."
        options = "--resume instead of --overwrite" if overwrite else "--resume"
        told = f"Interrupted. Run the same command with {options} to continue"
        return f"{told} from the last checkpoint in {run.output_dir}."

    with (
        messages(quiet=quiet) as console,
        closing(TrainingProgress(console)) as progress,
        continued_by(again),
    ):
        watching = [] if quiet else [progress]
        if len(seeds) == 1:
            found = train_run(run, resume=resume, overwrite=overwrite, callbacks=watching)
        else:
            found = train_seeds(run, seeds, resume=resume, overwrite=overwrite, callbacks=watching)
    if push_to_hub is not None and is_main_process():
        from attendrop.runs.hub import push_run

        push_run(run.output_dir, push_to_hub)
    show(found, (run_summary if len(seeds) == 1 else seeds_summary)(found), quiet=quiet, as_json=as_json)


def _read_run(
    line: dict[str, Any],
    settings: list[str],
    options_file: str | None,
    config: str | None,
    named: str | None,
    check: Callable[[RunConfig], None] | None = None,
) -> tuple[RunConfig, list[int]]:
    """Make the configuration of the run and the list of seeds.

    Options on the command line override those of the ``--config`` file, which override a preset's.
    """
    file = read_run_file(config) if config is not None else {}
    line |= {name: file.get(name, {}) | value for name, value in line.items() if isinstance(value, dict)}
    options = {"model": "minilm", "method": DEFAULT_METHOD, **file, **line}
    method = options["method"]
    of_file = options.pop("preset", None)
    named = of_file if named is None else named
    of_preset = {} if named is None else preset(named, options.get("task"), method)
    options = of_preset | options
    for name, other in _IN_PLACE_OF.items():
        if line.get(name) and other not in line:
            options.pop(other, None)
    of_method = dict(of_preset.get("options", {}))
    if file.get("method", DEFAULT_METHOD) == method:  # options of another method do not apply
        of_method |= file.get("options", {})
    if options_file is not None:
        of_method |= read_options_file(options_file, method)
    seeds = _seeds(line.get("seed", file.get("seed", [0])))
    options |= {"options": of_method | read_settings(settings), "seed": seeds[0]}
    options.setdefault("output_dir", default_output_dir(options.get("task"), options.get("train_file"), method, seeds))
    return RunConfig(**options, on_data=check), seeds


def _seeds(given: str | list[int]) -> list[int]:
    try:
        return [int(seed) for seed in given.split(",")] if isinstance(given, str) else given
    except ValueError:
        raise AttendropError(f"seed must be a whole number, or several such as 0,1,2, not {given!r}.") from None
