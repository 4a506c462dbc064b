"""Queries that are not padding, and the methods that learn from sums over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import zoo
from torch import Tensor

from attendrop import Method
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall
from attendrop.tasks.types.model_classes import choice_class
from attendrop.training.regularization import Regularization
from attendrop_methods import ContextualDropout, LearnableBernoulli
from attendrop_methods.own_parameters import real_queries

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
LABELS = torch.tensor([[5, 6, 7, -100], [-100, 6, -100, -100]])
ALL = [[1, 1, 1, 1], [1, 1, 1, 1]]
UP_TO_LAST = [[1, 1, 1, 0], [1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("kind", "batch", "expected"),
    [
        ("encoder", {"attention_mask": MASK, "labels": LABELS}, ALL),  # what the mask of the layer does not tell
        ("cross", {"attention_mask": MASK, "labels": LABELS}, UP_TO_LAST),
        ("decoder", {"attention_mask": MASK, "labels": LABELS}, UP_TO_LAST),
        ("cross", {"decoder_attention_mask": MASK, "labels": LABELS}, MASK.tolist()),
        ("cross", {"attention_mask": MASK, "labels": torch.tensor([1, 2])}, MASK.tolist()),  # one label for a text
        ("cross", {"attention_mask": MASK, "labels": torch.zeros(2, 4)}, MASK.tolist()),  # four labels for a text
        ("cross", {"attention_mask": MASK, "decoder_input_ids": LABELS}, ALL),  # nothing tells
        ("cross", {"labels": LABELS[:, :3]}, ALL),  # not the lengths of the layer
        ("encoder", {"attention_mask": MASK.view(1, 2, 4)}, ALL),
        ("encoder", {"attention_mask": MASK.view(1, 2, 4) * torch.tensor([1, 0])[:, None]}, [[1] * 4, [0] * 4]),
    ],
)
def test_the_batch_tells(kind: str, batch: dict[str, Tensor], expected: list[list[int]]) -> None:
    call = AttentionCall(AttentionLayer("layer", kind, 0), (2, 1, 4, 4), None, torch.device("cpu"))
    assert real_queries(call, batch)[:, 0, :, 0].int().tolist() == expected


def choice_model() -> Any:
    stock = zoo.build("bert-choice", dtype=torch.float64)
    model = choice_class("BertForMultipleChoice")(stock.config).to(stock.device, torch.float64)
    model.load_state_dict(stock.state_dict())
    return model.train()


def padded(name: str, extra: int) -> zoo.Batch:
    """A batch with more padding: of tokens, or of choices."""
    if name != "bert-choice":
        return zoo.batch_of(name, extra=extra)
    batch = zoo.batch_of(name)
    columns = {column: batch[column] for column in ("input_ids", "attention_mask")}
    return batch | {column: torch.nn.functional.pad(value, (0, 0, 0, extra)) for column, value in columns.items()}


BERNOULLI, CONTEXTUAL = LearnableBernoulli(p=0.3, num_train_rows=100), ContextualDropout(p=0.3, prior_weight=1.0)


@pytest.mark.parametrize(
    ("method", "name"),
    [(BERNOULLI, "bart"), (CONTEXTUAL, "t5"), (BERNOULLI, "bart-class"), (CONTEXTUAL, "bert-choice")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_padding_changes_no_loss_and_no_gradient(method: Method, name: str) -> None:
    found = []
    for extra in (0, 3):
        model = choice_model() if name == "bert-choice" else zoo.build(name, dtype=torch.float64)
        batch = padded(name, extra)
        reg = Regularization(zoo.training(model), method)
        reg.loss(batch)
        parameters: dict[str, Tensor] = reg.method_state.parameters  # type: ignore[attr-defined]
        generator = torch.Generator().manual_seed(0)
        for parameter in parameters.values():  # so that probabilities differ between sequences
            parameter.data = parameter + torch.randn(parameter.shape, generator=generator).to(parameter)
        reg.begin_step(0)
        loss = reg.loss(batch)
        loss.backward()
        own = {key: parameter.grad for key, parameter in parameters.items() if parameter.grad is not None}
        found.append(zoo.gradients(model) | own | {"loss": loss.detach()})
        reg.close()
    zoo.assert_same(found[0], found[1], 1e-5)
