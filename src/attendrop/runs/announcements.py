"""What a run logs before and after training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from attendrop.methods.core.base import Method
from attendrop.runs.data_report import SKIPPED, report_table, report_warnings
from attendrop.runs.resolved_run import ResolvedRun
from attendrop.runs.run_metrics import SetScores
from attendrop.runs.training_args import num_epochs
from attendrop.tasks.heads.base import Head
from attendrop.wording import counted

logger = logging.getLogger(__name__)


def announce_run(run: ResolvedRun, rows: int) -> None:
    """Log the data, of ``rows`` encoded training rows, and when the method acts; warn of optimistic scores."""
    config, parts = run.config, run.parts
    counts = [f"{counted(len(parts.train), 'row')} to train on"]
    if parts.selection is not None and config.protocol == "honest":
        purpose = "choose the best epoch" if run.chooses_epoch else "score on"
        counts.append(f"{len(parts.selection)} more to {purpose}")
    if config.rewarded_on == "split" and parts.reward is not None:
        counts.append(f"{len(parts.reward)} more to reward the method on")
    counts += [f"{len(rows)} to report on ({name})" for name, rows in parts.report.items()]
    logger.info("Task %s, %s: %s.", run.task.name, run.data.source, ", ".join(counts))
    if config.protocol == "paper":
        logger.warning("Protocol 'paper': the best epoch is chosen on the reported set, so the score is optimistic.")
    if config.rewarded_on == "eval":
        logger.warning("The method scores models on dev during training, so the score on it is optimistic.")
    if not run.chooses_epoch:
        logger.info("Nothing is chosen: the last epoch is kept.")
    logger.info("%s", _training(run))
    for part in run.method.parts:
        _announce_epochs(part, num_epochs(config, rows))
        if part.info.evidence:
            logger.info("Measured of %s: %s", part.name, part.info.evidence)


def _training(run: ResolvedRun) -> str:
    """Describe the training, as it was given or as the recipe decided."""
    config = run.config
    length = counted(config.epochs or 0, "epoch") if config.max_steps is None else counted(config.max_steps, "step")
    reads = ", on the mean over all tokens" if run.task.head.has_pooling and config.pooling == "mean" else ""
    head = "" if run.task.head.pretrained else " and the head"
    adapter = "" if config.adapter is None else f", of a LoRA adapter of rank {config.adapter.r}{head}"
    return (
        f"Training: {length} of batches of {config.batch_size}, learning rate {config.learning_rate:g}{reads}{adapter}."
    )


def _announce_epochs(method: Method, total: int) -> None:
    epochs = method.regularized_epochs(total)
    if epochs is None:
        logger.info("Method %s: nothing is regularised.", method.name)
    elif epochs:  # if there are none, the trainer warns
        logger.info("Method %s will regularise %s.", method.name, _listed(epochs, total))


def _listed(epochs: list[int], total: int) -> str:
    """Format epochs, given from 0, counted from 1."""
    if len(epochs) == total:
        return f"all {total} epochs" if total > 1 else "the only epoch"
    names = [str(epoch + 1) for epoch in epochs]
    shown = names if len(names) <= 8 else [*names[:3], "...", names[-1]]
    return f"epoch{'s' if len(names) > 1 else ''} {', '.join(shown)} of {total}"


def announce_data(report: dict[str, Any], head: Head) -> None:
    """Log the report on the data, and its warnings."""
    logger.info("%s", report_table(report, head))
    if report["skipped"]:
        logger.warning(
            "Skipped %s (%s); %s in the run's folder lists them.",
            counted(report["skipped"], "invalid row"),
            report["skipped_places"],
            SKIPPED,
        )
    for warning in report_warnings(report, head):
        logger.warning("%s", warning)


def announce_scores(scores: Mapping[str, SetScores], fit: Mapping[str, Any]) -> None:
    """Warn of a model that predicts one class for all rows of a set, or has not fitted its training rows."""
    for name, found in scores.items():
        if len(found.predicted) == 1 and found.rows > 1:
            answer = next(iter(found.predicted))
            logger.warning("The model predicts %r for all %d rows of %s.", answer, found.rows, name)
    if not fit["fitted"]:
        logger.warning(
            "Training %s %.2f: the model has not fitted its training rows; raise max-steps or learning-rate.",
            fit["metric"],
            fit["score"],
        )
