"""A trainer whose loss is not the model's: ``compute_loss`` of a subclass, or a function in its place."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.training import Gradients, examples, history, trainer_of
from torch import Tensor
from torch.nn import functional

from attendrop import (
    ADDrop,
    AttendOut,
    AttendropError,
    FineTune,
    Method,
    Mixout,
    RDrop,
    RegularizedTrainer,
)

ALWAYS = ADDrop(p=0.5, q=0.5, layers="all")
METHODS: dict[str, Method] = {
    "ad-drop": ALWAYS,
    "r-drop": RDrop(),
    "mixout": Mixout(),
    "attendout": AttendOut(variant="pruning", dropout_step=1),
}
WEIGHTS = torch.tensor([1.0, 3.0, 0.5])


def weighted(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits, labels, weight=WEIGHTS.to(logits))


class ClassWeights(RegularizedTrainer):
    """The recipe of transformers' documentation."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = weighted(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


class FromLogits(RegularizedTrainer):
    """Looks at the model without gradients first, gives the model its inputs one by one, and returns a loss alone."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        with torch.no_grad():
            certain = model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits.softmax(-1)
        logits = model(inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        return functional.cross_entropy(logits, inputs["labels"]) - 0.01 * (certain * logits.log_softmax(-1)).sum()


class Twice(RegularizedTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        return model(**inputs).loss + model(**inputs).loss


class FromEmbedded(RegularizedTrainer):
    """Embeds the words itself, as mixup does."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        embedded = model.get_input_embeddings()(inputs["input_ids"])
        return model(inputs_embeds=embedded, attention_mask=inputs["attention_mask"], labels=inputs["labels"]).loss


