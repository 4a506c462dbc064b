"""Attention maps of texts: weights, attribution and dropped positions, and their compact form for a page."""

from __future__ import annotations

import base64
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from attendrop.argument_checks import check_choice
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.isolation import evaluating
from attendrop.attention.layers import select_self_attention
from attendrop.attention.plan import Plan
from attendrop.attribution.gradient import attention_attribution, gradient_attribution, integrated_gradient_attribution
from attendrop.methods.core.base import Method
from attendrop.model_support.batches import Batch, to_device
from attendrop.reports.attention_drops import DropMoment, LayerDrops, Learnt, WatchedPlan, record_drops
from attendrop.tasks.heads.base import Head


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return tokens as text that people read: without the marks of words' beginnings."""
    found = []
    for number in ids:
        token = str(tokenizer.convert_ids_to_tokens(number))
        # Pieces of WordPiece keep their mark; a part of a character, in vocabularies of bytes, has no text of its own.
        text = token if token.startswith("##") else str(tokenizer.decode([number])).strip()
        found.append(token if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return found


# Integrated gradients are joint over the layers, with 8 Gauss-Legendre nodes.
ATTRIBUTIONS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "gradient": gradient_attribution,
    "integrated_gradient": integrated_gradient_attribution,
}
Numbers = NDArray[np.float32]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class DropSettings:
    """Drops of a method from :func:`acting_in_attention` at a moment, with what a run learnt (None: nothing yet)."""

    method: Method
    moment: DropMoment
    learnt: Learnt | None = None


@dataclass(frozen=True)
class LayerMaps:
    """Maps of one attention layer for one text, each ``(heads, tokens, tokens)``: queries by keys.

    Attributes:
        attention: Weights.
        attribution: Attribution of the prediction to the weights.
        possible: Positions that the model's mask leaves visible, ``(tokens, tokens)``.
        dropped: Positions that the method drops; None without a method.
    """

    attention: Numbers
    attribution: Numbers
    possible: Mask
    dropped: Mask | None = None

    @property
    def compact_bytes(self) -> float:
        """Bytes of the maps as :func:`compact` writes them, without base64 padding."""
        bits = 0 if self.dropped is None else self.dropped.size
        bits += 0 if self.possible.all() else self.possible.size
        return (self.attention.size + self.attribution.size + bits / 8) * 4 / 3


@dataclass(frozen=True)
class TextMaps:
    """Maps of one text in one model.

    Attributes:
        prediction: The model's prediction, by column, as in a file of predictions.
        layers: By key of the layer, in the order of execution.
    """

    tokens: tuple[str, ...]
    prediction: Mapping[str, Any]
    layers: Mapping[str, LayerMaps]

    @property
    def predicted(self) -> str:
        """The prediction in words, such as "label yes, probability 0.93"."""
        values = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in self.prediction.items()}
        return ", ".join(f"{key} {value}" for key, value in values.items())


def text_maps(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    head: Head,
    row: Mapping[str, Any],
    drops: DropSettings | None = None,
    attribution: str = "gradient",
    layers: str | int | Sequence[int] = "all",
) -> TextMaps:
    """Compute the maps of one encoded text, ``row``.

    The model's own dropout is off. What is attributed is the score of the model's prediction, see
    :func:`attendrop.attribution.predictions.fix_target`. Where ``row`` has no ``"labels"``, the prediction takes their
    place; for a predicted number it is that number plus one, so that the attributed score, minus the squared error,
    rises with the prediction.

    The ``attribution`` is one of ``ATTRIBUTIONS``. Of the ``layers``, see
    :func:`attendrop.attention.layers.select_layers`, only the encoder's self-attention is shown, or that of a
    decoder-only model.

    Raises:
        AttendropError: There is no such attribution, the model is not supported, or the method cannot act on it.
    """
    check_choice("attribution", attribution, tuple(ATTRIBUTIONS))
    batch = _batch(model, tokenizer, head, row)
    with evaluating(model):
        with torch.no_grad():
            raw = head.predict(model, {name: value for name, value in batch.items() if name != "labels"})
        columns = {name: [value] for name, value in row.items()}
        outputs = head.row_outputs(raw, columns, tokenizer)
        if "labels" not in batch:
            assumed = [label + 1 if isinstance(label, float) else label for label in head.decode(outputs)]
            (target,) = head.targets(assumed, BatchEncoding(columns), tokenizer)
            batch = _batch(model, tokenizer, head, {**row, "labels": target})
        weights, attributions, positions = _attention(model, batch, attribution, layers)
    maps = {
        key: LayerMaps(_array(weights[key]), _array(attributions[key]), positions[key].possible[0, 0].cpu().numpy())
        for key in weights
    }
    if drops is not None:
        drop = record_drops(model, drops.method, batch, drops.moment, learnt=drops.learnt, tokenizer=tokenizer)
        for key, found in maps.items():
            dropped = drop[key].dropped[0].cpu().numpy() if key in drop else np.zeros(found.attention.shape, bool)
            maps[key] = replace(found, dropped=dropped)
    (prediction,) = head.prediction_rows(outputs, probabilities=False)
    return TextMaps(tuple(token_texts(tokenizer, row["input_ids"])), prediction, maps)


