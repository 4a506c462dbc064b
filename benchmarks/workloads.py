"""What is measured on: models of random weights, and made-up batches."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    ModernBertConfig,
    ModernBertForSequenceClassification,
)

Batch = dict[str, Tensor]

BATCH_SIZE = 16
_SHAPES: dict[str, dict[str, int]] = {
    "BERT-large": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
    "BERT-base": {},
    "MiniLM": {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536},
    "tiny": {"hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 96},
}


@dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
        device: Where.
        dtype: ``float32``, or ``bfloat16`` for autocast.
        quick: Tiny models and short batches: shows that the benchmark runs, its figures mean nothing.
        rounds: How often each thing is timed, at least.
        methods: Of the part ``methods``, the rows of these only; empty: all.

    """

    device: torch.device
    dtype: torch.dtype
    quick: bool
    rounds: int = 3
    methods: tuple[str, ...] = ()

    @property
    def shapes(self) -> tuple[str, ...]:
        """The models."""
        return ("tiny",) if self.quick else ("MiniLM", "BERT-base")

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of made-up batches, in tokens."""
        return (12,) if self.quick else (64, 128)

    def autocast(self) -> torch.autocast:
        """The context in which a loss is computed."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)

    def to_device(self, batch: Batch) -> Batch:
        """Move a batch."""
        return {name: value.to(self.device) for name, value in batch.items()}


def build_model(
    setting: Setting, shape: str, implementation: str = "sdpa", *, attention_dropout: float = 0.1
) -> BertForSequenceClassification:
    """Make a classifier of random weights in training mode, with dropout 0.1."""
    torch.manual_seed(0)
    options = {"attention_probs_dropout_prob": attention_dropout, "attn_implementation": implementation}
    config = BertConfig(**_SHAPES[shape], **options, num_labels=2)
    return BertForSequenceClassification(config).to(setting.device).train()


def build_launch_model(layers: int) -> BertForSequenceClassification:
    """Make a classifier whose steps take what the host needs to dispatch them: 12 heads of 4, 48 wide."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=48,
        num_hidden_layers=layers,
        num_attention_heads=12,
        intermediate_size=96,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
        num_labels=2,
    )
    return BertForSequenceClassification(config).train()


# With its sizes, what the configuration of the -base models says.
_DEBERTA_V3 = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "type_vocab_size": 0,
}


def family_models(setting: Setting) -> dict[str, Any]:
    """Make classifiers of other families, of random weights: in the sizes of MiniLM."""
    torch.manual_seed(0)
    sizes = _SHAPES["tiny" if setting.quick else "MiniLM"]
    words = {"vocab_size": 30522, "num_labels": 2}
    special = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    models = {
        "ModernBERT": ModernBertForSequenceClassification(ModernBertConfig(**sizes, **words, **special)),
        "DeBERTa-v3": DebertaV2ForSequenceClassification(DebertaV2Config(**sizes, **words, **_DEBERTA_V3)),
    }
    return {
        f"{name}, {model.config.num_hidden_layers} layers": model.to(setting.device) for name, model in models.items()
    }


def made_up(length: int, *, ragged: bool) -> Batch:
    """Make up a batch: full, or with the longest sequence of ``length`` and a median of about half of that."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(1000, 30000, (BATCH_SIZE, length), generator=generator)
    lengths = torch.full((BATCH_SIZE,), length)
    if ragged:
        spread = torch.exp(torch.randn(BATCH_SIZE - 1, generator=generator) * 0.45 - 0.6)
        lengths[1:] = (length * spread).round().long().clamp(min(8, length), length)
    mask = (torch.arange(length) < lengths[:, None]).long()
    labels = torch.randint(2, (BATCH_SIZE,), generator=generator)
    return {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels}


def reward_items(batch: Batch, size: int) -> list[Batch]:
    """Items of ``size`` rows to be rewarded on, as long as those of ``batch``, padded to the longest."""
    items = []
    for start in range(0, BATCH_SIZE, size):
        item = {name: value[start : start + size] for name, value in batch.items()}
        width = int(item["attention_mask"].sum(1).max())
        items.append({name: value[:, :width] if value.ndim > 1 else value for name, value in item.items()})
    return items
