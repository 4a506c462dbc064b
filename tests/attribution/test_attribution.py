"""Attributions: what is attributed, gradients against one backward pass per layer, completeness of the integral."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import oracles, zoo
from helpers.plans import attached
from helpers.training import examples, trainer_of
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import QuestionAnsweringModelOutput as Spans
from transformers.modeling_outputs import TokenClassifierOutput as Outputs

from attendrop import AttendropError, Vanilla, regularize
from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from attendrop.attribution.gradient import (
    attention_attribution,
    gradient_attribution,
    integrated_gradient_attribution,
    quadrature_nodes,
)
from attendrop.attribution.predictions import aligned_labels, best_spans, fix_target, shifts_labels
from attendrop.methods.core.losses import mean_divergence
from attendrop.randomness import candidates

TARGETS = ["pseudo_label", "gold_label"]


def prepared(name: str, **options: Any) -> tuple[ModelAdapter, zoo.Batch]:
    model, batch = zoo.build(name, dtype=torch.float64, **options), zoo.batch_of(name)
    batch = {key: value.double() if value.is_floating_point() else value for key, value in batch.items()}
    return attached(model, batch), batch


# --- Gradients


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", zoo.ZOO)
def test_gradients_equal_one_backward_pass_per_layer(name: str, target: str) -> None:
    adapter, batch = prepared(name)
    found = gradient_attribution(adapter, batch, adapter.attention_layers, target)
    eager = zoo.build(name, "eager", dtype=torch.float64)
    with oracles.EagerAttention().in_place_of_stock(eager) as stock:
        outputs = eager(**batch)
        task = zoo.ZOO[name].task
        score = oracles.target(task, outputs.logits, batch["labels"], gold=target == "gold_label")
    for layer, weights, valid in zip(adapter.attention_layers, stock.weights, stock.valid, strict=True):
        (expected,) = torch.autograd.grad(score, weights, retain_graph=True, allow_unused=True)
        torch.testing.assert_close(
            found[layer.key] * valid, expected * valid, rtol=1e-8, atol=1e-10, msg=lambda m, s=layer: f"{s}: {m}"
        )
    assert any(value.abs().max() > 1e-6 for value in found.values())


@pytest.mark.parametrize("target", ["pseudo_label", "gold_label", "loss", "score"])
def test_regression_attributes_the_negative_loss_whatever_the_target(target: str) -> None:
    """But the score of a reward model, where a batch has no labels."""
    model, eager = (zoo.build("bert", name, dtype=torch.float64, num_labels=1) for name in ("sdpa", "eager"))
    without = zoo.batch_of("bert", labels=False)
    batch = without | {"labels": torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)}
    inputs = without if target == "score" else batch
    adapter = attached(model, inputs)
    with oracles.EagerAttention().in_place_of_stock(eager) as stock:
        outputs = eager(**inputs)
    if target == "score":
        score = outputs.logits.sum()
    else:
        score = -outputs.loss if target == "loss" else oracles.target("regression", outputs.logits, batch["labels"])
    chosen = "pseudo_label" if target == "score" else target
    found = gradient_attribution(adapter, inputs, adapter.attention_layers, chosen)
    for layer, weights in zip(adapter.attention_layers, stock.weights, strict=True):
        (expected,) = torch.autograd.grad(score, weights, retain_graph=True)
        torch.testing.assert_close(found[layer.key], expected, rtol=1e-8, atol=1e-10)
    for other, message in (("gold_label", "taken for a regression, .*declare_output"), ("loss", "returned no loss")):
        with pytest.raises(AttendropError, match=message):
            gradient_attribution(adapter, without, adapter.attention_layers, other)


# --- What every attribution leaves as it was


class Scaled(Plan):
    """The model with the recorded weights of some sites times a factor: the function that is integrated."""

    def __init__(self, weights: Mapping[str, Tensor], factor: float) -> None:
        super().__init__()
        self.weights = weights
        self.factor = factor

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        given = self.weights.get(call.layer.key)
        return None if given is None else AttentionEdit(weights=lambda _: given * self.factor)


@pytest.mark.parametrize(
    ("attribute", "options"),
    [(gradient_attribution, {}), (integrated_gradient_attribution, {"steps": 2, "scope": "layerwise"})],
)
def test_parameters_modes_and_random_state_are_left_alone(attribute: Any, options: dict[str, Any]) -> None:
    adapter, batch = prepared("bert", dropout=0.2)
    model = adapter.model
    model.bert.encoder.layer[1].eval()
    model.bert.embeddings.requires_grad_(False)

    def state() -> list[Any]:
        modes = [module.training for module in model.modules()]
        return [modes, [(p.requires_grad, p.grad) for p in model.parameters()], torch.get_rng_state().tolist()]

    before = state()
    found = attribute(adapter, batch, adapter.attention_layers, "pseudo_label", **options)
    assert not any(value.requires_grad for value in found.values())
    assert state() == before


# --- Integrated gradients


def per_sequence(adapter: ModelAdapter, batch: zoo.Batch, plan: Plan | None, task: str, chosen: Tensor) -> Tensor:
    with torch.no_grad():
        outputs = adapter.forward(batch, plan)
    if task == "class":
        return outputs.logits.gather(-1, chosen[:, None]).squeeze(-1)
    likelihood = functional.log_softmax(outputs.logits, -1).gather(-1, chosen[..., None]).squeeze(-1)
    return (likelihood * (batch["labels"] != -100)).sum(-1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rule", ["gauss_legendre", "riemann"])
@pytest.mark.parametrize("scope", ["joint", "layerwise"])
@pytest.mark.parametrize(("name", "task"), [("bert", "class"), ("bart", "tokens")])
def test_attributions_of_each_sample_sum_to_what_attention_adds(name: str, task: str, scope: str, rule: str) -> None:
    adapter, batch = prepared(name, dropout=0.4)  # which must be off throughout
    steps = 100 if rule == "riemann" else 24
    found = integrated_gradient_attribution(
        adapter, batch, adapter.attention_layers, "pseudo_label", scope=scope, rule=rule, steps=steps
    )
    adapter.model.eval()
    with torch.no_grad():
        chosen = adapter.forward(batch).logits.argmax(-1)
    recorded = attention_attribution(adapter, batch, adapter.attention_layers)
    for group in [list(recorded)] if scope == "joint" else [[key] for key in recorded]:
        given = {key: recorded[key] for key in group}
        whole, nothing = (per_sequence(adapter, batch, Scaled(given, factor), task, chosen) for factor in (1.0, 0.0))
        total = torch.stack([found[key].flatten(1).sum(-1) for key in group]).sum(0)
        tolerance = 1e-5 if rule == "gauss_legendre" else 5e-2
        torch.testing.assert_close(total, whole - nothing, rtol=tolerance, atol=tolerance)
        assert (whole - nothing).abs().max() > 0.05


def test_the_label_is_fixed_by_the_unscaled_pass() -> None:
    """A model whose prediction flips when attention is scaled down still has the unscaled pass's label attributed."""
    adapter, batch = prepared("bert")
    adapter.model.eval()
    weights = attention_attribution(adapter, batch, adapter.attention_layers)
    with torch.no_grad():
        label = adapter.forward(batch).logits.argmax(-1)
        flipped = adapter.forward(batch, Scaled(weights, 0.0)).logits.argmax(-1)
    assert not torch.equal(label, flipped)
    pseudo = integrated_gradient_attribution(adapter, batch, adapter.attention_layers, "pseudo_label", steps=4)
    gold = integrated_gradient_attribution(
        adapter, batch | {"labels": label}, adapter.attention_layers, "gold_label", steps=4
    )
    zoo.assert_same(pseudo, gold)


