"""What a person sees: messages and progress on stderr, results on stdout."""

from __future__ import annotations

import logging
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import datasets
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from attendrop.methods import get_method
from attendrop.runs.folder import is_main_process


@contextmanager
def messages(*, quiet: bool) -> Iterator[Console]:
    """Show the library's messages and all warnings on stderr; quiet: warnings only. Gives that console.

    Only the main process of a distributed run speaks.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True, quiet=not is_main_process())
    root, handler = logging.getLogger("attendrop"), _Handler(console)
    level, show = root.level, warnings.showwarning
    root.addHandler(handler)
    root.setLevel(logging.WARNING if quiet else logging.INFO)
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    datasets.disable_progress_bars()
    warnings.showwarning = lambda message, *_, **__: _warn(console, str(message))
    try:
        yield console
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        warnings.showwarning = show


class _Handler(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            _warn(self.console, record.getMessage())
        else:
            self.console.print(record.getMessage(), markup=False)


def _warn(console: Console, message: str) -> None:
    console.print(Text.assemble(("Warning: ", "yellow"), message))


class TrainingProgress(TrainerCallback):
    """A bar while a run trains, where stderr is a terminal, and a line at the end of each epoch."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        self.line = ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.console.is_terminal and not self.console.quiet:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.bar.add_task("training", total=state.max_steps, completed=state.global_step)
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **_: Any,
    ) -> None:
        logs = logs or {}
        if "loss" in logs:
            dropped = {name.partition("/")[0]: value for name, value in logs.items() if name.endswith("/dropped")}
            share = "".join(f", {_share(source.replace('_', '-'), value)}" for source, value in dropped.items())
            self.line = f"Epoch {state.epoch:.0f} of {args.num_train_epochs:.0f}: loss {logs['loss']:.4f}{share}"
        score = logs.get(args.metric_for_best_model or "")
        if self.line and (score is not None or args.metric_for_best_model is None):
            name = (args.metric_for_best_model or "").removeprefix("eval_").replace("_", " ")
            self.console.print(
                self.line + (f", selection {name} {score:.4f}" if score is not None else ""), markup=False
            )
            self.line = ""

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away, also after an exception."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def run_summary(metrics: Mapping[str, Any]) -> str:
    """A run in a few lines: rows, what the method did, the scores, the protocol, and where the model is."""
    data, metric = metrics["data"], metrics["metric"].replace("_", " ")
    lines = {
        "rows": ", ".join(f"{count} {part}" for part, count in data["rows"].items()),
        "regularised": _acted(metrics),
    }
    if metrics["dropout_steps"]:
        lines["generator"] = _generator(metrics["dropout_steps"])
    lines["epoch kept"] = f"{metrics['best_epoch']} of {len(metrics['history'])}"
    if data["selected_on"] is None:
        lines["epoch kept"] += ", the last"
    elif data["selected_on"] == "selection":
        lines["selection score"] = f"{metric} {metrics['selection_score']:.4f}"
    lines |= {f"{part} score": _scores(scores) for part, scores in metrics["all_scores"].items()}
    if not metrics["all_scores"]:
        lines["score"] = "none: there is no eval-file"
    lines["protocol"] = {
        "dev": "paper: the epoch was chosen on the very set that is reported, so the dev score flatters",
        "selection": "honest: the epoch was chosen on rows of the training data; dev was scored once, at the end",
        None: "honest: nothing was chosen; dev was scored once, at the end",
    }[data["selected_on"]]
    if data["rewarded_on"] == "dev":
        lines["rewarded on"] = "dev: it decided during training what was dropped, so the dev score flatters"
    lines["cost"] = (
        f"{metrics['steps']} steps, {metrics['train_seconds']:.0f} s, {size(metrics['peak_memory_bytes'])} at most"
    )
    lines["model"] = metrics["output_dir"]
    title = f"{metrics['model']} on {metrics['task']} with {metrics['method']}, seed {metrics['seed']} (one seed)"
    return f"{title}\n{aligned(lines)}"


def aligned(lines: Mapping[str, str]) -> str:
    """Names and what they stand for, in two columns."""
    width = max(map(len, lines))
    return "\n".join(f"{name:<{width}}  {line}" for name, line in lines.items())


def _acted(metrics: Mapping[str, Any]) -> str:
    epochs = [entry for entry in metrics["history"] if entry["regularized"]]
    if not epochs:
        return "no epoch"
    numbers = ", ".join(str(entry["epoch"]) for entry in epochs)
    dropped = ""
    for method in dict.fromkeys(name for entry in epochs for name in entry["dropped"]):
        shares = [entry["dropped"][method] for entry in epochs if method in entry["dropped"]]
        dropped += f"; {_share(method, statistics.fmean(shares))} there"
    return f"epoch{'s' if len(epochs) > 1 else ''} {numbers} of {len(metrics['history'])}{dropped}"


def _share(method: str, share: float) -> str:
    return f"{100 * share:.1f} % of {get_method(method).facts.units} dropped"


def _generator(steps: Sequence[Mapping[str, Any]]) -> str:
    """How often the attacker survived, and what the probability of dropping came to."""
    survived = sum(step["attacker_survived"] for step in steps)
    first, last = (statistics.fmean(steps[i]["drop_probability"].values()) for i in (0, -1))
    return (
        f"attacker survived {survived} of {len(steps)} periods; drop probability {first:.3f} at first, {last:.3f} last"
    )


def _scores(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in scores.items())


def size(count: int) -> str:
    """Bytes, for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