class NotAtAll(RegularizedTrainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        return next(model.parameters()).square().sum()


class OwnStep(RegularizedTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        model.train()
        loss = model(**self._prepare_inputs(inputs)).loss
        loss.backward()
        return loss.detach()


def made(kind: type[RegularizedTrainer], folder: Path, method: Method | None, **options: Any) -> RegularizedTrainer:
    """A trainer of this kind, that takes one step."""
    logged = {"logging_strategy": "steps", "logging_steps": 1, "max_steps": 1}
    return trainer_of(folder, method, kind=kind, **logged | options)


def step_of(kind: type[RegularizedTrainer], folder: Path, method: Method | None, **options: Any) -> dict[str, Tensor]:
    """The gradients of a step."""
    kept = Gradients()
    made(kind, folder, method, callbacks=[kept], **options).train()
    return kept.steps[0]


def direction_of(gradients: dict[str, Tensor]) -> Tensor:
    """The direction of a step's gradient, which a further pass of the same rows leaves as it is."""
    whole = torch.cat([gradient.flatten() for gradient in gradients.values()])
    return whole / whole.norm()


@cache
def plain_direction(kind: type[RegularizedTrainer], dropout: float, copies: int) -> Tensor:
    """Of plain fine-tuning, on so many copies of each row."""

    def collate(rows: list[zoo.Batch]) -> zoo.Batch:
        return zoo.collate([row for row in rows for _ in range(copies)])

    with TemporaryDirectory() as folder:
        model = zoo.build("bert", dropout=dropout)
        return direction_of(step_of(kind, Path(folder), None, model=model, data_collator=collate))


@pytest.mark.parametrize(
    ("kind", "name"),
    [(ClassWeights, name) for name in METHODS] + [(FromLogits, "ad-drop")],
)
def test_a_method_acts_on_the_model_that_a_loss_of_ones_own_calls(
    kind: type[RegularizedTrainer], name: str, tmp_path: Path
) -> None:
    """The gradient does not point where it would without the method, on the same rows.

    The model has no dropout, which would make any further pass look like an effect; but R-Drop compares what it does.
    """
    method = METHODS[name]
    dropout, copies = (0.1, 2) if isinstance(method, RDrop) else (0.0, 1)
    kept = Gradients()
    trainer = made(kind, tmp_path, method, callbacks=[kept], model=zoo.build("bert", dropout=dropout))
    trainer.train()
    assert history(trainer, f"{method.source}/active") == [1]
    for figure in ("dropped", "divergence"):
        assert all(share > 0 for share in history(trainer, f"{method.source}/{figure}"))
    assert (direction_of(kept.steps[0]) - plain_direction(kind, dropout, copies)).norm() > 1e-3


@pytest.mark.parametrize("method", [ALWAYS, RDrop()], ids=["ad-drop", "r-drop"])
def test_class_weights_in_a_subclass_are_those_in_a_loss_function(method: Method, tmp_path: Path) -> None:
    def loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return weighted(outputs.logits, labels)

    subclass = step_of(ClassWeights, tmp_path, method)
    function = step_of(RegularizedTrainer, tmp_path, method, compute_loss_func=loss)
    zoo.assert_same(subclass, function, 1e-7)


def test_a_function_may_be_put_in_the_place_of_compute_loss(tmp_path: Path) -> None:
    trainer = made(RegularizedTrainer, tmp_path, ALWAYS)
    own = ClassWeights.compute_loss.__get__(trainer)
    trainer.compute_loss = own  # type: ignore[method-assign]
    trainer.train()
    assert all(share > 0 for share in history(trainer, "ad_drop/dropped"))
    assert trainer.compute_loss is own


@pytest.mark.parametrize(("method", "scaled"), [(None, None), (ALWAYS, False)])
def test_a_mean_over_the_micro_batch_accumulates_to_that_over_the_batch(
    method: Method | None, scaled: bool | None, tmp_path: Path
) -> None:
    class Mean(RegularizedTrainer):
        loss_is_scaled_for_ga = scaled

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            return weighted(model(inputs["input_ids"], inputs["attention_mask"]).logits, inputs["labels"] * 0)

    found = []
    for size, micro in ((8, 1), (2, 4)):
        cut = {"per_device_train_batch_size": size, "gradient_accumulation_steps": micro, "optim": "sgd"}
        model = zoo.build("bert", dtype=torch.float64)
        found.append(step_of(Mean, tmp_path, method, model=model, max_grad_norm=0.0, **cut))
    zoo.assert_same(*found, 1e-8)


def test_the_model_is_given_no_labels_by_attribution_that_the_loss_keeps_from_it(tmp_path: Path) -> None:
    """Soft labels would have the model take the task for one of several labels, for good."""

    class Soft(RegularizedTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            labels = functional.one_hot(inputs.pop("labels"), 3).float()
            return functional.cross_entropy(model(**inputs).logits, labels)

    model = zoo.build("bert")
    made(Soft, tmp_path, ALWAYS, model=model).train()
    assert model.config.problem_type is None


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        (Twice, RDrop(), "two calls of the model"),
        (NotAtAll, ALWAYS, "without a call of the model"),
        (FromEmbedded, ALWAYS, "gives the model 'inputs_embeds', which the batch does not hold"),
        (OwnStep, ALWAYS, r"OwnStep\.training_step took a step without compute_loss"),
    ],
)
def test_what_leaves_no_call_to_act_on_is_refused_at_the_first_step(
    kind: type[RegularizedTrainer], method: Method, message: str, tmp_path: Path
) -> None:
    trainer = made(kind, tmp_path, method)
    with pytest.raises(AttendropError, match=message):
        trainer.train()
    assert trainer.state.global_step <= 1


@pytest.mark.parametrize("method", [RDrop(), Mixout()], ids=str)
def test_a_method_without_passes_of_its_own_takes_embedded_words(method: Method, tmp_path: Path) -> None:
    trainer = made(FromEmbedded, tmp_path, method)
    trainer.train()
    assert history(trainer, f"{method.source}/active") == [1]


def test_plain_fine_tuning_takes_any_loss(tmp_path: Path) -> None:
    made(NotAtAll, tmp_path, FineTune()).train()


def test_evaluation_is_by_the_loss_of_ones_own(tmp_path: Path) -> None:
    trainer = made(ClassWeights, tmp_path, ALWAYS)
    trainer.train()
    found = trainer.evaluate(examples(count=8))
    batch = zoo.collate(examples(count=8))
    labels = batch.pop("labels")
    with torch.no_grad():
        expected = weighted(trainer.model.eval()(**batch).logits, labels)
    assert found["eval_loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RegularizedTrainer, ClassWeights])
def test_a_compiled_model_is_acted_on(kind: type[RegularizedTrainer], tmp_path: Path) -> None:
    compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
    one, other = (step_of(kind, tmp_path, ALWAYS, **options) for options in ({}, compiled))
    zoo.assert_same(one, {name.removeprefix("_orig_mod."): value for name, value in other.items()}, 1e-5)
