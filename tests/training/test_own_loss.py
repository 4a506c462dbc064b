"""A trainer whose loss is not the model's: ``compute_loss`` of a subclass, or a function in its place."""

import functools
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.checkpointing import checkpointing_arguments
from helpers.training import ALWAYS, Gradients, examples, history, trainer_of, weights
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from attendrop import ADDrop, AttendOut, AttendropError, Method, RDrop, RegularizedTrainer
from attendrop.extend import declare_output
from attendrop_methods import R3F, SAM


def computing(loss: Callable[[Any, dict[str, Any]], Tensor]) -> type[RegularizedTrainer]:
    """A class of trainers with this loss, of the model and its inputs."""

    class Own(RegularizedTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            return loss(model, inputs)

    return Own


def embedded(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Embeds the words itself, as mixup does."""
    words = model.get_input_embeddings()(inputs["input_ids"])
    return model(inputs_embeds=words, attention_mask=inputs["attention_mask"], labels=inputs["labels"]).loss


def with_reference(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Runs the model again without gradients, and then unfreezes it, as trl's DPOTrainer does to an adapter."""
    outputs = model(**inputs)
    with torch.no_grad():
        reference = model(**inputs).logits
    model.requires_grad_(True)
    return outputs.loss + (outputs.logits - reference + 1).square().mean()


def several_labels(model: Any, inputs: dict[str, Any]) -> Tensor:
    """Of a model whose configuration does not say so, which the labels that transformers would see do."""
    labels = inputs.pop("labels")
    return functional.binary_cross_entropy_with_logits(model(**inputs).logits, labels)


Twice = computing(lambda model, inputs: model(**inputs).loss + model(**inputs).loss)
NotAtAll = computing(lambda model, inputs: next(model.parameters()).square().sum())
FromEmbedded = computing(embedded)
# Makes the labels itself, from a batch without, as trl's DPOTrainer does.
OwnLabels = computing(lambda model, inputs: model(labels=inputs.pop("classes").long(), **inputs).loss)
# Of batches whose columns are none of the model's.
OtherNames = computing(
    lambda model, inputs: model(inputs["text"].clone(), inputs["mask"], labels=inputs["labels"]).loss
)


class OwnStep(RegularizedTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):  # type: ignore[no-untyped-def]
        model.train()
        loss = model(**self._prepare_inputs(inputs)).loss
        loss.backward()
        return loss.detach()


def renamed(names: dict[str, str]) -> Any:
    """A collator whose columns have other names."""
    return lambda rows: {names.get(name, name): value for name, value in zoo.collate(rows).items()}


def made(kind: type[RegularizedTrainer], folder: Path, method: Method | None, **options: Any) -> RegularizedTrainer:
    """A trainer of this kind, that takes one step."""
    logged = {"logging_strategy": "steps", "logging_steps": 1, "max_steps": 1}
    return trainer_of(folder, method, kind=kind, **logged | options)


def test_labels_that_may_be_classes_or_not_are_asked_for(tmp_path: Path) -> None:
    rows = [row | {"labels": torch.eye(3)[row["labels"]]} for row in examples()]
    trainer = made(computing(several_labels), tmp_path, RDrop(), train_dataset=rows)
    with pytest.raises(AttendropError, match=r"has 3 numbers as labels, .*declare_output\(model, kind\)"):
        trainer.train()
    declare_output(trainer.model, "labels")  # what the error names
    trainer.train()
    with pytest.raises(AttendropError, match=r"kind='label' is not known\. Did you mean 'labels'\?"):
        declare_output(trainer.model, "label")  # type: ignore[arg-type]


@pytest.mark.parametrize(("method", "scaled", "noise"), [(RDrop(), None, 0), (ALWAYS, False, 0), (None, None, 1e-10)])
def test_a_mean_over_the_micro_batch_accumulates_to_that_over_the_batch(
    method: Method | None, scaled: bool | None, noise: float, tmp_path: Path
) -> None:
    """Also one with noise, which differs from call to call."""

    class Mean(RegularizedTrainer):
        loss_is_scaled_for_ga = scaled

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            logits = model(inputs["input_ids"], inputs["attention_mask"]).logits
            logits, weights = logits + noise * torch.randn_like(logits), torch.tensor([1.0, 3.0, 0.5]).to(logits)
            return functional.cross_entropy(logits, inputs["labels"] * 0, weight=weights)

    found = []
    for size, micro in ((8, 1), (2, 4)):
        cut = {"per_device_train_batch_size": size, "gradient_accumulation_steps": micro, "optim": "sgd"}
        model, kept = zoo.build("bert", dtype=torch.float64), Gradients()
        made(Mean, tmp_path, method, model=model, max_grad_norm=0.0, callbacks=[kept], **cut).train()
        found.append(kept.steps[0])
    zoo.assert_same(*found, 1e-8)


def test_a_loss_that_divides_by_the_items_scores_models_by_its_mean(tmp_path: Path) -> None:
    found = []

    def summed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    for own in ({}, {"compute_loss_func": summed}):
        trainer = made(RegularizedTrainer, tmp_path, AttendOut(dropout_step=1), max_steps=2, optim="sgd", **own)
        trainer.train()
        found.append(history(trainer, "loss") + history(trainer, "attendout/reward"))
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "names", "method"),
    [
        (FromEmbedded, {}, ADDrop(target="loss", layers="all", attribution="integrated_gradient")),
        (OwnLabels, {"labels": "classes"}, AttendOut(dropout_step=1)),
        (OtherNames, {"input_ids": "text", "attention_mask": "mask"}, ADDrop(target="loss", layers="all")),
    ],
)
def test_what_the_loss_makes_for_the_model_is_as_if_the_batch_held_it(
    kind: type[RegularizedTrainer], names: dict[str, str], method: Method, tmp_path: Path
) -> None:
    found = []
    for each, collator, own in (
        (RegularizedTrainer, zoo.collate, method),
        (kind, renamed(names), method),
        (RegularizedTrainer, zoo.collate, None),
    ):
        trainer = made(each, tmp_path, own, data_collator=collator, max_steps=2, remove_unused_columns=False)
        trainer.train()
        found.append(weights(trainer))
    zoo.assert_same(*found[:2], 1e-6)
    assert any(not torch.equal(value, found[0][name]) for name, value in found[2].items())


