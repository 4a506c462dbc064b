"""Metrics of a run: scores, history, and the content of ``metrics.json``."""

from __future__ import annotations

import logging
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain
from typing import Any

import numpy as np
import torch
from datasets import Dataset

import attendrop
from attendrop.attention.hooks import in_full_precision, replaced_attribute
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import Processes
from attendrop.runs.data import Parts
from attendrop.runs.resolved_run import ResolvedRun, decided
from attendrop.runs.run_trainer import RunTrainer
from attendrop.support.files import finite
from attendrop.tasks.base import Task
from attendrop.tasks.error_analysis import ROWS_FOR_TEMPERATURE, best_temperature, choose_threshold, error_analysis
from attendrop.tasks.metrics import compute_scores, constant_scores, row_scores
from attendrop.tasks.splits import groups_of
from attendrop.tasks.tokenization import columns_of, texts_of
from attendrop.tasks.types.base import Array
from attendrop.wording import counted

# Sets whose score is kept by row.
_ROWS_KEPT = ("dev", "ood")
_REWARD_ROWS = {"split": "reward", "eval": "dev"}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SetScores:
    """Scores of a model on one set, as JSON values. The last four are None for sets other than "dev" and "ood"."""

    scores: dict[str, float]  # all metrics of the task
    baseline: dict[str, Any] | None  # "answer" and "scores" of a constant prediction, if the kind of task has one
    predicted: dict[str, int]  # number of predictions of each class; empty if there are no classes
    rows: int
    by_row: dict[str, Any] | None = None  # the score of the task's metric, divided among the rows
    predictions: list[Any] | None = None  # predicted labels of the rows
    report: dict[str, Any] | None = None  # of errors, if predictions are classes or labels
    accept: dict[str, Any] | None = None  # of "dev", the least confidence that is asked for (`choose_threshold`)


def set_scores(
    run: ResolvedRun, name: str, outputs: Array, references: Array, train_references: Array | None = None
) -> SetScores:
    """Score outputs for a set of a run."""
    task, task_type, by_row, predictions, report, accept = run.task, run.task.type, None, None, None, None
    if name in _ROWS_KEPT:
        found = row_scores(task, outputs, references, run.parts.report[name])
        by_row = None if found is None else found.as_dict()
        predictions = task_type.decode(task_type.checked(outputs))
        report = error_analysis(task, outputs, references, run.parts.report[name], run.parts.real.train)
    if name == "dev" and run.config.accept is not None:
        groups = groups_of(run.parts.report[name], task)
        accept = choose_threshold(task_type.checked(outputs), references, run.config.accept, groups)
    constant = None if train_references is None else constant_scores(task, train_references, references)
    baseline = None if constant is None else {"answer": constant[0], "scores": constant[1]}
    scores, predicted = compute_scores(task, outputs, references), task_type.predicted_counts(outputs)
    return SetScores(scores, baseline, predicted, len(references), by_row, predictions, report, accept)