@pytest.mark.parametrize("steps", [1, 8])
@pytest.mark.parametrize("rule", ["gauss_legendre", "riemann"])
def test_nodes_integrate(rule: str, steps: int) -> None:
    points = quadrature_nodes(rule, steps)
    assert len(points) == steps
    assert sum(share for _, share in points) == pytest.approx(1)
    degree = 2 * steps - 1 if rule == "gauss_legendre" else 0
    assert sum(share * x**degree for x, share in points) == pytest.approx(1 / (degree + 1))
    assert all(0 < x <= 1 for x, _ in points)


# --- What is attributed


class Head(nn.Module):
    """Stands in for a model whose outputs are given."""

    def __init__(self, problem_type: str | None = None) -> None:
        super().__init__()
        self.config = SimpleNamespace(problem_type=problem_type)
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, **batch: Any) -> Outputs:
        return Outputs()


def scored(outputs: Any, batch: zoo.Batch, target: str, problem_type: str | None = None) -> Tensor:
    return fix_target(Head(problem_type), outputs, batch, target)(outputs)


def test_target_of_several_labels() -> None:
    logits = torch.tensor([[2.0, -1.0, 0.5]])
    gold = torch.tensor([[1.0, 1.0, 0.0]])
    problem = "multi_label_classification"
    expected = logits.sigmoid().log()[0, 0] + logits.sigmoid().log()[0, 1] + (1 - logits.sigmoid()).log()[0, 2]
    torch.testing.assert_close(scored(Outputs(logits=logits), {"labels": gold}, "gold_label", problem)[0], expected)
    likely = torch.where(logits > 0, logits.sigmoid(), 1 - logits.sigmoid()).log().sum(-1)
    torch.testing.assert_close(scored(Outputs(logits=logits), {"labels": gold}, "pseudo_label", problem), likely)


