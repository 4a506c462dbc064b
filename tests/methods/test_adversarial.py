"""SCAL: the perturbations, the contrast, and how the passes make up the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from torch import Tensor

from attendrop import SCAL, AttendropError
from attendrop.methods import adversarial
from attendrop.training.regularization import Regularization

FOUR = (8, 5, 3, 6)


def loss_of(model: Any, method: SCAL, batch: zoo.Batch, *, share: float = 1.0) -> Tensor:
    reg = Regularization(zoo.training(model), method)
    reg.loss_weight = share
    try:
        return reg.loss(batch)
    finally:
        reg.close()


def contrast(vectors: list[Tensor], labels: list[int], temperature: float) -> float:
    """Eq. 2 of Khosla et al. in loops; vectors are those of all sequences and then of their copies."""
    units = [vector / vector.norm() for vector in vectors]
    total = 0.0
    for i, one in enumerate(units):
        others = {j: math.exp(float(one @ other) / temperature) for j, other in enumerate(units) if j != i}
        positive = [j for j in others if labels[j] == labels[i]]
        total -= sum(math.log(others[j] / sum(others.values())) for j in positive) / len(positive)
    return total / len(units)


def run(model: Any, batch: zoo.Batch, change: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The stock model's loss, its embedded words, and what its head reads; ``change`` is added to the words."""
    found = {}

    def embedded(module: Any, args: Any, output: Tensor) -> Tensor:
        found["words"] = output + change.get("words", 0)
        return found["words"]

    def read(module: Any, args: Any) -> None:
        found["read"] = args[0]

    hooks = [
        model.bert.embeddings.word_embeddings.register_forward_hook(embedded),
        model.classifier.register_forward_pre_hook(read),
    ]
    loss = model(**batch).loss
    for hook in hooks:
        hook.remove()
    return loss, found["words"], found["read"]


def of_norm(epsilon: float, gradient: Tensor) -> Tensor:
    return torch.stack([epsilon * row / row.pow(2).sum().sqrt() for row in gradient])


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_the_loss_with_perturbed_words(share: float) -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", FOUR)
    method = SCAL(epsilon=0.7, adversarial=0.6, contrast=0.3, temperature=0.2)
    loss = loss_of(model, method, batch, share=share)
    plain, words, first = run(model, batch, {})
    change = of_norm(0.7, torch.autograd.grad(plain, words)[0])
    perturbed, _, second = run(model, batch, {"words": change})
    labels = batch["labels"].tolist() * 2
    term = contrast([*first.detach(), *second.detach()], labels, 0.2)
    torch.testing.assert_close(loss.detach(), (plain + 0.6 * perturbed + 0.3 * share * term).detach())
    assert perturbed > plain


class Perturbed(EagerAttention):
    """Adds to the weights of each call."""

    def __init__(self, changes: list[Tensor] | None = None) -> None:
        super().__init__()
        self.changes = changes

    def __call__(self, module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        weights = super().__call__(module, query, key, value, *args, **kwargs)[1]
        if self.changes is not None:
            weights = weights + self.changes[len(self.weights) - 1]
        return (weights @ value).transpose(1, 2).contiguous(), weights


def test_the_loss_with_perturbed_attention() -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", FOUR)
    loss = loss_of(model, SCAL(where="attention", epsilon=0.7, contrast=0), batch)
    with Perturbed().in_place_of_stock(model) as clean:
        plain = model(**batch).loss
    gradients = torch.autograd.grad(plain, clean.weights)
    changes = [of_norm(0.7, g * valid) for g, valid in zip(gradients, clean.valid, strict=True)]
    with Perturbed(changes).in_place_of_stock(model):
        perturbed = model(**batch).loss
    torch.testing.assert_close(loss, plain + perturbed)
    assert perturbed > plain


def test_attention_is_perturbed_in_a_model_without_words() -> None:
    assert loss_of(zoo.build("vit"), SCAL(where="attention"), zoo.batch_of("vit")).isfinite()
    with pytest.raises(AttendropError, match="embeds no words here"):
        loss_of(zoo.build("vit"), SCAL(), zoo.batch_of("vit"))


@pytest.mark.parametrize("name", ["bert-tokens", "gpt2", "bart"])
def test_padding_does_not_matter(name: str) -> None:
    model, method = zoo.build(name, dtype=torch.float64), SCAL(contrast=2.0)
    near, far = zoo.batch_of(name, FOUR), zoo.batch_of(name, FOUR, extra=4)
    torch.testing.assert_close(loss_of(model, method, near), loss_of(model, method, far))


def test_sequences_without_a_label_are_of_no_common_class() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", FOUR) | {"labels": torch.tensor([1, -100, 1, -100])}
    outputs = model(**batch)
    found = adversarial.classes(model, outputs, batch)
    assert found is not None and found.tolist() == [1, -2, 1, -4]
    assert adversarial.classes(model, outputs, batch | {"labels": torch.ones(4, 3) / 3}) is None  # probabilities
