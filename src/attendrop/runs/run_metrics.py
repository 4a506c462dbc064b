"""Metrics of a run: scores, history, and the content of ``metrics.json``."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

import attendrop
from attendrop.methods.core.base import Method
from attendrop.runs.data import Parts
from attendrop.runs.resolved_run import ResolvedRun
from attendrop.runs.small_data_recipe import decided
from attendrop.tasks.base import Task, TaskData
from attendrop.tasks.error_analysis import error_analysis
from attendrop.tasks.heads.base import Array
from attendrop.tasks.metrics import compute_scores, constant_scores
from attendrop.tasks.row_scores import RowScores, row_scores
from attendrop.tasks.tokenization import columns_of
from attendrop.training.model_call import replaced_attribute
from attendrop.training.trainer import RegularizedTrainer

# Sets whose score is kept by row.
ROWS_KEPT = ("dev", "shifted")


@dataclass(frozen=True)
class SetScores:
    """Scores of a model on one set.

    Attributes:
        scores: All metrics of the task.
        baseline: The ``answer`` and the ``scores`` of a model that always gives one: the most common class of the
            training rows, or their mean; None: the kind of task has no such answer.
        predicted: Number of predictions of each class; empty if there are no classes.
        rows: Number of rows of the set.
        by_row: The score of the task's metric, divided among the rows; None unless rows were given.
        predictions: Predicted labels of the rows; None unless rows were given.
        report: What the model gets wrong, see :func:`attendrop.tasks.error_analysis.error_analysis`; None unless rows
            were given, and for other kinds of predictions.
    """

    scores: dict[str, float]
    baseline: dict[str, Any] | None
    predicted: dict[str, int]
    rows: int
    by_row: RowScores | None = None
    predictions: list[Any] | None = None
    report: dict[str, Any] | None = None


def score_report(trainer: RegularizedTrainer, task: Task, encoded: Parts, parts: Parts) -> dict[str, SetScores]:
    """Score the model on the reported sets, which the honest protocol uses only here.

    Where there is none, on the selection split.

    Args:
        trainer: The trainer with the model.
        task: The task.
        encoded: The encoded rows.
        parts: The rows as they were loaded.
    """
    if not encoded.report:
        sets = {} if encoded.selection is None else {"selection": encoded.selection}
        return {name: _score(trainer, task, encoded.train, rows) for name, rows in sets.items()}
    return {
        name: _score(trainer, task, encoded.train, rows, parts.report[name] if name in ROWS_KEPT else None, parts.train)
        for name, rows in encoded.report.items()
    }


def shifted_scores(score: float, by_row: RowScores | None) -> dict[str, Any]:
    """Return the score on rows that are unlike the training rows, and how it divides among them, as JSON values."""
    return {"score": score, "row_scores": None if by_row is None else by_row.as_dict()}


def _by_row(found: SetScores | None) -> dict[str, Any] | None:
    return None if found is None or found.by_row is None else found.by_row.as_dict()


def _score(
    trainer: RegularizedTrainer,
    task: Task,
    train: Dataset,
    rows: Dataset,
    loaded: Dataset | None = None,
    train_loaded: Dataset | None = None,
) -> SetScores:
    outputs, _ = _outputs(trainer, task, rows)
    references = task.head.references(columns_of(rows))
    by_row, predictions, report = None, None, None
    if loaded is not None:
        by_row = row_scores(task, outputs, references, loaded)
        predictions = task.head.decode(task.head.checked(outputs))
        report = error_analysis(task, outputs, references, loaded, train_loaded)
    constant = constant_scores(task, task.head.references(columns_of(train)), references)
    baseline = None if constant is None else {"answer": constant[0], "scores": constant[1]}
    predicted = task.head.predicted_counts(outputs)
    found = compute_scores(task, outputs, references)
    return SetScores(found, baseline, predicted, len(references), by_row, predictions, report)


def _outputs(trainer: RegularizedTrainer, task: Task, rows: Dataset) -> tuple[Array, float]:
    """Compute the outputs of the trained model for encoded rows, and its mean loss."""
    with replaced_attribute(trainer, "compute_metrics", None):
        found = trainer.predict(rows)
    tokenizer: Any = trainer.processing_class
    outputs = task.head.row_outputs(np.asarray(found.predictions), columns_of(rows), tokenizer)
    return outputs, float((found.metrics or {})["test_loss"])


def selection_report(run: ResolvedRun, trainer: RegularizedTrainer, encoded: Parts, seconds: float) -> dict[str, Any]:
    """Report on a training with rows held out, before the final one on all rows, as JSON values.

    Returns:
        ``steps`` (those after which the kept epoch ended) of ``planned_steps``, ``epoch`` (the kept one), ``score`` and
        ``scores`` on the held-out rows, ``history``, ``seconds``.
    """
    log, metric = trainer.state.log_history, run.task.metric
    score = _selection_score(run, trainer)
    ended = [(entry["step"], math.ceil(entry["epoch"])) for entry in log if entry.get(f"eval_{metric}") == score]
    steps, epoch = ended[0 if run.chooses_epoch else -1]
    assert encoded.selection is not None
    return {
        "steps": steps,
        "planned_steps": trainer.state.max_steps,
        "epoch": epoch,
        "score": score,
        "scores": asdict(_score(trainer, run.task, encoded.train, encoded.selection)),
        "history": _history(log, run.method, run.data),
        "seconds": round(seconds, 3),
    }


def selection_scores(selected: Mapping[str, Any] | None) -> dict[str, SetScores]:
    """Return the scores in a :func:`selection_report`, as those of a set."""
    return {} if selected is None else {"selection": SetScores(**selected["scores"])}


def _selection_score(run: ResolvedRun, trainer: RegularizedTrainer) -> float | None:
    """Return the score of the kept epoch on the selection split; None if there is none."""
    if run.parts.selection is None:
        return None
    if run.chooses_epoch:
        return trainer.state.best_metric
    found = [entry[f"eval_{run.task.metric}"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return float(found[-1])


def training_fit(trainer: RegularizedTrainer, task: Task, rows: Dataset) -> dict[str, Any]:
    """Score the model in evaluation mode on its training rows, or a sample of them.

    Returns:
        ``rows``, ``loss``, ``metric`` with its ``score``, and whether the model has ``fitted`` these rows, by
        ``Head.fitted_at``.
    """
    sample = rows.select(range(0, len(rows), math.ceil(len(rows) / task.head.most_fit_rows)))
    outputs, loss = _outputs(trainer, task, sample)
    metric, least = task.head.fitted_at or (task.metric, -math.inf)
    score = task.head.metrics[metric].score(task.head.references(columns_of(sample)), task.head.checked(outputs))
    return {"rows": len(sample), "loss": loss, "metric": metric, "score": score, "fitted": score >= least}


def run_metrics(
    run: ResolvedRun,
    final: ResolvedRun,
    trainer: RegularizedTrainer,
    scores: Mapping[str, SetScores],
    seconds: float,
    selected: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the content of ``metrics.json``.

    Args:
        run: The run.
        final: The run that the model comes from: ``run``, or after a selection that on all rows.
        trainer: The trainer of the final run.
        scores: From :func:`score_report`.
        seconds: Time that the final training took.
        selected: From :func:`selection_report`; None without a selection before.
    """
    config, method, data, parts = run.config, run.method, run.data, run.parts
    history = _history(trainer.state.log_history, method, data)
    best = selected["score"] if selected is not None else _selection_score(run, trainer)
    chosen = [
        entry["epoch"]
        for entry in history
        if selected is None and run.chooses_epoch and entry["selection"][data.task.metric] == best
    ]
    selected_on = None if not run.chooses_epoch else "dev" if config.protocol == "paper" else "selection"
    held_out = parts.selection if config.protocol == "honest" else None
    return {
        "task": data.task.name,
        "model": config.model,
        "method": method.name,
        "options": method.options(),
        "seed": config.seed,
        "protocol": config.protocol,
        "metric": data.task.metric,
        "selection_score": best,
        "score": scores["dev"].scores[data.task.metric] if "dev" in scores else None,
        "all_scores": {name: found.scores for name, found in scores.items() if name in parts.report},
        "row_scores": _by_row(scores.get("dev")),
        "shifted": shifted_scores(scores["shifted"].scores[data.task.metric], scores["shifted"].by_row)
        if "shifted" in scores
        else None,
        "baseline": {name: found.baseline for name, found in scores.items() if found.baseline is not None},
        "predicted": {name: found.predicted for name, found in scores.items()},
        "report": scores["dev"].report if "dev" in scores else None,
        "best_epoch": chosen[0] if chosen else len(history),
        "history": history,
        "dropout_steps": method.dropout_steps(trainer.state.log_history),
        "training": decided(config),
        "selection": None if selected is None else {"rows": len(held_out or [])} | dict(selected),
        "steps": trainer.state.global_step,
        "planned_steps": trainer.state.max_steps,
        "train_seconds": round(seconds + (0 if selected is None else selected["seconds"]), 3),
        "peak_memory_bytes": _peak_memory(trainer.args.device),
        "parameters": _parameters(trainer.accelerator.unwrap_model(trainer.model)),
        "data": {
            "source": data.source,
            "text_columns": list(data.task.text_columns),
            "classes": list(data.task.label_names),
            "selected_on": selected_on,
            "rewarded_on": {"split": "reward", "selection": "selection", "eval": "dev", "rotating": "train"}.get(
                config.rewarded_on or ""
            ),
            "rows": {"train": len(final.parts.train)}
            | ({"selection": len(held_out)} if held_out is not None else {})
            | ({"reward": len(final.parts.reward)} if config.rewarded_on == "split" and final.parts.reward else {})
            | {name: len(rows) for name, rows in parts.report.items()},
        },
        "config": run.given.as_dict(),
        "output_dir": config.output_dir,
        "world_size": trainer.args.world_size,
        "device": str(trainer.args.device),
        "versions": versions(),
    }