def scored_run(
    run: ResolvedRun,
    method: str,
    options: Mapping[str, Any],
    scores: Mapping[str, SetScores],
    rows: Mapping[str, int],
    *,
    selection_score: float | None,
    selected_on: str | None = None,
) -> dict[str, Any]:
    """Make what ``metrics.json`` holds of any run, of a method or of a baseline."""
    config, task, shifted = run.config, run.task, scores.get("ood")
    return {
        "task": task.name,
        "model": config.model,
        "method": method,
        "options": dict(options),
        "seed": config.seed,
        "protocol": config.protocol,
        "metric": task.metric,
        "selection_score": selection_score,
        "score": scores["dev"].scores[task.metric] if "dev" in scores else None,
        "all_scores": {name: found.scores for name, found in scores.items() if name in run.parts.report},
        "row_scores": scores["dev"].by_row if "dev" in scores else None,
        "ood": shifted and {"score": shifted.scores[task.metric], "row_scores": shifted.by_row},
        "baseline": {name: found.baseline for name, found in scores.items() if found.baseline is not None},
        "predicted": {name: found.predicted for name, found in scores.items()},
        "report": scores["dev"].report if "dev" in scores else None,
        **({"accept": scores["dev"].accept} if config.accept is not None else {}),
        "data": {
            "source": run.data.source,
            "text_columns": list(task.text_columns),
            "classes": list(task.label_names),
            "selected_on": selected_on,
            **({"looks_grouped": run.data.looks_grouped} if run.data.looks_grouped else {}),
            "rows": dict(rows) | {name: len(part) for name, part in run.parts.report.items()},
            **({"names_left_out": list(run.parts.names_left_out)} if run.parts.names_left_out else {}),
            **({"unlabelled": dict(run.parts.unlabelled_numbers)} if run.parts.unlabelled_numbers else {}),
        },
        "config": run.given.as_dict(),
        "output_dir": config.output_dir,
        "versions": {
            "attendrop": attendrop.__version__,
            "python": sys.version.split()[0],
            **{package: version(package) for package in ("torch", "transformers", "accelerate", "datasets")},
        },
    }


def training_rows(train: Dataset, parts: Parts) -> dict[str, Any]:
    """Count training rows for ``metrics.json``: of the data, and if there are any, names of classes."""
    found: dict[str, Any] = {"train": len(train) - parts.names}
    return found | ({"label_names": parts.names} if parts.names else {})


def score_model(
    run: ResolvedRun, trainer: RunTrainer, encoded: Parts, selected: Mapping[str, Any] | None
) -> dict[str, SetScores]:
    """Score the model on the reported sets, which the held-out protocol uses only here.

    If there are none, score it on the selection split, or return the scores that :func:`selection_report` found.
    """
    if not encoded.report and selected is not None:
        return {"selection": SetScores(**selected["scores"])}
    sets = encoded.report or ({} if encoded.selection is None else {"selection": encoded.selection})
    return {name: _score(run, trainer, encoded, rows, name) for name, rows in sets.items()}


def _score(run: ResolvedRun, trainer: RunTrainer, encoded: Parts, rows: Dataset, name: str) -> SetScores:
    task_type, train, outputs = run.task.type, encoded.real.train, _outputs(trainer, run.task, rows)[0]
    return set_scores(
        run, name, outputs, task_type.references(columns_of(rows)), task_type.references(columns_of(train))
    )


def _outputs(trainer: RunTrainer, task: Task, rows: Dataset) -> tuple[Array, float]:
    """Compute the outputs of the trained model for encoded rows, and its mean loss, in the precision of its weights."""
    assert trainer.model is not None
    with replaced_attribute(trainer, "compute_metrics", None), in_full_precision(trainer.model):
        found = trainer.predict(rows)
    tokenizer: Any = trainer.processing_class
    outputs = task.type.row_outputs(np.asarray(found.predictions), columns_of(rows), tokenizer)
    return outputs, float((found.metrics or {})["test_loss"])


def selection_report(run: ResolvedRun, trainer: RunTrainer, encoded: Parts) -> dict[str, Any]:
    """Report on a training with rows held out, before the final one on all rows, as JSON values.

    ``steps`` are those after which the kept ``epoch`` ended, of ``planned_steps``; ``score`` and ``scores`` are on the
    held-out rows.
    """
    log, metric = trainer.state.log_history, run.task.metric
    ended = {entry["step"]: math.ceil(entry["epoch"]) for entry in log if f"eval_{metric}" in entry}
    steps = trainer.state.best_global_step if run.chooses_epoch else max(ended)
    assert encoded.selection is not None and steps is not None
    return {
        "steps": steps,
        "planned_steps": trainer.state.max_steps,
        "epoch": ended[int(steps)],
        "score": _selection_score(run, trainer),
        "scores": asdict(_score(run, trainer, encoded, encoded.selection, "selection")),
        "history": _history(log, run.method, run.task),
        "seconds": round(trainer.meter.seconds_so_far, 3),
    } | ({"temperature": held_out_temperature(run, trainer, encoded.selection)} if run.config.calibrate else {})


