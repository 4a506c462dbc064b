"""`attendrop train`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Annotated, Any

import typer

from attendrop.cli.app import Json, MethodSettings, Quiet, app, show
from attendrop.cli.console import lines_of, messages, size
from attendrop.cli.inspect import announce_files
from attendrop.cli.run_options import DATA, Groups, file_argument, one_file, read_settings, with_run_options
from attendrop.errors import AttendropError
from attendrop.runs.config import (
    DEFAULT_METHOD,
    RunConfig,
    convert_option,
    default_output_dir,
    folder_of_run,
    preset,
    read_run_file,
    read_yaml,
)
from attendrop.wording import counted, score_text

_TRAINING = (
    *("start", "optimization", "length", "sample", "selection", "score", "logs", "checkpoints", "seed", "machine"),
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
    from attendrop.runs.run_folder import is_main_process
    from attendrop.runs.train import train as train_run
    from attendrop.runs.train import train_seeds

    with messages(quiet=quiet) as console, closing(TrainingProgress(console)) as progress:
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "callbacks": [] if quiet else [progress]}
        one_seed = len(seeds) == 1
        found = train_run(run, **how) if one_seed else train_seeds(run, seeds, **how)
    if push_to_hub is not None and is_main_process():
        from attendrop.runs.export import push_run

        push_run(run.output_dir, push_to_hub)
    show(found, (run_summary if one_seed else seeds_summary)(found), quiet=quiet, as_json=as_json)


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
        of_method |= _options_of(options_file, method)
    seeds = convert_option("--seed", "seed", line["seed"]) if "seed" in line else file.get("seed", [0])
    options |= {"options": of_method | read_settings(settings), "seed": seeds[0]}
    options.setdefault("output_dir", default_output_dir(options.get("task"), options.get("train_file"), method, seeds))
    return RunConfig(**options, on_data=check), seeds


def _options_of(file: str, method: str) -> dict[str, Any]:
    """Read a file of options, JSON or YAML: ``{"p": 0.3}``, or with ``method``, as ``patterns --fit`` writes."""
    found = read_yaml(file, "options file")
    if isinstance(found, dict) and found.keys() == {"method", "options"}:
        if found["method"] != method:
            raise AttendropError(
                f"The options file '{file}' is for method {found['method']!r}; add --method {found['method']}, or name "
                "another file."
            )
        found = found["options"]
    if not isinstance(found, dict):
        raise AttendropError(f"The options file '{file}' must hold an object such as {{\"p\": 0.3}}.")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


# What is printed at the end -------------------------------------------------------------------------------------------


def run_summary(metrics: Mapping[str, Any]) -> str:
    """Summarise a run: rows, what the method did, scores, protocol, and where the model is."""
    from attendrop.methods.core.registry import build_method
    from attendrop.runs.model_card import scored_once

    data, metric = metrics["data"], metrics["metric"].replace("_", " ")
    lines = {
        "rows": ", ".join(f"{count} {part}" for part, count in data["rows"].items()),
        "regularised": _acted(metrics),
    }
    lines |= build_method(metrics["method"], metrics["options"]).summary_lines(metrics)
    if metrics["config"]["lora"] is not None:
        trained, total = metrics["parameters"]["trained"], metrics["parameters"]["total"]
        lines["adapter"] = f"LoRA of rank {metrics['config']['lora']['r']}; {trained:,} of {total:,} parameters trained"
    lines["epoch kept"] = f"{metrics['best_epoch']} of {len(metrics['history'])}"
    if data["selected_on"] is None:
        lines["epoch kept"] += ", the last"
    if metrics["selection"] is not None:
        lines["epoch kept"] = f"the last of training on all rows, for {counted(metrics['selection']['steps'], 'step')}"
    if metrics["selection_score"] is not None and data["selected_on"] != "dev":
        held_out = f"with {counted(data['rows']['selection'], 'row')} held out"
        lines["selection score"] = f"{metric} {score_text(metrics['selection_score'])}, {held_out}"
    lines |= {"train score": f"{metrics['train_fit']['metric']} {score_text(metrics['train_fit']['score'])}"}
    lines |= {f"{part} score": _scores(scores) for part, scores in metrics["all_scores"].items()}
    lines |= {f"{part} baseline": _baseline(found) for part, found in metrics.get("baseline", {}).items()}
    if not metrics["all_scores"]:
        lines["score"] = "none: there is no eval-file"
    lines["protocol"] = {
        "dev": "paper: the epoch was chosen on the reported set, so the dev score is optimistic",
        "selection": "held-out: the epoch was chosen on rows of the training data",
        None: "held-out: nothing was chosen",
    }[data["selected_on"]]
    if scored_once(metrics):
        lines["protocol"] += "; dev was scored once, at the end"
    if data["rewarded_on"] == "dev":
        lines["rewarded on"] = "dev: it decided during training what was dropped, so the dev score is optimistic"
    memory = size(metrics["peak_memory_bytes"])
    lines["cost"] = f"{counted(metrics['steps'], 'step')}, {metrics['train_seconds']:.0f} s, {memory} at most"
    lines["model"] = metrics["output_dir"]
    title = f"{metrics['model']} on {metrics['task']} with {metrics['method']}, seed {metrics['seed']} (one seed)"
    return f"{title}\n{lines_of(lines)}"


def seeds_summary(summary: Mapping[str, Any]) -> str:
    """Summarise runs that differ in their seed: mean and standard deviation of each score."""
    lines = {"seeds": ", ".join(map(str, summary["seeds"]))}
    if summary["selection_score"] is not None:
        lines["selection"] = _moments(summary["metric"], summary["selection_score"])
    for part, scores in summary["all_scores"].items():
        lines |= {f"{part} {name.replace('_', ' ')}": _moments("", found) for name, found in scores.items()}
    lines |= {f"{part} baseline": _baseline(found) for part, found in summary["baseline"].items()}
    lines["runs"] = ", ".join(summary["runs"])
    title = (
        f"{summary['model']} on {summary['task']} with {summary['method']}, mean ± std (n-1) of {summary['n']} seeds"
    )
    return f"{title}\n{lines_of(lines)}"


def _moments(name: str, found: Mapping[str, Any]) -> str:
    mean, std, *each = (score_text(value, found["mean"]) for value in (found["mean"], found["std"], *found["values"]))
    return f"{name.replace('_', ' ')} {mean} ± {std} ({' '.join(each)})".lstrip()


def _baseline(found: Mapping[str, Any]) -> str:
    """Format the scores of a constant prediction."""
    answer = f"{found['answer']:.3g}" if isinstance(found["answer"], float) else repr(found["answer"])
    return f"{_scores(found['scores'])} (always {answer})"


def _acted(metrics: Mapping[str, Any]) -> str:
    from attendrop.cli.progress import dropped_fraction

    epochs = [entry for entry in metrics["history"] if entry["regularized"]]
    if not epochs:
        return "no epoch"
    numbers = ", ".join(str(entry["epoch"]) for entry in epochs)
    text = f"epoch{'s' if len(epochs) > 1 else ''} {numbers} of {len(metrics['history'])}"
    for method in dict.fromkeys(name for entry in epochs for name in entry["dropped"]):
        fractions = [entry["dropped"][method] for entry in epochs if method in entry["dropped"]]
        text += f"; {dropped_fraction(method, statistics.fmean(fractions))} there"
    return text


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {score_text(value)}" for name, value in scores.items())
