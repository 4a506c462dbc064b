"""Inference passes: batches of similar length, outputs or features in the order of the rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from attendrop.errors import AttendropError
from attendrop.support.models import compute_device
from attendrop.tasks.heads.base import Array, Head


def predict_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
    on_batch: Callable[[int], None] | None = None,
) -> Array:
    """Compute a model's outputs for encoded rows, one per row of the data, such as logits ``(rows, classes)``.

    The model is moved to the device; ``on_batch`` is called after each batch with the number of its rows.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    predict, concatenate = partial(head.predict, model), head.concatenate
    raw = over_rows(predict, model, tokenizer, head, encoded, batch_size, on_batch, concatenate=concatenate)
    return head.row_outputs(raw, encoded, tokenizer)


def over_rows(
    compute: Callable[[dict[str, Tensor]], Array],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    on_batch: Callable[[int], None] | None = None,
    *,
    concatenate: Callable[[Sequence[Array]], Array] = np.concatenate,
) -> Array:
    """Compute something for batches of rows of similar length, the longest first, without gradients.

    So batches have little padding. The values are in the order of the rows.
    """
    accepted = inspect.signature(model.forward).parameters
    read = [*tokenizer.model_input_names, *(["labels"] if head.reads_labels else [])]
    columns = {name: encoded[name] for name in read if name in encoded and name in accepted}
    order = np.argsort(-np.asarray(encoded["length"]), kind="stable")
    collate, found = head.collator(tokenizer), []
    with torch.no_grad():
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            batch = collate([{name: values[row] for name, values in columns.items()} for row in rows])
            found.append(compute({name: value.to(model.device) for name, value in batch.items()}))
            if on_batch is not None:
                on_batch(len(rows))
    return concatenate(found)[np.argsort(order)]


def unit_means(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average hidden states ``(batch, n, hidden)`` over the tokens of each row, and scale the mean to length 1."""
    mask = hidden.new_ones(hidden.shape[:2]) if attention_mask is None else attention_mask
    mean = (hidden * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return functional.normalize(mean, dim=-1)


def frozen_features(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    encoded: Mapping[str, list[Any]],
    batch_size: int,
    device: str,
) -> Array:
    """Average the last hidden states of each row over its tokens, and scale the mean to length 1.

    Special tokens count; padding does not: the sentence embedding of Reimers and
    Gurevych (2019). In a model with an encoder and a decoder, the encoder is read.

    Returns:
        Unit vectors ``(rows, hidden)`` in float32, in the order of the rows; zeros for a row without tokens.

    Raises:
        AttendropError: The encoder does not return a vector for each token.
    """
    model.to(compute_device(device)).eval()  # type: ignore[arg-type]
    encoder: Any = model.get_encoder() if model.config.is_encoder_decoder else model.base_model

    def means(batch: dict[str, Tensor]) -> Array:
        hidden = encoder(**batch).last_hidden_state.float()
        if hidden.ndim != 3:
            raise AttendropError(f"{type(encoder).__name__} has no vectors of tokens or patches to average.")
        units: Array = unit_means(hidden, batch.get("attention_mask")).cpu().numpy()
        return units

    return over_rows(means, encoder, tokenizer, head, encoded, batch_size)
