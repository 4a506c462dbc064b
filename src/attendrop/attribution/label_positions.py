"""Positions of the logits at which a model predicts its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.errors import AttendropError
from attendrop.support.models import named_outputs, transformers_model

IGNORED = -100
# Whether each model shifts its labels, once known.
_SHIFTS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def aligned_labels(model: nn.Module, logits: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
    """Move labels of tokens, ``(batch, n)``, to the positions that predict them: causal language models the next token.

    The model is without wrappers such as DistributedDataParallel, its logits are ``(batch, n, classes)``, and labels
    are -100 where there is none. Without ``labels`` in the batch, returns None.

    Raises:
        AttendropError: There is not one label for each position.
    """
    labels: Tensor | None = batch.get("labels")
    if labels is None:
        return None
    if labels.shape != logits.shape[:-1]:
        raise AttendropError(
            f"{type(model).__name__} returns logits of shape {tuple(logits.shape)} for labels of shape "
            f"{tuple(labels.shape)}: which position predicts which label is not known (CTC, prompt tuning). Use a "
            "method that does not look at predictions, or attribution='attention'."
        )
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED) if shifts_labels(model, batch) else labels


def answer_positions(logits: Tensor, positions: Tensor) -> Tensor:
    """Return the first or last tokens of answers, ``(batch,)``, as transformers' losses expect them.

    They are 0 to ``n``, for start or end logits ``(batch, n)``, and ``n`` is ignored.
    """
    return positions.reshape(-1).clamp(0, logits.shape[-1])


def shifts_labels(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """Return whether the model's loss compares each label with the prediction one position before it.

    Two passes of each model show whether a label in the first position alone changes the loss. A model that computes no
    loss does not shift, nor does one that moves labels to the inputs of its decoder, as encoder-decoder models do: for
    mBART, each row needs a label.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    if model not in _SHIFTS:
        labels = batch["labels"]
        given = labels[labels != IGNORED]
        if not len(given):
            return False
        none = torch.full_like(labels, IGNORED)
        first = none.index_fill(1, torch.zeros(1, dtype=torch.long, device=labels.device), given[0])
        with torch.no_grad(), forked_rng(model), evaluating(model):
            one, other = (_loss(model, {**batch, "labels": moved}) for moved in (first, none))
        _SHIFTS[model] = one is not None and other is not None and torch.allclose(one, other, equal_nan=True)
    return _SHIFTS[model]


def refuse_misplaced_smoothing(model: nn.Module, logits: Tensor | None, batch: Mapping[str, Any]) -> None:
    """Raise AttendropError where ``transformers.Trainer`` would smooth labels at other positions than the model's loss.

    It computes the smoothed loss itself, and shifts labels by the name of the model's class. ``logits`` are None where
    the model has none of this name, such as for the answers to questions.
    """
    labels: Tensor | None = batch.get("labels")
    if labels is None or logits is None or labels.ndim < 2 or labels.shape != logits.shape[:-1]:
        return
    if model not in _SHIFTS and not (labels != IGNORED).any():
        return
    name = type(transformers_model(model)).__name__
    if shifts_labels(model, batch) != (name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise AttendropError(
            f"label_smoothing_factor is above 0: transformers would smooth the labels of {name} one position away from "
            "the predictions that the model's own loss compares them with. Set it to 0, or pass a compute_loss_func."
        )


def _loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor | None:
    try:
        return getattr(named_outputs(model(**batch), batch), "loss", None)
    except TypeError as error:
        if "labels" not in str(error):
            raise
        return None