def held_out_temperature(run: ResolvedRun, trainer: RunTrainer, rows: Dataset) -> float:
    """Fit a temperature to a model's logits on held-out rows; warn if these are few."""
    if len(rows) < ROWS_FOR_TEMPERATURE:
        logger.warning(
            "Probabilities are calibrated on %s; with fewer than %d, they may be worse than without. Hold out more by "
            "--selection-fraction, or omit --calibrate.",
            counted(len(rows), "row"),
            ROWS_FOR_TEMPERATURE,
        )
    task_type, outputs = run.task.type, _outputs(trainer, run.task, rows)[0]
    return best_temperature(task_type.checked(outputs), task_type.references(columns_of(rows)))


def _selection_score(run: ResolvedRun, trainer: RunTrainer) -> float | None:
    """Return the score of the kept epoch on the selection split; None if there is none."""
    if run.parts.selection is None:
        return None
    if run.chooses_epoch:
        return trainer.state.best_metric
    found = [entry[f"eval_{run.task.metric}"] for entry in trainer.state.log_history if "eval_loss" in entry]
    return float(found[-1]) if found else None  # no steps


def training_fit(trainer: RunTrainer, task: Task, rows: Dataset) -> dict[str, Any]:
    """Score the model in evaluation mode on its training rows, or a sample of them.

    Whether it has ``fitted`` these ``rows`` is said by its ``score``, and :attr:`TaskType.fitted_at`.
    """
    texts = texts_of(rows)
    # At random: if classes alternate, rows taken at regular steps may all be of one class.
    numbers = random.Random(0).sample(range(len(texts)), min(len(texts), 100 if task.type.generates else 1000))
    kept = [texts[number] for number in sorted(numbers)]
    sample = rows.select(list(chain(*kept)))
    outputs, loss = _outputs(trainer, task, sample)
    metric, least = task.type.fitted_at or (task.metric, -math.inf)
    score = task.type.metrics[metric].score(task.type.references(columns_of(sample)), task.type.checked(outputs))
    return {"rows": len(kept), "loss": loss, "metric": metric, "score": score, "fitted": score >= least}