def _batch(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, head: Head, row: Mapping[str, Any]
) -> dict[str, Any]:
    """Make a batch of one encoded row, of the columns that the model reads, on its device."""
    accepted = {*inspect.signature(model.forward).parameters} & {*tokenizer.model_input_names, "labels"}
    collated = head.collator(tokenizer)([{name: value for name, value in row.items() if name in accepted}])
    return to_device(collated, model.device)


def _attention(
    model: PreTrainedModel, batch: Batch, attribution: str, layers: str | int | Sequence[int]
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, LayerDrops]]:
    """Return weights and attributions of the selected layers by their keys, and the positions of all layers."""
    with ModelAdapter(model) as adapter:
        selected = select_self_attention(adapter.trace(batch), layers)
        every = WatchedPlan(Plan())
        with torch.no_grad():
            adapter.forward(batch, every)
        weights = attention_attribution(adapter, batch, selected)
        return weights, ATTRIBUTIONS[attribution](adapter, batch, selected, "pseudo_label"), every.seen


def _array(values: Tensor) -> Numbers:
    found: Numbers = values[0].detach().float().cpu().numpy()
    return found


# The compact form ---------------------------------------------------------------------------------------------------


def compact(maps: TextMaps) -> dict[str, Any]:
    """Convert maps to JSON values of about two bytes for each position of each head.

    ``attention`` holds bytes ``c`` of weights ``(c / 255)^2``; their errors are at most 0.004. ``attribution`` holds
    bytes ``c`` of values ``sign(c - 128) * ((c - 128) / 127)^2 * scale``, with the largest absolute value of each
    head as ``scale``. ``dropped`` and ``hidden``, positions that the model's mask hides, hold bits, the first position
    in the highest bit. All are base64, ``(heads, queries, keys)`` in this order, ``hidden`` without heads; ``hidden``
    is left out if there are none, and ``dropped`` without a method.
    """
    return {
        "tokens": list(maps.tokens),
        "prediction": maps.predicted,
        "layers": [{"key": key, **_compact(layer)} for key, layer in maps.layers.items()],
    }


def _compact(layer: LayerMaps) -> dict[str, Any]:
    attention = np.round(255 * np.sqrt(layer.attention.clip(0, 1)))
    scale = np.abs(layer.attribution).max((1, 2))
    relative = layer.attribution / np.maximum(scale, np.finfo(np.float32).tiny)[:, None, None]
    attribution = 128 + np.round(127 * np.sign(relative) * np.sqrt(np.abs(relative)))
    found: dict[str, Any] = {
        "heads": len(layer.attention),
        "attention": _base64(attention.astype(np.uint8)),
        "attribution": _base64(attribution.astype(np.uint8)),
        "scale": [float(f"{value:.4g}") for value in scale],
    }
    if layer.dropped is not None:
        found["dropped"] = _base64(np.packbits(layer.dropped))
    if not layer.possible.all():
        found["hidden"] = _base64(np.packbits(~layer.possible))
    return found


def _base64(values: NDArray[np.uint8]) -> str:
    return base64.b64encode(values.tobytes()).decode()
