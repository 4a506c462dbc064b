"""Tiny random models of several families, and batches for them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor

from attendrop.methods.core.context import Processes, TrainingContext
from attendrop.support.models import to_device
from attendrop.tasks.types.model_classes import saved_model_class
from attendrop.training.regularization import run_model
from helpers.device import DEVICE

VOCAB, PAD, EOS, LABELS = 40, 0, 2, 3
Batch = dict[str, Tensor]

# What the configurations have in common.
_SIZES = {"vocab_size": VOCAB, "max_position_embeddings": 40, "num_labels": LABELS, "pad_token_id": PAD}
_TOKENS = {"bos_token_id": 1, "eos_token_id": EOS}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}

_BERT = {**_SIZES, **LAYERS, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_ALBERT = _BERT | {"embedding_size": 8, "classifier_dropout_prob": 0.0}
_MODERNBERT = {
    **_SIZES, **_TOKENS, **LAYERS, "cls_token_id": 1, "sep_token_id": EOS, "local_attention": 4,
    "global_attn_every_n_layers": 2,
}  # fmt: skip
_OF_TEXTS = ("vocab_size", "max_position_embeddings", "pad_token_id")
_VIT = {key: value for key, value in _BERT.items() if key not in _OF_TEXTS} | {"image_size": 12, "patch_size": 4}
_DISTILBERT = _SIZES | {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "seq_classif_dropout": 0.0} | _DROPOUT
_BART = {
    **_SIZES, **_TOKENS, **_DROPOUT, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": EOS,
    "forced_eos_token_id": None,
}  # fmt: skip
_OPT = {
    **_SIZES, **_TOKENS, **_DROPOUT, "hidden_size": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2,
    "num_attention_heads": 2, "ffn_dim": 16,
}  # fmt: skip
_LLAMA = {**_SIZES, **_TOKENS, **LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2}
_GPT2 = {
    "vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "num_labels": LABELS,
    "pad_token_id": PAD, **_TOKENS, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCAB, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 2, "num_heads": 2, "pad_token_id": PAD,
    "eos_token_id": EOS, "decoder_start_token_id": PAD, "dropout_rate": 0.0, "tie_word_embeddings": False,
}  # fmt: skip
_ENCODER = {"encoder": 2}
_DECODER = {"decoder": 2}
_BOTH = {"encoder": 2, "decoder": 2, "cross": 2}


# Beside its sizes, what the configuration of microsoft/deberta-v3-base says.
DEBERTA_V3 = {
    "relative_attention": True, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": "p2c|c2p", "position_biased_input": False, "type_vocab_size": 0, "max_relative_positions": -1,
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """Row of the table: how to make a model, and its expected attention layers."""

    model: str
    options: Mapping[str, Any]
    attention_layers: Mapping[str, int]
    task: str = "class"  # "class", "tokens" (one label a token), "seq2seq", "lm", "image", "choice"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    implementations: tuple[str, ...] = ("sdpa", "eager")


_DROPOUTS = {
    "distilbert": ("dropout", "attention_dropout"),
    "modernbert": ("attention_dropout", "mlp_dropout", "embedding_dropout"),
    "bart": ("dropout", "attention_dropout"),
    "t5": ("dropout_rate",),
    "gpt2": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "llama": ("attention_dropout",),
}

ZOO: dict[str, Entry] = {
    "bert": Entry("BertForSequenceClassification", _BERT, _ENCODER),
    "bert-tokens": Entry("BertForTokenClassification", _BERT, _ENCODER, "tokens"),
    "bert-choice": Entry("BertForMultipleChoice", _BERT, _ENCODER, "choice"),
    "roberta": Entry("RobertaForSequenceClassification", _BERT, _ENCODER),
    "electra": Entry("ElectraForSequenceClassification", _BERT | {"embedding_size": 8}, _ENCODER),
    "distilbert": Entry("DistilBertForSequenceClassification", _DISTILBERT, _ENCODER, dropouts=_DROPOUTS["distilbert"]),
    "albert": Entry("AlbertForSequenceClassification", _ALBERT, _ENCODER),
    "modernbert": Entry("ModernBertForSequenceClassification", _MODERNBERT, _ENCODER, dropouts=_DROPOUTS["modernbert"]),
    "distilbert-mean": Entry(
        "DistilBertMeanPoolingForSequenceClassification", _DISTILBERT, _ENCODER, dropouts=_DROPOUTS["distilbert"]
    ),
    "vit": Entry("ViTForImageClassification", _VIT, _ENCODER, "image"),
    "bart-class": Entry("BartForSequenceClassification", _BART, _BOTH, "class", _DROPOUTS["bart"]),
    "bart": Entry("BartForConditionalGeneration", _BART, _BOTH, "seq2seq", _DROPOUTS["bart"]),
    "marian": Entry("MarianMTModel", _BART, _BOTH, "seq2seq", _DROPOUTS["bart"]),
    "t5": Entry("T5ForConditionalGeneration", _T5, _BOTH, "seq2seq", _DROPOUTS["t5"]),
    "gpt2": Entry("GPT2LMHeadModel", _GPT2, _DECODER, "lm", _DROPOUTS["gpt2"]),
    "gpt2-class": Entry("GPT2ForSequenceClassification", _GPT2, _DECODER, "class", _DROPOUTS["gpt2"]),
    "opt-class": Entry("OPTForSequenceClassification", _OPT, _DECODER, "class", _DROPOUTS["bart"]),
    "llama": Entry("LlamaForCausalLM", _LLAMA, _DECODER, "lm", _DROPOUTS["llama"]),
    "llama-class": Entry("LlamaForSequenceClassification", _LLAMA, _DECODER, "class", _DROPOUTS["llama"]),
    "deberta-v3": Entry("DebertaV2ForSequenceClassification", _BERT | DEBERTA_V3, _ENCODER, implementations=("eager",)),
    "deberta": Entry(
        "DebertaForSequenceClassification",
        _BERT | {"relative_attention": True, "pos_att_type": "c2p|p2c"},
        _ENCODER,
        implementations=("eager",),
    ),
    "mpnet": Entry("MPNetForSequenceClassification", _BERT, _ENCODER, implementations=("eager",)),
}
# Each model with each implementation of attention that it has.
BUILDS = [(name, implementation) for name, entry in ZOO.items() for implementation in entry.implementations]
_XLNET = {"vocab_size": VOCAB, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 16, "pad_token_id": PAD}
REFUSED = {
    "megatron-bert": ("MegatronBertForSequenceClassification", _BERT),
    "xlnet": ("XLNetForSequenceClassification", _XLNET),
}
TEXT = [name for name in ZOO if name != "vit"]


def build(
    name: str, attention: str | None = None, *, dropout: float = 0.0, dtype: torch.dtype = torch.float32, **options: Any
) -> Any:
    """Make a model on the tests' device, in training mode. The weights are large: attention is far from uniform.

    Its attention is SDPA if not given, or what it has.
    """
    entry = ZOO[name]
    chosen = {**entry.options, **dict.fromkeys(entry.dropouts, dropout), **options}
    return from_class(entry.model, chosen, attention or entry.implementations[0]).to(DEVICE, dtype).train()


def from_class(class_name: str, options: Mapping[str, Any], attention: str | None = None) -> Any:
    """Make a model of any class of transformers, or one that pools the mean, from its configuration's options."""
    cls: Any = getattr(hf, class_name, None)
    cls = cls or saved_model_class(class_name, class_name.partition("MeanPooling")[0].lower())
    config = cls.config_class(**copy.deepcopy(dict(options)))
    if attention is not None:
        config._attn_implementation = attention
    model = cls(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim > 1 else 0.1
            noise = torch.randn(parameter.shape, generator=generator) * scale
            parameter.copy_(noise if parameter.ndim > 1 else parameter + noise)
        if hasattr(model, "tie_weights"):
            model.tie_weights()
    return model


def rows(name: str, lengths: Sequence[int], *, labels: bool = True, seed: int = 3) -> list[Batch]:
    """Make unpadded examples of the given lengths."""
    task = ZOO[name].task
    generator = torch.Generator().manual_seed(seed)

    def tokens(*shape: int) -> Tensor:
        sampled = torch.randint(5, VOCAB, shape, generator=generator)
        sampled[..., -1] = EOS
        return sampled

    made = []
    for i, length in enumerate(lengths):
        match task:
            case "image":
                row = {"pixel_values": torch.randn(3, 12, 12, generator=generator), "labels": torch.tensor(i % LABELS)}
            case "choice":
                row = {"input_ids": tokens(4, length), "labels": torch.tensor(i % 4)}
            case "tokens":
                row = {"input_ids": tokens(length), "labels": torch.arange(length) % LABELS}
                row["labels"][:1] = -100
            case "seq2seq":
                row = {"input_ids": tokens(length), "labels": tokens(max(2, length - 2))}
            case "lm":
                row = {"input_ids": tokens(length)}
                row["labels"] = row["input_ids"].clone()
                row["labels"][:1] = -100  # nothing comes before the first token, unless it is padding
            case _:
                row = {"input_ids": tokens(length), "labels": torch.tensor(i % LABELS)}
        if "input_ids" in row:
            row["attention_mask"] = torch.ones_like(row["input_ids"])
        if not labels:
            del row["labels"]
        made.append(row)
    return made


def collate(examples: Sequence[Batch], *, extra: int = 0, left: bool = False) -> Batch:
    """Pad examples to the longest and ``extra`` columns more."""
    batch = {}
    for name in examples[0]:
        values = [example[name] for example in examples]
        if values[0].ndim == 0 or name == "pixel_values":
            batch[name] = torch.stack(values)
            continue
        width = max(value.shape[-1] for value in values) + extra
        fill = {"labels": -100, "input_ids": PAD}.get(name, 0)
        padding = [(width - v.shape[-1], 0) if left else (0, width - v.shape[-1]) for v in values]
        batch[name] = torch.stack(
            [torch.nn.functional.pad(v, pad, value=fill) for v, pad in zip(values, padding, strict=True)]
        )
    if left and "input_ids" in batch:
        batch["position_ids"] = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    return batch


def batch_of(name: str, lengths: Sequence[int] = (8, 5, 3), **options: Any) -> Batch:
    """Make a padded batch on the tests' device."""
    padding = {key: options.pop(key) for key in ("extra", "left") if key in options}
    return on_device(collate(rows(name, lengths, **options), **padding))


def on_device(batch: Batch) -> Batch:
    """Move a batch to the tests' device."""
    return to_device(batch, DEVICE)


def training(model: torch.nn.Module, processes: Processes | None = None, **options: Any) -> TrainingContext:
    """Make the training context of a custom loop."""
    return TrainingContext(model=model, evaluate=run_model, processes=processes or Processes(), **options)


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a model's parameters, and clear them."""
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def assert_same(first: Mapping[str, Tensor], second: Mapping[str, Tensor], tolerance: float = 0.0) -> None:
    """Check that two sets of named tensors hold the same numbers."""
    assert first and first.keys() == second.keys()
    torch.testing.assert_close(dict(first), dict(second), rtol=tolerance, atol=tolerance)
