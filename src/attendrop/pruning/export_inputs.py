"""Inputs of models to export: their names, examples of them, and the sizes that are free."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.positions import position_limit
from attendrop.pruning.pruned_model import PrunedModel

TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PIXELS = "pixel_values"


def input_names(model: Any, token_types: bool | None) -> tuple[str, ...]:
    """Return the inputs of a model.

    Args:
        model: The model.
        token_types: Whether ``token_type_ids`` is among those of a text model; None: if it has more than one type.
    """
    if reads_images(model):
        return (PIXELS,)
    if token_types is None:
        token_types = getattr(model.config, "type_vocab_size", 0) > 1
    return TEXT_INPUTS if token_types else TEXT_INPUTS[:2]


def reads_images(model: Any) -> bool:
    """Tell whether a model reads pixels."""
    return bool(_inner(model).main_input_name == PIXELS)


def free_sizes(model: Any) -> dict[int, Any]:
    """Return the dimensions of the inputs whose size is free, by number; those of an image are the model's."""
    if reads_images(model):
        return {0: torch.export.Dim("batch")}
    sizes = ("batch", "choices", "length") if _is_choice(model) else ("batch", "length")
    return {
        number: torch.export.Dim(name, max=_longest(model) if name == "length" else None)
        for number, name in enumerate(sizes)
    }


def example_batch(model: Any, *, batch: int, choices: int, length: int) -> dict[str, Tensor]:
    """Make a batch of texts of different lengths, the first without padding, or of images of random pixels.

    Args:
        model: The model.
        batch: Number of rows.
        choices: Number of choices, of a model for multiple choice.
        length: Length of texts; lowered to the longest that the model reads.
    """
    generator = torch.Generator().manual_seed(0)
    if reads_images(model):
        size = model.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        return {PIXELS: torch.randn(batch, model.config.num_channels, height, width, generator=generator)}
    length = min(length, _longest(model) or length)
    shape = (batch, choices, length) if _is_choice(model) else (batch, length)
    tokens = torch.randint(model.config.vocab_size, shape, generator=generator)
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None] % length).long()
    mask = mask.view(batch, *(1 for _ in shape[2:]), length).expand(shape).contiguous()
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens)}


def _is_choice(model: Any) -> bool:
    return type(_inner(model)).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values()


def _inner(model: Any) -> Any:
    return model.model if isinstance(model, PrunedModel) else model


def _longest(model: Any) -> int | None:
    """Return the longest text that a model reads; None if there is no limit.

    Where positions have no end, it is the length that the configuration says.
    """
    limit = position_limit(model)
    return getattr(model.config, "max_position_embeddings", None) if limit is None else limit