def _history(log: list[dict[str, float]], method: Method, data: TaskData) -> list[dict[str, Any]]:
    """Make one entry per epoch, counted from 1: losses, selection scores, and what the method did."""
    acts_in = method.regularized_epochs(math.ceil(max((entry["epoch"] for entry in log), default=0))) or []
    names = (data.task.metric, *data.task.other_metrics)
    history: dict[int, dict[str, Any]] = {}
    for number in dict.fromkeys(math.ceil(entry["epoch"]) for entry in log if "loss" in entry):
        metrics = epoch_metrics(log, number)
        history[number] = {
            "epoch": number,
            "step": max(entry["step"] for entry in log if "loss" in entry and math.ceil(entry["epoch"]) == number),
            "train_loss": metrics["loss"],
            "selection_loss": None,
            "selection": {},
            "regularized": number - 1 in acts_in,
            "dropped": {
                part.name: metrics[f"{part.source}/dropped"]
                for part in method.parts
                if f"{part.source}/dropped" in metrics
            },
            "figures": {name: value for name, value in metrics.items() if _is_metric(name, method)},
        }
    for entry in log:
        if "eval_loss" in entry and math.ceil(entry["epoch"]) in history:
            found = {"selection": {name: entry[f"eval_{name}"] for name in names}, "selection_loss": entry["eval_loss"]}
            history[math.ceil(entry["epoch"])] |= found
    return list(history.values())


