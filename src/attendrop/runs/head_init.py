"""Initialisation of a new head by linear probing (Kumar et al., 2022)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, cached, digest_of_model
from attendrop.runs.inference import over_rows
from attendrop.runs.model_loading import Loaded
from attendrop.support.models import compute_device
from attendrop.tasks.class_names import unlabelled_decisions
from attendrop.tasks.tokenization import document_means, of_documents
from attendrop.tasks.types.base import Array, TaskType
from attendrop.tasks.types.linear_models import LinearFit, self_trained

logger = logging.getLogger(__name__)


class _NoProbe(Exception):
    """Reason why the head cannot start from a linear model."""


def init_head(
    loaded: Loaded, task_type: TaskType, encoded: Parts, config: RunConfig, groups: Sequence[Any] | None = None
) -> dict[str, Any] | None:
    """Fit a linear model to the features of the training rows, and initialise the model's last linear layer with it.

    Nothing is random, and the model's random state is not used: with the same rows, all methods start alike. ``groups``
    are those of the texts, see :meth:`TaskType.fit_linear`. Unlabelled texts are used as in :func:`self_trained`.

    Returns:
        ``kind`` ("logistic regression"), its ``settings``, ``metric`` and ``train_score``, and with unlabelled texts
        ``unlabelled``, whether they are used (:func:`self_trained`); None if the head starts at random: by choice, or
        because it is not one new linear layer on trained features, which is an AttendropError unless ``head_init`` is
        "auto".
    """
    if config.head_init == "random":
        return None
    model, tokenizer, new = loaded
    balanced = config.class_weights is not None
    columns = encoded.train.to_dict()
    unlabelled = None if encoded.unlabelled is None else encoded.unlabelled.to_dict()

    def key() -> list[Any]:
        start = digest_of_model(model, without=linear)  # all that the features depend on, beside the rows
        options = [config.eval_batch_size, str(model.device), task_type.kind, balanced, groups]
        return [start, columns, *options, unlabelled or {}, encoded.names]

    def features_of(columns: dict[str, list[Any]]) -> Array:
        return document_means(_features(model, linear, tokenizer, task_type, columns, config.eval_batch_size), columns)

    def fitted() -> tuple[LinearFit, dict[str, Any]]:
        features = features_of(columns)
        labels = of_documents(columns["labels"], columns)  # the output of a text is the mean of its windows'
        fit = task_type.fit_linear(features, labels, balanced=balanced, groups=groups)
        if fit is None:
            raise _NoProbe("the training rows do not determine a linear model")
        if unlabelled is None:
            return fit, {}
        names = [False] * (len(labels) - encoded.names) + [True] * encoded.names
        fit, decision = self_trained(
            fit, features, labels, features_of(unlabelled), never_held_out=names, balanced=balanced, groups=groups
        )
        return fit, {"unlabelled": decision}

    try:
        if not task_type.one_vector:
            raise _NoProbe(f"it needs one vector for the whole input, and the model predicts {task_type.predicts}")
        linear = _new_linear_layer(model, new, strict=config.head_init == "auto")
        model.to(compute_device(config.device)).eval()  # type: ignore[arg-type]
        fit, decision = cached(
            key, fitted, lambda found: found[0].weight.nbytes + found[0].bias.nbytes, kind="head start"
        )
    except _NoProbe as reason:
        if config.head_init == "linear-probe":
            raise AttendropError(f"head-init 'linear-probe' is not possible: {reason}; use 'random'.") from None
        return None
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(fit.weight))
        linear.bias.copy_(torch.from_numpy(fit.bias))
    metric, score = fit.score
    settings = ", ".join(f"{name} = {value:g}" for name, value in fit.settings.items())
    told = "The head starts from a %s on the frozen encoder (%s): %s %.2f on the training rows."
    logger.info(told, fit.kind, settings, metric, score)
    if decision:
        logger.info("%s", *unlabelled_decisions([("the head's start", decision["unlabelled"])]))
    return {"kind": fit.kind, "settings": fit.settings, "metric": metric, "train_score": score} | decision


def _new_linear_layer(model: PreTrainedModel, new: Collection[str], *, strict: bool) -> nn.Linear:
    """Find the linear layer that computes the logits; with ``strict``, nothing else may be new."""
    outputs = model.config.num_labels
    linear = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == outputs and f"{name}.weight" in new
    }
    if len(linear) != 1:
        raise _NoProbe(f"the model has {len(linear)} new linear layers with an output for each class, and not one")
    name, layer = next(iter(linear.items()))
    others = sorted(key for key in new if not key.startswith(f"{name}."))
    if strict and others:
        raise _NoProbe(f"its features pass through weights that are new, too ({others[0]})")
    if layer.bias is None:
        raise _NoProbe(f"its layer {name} has no bias")
    return layer


def _features(
    model: PreTrainedModel,
    linear: nn.Linear,
    tokenizer: PreTrainedTokenizerBase,
    task_type: TaskType,
    columns: Mapping[str, list[Any]],
    batch_size: int,
) -> Array:
    """Collect the inputs of the linear layer, ``(rows, features)``."""
    seen: list[tuple[Tensor, Tensor]] = []

    def features_of(batch: dict[str, Tensor]) -> Array:
        seen.clear()
        logits = task_type.predict(model, batch)
        features, outputs = seen[-1] if seen else (torch.empty(0), torch.empty(0))
        if features.ndim != 2 or not np.array_equal(outputs.float().cpu().numpy(), logits):
            raise _NoProbe(f"{type(model).__name__} does more than one linear layer on one vector of a text")
        found: Array = features.float().cpu().numpy()
        return found

    hook = linear.register_forward_hook(lambda _, inputs, output: seen.append((inputs[0], output)))
    try:
        return over_rows(features_of, model, tokenizer, task_type, columns, batch_size)
    finally:
        hook.remove()
