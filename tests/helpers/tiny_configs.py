"""Configurations of any class of transformers with all sizes small."""

from __future__ import annotations

import re
from typing import Any

import transformers as hf

VOCAB, IMAGE = 64, 32
IMAGE_TOKEN = VOCAB - 1
PAD, BOS, EOS, SEP, MASK = 0, 1, 2, 3, 4

_WORDS, _KV_HEADS = r"vocab_size$|^vocab_size|vocab_size_|_vocab$", r"(key_value|kv)_heads|_kv_head"
_HEAD_DIM, _TOP = r"head_dim|kv_channels|attention_head_size|^d_kv$|^d_head$", r"experts_per_tok|top_?k$|moe_k$"
# Fields that are set though they are None by default.
_NEEDED = (_WORDS, _KV_HEADS, _HEAD_DIM, _TOP)
# Sizes by the name of the field, the first that matches; of fields that are numbers or lists of numbers by default.
_SIZES: list[tuple[str, Any]] = [
    (r"^(type|task_type)_vocab_size", 2),
    (_WORDS, VOCAB),
    (r"^num_channels$|^in_chans$|^num_input_channels$", 3),
    (_KV_HEADS, 2),
    (r"qk_rope_head_dim|rotary_dim", 8),
    (_HEAD_DIM, 16),
    (r"heads$|n_head$|^num_head$|attention_heads", 2),
    (r"shared_experts?$", 1),
    (_TOP, 2),
    (r"experts$|expert_num$", 4),
    (r"n_group$|topk_group$", 1),
    (r"lora_rank", 8),
    (r"max_.*position|n_positions|n_ctx|max_seq_len|max_(source|target)_positions|context_length", 128),
    (r"(hidden|num|n|encoder|decoder|speech_encoder)_?(hidden_)?layers$|^n_layer$|^(l|x|r)_layers$|^depth$", 2),
    (r"^depths$|num_block_repeats", 1),
    (r"image_size|input_size|crop_size", IMAGE),
    (r"^patch_size$", 8),
    (r"window_size$", 2),
    (r"^num_frames$|frames_per_clip", 4),
    (r"(intermediate|ffn|d_ff|^dff|hidden_dim|d_inner|mlp_hidden).*(?<!ratio)$", 32),
    (r"hidden_size|d_model|^dim$|n_embd|emb_dim|embed_dim|embedding_size|embedding_dim|d_latents|entity_emb", 32),
    (r"projection_input_dim", 16),
    (r"proj.*_dim|_proj_size|projector_.*size|projection_dim", 32),
    (r"mel_bins|feat_per_channel", 16),
]
_IDS = {"pad": PAD, "bos": BOS, "eos": EOS, "sep": SEP, "cls": BOS, "mask": MASK, "decoder_start": EOS}

_MEDIA = ("image", "video", "audio")


def tiny_config(cls: Any, **given: Any) -> Any:
    """Make a configuration of ``cls`` and its parts with small sizes and without dropout."""
    chosen: dict[str, Any] = {}
    usual = cls()
    for name, field in cls.__dataclass_fields__.items():
        if name not in cls.sub_configs and (value := _small(name, field.default)) is not None:
            chosen[name] = value
    for name, part in cls.sub_configs.items():
        if part is hf.AutoConfig:
            part = type(getattr(usual, name, None))
        if part is not type(None):
            chosen[name] = tiny_config(part, **given.pop(name, {}))
    chosen |= _layer_types(usual) | _rotary(usual)
    if getattr(usual, "is_encoder_decoder", False):
        chosen |= {"decoder_start_token_id": EOS, "pad_token_id": PAD, "forced_eos_token_id": None}
    return cls(**(chosen | given))


def _layer_types(usual: Any) -> dict[str, Any]:
    """Return one layer of each type, if a model has several."""
    for name in ("layer_types", "layers_block_type", "mlp_layer_types"):
        types = getattr(usual, name, None)
        if isinstance(types, list | tuple) and types and name in usual.__dataclass_fields__:
            distinct = list(dict.fromkeys(types))
            count = max(2, len(distinct))
            return {name: (distinct * 2)[:count], "num_hidden_layers": count}
    return {}


def _rotary(usual: Any) -> dict[str, Any]:
    """Make rotary embeddings whose sections fit the small heads."""
    rotary = getattr(usual, "rope_parameters", None)
    if not isinstance(rotary, dict) or "mrope_section" not in rotary:
        return {}
    half = int(16 * rotary.get("partial_rotary_factor", 1)) // 2
    return {"rope_parameters": rotary | {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}}


def _small(name: str, default: Any) -> Any:
    """Return a small value for a field of a configuration; None keeps its default."""
    if name == "pad_token_id":
        return PAD
    if default is None:
        return next((value for pattern, value in _SIZES if pattern in _NEEDED and re.search(pattern, name)), None)
    if isinstance(default, bool):
        return None
    if re.search(r"drop|jitter|mask_.*prob", name):
        return [0.0] * len(default) if isinstance(default, list | tuple) else type(default)(0)
    media = re.search(rf"({'|'.join(_MEDIA)})_token_(id|index)$", name)
    if media:
        return IMAGE_TOKEN - _MEDIA.index(media[1])
    if re.search(r"token_(id|index)$|_index$", name):
        found = next((value for key, value in _IDS.items() if name.startswith(key)), None)
        return 5 if found is None and isinstance(default, int) and default >= VOCAB else found
    several = isinstance(default, list | tuple)
    if not isinstance(default, int) and not (several and default and isinstance(default[0], int)):
        return None
    value = next((value for pattern, value in _SIZES if re.search(pattern, name)), None)
    if value is None or several:
        return value and [value] * len(default)
    return min(value, default) if default > 0 and value != VOCAB else value