def epoch_metrics(log: Sequence[dict[str, float]], epoch: int) -> dict[str, float]:
    """Average what was logged beside the loss in an epoch, counted from 1, weighted by steps."""
    entries = [entry for entry in _with_steps(log) if math.ceil(entry["epoch"]) == epoch]
    found = {}
    for name in dict.fromkeys(name for entry in entries for name in entry):
        having = [entry for entry in entries if name in entry]
        mean = having[0][name]  # exact, if there is only one
        if len(having) > 1:
            mean = float(np.average([entry[name] for entry in having], weights=[entry["steps"] for entry in having]))
        found[name] = mean
    return found


def _with_steps(log: Sequence[dict[str, float]]) -> Iterator[dict[str, float]]:
    """Yield the entries of the log with a training loss, and the number of ``steps`` that each is about."""
    last_step = 0.0
    for entry in log:
        if "loss" in entry:
            yield entry | {"steps": entry["step"] - last_step}
            last_step = entry["step"]


def _is_metric(name: str, method: Method) -> bool:
    """Tell whether a log entry is a metric of the method, other than the fractions that it dropped."""
    source, _, own = name.partition("/")
    return source in [part.source for part in method.parts] and own != "active" and not own.startswith("dropped")


def _parameters(model: torch.nn.Module) -> dict[str, int]:
    """Count the parameters of a model, and those that are trained."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return {"total": sum(parameter.numel() for parameter in parameters), "trained": trained}


def reset_peak_memory() -> None:
    """Let the peak memory be that of what follows; a process may train several models. On a CPU, Linux alone can."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory(device: torch.device) -> int:
    """Peak memory in bytes: of tensors on a GPU, else of the process; 0 where it is not known (Windows)."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine results."""
    others = {package: version(package) for package in ("torch", "transformers", "accelerate", "datasets")}
    return {"attendrop": attendrop.__version__, "python": sys.version.split()[0], **others}
