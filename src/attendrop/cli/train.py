"""`attendrop compare`, `study` and `train`: what trains models."""

from __future__ import annotations

import hashlib
import os
import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from attendrop.cli import app as ui
from attendrop.cli.inspect import announce_files
from attendrop.errors import AttendropError
from attendrop.runs.config import (
    DEFAULT_METHOD,
    RunConfig,
    checked,
    convert_option,
    names,
    overridden,
    partial_of,
    preset,
    read_run_file,
    read_yaml,
)
from attendrop.runs.run_folder import RUN, is_main_process
from attendrop.studies.comparison import Comparison, MethodSetting, default_methods
from attendrop.studies.executor import LOCAL, RAY, REFERENCE, REPORTS, with_evaluation
from attendrop.wording import counted, score_text

_TRAIN_FILE = ("train_file", "--train-file")
_DATA = ui.Groups(
    *ui.DATA,
    argument=_TRAIN_FILE,
    eval_file=("Evaluation data. Default: part of the training data is held out.", ""),
    test_fraction=("Instead of --eval-file: the fraction to hold out.", "0.25"),
)
_TRAINING = (
    *("start", "optimization", "length", "sample", "selection", "score", "logs", "checkpoints", "seed", "machine"),
)


@ui.register
def compare(
    *,
    data: Annotated[Mapping[str, Any], _DATA],
    compared: Annotated[Mapping[str, Any], ui.Groups("methods", of=Comparison)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.NAME=VALUE",
            help="Option of a method, which is then not tuned. Repeat it with another value to compare both.",
        ),
    ] = None,
    search: Annotated[Mapping[str, Any], ui.Groups("search", of=Comparison)],
    training: Annotated[Mapping[str, Any], ui.Groups("sample", "score", "length", "start", "optimization")],
    output: Annotated[Mapping[str, Any], ui.Groups("output", of=Comparison)],
    workers: ui.Workers = None,
    ray: ui.Ray = None,
    machine: Annotated[Mapping[str, Any], ui.Groups("machine")],
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Find out what your data should be fine-tuned with.

    Compares methods with plain fine-tuning, and with baselines that need no fine-tuning, on the same rows over several
    seeds. Says what to use, how certain that is, and keeps the model in OUTPUT_DIR/best. When run again, it resumes.
    """
    run = {"model": "minilm", "method": REFERENCE, "output_dir": "", **data, **training, **machine}
    named = names(compared.get("methods", ""))
    values: dict[str, dict[str, list[str]]] = {}  # of options of each method, by name
    for each in settings or []:
        name, equals, value = (part.strip() for part in each.partition("="))
        method, dot, option = name.partition(".")
        if not (method and dot and option and equals and value):
            example = f"{named[-1] if named else 'METHOD'}.p=0.3"
            raise AttendropError(f"--set {each!r} is not of the form METHOD.NAME=VALUE, such as {example}.")
        values.setdefault(method, {}).setdefault(option, []).append(value)
    search = {name: checked(Comparison, name, value) for name, value in search.items()}
    config = RunConfig(**with_evaluation(run), on_data=partial(announce_files, quiet=quiet))
    named = named or tuple(default_methods())
    if absent := next((name for name in values if name not in named), None):
        raise AttendropError(f"--set {absent}: method '{absent}' is not compared; add it to --methods.")
    methods = [
        MethodSetting(name, dict(zip(options, point, strict=True)))
        for name in named
        for options in [values.get(name, {})]
        for point in product(*options.values())  # an option with several values makes a point of each
    ]
    comparison = Comparison(config=config, methods=methods, **search, **output)

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.compare import run_comparison

    with ui.messages(quiet=quiet) as console, closing(StudyProgress(console, quiet=quiet)) as progress:
        backend = LOCAL if ray is None else f"{RAY}{ray}"
        outcome = run_comparison(
            comparison, workers=workers, backend=backend, on_event=progress, on_plan=partial(setattr, progress, "runs")
        )
    ui.show(outcome.as_dict(), "\n".join(outcome.lines()), quiet=quiet, as_json=as_json)
    if outcome.failed:
        raise typer.Exit(1)


@ui.register
def study(
    file: Annotated[str, ui.path_argument("YAML file of data, methods and seeds.", "FILE")],
    output_dir: Annotated[str | None, "Folder of the study.", "runs/FILE"] = None,
    workers: ui.Workers = None,
    ray: ui.Ray = None,
    dry_run: Annotated[bool, "Only list the runs."] = False,
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Run a grid of methods, data and seeds, and compare; finished runs are not repeated."""
    from attendrop.studies.study import default_folder, read_study, run_study

    found = read_study(file, on_data=partial(announce_files, quiet=True))

    from attendrop.cli.progress import StudyProgress
    from attendrop.studies.answer import method_label

    if dry_run:
        listed = [
            {"setting": name, "method": method_label(spec.described()), "seed": spec.config.seed}
            for name, specs in found.settings.items()
            for spec in specs
        ]
        lines = [f"{run['setting']}: {run['method']}, seed {run['seed']}" for run in listed]
        ui.show(listed, "\n".join([*lines, counted(len(found.specs), "run")]), quiet=quiet, as_json=as_json)
        return
    folder, runs = Path(output_dir or default_folder(file)), len(found.specs)
    with ui.messages(quiet=quiet) as console, closing(StudyProgress(console, runs, quiet=quiet)) as progress:
        backend = LOCAL if ray is None else f"{RAY}{ray}"
        report = run_study(found, folder, file=file, workers=workers, backend=backend, on_event=progress)
    text = "\n".join([*report.lines(), f"Tables: {', '.join(str(folder / name) for name in REPORTS)}"])
    ui.show(report.as_dict(), text, quiet=quiet, as_json=as_json)
    if report.failed or report.missing:
        raise typer.Exit(1)