def test_every_pass_has_what_the_loss_adds_and_the_columns_of_its_own_batch(tmp_path: Path) -> None:
    """Also arguments that are no tensors, and columns that the first batch lacks; the loss may read any column."""
    passes, collated = list[tuple[bool, bool]](), list[Any]()

    def seen(model: Any, inputs: dict[str, Any]) -> Tensor:
        assert inputs.pop("answer_mask").shape == inputs["input_ids"].shape
        assert inputs.pop("row_index").tolist() == [0, 1, 2, 3]
        return model(**inputs, output_hidden_states=True).loss

    def collate(rows: list[Any]) -> dict[str, Any]:
        batch = zoo.collate(rows) | {"row_index": torch.arange(len(rows))}
        collated.append(batch)
        return {name: value for name, value in batch.items() if len(collated) > 1 or name != "attention_mask"}

    rows = [row | {"answer_mask": torch.ones_like(row["input_ids"])} for row in examples()]
    given = {"train_dataset": rows, "data_collator": collate, "remove_unused_columns": False, "max_steps": 2}
    trainer = made(computing(seen), tmp_path, ADDrop(), **given)
    trainer.model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(("attention_mask" in kwargs, "output_hidden_states" in kwargs)),
        with_kwargs=True,
    )
    trainer.train()
    assert passes[0] == (False, True) and passes[-2:] == [(True, True)] * 2


def test_added_passes_are_without_a_switch_of_a_replaced_forward(tmp_path: Path) -> None:
    """As trl.SFTTrainer does, whose loss then needs no logits."""
    trainer = made(computing(lambda model, inputs: model(**inputs, fused=True).loss), tmp_path, ADDrop(), max_steps=2)
    original, passes = trainer.model.forward, list[bool]()

    @functools.wraps(type(trainer.model).forward)
    def forward(self: Any, *args: Any, fused: bool = False, **kwargs: Any) -> Any:
        passes.append(fused)
        outputs = original(*args, **kwargs)
        return SequenceClassifierOutput(loss=outputs.loss) if fused else outputs

    trainer.model.forward = MethodType(forward, trainer.model)
    trainer.train()
    assert passes[-4:] == [False, True] * 2


def test_a_loss_with_a_reference_is_attributed(tmp_path: Path) -> None:
    """Also where blocks run again in the backward pass of the attribution."""
    found = []
    for arguments in ({}, checkpointing_arguments(use_reentrant=False)):
        trainer = made(computing(with_reference), tmp_path, ADDrop(target="loss"), **arguments)
        trainer.train()
        assert history(trainer, "ad_drop/dropped")[0] > 0
        found.append(weights(trainer))
    zoo.assert_same(*found, 1e-6)


def test_passes_of_a_method_are_not_recorded_by_the_trainer(tmp_path: Path) -> None:
    class Recording(RegularizedTrainer):
        """As trainers of trl do."""

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):  # type: ignore[no-untyped-def]
            loss = model(**inputs).loss
            self._metrics = [*getattr(self, "_metrics", []), loss.item()]
            return loss

    trainer = made(Recording, tmp_path, SAM(), max_steps=2)
    trainer._metrics = []
    trainer.train()
    assert len(trainer._metrics) == len(history(trainer, "loss")) == 2


@pytest.mark.parametrize(
    ("kind", "method", "message"),
    [
        (Twice, RDrop(), "two calls of the model"),
        (NotAtAll, ALWAYS, "without a call of the model"),
        (FromEmbedded, R3F(), "embeds no words here"),
        (OwnLabels, ADDrop(), "target='pseudo_label' has none to read: set target='loss'"),
        (OwnStep, ALWAYS, r"OwnStep\.training_step took a step without compute_loss"),
    ],
)
def test_what_leaves_no_call_to_act_on_is_refused_at_the_first_step(
    kind: type[RegularizedTrainer], method: Method, message: str, tmp_path: Path
) -> None:
    options: dict[str, Any] = {}
    if kind is OwnLabels:
        options = {"data_collator": renamed({"labels": "classes"}), "remove_unused_columns": False}
    trainer = made(kind, tmp_path, method, **options)
    with pytest.raises(AttendropError, match=message):
        trainer.train()
    assert trainer.state.global_step <= 1
