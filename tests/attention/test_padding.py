"""Linear layers leave out padding in training: the same losses, gradients and random numbers, in fewer products."""

import copy
from pathlib import Path

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpoint_activations
from helpers.training import ALWAYS, trainer_of, weights
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertForQuestionAnswering

from attendrop import AttendOut, AttendropError, Compose, HiddenCut, RDrop, RegularizedTrainer, SuperT
from attendrop.attention import padding
from attendrop.attention.padding import leave_out_padding
from attendrop.methods.core.base import Method


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding, "_NARROWEST", 1)  # layers of tiny models


def products(model: torch.nn.Module, batch: zoo.Batch) -> int:
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    return sum(count for operation, count in counter.get_flop_counts()["Global"].items() if "mm" in str(operation))


def test_products_are_those_of_the_tokens_that_are_no_padding() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert")
    flops = {"whole": products(model, batch)}
    hooks = leave_out_padding(model)
    flops["left out"] = products(model, batch)
    flops["of a copy"] = products(copy.deepcopy(model), batch)
    flops["on the left"] = products(model, batch | {"attention_mask": batch["attention_mask"].flip(1)})
    hooks.close()
    flops["closed"] = products(model, batch)
    share = batch["attention_mask"].float().mean().item()
    assert share < 0.9
    assert flops["left out"] / flops["whole"] == pytest.approx(share, abs=0.05)
    assert flops["of a copy"] == flops["on the left"] == flops["closed"] == flops["whole"]


@pytest.mark.parametrize(
    "method", [None, ALWAYS, AttendOut(dropout_step=2), Compose(ALWAYS, RDrop()), HiddenCut(), SuperT(fraction=0.5)]
)
def test_training_is_the_same(method: Method | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for least in (1, 10**6):
        monkeypatch.setattr(padding, "_NARROWEST", least)
        trainer = trainer_of(tmp_path, method, optim="sgd")
        torch.manual_seed(0)
        trainer.train()
        assert all("forward" not in vars(module) for module in trainer.model.modules())
        found.append((weights(trainer), torch.rand(1).item()))
    (ours, ours_next), (plain, plain_next) = found
    zoo.assert_same(ours, plain, 1e-5)
    assert ours_next == plain_next


def test_padding_is_computed_where_activations_are_recomputed_and_in_encoder_decoders() -> None:
    recomputing = zoo.build("bert")
    checkpoint_activations(recomputing)
    for model in (recomputing, zoo.build("bart"), zoo.build("vit"), torch.nn.Linear(2, 2)):
        assert not leave_out_padding(model)._replaced


def test_padding_is_computed_where_the_head_reads_it() -> None:
    model = zoo.build("bert")
    assert leave_out_padding(model)._replaced
    model.bert.pooler.forward = lambda hidden: hidden.mean(1)  # also of padding
    assert not leave_out_padding(copy.deepcopy(model))._replaced
    zeros, hidden = zoo.build("bert"), zoo.build("bert")
    torch.nn.init.zeros_(zeros.classifier.weight)  # whatever it reads, nothing shows it yet
    hidden.config.output_hidden_states = True
    answers = BertForQuestionAnswering(hidden.config)  # of which the softmax is over all positions
    for other in (zeros, hidden, answers, zoo.build("bert-tokens"), zoo.build("llama")):
        assert not leave_out_padding(other)._replaced


def test_padding_is_computed_for_a_loss_of_one_s_own(tmp_path: Path) -> None:
    class OfHiddenStates(RegularizedTrainer):
        def compute_loss(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], **_: object) -> torch.Tensor:
            assert all("forward" not in vars(module) for module in model.bert.modules())
            return model(**inputs, output_hidden_states=True).hidden_states[-1].mean()

    trainer_of(tmp_path, None, kind=OfHiddenStates, num_train_epochs=1).train()


def test_an_error_of_the_trial_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo.build("bert")

    def fails(*_: object) -> None:
        raise AttendropError("no example")

    monkeypatch.setattr(padding, "example_inputs", fails)
    assert not leave_out_padding(model)._replaced
    assert all("forward" not in vars(module) for module in model.modules())
