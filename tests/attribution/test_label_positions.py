"""Positions of the labels, found from the loss, for models of any name."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from helpers import zoo
from helpers.training import examples, trainer_of
from torch import Tensor, nn

from attendrop import ADDrop, AttendropError, Method, RDrop, regularize
from attendrop.attribution.label_positions import aligned_labels

_VISION = zoo.LAYERS | {"image_size": 8, "patch_size": 4}
_SPEECH = zoo.LAYERS | {
    "vocab_size": 12, "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (4, 4), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


def llava() -> Any:
    """A vision-language model; four patches of an image stand for tokens 1 of the text."""
    vision = hf.CLIPVisionConfig(**_VISION)
    text = hf.LlamaConfig(**zoo.ZOO["llama"].options)
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=1, image_seq_length=4)
    return hf.LlavaForConditionalGeneration(config)


def case(name: str) -> tuple[Any, zoo.Batch]:
    batch = zoo.batch_of("llama") if name != "t5" else zoo.batch_of("t5")
    match name:
        case "llava":
            batch = zoo.batch_of("llama", (8, 8, 8))
            batch["input_ids"][:, 1:5] = 1
            return llava().train(), batch | {"pixel_values": torch.randn(3, 3, 8, 8)}
        case "compiled gpt2":
            return torch.compile(zoo.build("gpt2")), batch
        case "bert-tokens" | "llama" | "t5":
            return zoo.build(name), zoo.batch_of(name)
        case _:
            return zoo.from_class(name, zoo.ZOO["bart"].options).train(), batch


def looked_at(model: Any, batch: zoo.Batch) -> Tensor:
    """The positions of the logits that the loss depends on."""
    outputs = model(**batch)
    (gradient,) = torch.autograd.grad(outputs.loss, outputs.logits)
    return gradient.abs().sum(-1) > 0


@pytest.mark.parametrize(
    "name",
    [
        *("BartForCausalLM", "MarianForCausalLM", "MBartForConditionalGeneration"),
        *("llama", "llava", "bert-tokens", "t5"),
        pytest.param("compiled gpt2", marks=pytest.mark.slow),
    ],
)
def test_labels_stand_where_the_loss_looks(name: str) -> None:
    model, batch = case(name)
    with torch.compiler.set_stance("force_eager"):
        expected, logits, before = looked_at(model, batch), model(**batch).logits, torch.get_rng_state()
        labels = aligned_labels(model, logits, batch)
    assert torch.equal(labels != -100, expected)
    assert torch.equal(before, torch.get_rng_state())
    assert model.training


def test_without_a_loss_labels_stand_where_they_are_predicted() -> None:
    class Own(nn.Embedding):
        def forward(self, input_ids: Tensor) -> Any:
            return hf.modeling_outputs.TokenClassifierOutput(logits=super().forward(input_ids))

    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long), "labels": torch.ones(2, 3, dtype=torch.long)}
    labels = aligned_labels(Own(5, 5), torch.randn(2, 3, 5), batch)
    assert labels is not None and torch.equal(labels, batch["labels"])


@pytest.mark.parametrize("method", [ADDrop(layers="all"), RDrop()], ids=lambda method: method.name)
def test_labels_that_no_position_predicts_are_refused(method: Method) -> None:
    model: Any = hf.Wav2Vec2ForCTC(hf.Wav2Vec2Config(**_SPEECH))
    batch = {"input_values": torch.randn(2, 400), "labels": torch.ones(2, 5, dtype=torch.long)}
    shapes = r"\(\d, 25, 12\) for labels of shape \(\d, 5\)"
    with regularize(model.train(), method) as reg, pytest.raises(AttendropError, match=shapes):
        reg.loss(batch)


@pytest.mark.parametrize("name", ["llama", "bart-decoder"])
def test_labels_are_smoothed_where_they_are_predicted_or_not_at_all(name: str, tmp_path: Path) -> None:
    """The stock trainer smooths labels at positions that it chooses by the model's class."""
    options = zoo.ZOO["bart"].options
    model = zoo.build("llama") if name == "llama" else zoo.from_class("BartForCausalLM", options).train()
    trainer = trainer_of(
        tmp_path, None, model=model, train_dataset=examples("llama"), label_smoothing_factor=0.1, max_steps=1
    )
    refused = pytest.raises(AttendropError, match="smooth the labels of BartForCausalLM one position away")
    with nullcontext() if name == "llama" else refused:
        trainer.train()