def run_metrics(
    run: ResolvedRun,
    final: ResolvedRun,
    trainer: RunTrainer,
    encoded: Parts,
    scores: Mapping[str, SetScores],
    selected: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Make the content of ``metrics.json``, except for the data report and the total time."""
    config, method, parts, state = run.config, run.method, run.parts, trainer.state
    history = _history(state.log_history, final.method, run.task)
    best = selected["score"] if selected is not None else _selection_score(run, trainer)
    if best is None and "selection" in scores:
        best = scores["selection"].scores[run.task.metric]
    chosen = (entry["epoch"] for entry in history if run.chooses_epoch and entry["step"] == state.best_global_step)
    held_out = parts.selection if config.protocol == "held-out" else None
    rows = training_rows(final.parts.train, final.parts)
    rows |= {"selection": len(held_out)} if held_out is not None else {}
    if config.rewarded_on == "split" and final.parts.reward is not None:
        rows["reward"] = len(final.parts.reward)
    selected_on = None if not run.chooses_epoch else "dev" if config.protocol == "paper" else "selection"
    started = "random" if trainer.head_init is None else "linear-probe"
    found = scored_run(run, method.name, method.options(), scores, rows, selection_score=best, selected_on=selected_on)
    if "unlabelled" in found["data"]:
        found["data"]["unlabelled"] |= (trainer.head_init or {}).get("unlabelled") or {"used": False}
    found["data"]["rewarded_on"] = _REWARD_ROWS.get(config.rewarded_on or "")
    parameters, peak = list(trainer.accelerator.unwrap_model(trainer.model).parameters()), 0
    if trainer.args.device.type == "cuda":
        peak = int(torch.cuda.max_memory_allocated(trainer.args.device))
    elif sys.platform != "win32":  # where it is not known
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return found | {
        "best_epoch": len(history) if selected is not None else next(chosen, len(history)),
        "history": history,
        "dropout_steps": method.dropout_steps(state.log_history),
        "training": decided(config)
        | {"head_init": None if run.task.type.generates and started == "random" else started},
        "selection": None if selected is None else {"rows": len(held_out or [])} | dict(selected),
        "steps": state.global_step,
        "planned_steps": state.max_steps,
        "train_seconds": round(trainer.meter.seconds_so_far + (selected["seconds"] if selected else 0), 3),
        "peak_memory_bytes": peak,
        "parameters": {
            "total": sum(each.numel() for each in parameters),
            "trained": sum(each.numel() for each in parameters if each.requires_grad),
        },
        "world_size": trainer.args.world_size,
        "device": str(trainer.args.device),
        "head_init": trainer.head_init,
        "train_fit": training_fit(trainer, run.task, encoded.train),
        **learnt(trainer, encoded),
    }


def learnt(trainer: RunTrainer, encoded: Parts) -> dict[str, Any]:
    """Collect what the method learnt in the finished run."""
    if trainer.method_state is None:
        return {}
    rows = encoded.train if encoded.selection is None else encoded.selection
    # All rows in each process: the trainer's own loader would give each a part, filled up with rows of others.
    data = trainer.labelled(rows)
    assert data is not None  # the rows of a run are no stream
    return trainer.method_state.final_report(data.iter_batches(trainer.args.eval_batch_size, Processes()))


def _history(log: list[dict[str, float]], method: Method, task: Task) -> list[dict[str, Any]]:
    """Make one entry per epoch, counted from 1: losses, selection scores, and what the method did."""
    acts_in = method.regularized_epochs(math.ceil(max((entry["epoch"] for entry in log), default=0))) or []
    sources = [part.source for part in method.parts]
    history: dict[int, dict[str, Any]] = {}
    for entry in log:
        number = math.ceil(entry["epoch"])
        if "loss" in entry and number not in history:
            metrics = epoch_metrics(log, number)
            own = {name: name.partition("/") for name in metrics}
            history[number] = {
                "epoch": number,
                "step": max(each["step"] for each in log if "loss" in each and math.ceil(each["epoch"]) == number),
                "train_loss": metrics["loss"],
                "selection_loss": None,
                "selection": {},
                "regularized": number - 1 in acts_in,
                "dropped": {
                    part.name: metrics[f"{part.source}/dropped"]
                    for part in method.parts
                    if f"{part.source}/dropped" in metrics
                },
                "figures": {  # metrics of the method, other than the fractions that it dropped
                    name: metrics[name]
                    for name, (source, _, what) in own.items()
                    if source in sources and what != "active" and not what.startswith("dropped")
                },
            }
    for entry in log:
        if "eval_loss" in entry and math.ceil(entry["epoch"]) in history:
            found = {name: entry[f"eval_{name}"] for name in (task.metric, *task.other_metrics)}
            history[math.ceil(entry["epoch"])] |= {"selection": found, "selection_loss": finite(entry["eval_loss"])}
    return list(history.values())


def epoch_metrics(log: Sequence[dict[str, float]], epoch: int) -> dict[str, float]:
    """Average what was logged beside the loss in an epoch, counted from 1, weighted by steps."""
    found: dict[str, list[tuple[float, float]]] = {}
    last_step = 0.0
    for entry in log:
        if "loss" in entry:
            entry = entry | {"steps": entry["step"] - last_step}
            last_step = entry["step"]
            for name, value in entry.items() if math.ceil(entry["epoch"]) == epoch else ():
                found.setdefault(name, []).append((value, entry["steps"]))
    averaged = {
        name: float(np.average([value for value, _ in pairs], weights=[steps for _, steps in pairs]))
        for name, pairs in found.items()
    }
    return averaged | {name: pairs[0][0] for name, pairs in found.items() if len(pairs) == 1}  # which is exact
