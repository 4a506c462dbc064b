"""Example inputs for a model, made without data."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.errors import AttendropError


def example_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """Make the smallest input of a text, image or video model; raise AttendropError for one that takes another kind."""
    name, config = model.main_input_name, model.config
    if name in ("pixel_values", "pixel_values_videos"):
        config = getattr(config, "vision_config", config)
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        frames = [config.num_frames] if hasattr(config, "num_frames") else []
        shape = (1, *frames, getattr(config, "num_channels", 3), height, width)
        return {name: torch.zeros(shape, device=model.device, dtype=model.dtype)}
    if name != "input_ids":
        raise AttendropError(
            f"{type(model).__name__} takes '{name}', for which no example input can be made up; pass a batch."
        )
    # Eight different tokens: BART's classifier wants an end-of-sequence token in each row.
    tokens = torch.arange(8, device=model.device)[None] % config.get_text_config().vocab_size
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int):
        tokens = torch.where(tokens == end, 0, tokens)
        tokens[:, -1] = end
    if type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        tokens = tokens[:, None]
    batch = {name: tokens}
    if config.is_encoder_decoder:
        batch["decoder_input_ids"] = tokens
    return batch
