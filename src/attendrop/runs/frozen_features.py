"""Features of inputs from an encoder that is not trained: the mean of their tokens, or patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.devices import compute_device
from attendrop.errors import AttendropError
from attendrop.runs.prediction_passes import sorted_batches
from attendrop.tasks.heads.base import Array, Head


def frozen_features(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
) -> Array:
    """Average the last hidden states of each row over its tokens, and scale the mean to length 1.

    Special tokens, and the class token of an image, count; padding does not: the sentence embedding of Reimers and
    Gurevych (2019). Of a model with an encoder and a decoder, the encoder is read.

    Args:
        model: The model, with or without a head. It is left in evaluation mode, on the device.
        tokenizer: The tokenizer of the model.
        head: Head of the task, which makes the batches.
        encoded: Columns of encoded rows, as for :func:`attendrop.runs.prediction_passes.predict_outputs`.
        batch_size: Rows in a batch.
        device: ``"auto"`` or ``"cpu"``.

    Returns:
        Unit vectors ``(rows, hidden)`` in float32, in the order of the rows; zeros for a row without tokens.

    Raises:
        AttendropError: The encoder does not return a vector for each token.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    encoder: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model
    found, order = [], []
    with torch.no_grad():
        for rows, batch in sorted_batches(encoder, tokenizer, head, encoded, batch_size):
            hidden = encoder(**batch).last_hidden_state.float()
            if hidden.ndim != 3:
                raise AttendropError(f"{type(encoder).__name__} has no vectors of tokens or patches to average.")
            mask = batch.get("attention_mask", torch.ones(hidden.shape[:2], device=hidden.device)).unsqueeze(-1)
            mean = (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
            found.append(functional.normalize(mean, dim=-1).cpu().numpy())
            order.append(rows)
    features: Array = np.concatenate(found)[np.argsort(np.concatenate(order))]
    return features
