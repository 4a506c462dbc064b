"""SCAL: the perturbations, the contrast, and how the passes make up the loss."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from torch import Tensor
from torch.nn.functional import pad

from attendrop import SCAL
from attendrop.methods import adversarial
from attendrop.methods.adversarial import contrastive_loss, represent
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


@pytest.mark.parametrize(("labels", "temperature"), [([0, 1, 0, 0], 0.05), (None, 1.0)])
def test_the_contrast(labels: list[int] | None, temperature: float) -> None:
    first, second = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = contrastive_loss(first, second, None if labels is None else torch.tensor(labels), temperature)
    expected = contrast([*first, *second], (labels or [0, 1, 2, 3]) * 2, temperature)
    assert float(found) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["bert-tokens", "gpt2", "bart"])
def test_padding_does_not_matter(name: str) -> None:
    model, method = zoo.build(name, dtype=torch.float64), SCAL(contrast=2.0)
    near, far = zoo.batch_of(name, FOUR), zoo.batch_of(name, FOUR, extra=4)
    torch.testing.assert_close(loss_of(model, method, near), loss_of(model, method, far))


def test_a_mean_over_tokens() -> None:
    model, read = zoo.build("bert-tokens"), torch.arange(12.0).view(2, 3, 2)
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert represent(model, read, {"attention_mask": mask}).tolist() == [[1, 2], [0, 0]]
    assert represent(model, read, {}).tolist() == [[2, 3], [8, 9]]
    labels = torch.tensor([[5, -100, -100], [5, 6, -100]])
    assert represent(zoo.build("bart"), read, {"labels": labels, "attention_mask": mask}).tolist() == [[0, 1], [7, 8]]


@pytest.mark.parametrize(
    ("name", "options", "labels"),
    [
        ("bert", {"num_labels": 1}, torch.tensor([0.1, 0.2, 0.2, 0.1])),
        ("bert", {"problem_type": "multi_label_classification"}, torch.ones(4, 3)),
        ("bert-choice", {}, torch.tensor([0, 0, 1, 1])),
    ],
)
def test_without_classes_of_sequences_only_copies_belong_together(
    name: str, options: dict[str, Any], labels: Tensor
) -> None:
    model, batch = zoo.build(name, **options), zoo.batch_of(name, FOUR) | {"labels": labels}
    assert adversarial.classes(model, model(**batch), batch) is None


def test_sequences_without_a_label_are_of_no_common_class() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", FOUR) | {"labels": torch.tensor([1, -100, 1, -100])}
    outputs = model(**batch)
    found = adversarial.classes(model, outputs, batch)
    assert found is not None and found.tolist() == [1, -2, 1, -4]
    assert adversarial.classes(model, outputs, batch | {"labels": torch.ones(4, 3) / 3}) is None  # probabilities


def test_choices_that_a_question_lacks_are_not_contrasted(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.build("bert-choice"), zoo.batch_of("bert-choice", FOUR)
    sizes = []

    def counted(clean: Tensor, copies: Tensor, *_: Any) -> Tensor:
        sizes.append((len(clean), len(copies)))
        return clean.sum() * 0

    monkeypatch.setattr(adversarial, "contrastive_loss", counted)
    padded = {name: pad(value, (0, 0, 0, 1)) if value.ndim == 3 else value for name, value in batch.items()}
    for each in (batch, padded):
        loss_of(model, SCAL(contrast=2.0), each)
    choices = batch["input_ids"].shape[:2].numel()
    assert sizes == [(choices, choices)] * 2
