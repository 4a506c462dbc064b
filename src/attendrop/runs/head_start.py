"""Start of a new head from a linear model of the frozen encoder's features (Kumar et al., 2022)."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.devices import compute_device
from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.prediction_passes import sorted_batches
from attendrop.runs.shared_results import digest_of_model, shared
from attendrop.tasks.heads.base import Array, Head, LinearFit

logger = logging.getLogger(__name__)


def start_head(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    new: Collection[str],
    head: Head,
    rows: Dataset,
    config: RunConfig,
) -> dict[str, Any] | None:
    """Fit a linear model to the features of the training rows, and start the model's last linear layer from it.

    Nothing is random, and no random number is taken from the model's: with the same rows, all methods start alike.

    Args:
        model: The model, changed in place.
        tokenizer: The tokenizer of the model.
        new: Names of the parameters without trained values.
        head: Head of the task.
        rows: Encoded training rows.
        config: Options of the run.

    Returns:
        ``kind`` ("logistic regression"), its ``settings``, ``metric`` and ``train_score``; None if the head starts at
        random, by choice or, with ``head_start="auto"``, because there is no such start.

    Raises:
        AttendropError: With ``head_start="frozen"``, if the head is not one new linear layer on trained features.
    """
    if config.head_start == "random":
        return None
    try:
        return _started(model, tokenizer, new, head, rows, config)
    except _NoStart as reason:
        if config.head_start in ("frozen", "contrastive"):
            raise AttendropError(f"head-start '{config.head_start}' is not possible: {reason}; use 'random'.") from None
        return None


class _NoStart(Exception):
    """Why the head cannot start from a linear model."""


def _started(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    new: Collection[str],
    head: Head,
    rows: Dataset,
    config: RunConfig,
) -> dict[str, Any]:
    if not head.one_vector:
        raise _NoStart(f"it needs one vector for the whole input, and the model predicts {head.predicts}")
    linear = _new_linear_layer(model, new, strict=config.head_start == "auto")
    model.to(compute_device(config.device)).eval()  # type: ignore[arg-type]
    balanced = config.class_weights is not None

    def key() -> list[Any]:
        start = digest_of_model(model, without=linear)  # all that the features depend on, beside the rows
        return [start, rows.to_dict(), config.eval_batch_size, str(model.device), head.kind, balanced]

    def fitted() -> LinearFit | None:
        features = _features(model, linear, tokenizer, head, rows, config.eval_batch_size)
        return head.fit_linear(features, rows["labels"][:], balanced=balanced)

    fit = shared(key, fitted, lambda fit: 0 if fit is None else fit.weight.nbytes + fit.bias.nbytes, kind="head start")
    if fit is None:
        raise _NoStart("the training rows do not determine a linear model")
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(fit.weight))
        linear.bias.copy_(torch.from_numpy(fit.bias))
    metric, score = fit.score
    settings = ", ".join(f"{name} = {value:g}" for name, value in fit.settings.items())
    logger.info(
        "The head starts from a %s on the frozen encoder (%s): %s %.2f of the training rows.",
        fit.kind,
        settings,
        metric,
        score,
    )
    return {"kind": fit.kind, "settings": fit.settings, "metric": metric, "train_score": score}


def _new_linear_layer(model: PreTrainedModel, new: Collection[str], *, strict: bool) -> nn.Linear:
    """Find the linear layer that computes the logits; with ``strict``, nothing else may be new."""
    outputs = model.config.num_labels
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == outputs and f"{name}.weight" in new
    }
    if not linear:
        raise _NoStart("the model has no new linear layer with an output for each class")
    if len(linear) > 1:
        raise _NoStart(f"the model has several new linear layers: {', '.join(linear)}")
    name, layer = next(iter(linear.items()))
    others = sorted(key for key in new if not key.startswith(f"{name}."))
    if strict and others:
        raise _NoStart(f"its features pass through weights that are new, too ({others[0]})")
    if layer.bias is None:
        raise _NoStart(f"its layer {name} has no bias")
    return layer


def _features(
    model: PreTrainedModel,
    linear: nn.Linear,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    rows: Dataset,
    batch_size: int,
) -> Array:
    """Collect what enters the linear layer, ``(rows, features)``."""
    seen: list[tuple[Tensor, Tensor]] = []
    hook = linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    found, order = [], []
    try:
        with torch.no_grad():
            for numbers, batch in sorted_batches(model, tokenizer, head, rows.to_dict(), batch_size):
                seen.clear()
                logits = head.predict(model, batch)
                features, outputs = seen[-1] if seen else (torch.empty(0), torch.empty(0))
                if features.ndim != 2 or not np.array_equal(outputs.float().cpu().numpy(), logits):
                    raise _NoStart(f"{type(model).__name__} does more than one linear layer on one vector of a text")
                found.append(features.float().cpu().numpy())
                order.append(numbers)
    finally:
        hook.remove()
    return np.concatenate(found)[np.argsort(np.concatenate(order))]
