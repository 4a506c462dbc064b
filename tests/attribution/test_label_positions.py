"""Positions of the labels, found from the loss, for models of any name."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from helpers import zoo
from helpers.training import examples, trainer_of

from attendrop import AttendropError
from attendrop.attribution.predictions import aligned_labels


@pytest.mark.parametrize(
    "name", ["BartForCausalLM", "MarianForCausalLM", "MBartForConditionalGeneration", "llama", "bert-tokens", "t5"]
)
def test_labels_stand_where_the_loss_looks(name: str) -> None:
    known = name in zoo.ZOO
    model = zoo.build(name) if known else zoo.from_class(name, zoo.ZOO["bart"].options).train()
    batch = zoo.batch_of(name if known else "llama")
    outputs, before = model(**batch), torch.get_rng_state()
    (gradient,) = torch.autograd.grad(outputs.loss, outputs.logits)
    labels = aligned_labels(model, outputs.logits, batch)
    assert labels is not None and torch.equal(labels != -100, gradient.abs().sum(-1) > 0)
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