# `attendrop train` ----------------------------------------------------------------------------------------------------


@ui.register
def train(
    *,
    data: Annotated[Mapping[str, Any], ui.Groups(*ui.DATA, argument=_TRAIN_FILE)],
    method: Annotated[str | None, "`attendrop methods` lists them; finetune is the baseline.", DEFAULT_METHOD] = None,
    settings: ui.MethodSettings = None,
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
    resume: Annotated[bool, "Resume from the last complete checkpoint; with --config RUN/run.yaml, that run."] = False,
    overwrite: Annotated[bool, "Replace the run in the folder when this one is complete."] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Upload the model to this private repository on the hub, such as user/model."
        ),
    ] = None,
    training: Annotated[Mapping[str, Any], ui.Groups(*_TRAINING)],
    quiet: ui.Quiet = False,
    as_json: ui.Json = False,
) -> None:
    """Fine-tune a model, and save it with its scores."""
    line = {**data, **training, "method": method, "output_dir": output_dir}
    line = {name: value for name, value in line.items() if value is not None}
    if resume and config is not None and output_dir is None:  # the run that is to be resumed, not a new one elsewhere
        own = Path(config).parent
        if own.name.endswith(".partial"):
            own = own.with_name(own.name.removeprefix(".").removesuffix(".partial"))
        places = (own, partial_of(own), *own.glob("seed[0-9]*"), *own.glob(".seed[0-9]*.partial"))
        line |= {"output_dir": str(own)} if any((place / RUN).is_file() for place in places) else {}
    run, seeds = _read_run(line, settings or [], options_file, config, preset_, partial(announce_files, quiet=quiet))
    if push_to_hub is not None and len(seeds) > 1:
        raise AttendropError("push-to-hub uploads one model; train with one seed, or use `attendrop push` afterwards.")

    from attendrop.cli.progress import TrainingProgress
    from attendrop.runs.train import train as train_run
    from attendrop.runs.train import train_seeds

    with ui.messages(quiet=quiet) as console, closing(TrainingProgress(console)) as progress:
        how: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "callbacks": [] if quiet else [progress]}
        one_seed = len(seeds) == 1
        found = train_run(run, **how) if one_seed else train_seeds(run, seeds, **how)
    if push_to_hub is not None and is_main_process():
        from attendrop.runs.export import push_run

        push_run(run.output_dir, push_to_hub)
    ui.show(found, (run_summary if one_seed else seeds_summary)(found), quiet=quiet, as_json=as_json)


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
    options = overridden(of_preset | options, line)
    of_method = dict(of_preset.get("options", {}))
    if file.get("method", DEFAULT_METHOD) == method:  # options of another method do not apply
        of_method |= file.get("options", {})
    if options_file is not None:  # ``{"p": 0.3}``, or with ``method``, as ``patterns --fit`` writes
        given = read_yaml(options_file, "options file")
        if isinstance(given, dict) and given.keys() == {"method", "options"}:
            if given["method"] != method:
                raise AttendropError(
                    f"The file '{options_file}' is for method {given['method']!r}; add --method {given['method']}."
                )
            given = given["options"]
        if not isinstance(given, dict):
            raise AttendropError(f"The options file '{options_file}' must hold an object such as {{\"p\": 0.3}}.")
        of_method |= {str(name).replace("-", "_"): value for name, value in given.items()}
    seeds = convert_option("--seed", "seed", line["seed"]) if "seed" in line else file.get("seed", [0])
    options |= {"options": of_method | ui.read_settings(settings), "seed": seeds[0]}
    data = options.get("task") or ""
    if (train_file := options.get("train_file")) is not None:  # files of one name in different folders are different
        place = hashlib.sha256(os.fsencode(os.path.realpath(train_file))).hexdigest()
        stem = Path(train_file).stem.replace(":", "-").encode(errors="ignore").decode()  # tokenizers write UTF-8 paths
        data = f"{stem}-{place[:6]}"
    options.setdefault("output_dir", f"runs/{data}-{method}-seed{'-'.join(map(str, seeds))}")
    return RunConfig(**options, on_data=check), seeds


