"""Scores of two networks on the same rows, from which the rewards are computed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attendrop.attribution.label_positions import IGNORED
from attendrop.extend import (
    AttendropError,
    Batch,
    TrainingContext,
    evaluating,
    forked_rng,
    in_full_precision,
    number_of_rows,
)
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.support.models import to_device
from attendrop.wording import counted


def scores(
    method: AttendOutOptions,
    training: TrainingContext,
    networks: Sequence[nn.Module],
    items: Sequence[Sequence[Batch]],
) -> Tensor:
    """Score networks on each item, ``(networks, items)``, in float64 on the CPU.

    Autocast is off, because the scores differ by less than half precision resolves. ``items`` are the batches of each
    item that this process scores; results of other processes are added. Batches without a label (no token was masked)
    have no loss and do not count; if an item has no others, no network is ahead.
    """
    sums = torch.zeros(len(networks) + 1, len(items), dtype=torch.float64)
    with torch.no_grad():
        for row, network in enumerate(networks):
            device = next(network.parameters()).device
            with evaluating(network), forked_rng(network), in_full_precision(network):
                for number, batches in enumerate(items):
                    for batch in filter(_is_labelled, batches):
                        weight = number_of_rows(batch)
                        sums[row, number] += weight * _score(method, training, network, to_device(batch, device))
                        sums[-1, number] += weight / len(networks)
    totals = training.processes.total(sums).cpu()
    if method.score == "metric" and not totals[:-1].any():
        warnings.warn(
            f"The metric is 0 for both models on all {len(items)} items of a period, which gives no reward. A "
            "correlation is 0 on one row, and if all predictions are the same: raise reward_batch_size, or use "
            "score='loss'.",
            stacklevel=2,
        )
    return totals[:-1] / totals[-1].clamp(min=1)


def rewards_of(method: AttendOutOptions, attacker: Tensor, defender: Tensor) -> Tensor:
    """Compute the rewards of the attacker from the scores of both models."""
    return attacker - defender if method.reward == "difference" else (attacker - defender).sign()


def shared(sampled: Sequence[Batch], training: TrainingContext) -> list[list[Batch]]:
    """Divide items that all processes have sampled alike among them."""
    processes = training.processes
    return [[item] if i % processes.world_size == processes.rank else [] for i, item in enumerate(sampled)]


def _is_labelled(batch: Batch) -> bool:
    labels = batch.get("labels")
    return not isinstance(labels, Tensor) or bool(labels.ne(IGNORED).any())


def _score(method: AttendOutOptions, training: TrainingContext, network: nn.Module, batch: Batch) -> float:
    loss, outputs = training.evaluate(network, batch)
    if method.score == "loss":
        return -float(loss)
    assert training.metric is not None
    if "labels" not in batch:
        raise AttendropError("score='metric' compares logits with 'labels', which the batch lacks; use score='loss'.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from metrics that are ill-defined on few examples
        found = training.metric(outputs.logits.float(), batch)
    if not math.isfinite(found):
        raise AttendropError(
            f"score='metric': the metric is {found} on a batch of {counted(number_of_rows(batch), 'row')}; raise "
            "reward_batch_size, or use score='loss'."
        )
    return found


def check(method: AttendOutOptions, training: TrainingContext) -> None:
    """Check that the training context provides everything that the options need.

    Raises:
        AttendropError: Something is missing.
    """
    if training.optimizer is None:
        raise AttendropError(
            "AttendOut trains a second model and needs the optimizer: pass regularize(..., optimizer=optimizer)."
        )
    if method.score_on == "reward_data" and training.reward_data is None:
        raise AttendropError(
            "AttendOut scores its models on held-out labelled rows: pass reward_data, or use variant='pruning', which "
            "scores on the training batches."
        )
    if method.score == "metric" and training.metric is None:
        raise AttendropError(
            "score='metric' needs a trainer with compute_metrics and a metric_for_best_model that it returns, which "
            "the loss is not, and outputs that are not generated; use score='loss'."
        )
    if method.score_on == "noisy_train" and training.mask_token is None:
        raise AttendropError(
            "score_on='noisy_train' needs a tokenizer with a mask token: set the trainer's processing_class, or pass "
            "tokenizer= to regularize."
        )
    if method.generator_schedule == "linear" and training.total_steps is None:
        raise AttendropError("generator_schedule='linear' needs the number of planned steps: pass total_steps.")
