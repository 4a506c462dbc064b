"""The loss of a trainer's own ``compute_loss``, as the passes of a method need it.

That function may be the user's, which does not know of plans. The plan is still passed as a keyword of the forward
pass: it is added by a hook on the module that the function calls, which may be a wrapper of the model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.plan import Plan, keywords
from attendrop.attribution.predictions import refuse_smoothing
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.support.models import ROW_INDEX, Batch, model_inputs, named_outputs, number_of_rows
from attendrop.training.regularization import Regularization

# What trainers of TRL record in each call of compute_loss, and log as means or sums.
_RECORDS = ("_metrics", "_total_train_tokens")
_NOT_CALLED = (
    "The loss was computed without a call of the model that compute_loss was given, so the method could not act; call "
    "model(**inputs) in it."
)


@contextmanager
def unrecorded(trainer: Trainer) -> Iterator[None]:
    """Undo what a trainer records within the block, of a pass that it would not have run itself."""
    kept = {name: deepcopy(value) for name, value in vars(trainer).items() if name in _RECORDS}
    try:
        yield
    finally:
        vars(trainer).update(kept)


def is_stock_loss(trainer: Trainer, compute_loss: Any) -> bool:
    """Whether a trainer's loss is the one that transformers computes."""
    return getattr(compute_loss, "__func__", None) is Trainer.compute_loss and trainer.compute_loss_func is None


def countable(labels: Any) -> Any:
    """Replace numbers to predict by zeros, since -100 is one of them: losses of transformers leave out no number."""
    return torch.zeros_like(labels) if isinstance(labels, Tensor) and labels.is_floating_point() else labels


class _Called(BaseException):
    """Exception that exits a function at its call of the model; ``except Exception`` does not catch it."""