# What is printed at the end -------------------------------------------------------------------------------------------


def run_summary(metrics: Mapping[str, Any]) -> str:
    """Summarise a run: rows, what the method did, scores, protocol, and where the model is."""
    from attendrop.cli.progress import dropped_fraction
    from attendrop.methods.core.registry import build_method
    from attendrop.runs.model_card import scored_once
    from attendrop.tasks.error_analysis import promise

    data, metric, history = metrics["data"], metrics["metric"].replace("_", " "), metrics["history"]
    acted, epochs = "no epoch", [entry for entry in history if entry["regularized"]]
    if epochs:
        numbers = ", ".join(str(entry["epoch"]) for entry in epochs)
        acted = f"epoch{'s' if len(epochs) > 1 else ''} {numbers} of {len(history)}"
    for method in dict.fromkeys(name for entry in epochs for name in entry["dropped"]):
        fractions = [entry["dropped"][method] for entry in epochs if method in entry["dropped"]]
        acted += f"; {dropped_fraction(method, statistics.fmean(fractions))} there"
    lines = {"rows": ", ".join(f"{count} {part}" for part, count in data["rows"].items()), "regularised": acted}
    lines |= build_method(metrics["method"], metrics["options"]).summary_lines(metrics)
    if metrics["config"]["lora"] is not None:
        trained, total = metrics["parameters"]["trained"], metrics["parameters"]["total"]
        lines["adapter"] = f"LoRA of rank {metrics['config']['lora']['r']}; {trained:,} of {total:,} parameters trained"
    lines["epoch kept"] = f"{metrics['best_epoch']} of {len(history)}"
    if data["selected_on"] is None:
        lines["epoch kept"] += ", the last"
    if metrics["selection"] is not None:
        lines["epoch kept"] = f"the last of training on all rows, for {counted(metrics['selection']['steps'], 'step')}"
    if metrics["selection_score"] is not None and data["selected_on"] != "dev":
        held_out = f"with {counted(data['rows']['selection'], 'row')} held out"
        lines["selection score"] = f"{metric} {score_text(metrics['selection_score'])}, {held_out}"
    lines["train score"] = _scores({metrics["train_fit"]["metric"]: metrics["train_fit"]["score"]})
    lines |= {f"{part} score": _scores(scores) for part, scores in metrics["all_scores"].items()}
    lines |= {"accepted": promise(metrics["accept"])} if "accept" in metrics else {}
    lines |= _baselines(metrics.get("baseline", {}))
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
    memory = ui.size(metrics["peak_memory_bytes"])
    lines["cost"] = f"{counted(metrics['steps'], 'step')}, {metrics['train_seconds']:.0f} s, {memory} at most"
    lines["model"] = metrics["output_dir"]
    title = f"{metrics['model']} on {metrics['task']} with {metrics['method']}, seed {metrics['seed']} (one seed)"
    return f"{title}\n{ui.lines_of(lines)}"


def seeds_summary(summary: Mapping[str, Any]) -> str:
    """Summarise runs that differ in their seed: mean and standard deviation of each score."""

    def moments(name: str, found: Mapping[str, Any]) -> str:
        mean, std, *each = (score_text(v, found["mean"]) for v in (found["mean"], found["std"], *found["values"]))
        return f"{name.replace('_', ' ')} {mean} ± {std} ({' '.join(each)})".lstrip()

    lines = {"seeds": ", ".join(map(str, summary["seeds"]))}
    if summary["selection_score"] is not None:
        lines["selection"] = moments(summary["metric"], summary["selection_score"])
    for part, scores in summary["all_scores"].items():
        lines |= {f"{part} {name.replace('_', ' ')}": moments("", found) for name, found in scores.items()}
    lines |= _baselines(summary["baseline"]) | {"runs": ", ".join(summary["runs"])}
    seeds = f"mean ± std (n-1) of {summary['n']} seeds"
    return f"{summary['model']} on {summary['task']} with {summary['method']}, {seeds}\n{ui.lines_of(lines)}"


def _baselines(found: Mapping[str, Any]) -> dict[str, str]:
    """Format the scores of a constant prediction on each set."""
    answers = {part: each["answer"] for part, each in found.items()}
    shown = {part: f"{value:.3g}" if isinstance(value, float) else repr(value) for part, value in answers.items()}
    return {f"{part} baseline": f"{_scores(each['scores'])} (always {shown[part]})" for part, each in found.items()}


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {score_text(value)}" for name, value in scores.items())
