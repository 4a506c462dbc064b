"""Positions of the labels, found from the loss, for models of any name."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import examples, trainer_of
from torch import Tensor

from attendrop import AttendropError
from attendrop.attribution.predictions import aligned_labels


def case(name: str) -> tuple[Any, zoo.Batch]:
    batch = zoo.batch_of("llama") if name != "t5" else zoo.batch_of("t5")
    match name:
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
        *("llama", "bert-tokens", "t5"),
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