class TrainerLoss:
    """Adapter that runs the ``compute_loss`` of a trainer for the passes of a method.

    This may be a subclass's own function, which does not know of plans, repeated rows or second models.
    """

    def __init__(self, trainer: Any, method: Method, *, shifts_labels: bool) -> None:
        self.trainer = trainer
        self.shifts_labels = shifts_labels  # whether each label is predicted from the tokens before it
        self.method = method
        self.compute_loss: Callable[..., Any] = trainer.compute_loss
        self._is_stock = is_stock_loss(trainer, self.compute_loss)
        # If the loss depends on what the model returned, the outputs must come from a single call.
        self._reads_outputs = method.defines("loss") or method.defines("penalty")
        self._ignores_num_items: bool | None = None
        # The processes over which the loss of a step is averaged after it was divided by the items of all.
        self._processes = trainer.args.world_size if trainer.args.average_tokens_across_devices else 1

    def regularized(
        self,
        regularization: Regularization,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss of a training step, with all passes of the method; stands in for ``compute_loss``."""
        if not regularization.idle and regularization.as_inputs is None:
            regularization.as_inputs = self._inputs_of(model, inputs)
        is_mean = num_items_in_batch is not None and self.is_mean(inputs)
        is_first = True

        def one_pass(batch: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
            nonlocal is_first
            records, is_first = nullcontext() if is_first else unrecorded(self.trainer), False
            # If a method repeats the rows of a batch, each copy counts for its part.
            copies = number_of_rows(batch) // number_of_rows(inputs)
            num_items = None if num_items_in_batch is None else num_items_in_batch * copies
            passed = None if is_mean else num_items
            # Only the trained model is prepared for autocast.
            with records, nullcontext() if other is None else self.trainer.accelerator.autocast():
                loss, outputs = self._loss_and_outputs(model if other is None else other, batch, plan, passed)
            if is_mean:  # one over no labels is NaN, and counts nothing
                weight = self._weight(batch, num_items).to(loss.dtype)
                loss = torch.where(weight == 0, 0.0, loss * weight)
            return loss, outputs

        weighted = (
            num_items_in_batch is not None and "labels" in inputs and self.trainer.loss_is_scaled_for_ga is not False
        )
        regularization.loss_weight = self._weight(inputs, num_items_in_batch).float() if weighted else 1.0
        regularization.accumulation_steps = 1 if weighted else self.trainer.current_gradient_accumulation_steps
        loss, outputs = regularization.compute(inputs, one_pass)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, model: nn.Module, inputs: Batch, plan: Plan | None = None) -> tuple[Tensor, Any]:
        """Compute the mean loss of a model on a batch beside training, and its outputs."""
        frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        with unrecorded(self.trainer):
            items = None  # of a loss that needs no number, or cannot have one
            is_passed = self.trainer.model_accepts_loss_kwargs or self.trainer.compute_loss_func is not None
            if is_passed and isinstance(inputs.get("labels"), Tensor) and not self.is_mean(dict(inputs)):
                # The stock trainer counts those of all processes, which may evaluate other numbers of batches here.
                items = self._labels(inputs).ne(-100).sum() * self._processes
            found = self._loss_and_outputs(model, inputs, plan, items)
        for parameter in frozen:  # PEFT unfreezes an adapter that a loss switched off and on, as trl's DPO does
            parameter.requires_grad_(False)
        return found

    def _loss_and_outputs(
        self, model: nn.Module, inputs: Batch, plan: Plan | None, num_items_in_batch: Tensor | int | None
    ) -> tuple[Tensor, Any]:
        """Run ``compute_loss``, pass a plan to its call of the model, and catch what that returns.

        Calls without gradients, in a pass with gradients, are ignored. With a plan, or if the method reads outputs,
        there must be exactly one call, or AttendropError is raised.
        """
        once, with_gradients = self._reads_outputs or plan is not None, torch.is_grad_enabled()
        smooths = self._is_stock and self.trainer.label_smoother
        unwrapped = self.trainer.accelerator.unwrap_model(model)
        if smooths:
            refuse_smoothing(unwrapped, None, inputs)
        calls, returned = 0, list[Any]()

        def enter(_: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
            nonlocal calls
            if torch.is_grad_enabled() is not with_gradients:
                return None
            calls += 1
            if once and calls > 1:
                raise AttendropError(
                    "The loss was computed from two calls of the model, but the method acts on one; compute it from "
                    "one, on all rows."
                )
            return None if plan is None else (args, kwargs | keywords(plan))

        def leave(_: nn.Module, args: Any, found: Any) -> None:
            if torch.is_grad_enabled() is with_gradients and calls == 1:
                returned.append(found)

        hooks = (
            model.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
            model.register_forward_hook(leave),
        )
        try:
            loss = self.compute_loss(model, self._given(inputs), num_items_in_batch=num_items_in_batch)
        finally:
            for hook in hooks:
                hook.remove()
        if once and not calls:
            raise AttendropError(_NOT_CALLED)
        outputs = named_outputs(returned[0] if returned else None, inputs)
        if smooths:
            refuse_smoothing(unwrapped, getattr(outputs, "logits", None), inputs)
        return loss, outputs

    def _given(self, batch: Batch) -> dict[str, Any]:
        """Copy a batch as ``compute_loss`` expects it: one of the user's own may read all but what the trainer adds."""
        trainer = self.trainer
        if getattr(self.compute_loss, "__func__", None) is Trainer.compute_loss or trainer.args.remove_unused_columns:
            return model_inputs(batch)
        return {name: value for name, value in batch.items() if name != ROW_INDEX or not self.method.needs_rows}

    def _inputs_of(self, model: nn.Module, inputs: dict[str, Any]) -> Callable[[Batch], Batch]:
        """Return what the model receives for a batch, as a function of it; refuse what a method could not repeat."""
        # trl.SFTTrainer replaces the forward pass of its model, also under an adapter, and gives it a switch: its loss
        # needs no logits. Methods may need them; their passes are those of the class.
        added = set[str]()
        for part in (each for each in model.modules() if isinstance(each, PreTrainedModel)):
            replaced = vars(part).get("_original_forward", vars(part).get("forward"))  # accelerate wraps that one
            named = inspect.signature(replaced, follow_wrapped=False).parameters if replaced else {}
            added |= set(named) - set(inspect.signature(type(part).forward).parameters)

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            unwrapped: Any = getattr(module, "module", module)  # of DistributedDataParallel
            raise _Called(dict(zip(inspect.signature(unwrapped.forward).parameters, args, strict=False)) | kwargs)

        def passed(batch: Batch) -> dict[str, Any]:
            hook = model.register_forward_pre_hook(enter, with_kwargs=True)
            try:
                with torch.no_grad(), forked_rng(model), unrecorded(self.trainer):
                    self.compute_loss(model, self._given(batch))
            except _Called as call:
                given: dict[str, Any] = call.args[0]
                return {name: value for name, value in given.items() if name not in added or value is not True}
            finally:
                hook.remove()
            raise AttendropError(_NOT_CALLED)

        arguments = passed(inputs)
        in_one = [name for name, value in arguments.items() if isinstance(value, Mapping)]
        if in_one and (self._reads_outputs or any(part.info.uses_attention for part in self.method.parts)):
            raise AttendropError(
                f"compute_loss passes the inputs of {type(model).__name__} as one mapping, {in_one[0]!r}, and may call "
                f"the model once for each text of a row, which method '{self.method.name}' does not support; use a "
                "method that acts on weights or gradients only."
            )
        # A compute_loss of one's own may add some, as that of trl.DPOTrainer does labels: each batch shows which.
        return model_inputs if self._is_stock and not self.trainer.label_smoother else passed

    def is_mean(self, inputs: dict[str, Any]) -> bool:
        """Whether the loss is a mean over the micro-batch, though the trainer treats it as a sum over ``num_items``.

        The stock trainer passes ``num_items_in_batch``, which most heads except those of language models ignore, as do
        many ``compute_loss`` and ``compute_loss_func``. The loss itself is tested, once, on the first micro-batch that
        has one, and only if it makes a difference and ``loss_is_scaled_for_ga`` does not say.
        """
        trainer = self.trainer
        if trainer.args.gradient_accumulation_steps == trainer.args.world_size == 1 or "labels" not in inputs:
            return False
        if trainer.loss_is_scaled_for_ga is not None:
            return False
        if self._ignores_num_items is None:
            model = trainer.accelerator.unwrap_model(trainer.model)
            losses = []
            for count in (1, 2):
                # Random numbers in the loss are the same in both calls.
                with torch.no_grad(), forked_rng(model), evaluating(model), unrecorded(trainer):
                    batch, number = self._given(inputs), torch.tensor(count, device=trainer.args.device)
                    losses.append(self.compute_loss(model, batch, num_items_in_batch=number))
            if not losses[0].isfinite() or losses[0] == 0:  # no label counts: a sum of none is 0, a mean is NaN
                return bool(losses[0].isnan())
            self._ignores_num_items = torch.equal(losses[0], losses[1])
        return self._ignores_num_items

    def _labels(self, batch: Batch) -> Tensor:
        """The labels that count: language models predict none at the first token."""
        labels: Tensor = countable(batch["labels"]) if self._is_stock else batch["labels"]
        return labels[..., 1:] if self.shifts_labels else labels

    def _weight(self, batch: Batch, num_items_in_batch: Tensor | int | None) -> Tensor:
        """The weight of a micro-batch's mean: its labels over those of the step, times the processes averaged over."""
        assert num_items_in_batch is not None
        labels = self._labels(batch)
        if isinstance(num_items_in_batch, Tensor):  # a second model may be on another device
            num_items_in_batch = num_items_in_batch.to(labels.device)
        weight: Tensor = labels.ne(-100).sum().double() * self._processes / num_items_in_batch
        return weight