ANSWERS: dict[str, tuple[dict[str, list[int]], tuple[int, int]]] = {
    "nothing is known": ({}, (5, 5)),
    "padding": ({"attention_mask": [1, 1, 1, 1, 1, 0]}, (0, 4)),
    "types of tokens": ({"token_type_ids": [0, 0, 1, 1, 1, 0]}, (2, 3)),
    "types that tell nothing": ({"token_type_ids": [0] * 6, "attention_mask": [1, 1, 1, 0, 0, 0]}, (0, 1)),
    "a mask with none": ({"answer_mask": [1, 0, 1, 1, 0, 0]}, (0, 0)),
    "a shorter mask": ({"answer_mask": [0, 0, 1, 1]}, (2, 3)),
    "the best end is before the best start": ({"answer_mask": [0, 1, 1, 0, 0, 0]}, (1, 1)),
    "no token": ({"answer_mask": [0] * 6}, (0, 0)),
}


@pytest.mark.parametrize(("known", "span"), ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_a_span_of_the_text(known: dict[str, list[int]], span: tuple[int, int]) -> None:
    start, end = torch.tensor([[5.0, 1, 2, 1.5, 1, 9]]), torch.tensor([[4.0, 6, 0, 6.5, 8, 9]])
    batch = {name: torch.tensor([values]) for name, values in known.items()}
    outputs = Spans(start_logits=start, end_logits=end)
    assert scored(outputs, batch, "pseudo_label").tolist() == [float(start[0, span[0]] + end[0, span[1]])]
    for first, last, expected in ((0, 1, 11), (-100, 1, 11), (6, 1, 6), (9, 9, 0)):  # beyond the tokens, none is scored
        gold = {"start_positions": torch.tensor([first]), "end_positions": torch.tensor([last])}
        assert scored(outputs, gold, "gold_label").tolist() == [expected]
    if known:  # where no answer can be, logits do not count
        start, end = (logits.index_fill(1, torch.tensor([5]), -9) for logits in (start, end))
        assert float(mean_divergence(Head(), outputs, Spans(start_logits=start, end_logits=end), batch)) == 0


@pytest.mark.parametrize("length", [1, 2, 7, 60])
def test_the_best_span_is_that_of_all_pairs(length: int) -> None:
    torch.manual_seed(length)
    (start, end), allowed = torch.randn(2, 3, length), torch.rand(3, length) < 0.8
    for row, found in enumerate(zip(*best_spans(start, end, allowed), strict=True)):
        pairs = [
            (float(start[row, i] + end[row, j]), i, j)
            for i in range(length)
            for j in range(i, min(length, i + 30))
            if allowed[row, i : j + 1].all()
        ]
        assert tuple(map(float, found)) == pytest.approx(max(pairs, default=(-torch.inf, 0, 0)))


def test_the_token_with_which_generation_begins_is_predicted_there() -> None:
    model, batch = zoo.build("bart"), zoo.batch_of("bart")
    model.generation_config.forced_bos_token_id = 7
    outputs = model(**batch)
    likelihood = outputs.logits.log_softmax(-1)
    best = likelihood.amax(-1)
    best[:, 0] = likelihood[:, 0, 7]
    found = fix_target(model, outputs, batch, "pseudo_label")(outputs)
    torch.testing.assert_close(found, (best * (batch["labels"] != -100)).sum(-1))


def test_labelled_tokens_or_without_labels_all_but_padding_are_attributed() -> None:
    logits = torch.randn(2, 4, 3)
    outputs, best = Outputs(logits=logits), logits.log_softmax(-1).amax(-1)
    assert torch.equal(scored(outputs, {}, "pseudo_label"), best.sum(-1))
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    assert torch.equal(scored(outputs, {"attention_mask": mask}, "pseudo_label"), (best * mask).sum(-1))
    labels = torch.tensor([[-100, 1, 2, -100], [0, -100, -100, -100]])
    expected = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100).sum(-1)
    torch.testing.assert_close(scored(outputs, {"labels": labels}, "gold_label"), -expected)


