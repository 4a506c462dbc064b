"""Tiny random models of any family of transformers."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from helpers.family_batches import LABELS, Batch, batches_for
from helpers.tiny_configs import tiny_config

# The heads that families are run with, of each family the first for which that can be done, and their batches.
TASK_TYPES = {
    "SEQUENCE_CLASSIFICATION": "text",
    "TOKEN_CLASSIFICATION": "tokens",
    "QUESTION_ANSWERING": "spans",
    "IMAGE_CLASSIFICATION": "image",
    "VIDEO_CLASSIFICATION": "video",
    "AUDIO_CLASSIFICATION": "audio",
    "SEQ_TO_SEQ_CAUSAL_LM": "seq2seq",
    "SPEECH_SEQ_2_SEQ": "speech",
    "CAUSAL_LM": "lm",
    "MASKED_LM": "tokens",
    "CTC": "ctc",
    "IMAGE_TEXT_TO_TEXT": "lm",
    "VISUAL_QUESTION_ANSWERING": "vqa",
    "MULTIMODAL_LM": "lm",
}


def _sections(*sizes: int) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sizes)}}


# What a family needs beside small sizes.
_OPTIONS: dict[str, dict[str, Any]] = {
    "audio-spectrogram-transformer": {"max_length": 64},
    "bamba": {"attn_layer_indices": [1]},
    "bros": {"dim_bbox": 8},
    "codegen": {"n_head": 4, "n_embd": 64},
    "esm": {"vocab_list": None},
    "glm4v_moe": {"text_config": _sections(2, 1, 1)},
    **{name: {"text_config": _sections(2, 3, 3)} for name in ("glm46v", "glm4v", "glm_ocr", "glmga")},
    **{name: {"text_config": _sections(2, 3, 3)} for name in ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl")},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "layoutlmv3": {"visual_embed": False, "coordinate_size": 4, "shape_size": 8},
    "led": {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "lilt": {"hidden_size": 48},
    "segformer": {"sr_ratios": [1, 1, 1, 1]},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "axial_pos_shape": [4, 2], "axial_pos_embds_dim": [16, 16], "attn_layers": ["local", "lsh"], "num_buckets": 2,
        "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "feed_forward_size": 32,
    },
    "swin": {"depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "donut-swin": {"depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "xmod": {"default_language": "en_XX"},
}  # fmt: skip


def heads_of(family: str) -> dict[str, str]:
    """Return the heads that a family has, with the names of their classes."""
    found = {}
    for head in TASK_TYPES:
        name = getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(family)
        if name is not None:
            found[head] = name if isinstance(name, str) else name[0]
    return found


def families() -> list[str]:
    """List all families of transformers that have one of the heads."""
    return [name for name in CONFIG_MAPPING if heads_of(name)]


def any_model(family: str) -> tuple[Any, Batch]:
    """Make a tiny random model of a family, with the first head that can be built, and a batch for it."""
    for head in heads_of(family):
        try:
            return build(family, head)
        except Exception as error:  # transformers raises what it likes
            failure = error
    raise failure


def build(family: str, head: str) -> tuple[Any, Batch]:
    """Make a tiny random model of a family with large weights, in training mode, and a batch for it."""
    cls = getattr(hf, heads_of(family)[head])
    given = _OPTIONS.get(family, {}) | ({"num_labels": LABELS} if "CLASSIFICATION" in head else {})
    config = tiny_config(CONFIG_MAPPING[family], **given)
    torch.manual_seed(0)
    model = cls(config).train()
    scale = 0.05 if family == "mobilebert" else 0.2  # nothing is normalised there, and large weights saturate
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape) * scale)
            else:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
        model.tie_weights()
    batches = list(batches_for(family, TASK_TYPES[head], model))
    batch = next((batch for batch in batches[:-1] if takes(model, batch)), batches[-1])
    with torch.no_grad():
        if not model(**batch).loss.isfinite():
            raise ValueError("the loss of the stock model is not finite")
    return model, batch


def takes(model: Any, batch: Batch) -> bool:
    """Tell whether the stock model computes a loss for a batch."""
    try:
        with torch.no_grad():  # some models keep states, which could not be copied with a graph
            return bool(model(**batch).loss.isfinite())
    except Exception:  # transformers raises what it likes
        return False
