"""Tiny random models of any family of transformers: their configurations, their batches, and the models."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from attendrop import ADDrop, AttendropError, Method, Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.padding import leave_out_padding
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from helpers.plans import passed

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


# Batches: texts, images, videos and sounds, with the labels of each head ----------------------------------------------

LABELS, LENGTHS = 3, (8, 5, 3)
Batch = dict[str, Tensor]

_BOXES = {"bbox": lambda: torch.zeros(len(LENGTHS), max(LENGTHS), 4, dtype=torch.long)}
_PIXELS = {"pixel_values": lambda: torch.randn(len(LENGTHS), 3, IMAGE, IMAGE)}
# What a model reads, by the name of the argument.
INPUTS = {
    "input_ids": "text",
    "pixel_values": "images",
    "pixel_values_videos": "videos",
    "bbox": "boxes",
    "input_values": "sound",
    "input_features": "sound",
}
# Inputs that a family needs beside those of its head.
_EXTRA: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bros", "layoutlmv3", "udop"), _BOXES),
    **dict.fromkeys(("blip", "blip-2", "git", "vilt", "idefics"), _PIXELS),
}
# Names and shapes that sound comes in, (time), (time, mel) or (mel, time).
_SOUNDS = {
    "audio": [("input_values", (2000,)), ("input_features", (64, 16)), ("input_values", (64, 16))],
    "ctc": [("input_values", (2000,)), ("input_features", (64, 16))],
    "speech": [("input_features", (16, 256)), ("input_features", (64, 16)), ("input_values", (2000,))],
}


def batches_for(family: str, kind: str, model: Any) -> Iterator[Batch]:
    """Make batches that a model may accept, the one with the most inputs first."""
    batch = _batch(kind) | {name: made() for name, made in _EXTRA.get(family, {}).items()}
    rows = len(LENGTHS)
    if kind in _SOUNDS:
        for name, shape in _SOUNDS[kind]:
            sound = {name: torch.randn(rows, *shape)}
            yield sound | batch
            yield sound | batch | {"attention_mask": torch.ones(rows, shape[0], dtype=torch.long)}
        return
    if kind == "video":
        yield {"pixel_values_videos": batch["pixel_values"], "labels": batch["labels"]}
    if kind == "lm" and hasattr(model, "get_image_features"):
        for count in (16, 4, 1, 17, 8, 64):  # tokens that an image takes
            width = torch.zeros(rows, count, dtype=torch.long)
            yield {
                "input_ids": torch.cat([width + IMAGE_TOKEN, batch["input_ids"]], 1),
                "attention_mask": torch.cat([width + 1, batch["attention_mask"]], 1),
                "labels": torch.cat([width - 100, batch["labels"]], 1),
                "pixel_values": torch.randn(rows, 3, IMAGE, IMAGE),
            }
    yield batch


def text_alone(batch: Batch) -> Batch:
    """Return a batch of texts and images without the images and their tokens."""
    count = int((batch["input_ids"][0] == IMAGE_TOKEN).sum())
    return {name: batch[name][:, count:] for name in ("input_ids", "attention_mask", "labels")}


def _batch(kind: str) -> Batch:
    """Make a batch of three examples; texts are padded."""
    generator = torch.Generator().manual_seed(3)
    rows, width = len(LENGTHS), max(LENGTHS)
    mask = (torch.arange(width) < torch.tensor(LENGTHS)[:, None]).long()
    tokens = torch.randint(20, 50, (rows, width), generator=generator)
    tokens[torch.arange(rows), torch.tensor(LENGTHS) - 1] = EOS
    text = {"input_ids": tokens.where(mask.bool(), torch.tensor(PAD)), "attention_mask": mask}
    classes, unlabelled = torch.arange(rows) % LABELS, torch.tensor(-100)

    def noise(*shape: int) -> Tensor:
        return torch.randn(rows, *shape, generator=generator)

    match kind:
        case "text":
            return text | {"labels": classes}
        case "tokens":
            return text | {"labels": (torch.arange(width) % LABELS).where(mask.bool(), unlabelled)}
        case "spans":
            return text | {"start_positions": torch.tensor([1, 0, 2]), "end_positions": torch.tensor([3, 2, 2])}
        case "lm":
            return text | {"labels": tokens.where(mask.bool(), unlabelled)}
        case "seq2seq":
            return text | {"labels": tokens[:, :6].where(mask[:, :6].bool(), unlabelled)}
        case "vqa":
            return text | {"pixel_values": noise(3, IMAGE, IMAGE), "labels": torch.rand(rows, LABELS)}
        case "image":
            return {"pixel_values": noise(3, IMAGE, IMAGE), "labels": classes}
        case "video":
            return {"pixel_values": noise(4, 3, IMAGE, IMAGE), "labels": classes}
        case "audio":
            return {"labels": classes}
        case "ctc" | "speech":
            return {"labels": tokens[:, :3].contiguous()}
        case _:
            raise ValueError(kind)


# Models ---------------------------------------------------------------------------------------------------------------

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


# Check of one family: the library acts on it and changes nothing else, or refuses it ----------------------------------


METHODS: tuple[Method, ...] = (ADDrop(p=0.5, q=0.5, layers="all"), Vanilla(p=0.5))


def row(family: str) -> dict[str, Any]:
    """Make the row of a family in the table; raises AssertionError if the library gives wrong results without an error.

    It has ``unbuilt``, why no tiny model of it could be made and trained here, or ``model`` (its class), ``inputs``,
    ``attention`` (how many layers of each kind were found), ``refused`` (None, or what the library says) and, where
    that is not all, ``works``: with what it works nevertheless.
    """
    try:
        model, batch = any_model(family)
    except Exception as error:  # transformers raises what it likes
        return {"family": family, "unbuilt": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    inputs = list(dict.fromkeys(word for name, word in INPUTS.items() if name in batch))
    found = {"family": family, "model": type(model).__name__, "inputs": inputs} | verdict(model, batch, METHODS)
    if found["refused"] is not None and inputs == ["text", "images"]:
        text = text_alone(batch)
        if takes(model, text) and verdict(model, text, METHODS)["refused"] is None:
            found["works"] = "text alone"
    elif found["refused"] is not None and verdict(model, batch, METHODS[1:])["refused"] is None:
        found["works"] = "methods that look at no predictions"
    return found


def verdict(model: Any, batch: Batch, methods: Sequence[Method]) -> dict[str, Any]:
    """Count the attention layers of each kind that the library finds, or return the message that refuses the model."""
    try:
        attention_layers = ModelAdapter(copy.deepcopy(model)).trace(batch)
        for method in methods:
            assert_acts(model, batch, method)
        assert_padding_is_hidden(model, batch)
    except AttendropError as error:
        return {"attention": {}, "refused": str(error)}
    return {"attention": dict(Counter(layer.kind for layer in attention_layers)), "refused": None}


def assert_acts(model: Any, batch: Batch, method: Method) -> None:
    """Check that a step differs from plain fine-tuning at each attention layer, and a later evaluation does not."""
    plain, stock = _step(model, batch, None)
    found, regularised = _step(model, batch, method)
    assert all(value.isfinite().all() for value in found.values()), "gradients are not finite"
    assert any(not torch.equal(value, plain[name]) for name, value in found.items()), "nothing differs from fine-tuning"
    stock.load_state_dict(regularised.state_dict())  # running statistics are those of the step
    with torch.no_grad():
        outputs = [each.eval()(**batch).values() for each in (regularised, stock)]
    ours, theirs = ([value for value in values if isinstance(value, Tensor)] for values in outputs)
    assert ours and all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)), "evaluation differs"


def assert_padding_is_hidden(model: Any, batch: Batch) -> None:
    """Check that padding has weight 0 as a key, whatever else is dropped."""
    mask = batch.get("attention_mask")
    if mask is None or not (mask == 0).any():
        return
    watch = _Watch()
    with torch.no_grad():
        passed(copy.deepcopy(model).eval(), batch, watch)
    for call, weights in watch.seen:
        # A decoder that makes its inputs of the labels has a mask of its own.
        if weights.shape[-1] == mask.shape[1] and not (
            call.layer.kind == "decoder" and model.config.is_encoder_decoder
        ):
            assert call.valid is not None, f"padding is attended to at {call.layer.key}"
            rows = call.valid.any(-1, keepdim=True)  # a padding token may see padding alone
            hidden = ((mask == 0)[:, None, None, :] & rows).expand(weights.shape)
            assert (weights[hidden] == 0).all(), f"padding is attended to at {call.layer.key}"


def assert_padding_can_be_left_out(model: Any, batch: Batch) -> bool:
    """Check that a step is the same where linear layers leave out padding; return whether they do."""
    plain, _ = _step(model, batch, None)
    found, changed = _step(model, batch, None, leave_out_padding)
    largest = max(value.abs().max() for value in plain.values())
    assert found.keys() == plain.keys()
    assert all((found[name] - value).abs().max() <= 1e-5 * largest for name, value in plain.items())
    return any("forward" in vars(module) for module in changed.modules())


class _Watch(Plan):
    """Plan that drops half of the positions of every layer, and keeps the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[AttentionCall, Tensor]] = []

    def edit(self, call: AttentionCall) -> AttentionEdit:
        def keep(weights: Tensor) -> Tensor:
            self.seen.append((call, weights))
            return weights

        return AttentionEdit(drop=torch.rand(call.shape) < 0.5, weights=keep)


def _step(
    model: Any, batch: Batch, method: Method | None, change: Callable[[Any], Any] = lambda model: None
) -> tuple[dict[str, Tensor], Any]:
    """Return loss and gradients of one step of a copy of the model, which may be changed, and the copy."""
    model = copy.deepcopy(model)
    change(model)
    torch.manual_seed(5)
    if method is None:
        loss = model(**batch).loss
        loss.backward()
    else:
        with regularize(model, method) as reg:
            loss = reg.loss(batch)
            loss.backward()
            dropped = reg.logs()
        if isinstance(method, Vanilla):
            shares = {name: share for name, share in dropped.items() if "/dropped/" in name}
            assert shares and all(shares.values()), f"nothing is dropped: {shares}"
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients | {"loss": loss.detach()}, model
