"""Losses and logits of model outputs, and names for outputs that are tuples or dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput
from transformers.utils.generic import ModelOutput

from attendrop.errors import AttendropError


def loss_and_outputs(outputs: Any) -> tuple[Tensor, Any]:
    """Return the loss among the outputs of a model, and the outputs; raise AttendropError if there is no loss."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if loss is None or loss.ndim > 1:  # a tuple without a loss begins with logits
        raise AttendropError("The model returned no loss; the batch needs 'labels'.")
    return loss, outputs


def logits_of(outputs: Any) -> Tensor:
    """Return the logits of a model's outputs; of question answering those of start and end, ``(batch, n, 2)``."""
    if hasattr(outputs, "start_logits"):
        return torch.stack([outputs.start_logits, outputs.end_logits], dim=-1)
    logits: Tensor = outputs.logits
    return logits


def named_outputs(outputs: Any, batch: Mapping[str, Any]) -> Any:
    """Name the outputs of a model that returns tuples or dicts for the inputs ``batch``; others are returned unchanged.

    As everywhere in transformers, the loss comes first, if there is one, and then the logits: for question answering,
    those of the first and of the last token.
    """
    if isinstance(outputs, dict) and not isinstance(outputs, ModelOutput):  # transformers.Trainer takes these, too
        return ModelOutput(outputs)  # type: ignore[no-untyped-call]
    if not isinstance(outputs, tuple):
        return outputs
    loss, rest = (outputs[0], outputs[1:]) if outputs[0].ndim == 0 else (None, outputs)
    if "start_positions" in batch:
        return QuestionAnsweringModelOutput(loss, *rest[:2])
    return SequenceClassifierOutput(loss, *rest[:1])
