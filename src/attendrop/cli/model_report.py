"""Report on a model: whether it is supported, and its attention layers."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from attendrop.attention.adapter import find_attention_layers
from attendrop.attention.interface import find_attention_modules
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.tracing import example_inputs, example_pixels
from attendrop.cli.app import size
from attendrop.errors import AttendropError
from attendrop.runs.model_loading import load_config
from attendrop.support.files import first_line
from attendrop.tasks.types.model_classes import saved_model_class

# Heads to build a model with if its configuration names no class, in order of preference.
_HEADS = (
    *("SEQUENCE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "AUDIO_CLASSIFICATION", "SEQ_TO_SEQ_CAUSAL_LM"),
    *("SPEECH_SEQ_2_SEQ", "CAUSAL_LM", "CTC", "IMAGE_TEXT_TO_TEXT"),
)
_CLASSIFIERS = (
    modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING,
)
# Exceptions when a model is built from its configuration alone and run.
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ImportError, ArithmeticError)
# Memory, in bytes, from which on it is announced.
_MUCH = 2**30
logger = logging.getLogger(__name__)


def examine(name: str) -> dict[str, Any]:
    """Build a model from its configuration alone, without weights, and look for its attention layers.

    Returns:
        ``model, architecture, supported, reason`` (None if supported), ``trainable`` (whether it has a head for
        classification of texts or images), ``sites``: ``name, kind, index`` of each attention layer, and ``not_run``:
        the names of layers that the example input (text alone, one image, a sound) does not reach.
    """
    config, attention_layers = load_config(name), list[AttentionLayer]()
    not_run, reason = [], None
    try:
        model, attention_layers = _traced(config)
        ran = {layer.name.partition("#")[0] for layer in attention_layers}
        not_run = [layer for layer in find_attention_modules(model).values() if layer not in ran]
    except AttendropError as error:
        reason = str(error)
    return {
        "model": name,
        "architecture": config.model_type,
        "supported": reason is None,
        "reason": reason,
        "trainable": any(type(config) in mapping for mapping in _CLASSIFIERS),
        "sites": [dataclasses.asdict(layer) for layer in attention_layers],
        "not_run": not_run,
    }


def _traced(config: PreTrainedConfig) -> tuple[PreTrainedModel, list[AttentionLayer]]:
    """Build the model and trace its attention layers; not on the meta device if it reads the values of tensors."""
    failures: list[Exception] = []
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                model = _class(config)(config)
                batches = list(_batches(model))
        except _FAILURES as error:
            failures.append(error)
            continue
        for batch in batches:
            try:
                return model, find_attention_layers(model, batch)
            except AttendropError:
                raise
            except _FAILURES as error:
                failures.append(error)
        if device == "meta" and (needed := sum(weight.nbytes for weight in model.parameters())) > _MUCH:
            logger.warning(
                "%s reads values of tensors, so it is built in memory, with random weights: %s.",
                *(type(model).__name__, size(needed)),
            )
    raise AttendropError(f"It could not be built and run from its configuration ({first_line(failures[-1])}).")


def _class(config: PreTrainedConfig) -> Any:
    """Find the class that the configuration names, or one with a head, or the model without one."""
    name = (config.architectures or [""])[0]
    named = saved_model_class(name, config.model_type)
    if named is not None:
        return named
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING") for head in _HEADS]
    for mapping in (*mappings, modeling_auto.MODEL_MAPPING):
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ValueError(f"transformers has no model for {type(config).__name__}")


def _batches(model: PreTrainedModel) -> Iterator[dict[str, Tensor]]:
    """Yield example inputs, of which the model takes one."""
    name, config = model.main_input_name, model.config
    if name not in ("input_values", "input_features"):
        yield (batch := example_inputs(model))
        if hasattr(config, "vision_config"):  # CLIP compares a text and an image, BLIP-2 continues both
            tokens = torch.arange(8, device=model.device)[None]
            batch = batch | (example_pixels(model) if name == "input_ids" else {"input_ids": tokens})
            if getattr(config.get_text_config(), "is_encoder_decoder", False):
                batch["decoder_input_ids"] = tokens
            if "qformer_input_ids" in inspect.signature(model.forward).parameters:  # of InstructBLIP
                batch["qformer_input_ids"] = tokens
            yield batch
        return
    own = getattr(config, "encoder_config", config)
    sizes = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")
    width = next((value for key in sizes if isinstance(value := getattr(own, key, None), int)), 80)
    length = getattr(config, "max_source_positions", 0) or getattr(config, "max_length", 0) or 128
    for shape in ((1, 16000), (1, length, width), (1, width, 2 * length), (1, width, length)):
        batch = {name: torch.zeros(shape, dtype=model.dtype)}
        if config.is_encoder_decoder:
            batch["decoder_input_ids"] = torch.ones(1, 4, dtype=torch.long)
        yield batch
