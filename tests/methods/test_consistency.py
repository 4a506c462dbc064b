"""R-Drop, HiddenCut and SCAL: what the passes compute, and how they make up the loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.oracles import EagerAttention
from helpers.training import Gradients, trainer_of
from torch import Tensor
from torch.nn import functional

from attendrop import SCAL, ADDrop, AttendropError, Compose, HiddenCut, RDrop, regularize
from attendrop.methods import consistency
from attendrop.randomness.keyed_random import SampleKey, uniform


def two_passes(model: Any, batch: zoo.Batch) -> tuple[Tensor, Tensor, Tensor]:
    """What the copies predict, found by running the repeated batch in the model as it is, and its loss."""
    outputs = model(**{key: value.repeat_interleave(2, 0) for key, value in batch.items()})
    return outputs.logits[0::2], outputs.logits[1::2], outputs.loss


CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "classes": ("bert", {}, None),
    "tokens": ("bert-tokens", {}, None),
    "regression": ("bert", {"num_labels": 1}, torch.tensor([0.1, 0.7, 0.3])),
    "labels": ("bert", {"problem_type": "multi_label_classification"}, torch.eye(3)),
    "language model": ("gpt2", {}, None),
}


def symmetric(one: Tensor, other: Tensor) -> Tensor:
    """Half of both Kullback-Leibler divergences of two vectors of logits."""
    p, q = one.log_softmax(-1), other.log_softmax(-1)
    return ((p.exp() * (p - q)).sum() + (q.exp() * (q - p)).sum()) / 2


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_r_drop_is_that_of_both_copies_and_their_divergence(case: str) -> None:
    name, options, labels = CASES[case]
    model, batch = zoo.build(name, dropout=0.2, **options), zoo.batch_of(name)
    batch = batch if labels is None else batch | {"labels": labels}
    torch.manual_seed(7)
    first, second, plain = two_passes(model, batch)
    expected: list[Tensor] = []
    for row, (one, other) in enumerate(zip(first, second, strict=True)):
        if case == "regression":
            expected.append((one - other).square().sum())
        elif case == "labels":
            expected.append(
                sum(symmetric(*(torch.stack([x, x * 0]) for x in pair)) for pair in zip(one, other, strict=True))
            )
        elif one.ndim == 1:
            expected.append(symmetric(one, other))
        else:
            gold = batch["labels"][row].tolist()
            gold = [*gold[1:], -100] if case == "language model" else gold
            expected += [symmetric(*pair) for *pair, label in zip(one, other, gold, strict=True) if label != -100]
    mean = torch.stack(expected).mean().detach()
    torch.manual_seed(7)
    with regularize(model, RDrop(alpha=3.0, reduction="mean")) as reg:
        torch.testing.assert_close(reg.loss(batch), plain + 1.5 * mean, rtol=1e-4, atol=1e-6)
        assert reg.logs()["r_drop/divergence"] == pytest.approx(float(mean), rel=1e-4)
    assert float(mean) > 1e-4


def test_the_number_of_items_by_which_a_loss_is_divided_is_that_of_both_copies() -> None:
    model, batch = zoo.build("gpt2"), zoo.batch_of("gpt2")
    items = (batch["labels"][:, 1:] != -100).sum()
    losses = []
    for given in (batch, batch | {"num_items_in_batch": items}):
        with regularize(model, RDrop()) as reg:
            losses.append(reg.loss(given))
    torch.testing.assert_close(*losses)


def test_a_sum_is_the_loss_of_the_authors_code() -> None:
    """Of their GLUE runs: cross-entropies are means, divergences are summed over the batch."""
    model, batch = zoo.build("bert", dropout=0.2), zoo.batch_of("bert")
    torch.manual_seed(7)
    first, second, plain = two_passes(model, batch)
    divergence = sum(symmetric(*pair) for pair in zip(first, second, strict=True))
    torch.manual_seed(7)
    with regularize(model, RDrop(alpha=1.4, reduction="sum")) as reg:
        torch.testing.assert_close(reg.loss(batch), plain + 0.7 * divergence, rtol=1e-4, atol=1e-5)


def test_a_sum_is_over_the_global_batch(tmp_path: Path) -> None:
    """However it is cut into micro-batches; copies differ by the draws of AD-DROP, which are keyed by row."""
    found = []
    for size, steps in ((8, 1), (2, 4)):
        kept = Gradients()
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "max_steps": 2}
        method = Compose(RDrop(reduction="sum"), ADDrop(layers="all"))
        model = zoo.build("bert", dtype=torch.float64)
        trainer = trainer_of(tmp_path, method, model=model, callbacks=[kept], max_grad_norm=0.0, **options)
        trainer.train()
        found.append(kept.steps)
    for one, other in zip(*found, strict=True):
        zoo.assert_same(one, other, 1e-6)


@pytest.mark.parametrize(("dropout", "warnings"), [(0.0, 1), (0.1, 0)])
def test_passes_that_are_equal_are_warned_of(dropout: float, warnings: int, caplog: pytest.LogCaptureFixture) -> None:
    model, batch = zoo.build("bert", dropout=dropout), zoo.batch_of("bert")
    with regularize(model, RDrop()) as reg:
        for _ in range(4):
            reg.loss(batch)
            reg.step()
    assert caplog.text.count("R-Drop: both passes give the same predict") == len(caplog.records) == warnings


SHORT = (8, 5, 3)


def span(attention: Tensor, length: int, method: HiddenCut, sampled: float) -> list[int]:
    """The positions to cut, of a sequence at the left; attention is (heads, query, key)."""
    cut = max(1, int(length * method.alpha + 1e-6))
    if method.select_by == "random":
        start = int(sampled * (length - cut + 1))
    else:
        received = [sum(float(head[i][j]) for head in attention for i in range(length)) for j in range(length)]
        order = sorted(range(length), key=lambda j: -received[j])
        start = order[int(sampled * max(1, int(length * method.candidates + 1e-6)))]
    return [j for j in range(start, start + cut) if j < length]


def cut_pass_of_hidden(model: Any, batch: zoo.Batch, spans: list[list[list[int]]], where: str) -> Any:
    """A pass of the stock model with these positions, by layer and sequence, set to zero."""
    hooks = []
    for layer, cuts in zip(model.bert.encoder.layer, spans, strict=True):
        kept = torch.ones(*batch["input_ids"].shape, 1)
        for row, positions in enumerate(cuts):
            kept[row, positions] = 0
        hooks.append(
            layer.register_forward_hook(lambda _, args, output, kept=kept: output * kept)
            if where == "block"
            else layer.output.dense.register_forward_pre_hook(lambda _, args, kept=kept: (args[0] * kept,))
        )
    outputs = model(**batch)
    for hook in hooks:
        hook.remove()
    return outputs


@pytest.mark.parametrize(
    "method",
    [HiddenCut(alpha=0.4, gamma=0.7, eta=2.0), HiddenCut(alpha=0.4, select_by="random", views=2, where="feed_forward")],
    ids=str,
)
def test_the_loss_of_hidden_cut(method: HiddenCut) -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", SHORT)
    with regularize(model, method) as reg:
        loss = reg.loss(batch)
    whole = model(**batch, output_attentions=True)
    passes, origins = [whole], torch.zeros(3, 2, dtype=torch.long)
    for view in range(method.views):
        spans = []
        for layer, attention in enumerate(whole.attentions):
            sampled = uniform(SampleKey(0, 0, 0, 3), f"{view}/encoder.{layer}", (3, 1, 1, 1), origins, origins.device)
            rows = zip(attention.detach(), SHORT, sampled.flatten().tolist(), strict=True)
            spans.append([span(own, length, method, each) for own, length, each in rows])
        passes.append(cut_pass_of_hidden(model, batch, spans, method.where))
    chances = [outputs.logits.softmax(-1) for outputs in passes]
    middle = torch.stack(chances).mean(0)
    divergences = [functional.kl_div(middle.log(), p, reduction="batchmean") for p in chances]
    cut = torch.stack([outputs.loss for outputs in passes[1:]]).mean()
    expected = whole.loss + method.gamma * cut + method.eta * torch.stack(divergences).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)


FOUR = (8, 5, 3, 6)


def scal_loss(model: Any, method: SCAL, batch: zoo.Batch, share: float = 1.0) -> Tensor:
    with regularize(model, method) as reg:
        reg.loss_weight = share
        return reg.loss(batch)


def contrast(vectors: list[Tensor], labels: list[int], temperature: float) -> float:
    """Eq. 2 of Khosla et al. in loops; vectors are those of all sequences and then of their copies."""
    units = [vector / vector.norm() for vector in vectors]
    total = 0.0
    for i, one in enumerate(units):
        others = {j: math.exp(float(one @ other) / temperature) for j, other in enumerate(units) if j != i}
        positive = [j for j in others if labels[j] == labels[i]]
        total -= sum(math.log(others[j] / sum(others.values())) for j in positive) / len(positive)
    return total / len(units)


def scal_pass(model: Any, batch: zoo.Batch, change: dict[str, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
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


def test_the_loss_of_scal_with_perturbed_words() -> None:
    model, batch = zoo.build("bert", dtype=torch.float64), zoo.batch_of("bert", FOUR)
    method = SCAL(epsilon=0.7, adversarial=0.6, contrast=0.3, temperature=0.2)
    loss = scal_loss(model, method, batch, 0.25)
    plain, words, first = scal_pass(model, batch, {})
    change = of_norm(0.7, torch.autograd.grad(plain, words)[0])
    perturbed, _, second = scal_pass(model, batch, {"words": change})
    labels = batch["labels"].tolist() * 2
    term = contrast([*first.detach(), *second.detach()], labels, 0.2)
    torch.testing.assert_close(loss.detach(), (plain + 0.6 * perturbed + 0.3 * 0.25 * term).detach())
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


def test_the_loss_of_scal_with_perturbed_attention() -> None:
    model, batch = zoo.build("bert", "eager", dtype=torch.float64), zoo.batch_of("bert", FOUR)
    loss = scal_loss(model, SCAL(where="attention", epsilon=0.7, contrast=0), batch)
    with Perturbed().in_place_of_stock(model) as clean:
        plain = model(**batch).loss
    gradients = torch.autograd.grad(plain, clean.weights)
    changes = [of_norm(0.7, g * valid) for g, valid in zip(gradients, clean.valid, strict=True)]
    with Perturbed(changes).in_place_of_stock(model):
        perturbed = model(**batch).loss
    torch.testing.assert_close(loss, plain + perturbed)
    assert perturbed > plain


@pytest.mark.parametrize("name", ["gpt2", "bart"])
def test_scal_ignores_padding(name: str) -> None:
    model, method = zoo.build(name, dtype=torch.float64), SCAL(contrast=2.0)
    near, far = zoo.batch_of(name, FOUR), zoo.batch_of(name, FOUR, extra=4)
    torch.testing.assert_close(scal_loss(model, method, near), scal_loss(model, method, far))


def test_sequences_without_a_label_are_of_no_common_class() -> None:
    model, batch = zoo.build("bert"), zoo.batch_of("bert", FOUR)
    batch["labels"] = torch.tensor([1, -100, 1, -100])
    outputs = model(**batch)
    found = consistency.classes(model, outputs, batch)
    assert found is not None and found.tolist() == [1, -2, 1, -4]
    assert consistency.classes(model, outputs, batch | {"labels": torch.ones(4, 3) / 3}) is None  # probabilities


def test_rows_whose_images_are_in_one_tensor_are_not_repeated() -> None:
    with pytest.raises(AttendropError, match="'pixel_values' has the images of all rows in one"):
        consistency.repeat_rows({"input_ids": torch.zeros(2, 4), "pixel_values": torch.zeros(64, 8)}, 2)