# Positions of the labels, found from the loss, for models of any name -------------------------------------------------


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


class Tagger(nn.Module):
    """A tagger of one's own, whose loss leaves out the first token, or takes all labels as classes, as a CRF does."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.encoder, self.head, self.first = zoo.build("bert").bert, nn.Linear(16, zoo.LABELS), first

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.encoder(input_ids, attention_mask=attention_mask).last_hidden_state)
        if self.first:
            loss = functional.cross_entropy(logits[:, 1:].flatten(0, 1), labels[:, 1:].flatten())
        else:
            loss = -logits.gather(2, labels[..., None]).mean()
        return {"loss": loss, "logits": logits}


@pytest.mark.parametrize("first", [1, 0])
def test_taggers_of_ones_own_shift_no_labels(first: int) -> None:
    batch = zoo.batch_of("bert-tokens")
    assert not shifts_labels(Tagger(first), batch | {"labels": batch["labels"].clamp(min=0)})


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


# Memory for long inputs: weights, attributions and masks of all layers never exist at once ----------------------------


LENGTH = 40
SIZES = {"num_hidden_layers": 4}
# Elements of the weights of one layer.
WEIGHTS = 2 * 2 * LENGTH * LENGTH


def long_batch() -> zoo.Batch:
    return zoo.batch_of("bert", (LENGTH, LENGTH - 3))


def long_inputs(**options: Any) -> tuple[ModelAdapter, zoo.Batch]:
    return attached(zoo.build("bert", **SIZES, **options), long_batch()), long_batch()


@contextmanager
def saved_for_backward() -> Iterator[list[int]]:
    """Collect the numbers of elements of the tensors that graphs save within the block."""
    found: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        found.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found


def test_the_graph_of_an_attribution_holds_no_weights() -> None:
    adapter, batch = long_inputs()
    with saved_for_backward() as saved:
        gradient_attribution(adapter, batch, adapter.attention_layers, "pseudo_label")
    assert max(saved) < WEIGHTS


@pytest.mark.parametrize("attribute", [gradient_attribution, integrated_gradient_attribution, attention_attribution])
def test_attributions_are_handed_over_one_layer_at_a_time(attribute: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_AT_ONCE_ON_CPU", WEIGHTS)
    adapter, batch = long_inputs()
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def keep(call: AttentionCall, attribution: Tensor) -> list[float]:
        nonlocal most
        most = max(most, sum(each() is not None for each in alive))
        alive.append(weakref.ref(attribution))
        return [float(attribution.sum())]

    target = [] if attribute is attention_attribution else ["pseudo_label"]
    found = attribute(adapter, batch, adapter.attention_layers, *target, keep=keep)
    gc.collect()
    whole = attribute(adapter, batch, adapter.attention_layers, *target)
    assert list(found) == list(whole) == [f"encoder.{number}" for number in range(4)]
    assert found == pytest.approx({key: float(value.sum()) for key, value in whole.items()}, abs=1e-6)
    assert most <= 1


def test_the_graph_of_the_training_pass_holds_masks_in_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "_AT_ONCE_ON_CPU", WEIGHTS)
    model = zoo.build("bert", **SIZES)
    with regularize(model, Vanilla(p=0.3)) as reg:
        reg.loss(long_batch()).backward()  # looks for the layers
        with saved_for_backward() as saved:
            loss = reg.loss(long_batch())
        assert max(saved) < WEIGHTS
        loss.backward()
