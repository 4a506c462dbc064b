"""A method applied to a model, step by step."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.isolation import in_precision_of
from attendrop.attention.model_outputs import loss_and_outputs, named_outputs
from attendrop.attention.module_hooks import hooks_are_guarded, is_compiled, whole_graphs_refused
from attendrop.attention.plan import PLAN_KEYWORD, Plan
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState, check_state, refuse_sharded, refuse_with_adapter
from attendrop.methods.core.compose import refuse_conflicts
from attendrop.methods.core.context import ComputeLoss, RunningStatistics, StepContext, TrainingContext
from attendrop.model_support.batches import ROW_INDEX, Batch, model_inputs, number_of_rows, refuse_cache
from attendrop.model_support.devices import before_step, refuse_device, sharding_mesh, skips_step, unscale
from attendrop.model_support.models import freeze_unsaved, has_adapter
from attendrop.randomness.keyed_random import SampleKey
from attendrop.training.effect_warnings import EffectTracker

# No training loop multiplies a loss by more than this. Gradient scalers do, from their first step on.
_LARGEST_LOSS_FACTOR = 100.0
# Those that were not closed: methods that cannot be combined are also refused in two of them on one model.
_OPEN: weakref.WeakSet[Regularization] = weakref.WeakSet()
logger = logging.getLogger(__name__)


class Regularization:
    """A method applied to a model.

    :func:`regularize` yields one for a custom training loop; :class:`RegularizedTrainer` uses one itself.

    Args:
        training: The model, and what else the method may need.
        method: The method.
        compiled_model: The compiled model, which then runs the training pass. None: the model itself runs it.
        compiles: Whether the model will be compiled.

    Attributes:
        method_state: The state of the method.
        adapter: Adapter of the model; None if the method does not act on attention.
        steps_taken: Number of optimizer steps so far.
        sequences: Number of rows since the last step whose loss was computed.
        batches: Number of micro-batches so far in this epoch.
        idle: Whether the method regularises nothing, like plain fine-tuning.
        loss_scale: The factor by which gradients are multiplied under float16.
        loss_weight: The weight of a mean over the micro-batch in the loss of the step.
        accumulation_steps: Number of micro-batches whose losses are averaged after :meth:`compute`; 1 if
            ``loss_weight`` accounts for them.
        as_inputs: Returns what the model receives for a batch; None: all its columns. See :class:`StepContext`.
    """

    def __init__(
        self,
        training: TrainingContext,
        method: Method,
        compiled_model: nn.Module | None = None,
        *,
        compiles: bool = False,
    ) -> None:
        refuse_device(next(training.model.parameters()).device)
        self.model = training.model
        self._trained_model = training.model if compiled_model is None else compiled_model
        self.method = method
        self.training = dataclasses.replace(
            training, evaluate=lambda model, batch, *plan: training.evaluate(model, model_inputs(batch), *plan)
        )
        self.epoch: int | None = None
        self.steps_taken = 0
        self.batches = 0
        self.loss_scale = 1.0
        self.loss_weight: float | Tensor = 1.0
        self.accumulation_steps = 1
        self.as_inputs: Callable[[Batch], Batch] | None = None
        self.sequences = 0
        self._called = 0  # number of losses
        self._stepped = self._closed = False
        self._effects = EffectTracker()
        self._scale_is_known = training.scaler is not None or not method.info.needs_loss_scale
        self._statistics = RunningStatistics()
        self._metrics: dict[str, float] = {}
        self.adapter: ModelAdapter | None = None
        self._hook: Any = None
        self._open = ExitStack()
        for parameter in freeze_unsaved(training.model):
            self._open.callback(parameter.requires_grad_)
        self.method_state = MethodState(method)
        self.idle = method.regularized_epochs(0) is None
        if not self.idle:
            try:
                self._start(compiled=compiles or compiled_model is not None or is_compiled(training.model))
            except BaseException:
                self.close()
                raise

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, from 0, when it begins. Methods that act in some epochs need it."""
        if epoch != self.epoch:  # a resumed run begins within one
            self.batches = 0
        self.epoch = epoch

    def begin_step(self, steps_taken: int) -> None:
        """Set how many optimizer steps were taken before the next micro-batches; :meth:`step` counts them itself."""
        self.steps_taken = steps_taken
        self.sequences = 0

    def step(self) -> None:
        """Update the method; call after each ``optimizer.step()``."""
        self._stepped = True
        self.begin_step(self.steps_taken + 1)
        for state in self.method_state.parts:
            self._note(state, state.after_step(self.steps_taken))

    def finish(self) -> None:
        """Complete the period of a method that works in periods; call after the last step."""
        for state in self.method_state.parts:
            self._note(state, state.finish())

    def warn_of_inactive_epochs(self, num_epochs: int) -> None:
        """Warn before training of methods that act in none of the epochs."""
        if not self.training.processes.rank:
            self._effects.warn_before(self.method.parts, num_epochs)

    def warn_of_no_effect(self) -> None:
        """Warn after training of methods that never acted, or never dropped anything, or are still searching."""
        self._effects.update(self.method.parts, self._statistics)
        if self.idle or self.training.processes.rank:
            return
        if self._stepped and not self._called:
            for part in self.method.parts:
                logger.warning(
                    "Method %s never took effect: the model was called without it. Compute the loss by reg.loss.",
                    part.name,
                )
            return
        if self._called > 1 and not self._stepped:
            logger.warning(
                "reg.step() was never called, so method %s took all losses as one optimizer step. Call it after each "
                "optimizer.step().",
                self.method.name,
            )
        if self._called:
            self._effects.warn_after(self.method.parts)
        for state in self.method_state.parts:
            if self._called and state.searching():
                logger.warning(
                    "Training ended after %d of %s planned steps, within the search of method %s: the weights are of "
                    "the search, which it would have discarded. Plan as many optimizer steps as you take.",
                    self.steps_taken, self.training.total_steps, state.method.name,
                )  # fmt: skip

    def metrics(self) -> dict[str, float]:
        """Return the metrics of single steps since the last call. :meth:`logs` includes them."""
        found, self._metrics = self._metrics, {}
        return found

    def loss(self, batch: Batch, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """Compute the training loss of a micro-batch, with all passes that the method needs.

        Args:
            batch: The model's inputs as a mapping, with labels; for extractive question answering, also the column of
                :func:`attendrop.attribution.predictions.answer_tokens`, which the model does not see.
            rows: The index of each row of the batch in the training data, for methods that keep records of rows.

        Returns:
            The loss, a scalar to call ``backward`` on.

        Raises:
            AttendropError: The block has ended; the batch is not a mapping; ``rows`` is not one integer for each row;
                the model is in evaluation mode, and gradients are on; or the method acts in some epochs only, and
                :meth:`set_epoch` was not called.
        """
        if self._closed:
            raise AttendropError("The block of regularize has ended, and the method with it: call reg.loss within it.")
        if not isinstance(batch, Mapping):
            raise AttendropError(
                f"A batch is a mapping of the model's inputs, with labels, and not a {type(batch).__name__}: pass "
                "{'input_ids': ..., 'attention_mask': ..., 'labels': ...}."
            )
        if rows is not None:
            batch = {**batch, ROW_INDEX: _row_indices(rows, number_of_rows(batch))}
        if self.model.training:
            self.batches += 1
        return self.compute(batch, self._model_loss)[0]

    @whole_graphs_refused()
    def compute(self, batch: Batch, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss as :meth:`loss` does, and the model's outputs, with a custom training pass.

        This pass, ``compute_loss(batch, plan, model) -> (loss, outputs)``, must pass the plan to the model as the
        keyword ``attendrop_plan``.
        """

        def run(given: Batch, *others: Any) -> tuple[Tensor, Any]:
            return compute_loss(model_inputs(given), *others)

        if not self.model.training:
            if torch.is_grad_enabled():
                raise AttendropError(
                    "The model is in evaluation mode, in which nothing is regularised: call model.train() before you "
                    "train. To evaluate, switch gradients off: torch.no_grad()."
                )
            return run(batch, None)
        self._called += 1
        rows = number_of_rows(batch)
        processes = self.training.processes
        first = self.sequences * processes.world_size + processes.rank * rows
        self.sequences += rows
        taking_part = [] if self.idle else self._taking_part(self.epoch)
        acting = [method_state.method for method_state in taking_part if method_state.method.active(self.epoch or 0)]
        self._statistics.begin([method.source for method in acting])
        if not taking_part:
            return run(batch, None)
        if self.adapter is not None or self.method.defines("penalty") or self.method.defines("loss"):
            refuse_cache(batch)
        if self.training.scaler is not None and self.method.info.needs_loss_scale:  # the host waits for it
            self.loss_scale = self.training.scaler.get_scale()
        total = self.training.total_steps
        context = StepContext(
            model=self.model,
            batch=batch,
            key=SampleKey(self.training.seed, self.steps_taken, first, rows),
            statistics=self._statistics,
            source=self.method.source,
            epoch=self.epoch,
            progress=None if total is None else min(1.0, self.steps_taken / max(total, 1)),
            micro_batches=self.accumulation_steps
            * processes.world_size
            / torch.as_tensor(self.loss_weight).clamp(min=1e-12),
            loss_scale=self.loss_scale,
            as_inputs=self.as_inputs,
            evaluate=self._additional_pass,
            adapter_if_any=self.adapter,
        )
        if self.adapter is not None:
            self.adapter.trace(context.inputs)
        loss, outputs = self.method_state.loss(context, self._with_mean_loss(run))
        loss = loss * self._weight_like(loss)
        if not self._scale_is_known and loss.requires_grad:
            loss.register_hook(self._refuse_unknown_scale)  # type: ignore[no-untyped-call]
            self._scale_is_known = True
        return loss, outputs

    def logs(self) -> dict[str, float]:
        """Return the metrics since the last call, and reset them.

        ``<method>/active`` is the fraction of passes in which the method acted. If it did, ``<method>/dropped`` is the
        fraction of positions dropped, of those in rows that can have candidates, and
        ``<method>/dropped/<kind>.<layer>`` that of one layer. Methods add metrics of their own. Each method of a
        composition has its own name. :meth:`metrics` is included. If several processes train a model, all must call
        this, and get the metrics of all.
        """
        if self.idle:
            return {}
        sources = [method_state.method.source for method_state in self.method_state.parts]
        processes = self.training.processes
        found = self._statistics.summary(sources, processes.total, processes.gather) | self.metrics()
        self._effects.update(self.method.parts, self._statistics)
        self._statistics = RunningStatistics()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state without that of the method, as plain values."""
        return {
            "seed": self.training.seed,
            "steps_taken": self.steps_taken,
            "epoch": self.epoch,
            "batches": self.batches,
            "acted": sorted(self._effects.effective),
            "statistics": self._statistics.state_dict(),
            "metrics": dict(self._metrics),
        }

    def method_state_dicts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state of the method, tensors and plain values: that of all processes, and that of this one."""
        return self.method_state.state_dict(), self.method_state.rank_state_dict()

    def load_state_dict(
        self, state: Mapping[str, Any], method_state: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    ) -> None:
        """Restore a :meth:`state_dict` and the two of :meth:`method_state_dicts`."""
        self.training = dataclasses.replace(self.training, seed=state["seed"])
        self.begin_step(state["steps_taken"])
        self.epoch, self.batches = state["epoch"], state["batches"]
        self._effects = EffectTracker(state["acted"])
        self._statistics = RunningStatistics(**state["statistics"])
        self._metrics = dict(state["metrics"])
        self.method_state.load_state_dict(*method_state)

    def close(self) -> None:
        """Detach the method from the model and the optimizer. Idempotent."""
        self._closed = True
        _OPEN.discard(self)
        if self._hook is not None:
            self._hook.remove()
        self._open.close()
        self.method_state.close()
        if self.adapter is not None:
            self.adapter.detach()

    def _start(self, *, compiled: bool) -> None:
        """Start the method, and attach it to the model and the optimizer."""
        if has_adapter(self.model):
            refuse_with_adapter(self.method)
        if sharding_mesh(self.model) is not None:
            refuse_sharded(self.method)
        if compiled:
            self._open.enter_context(hooks_are_guarded())
        if self.method.info.uses_attention:
            self.adapter = ModelAdapter(self.model)
            self.adapter.check_savable()
        self.method_state = check_state(self.method, self.method.start(self.training))
        self._hook_optimizer()
        if self.adapter is not None:
            self.adapter.attach()
        others = [part for each in _OPEN if each.model is self.model for part in each.method.parts]
        try:
            refuse_conflicts([*others, *self.method.parts])
        except AttendropError as error:
            name = type(self.model).__name__
            raise AttendropError(f"{name} is already regularised; leave the other block first. {error}") from None
        _OPEN.add(self)

    def _hook_optimizer(self) -> None:
        """Let methods edit the gradients just before each step of the optimizer."""
        editing = [part for part in self.method.parts if part.defines("edit_gradients")]
        if not editing:
            return
        if self.training.optimizer is None:
            raise AttendropError(
                f"Method '{editing[0].name}' acts on gradients just before the optimizer does: pass your "
                "optimizer, regularize(..., optimizer=optimizer)."
            )
        parameters, optimizer = dict(self.model.named_parameters()), self.training.optimizer

        def edit() -> None:
            if not skips_step(optimizer):
                unscale(optimizer)
                self.method_state.edit_gradients(parameters)

        self._hook = before_step(optimizer, edit)

    def _note(self, state: MethodState, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a step, by their names in the log."""
        self._metrics |= {f"{state.method.source}/{name}": value for name, value in metrics.items()}

    def _refuse_unknown_scale(self, gradient: Tensor) -> None:
        """Raise if the loss was scaled for float16 by a scaler that was not passed; called with the loss's gradient."""
        factor = float(gradient) / self.loss_scale
        if abs(factor) > _LARGEST_LOSS_FACTOR:
            raise AttendropError(
                f"The loss was multiplied by {factor:g} before the backward pass. Method '{self.method.name}' reads "
                "gradients, and must know by how much these are scaled: pass your gradient scaler, "
                "regularize(..., scaler=scaler)."
            )

    def _taking_part(self, epoch: int | None) -> list[MethodState]:
        """Return the states of the methods that act in an epoch or observe it."""
        if epoch is None and self.method.needs_epoch():
            alternating = next(part for part in self.method.parts if part.needs_epoch())
            raise AttendropError(
                f"Method '{alternating.name}' acts in some epochs: call set_epoch(epoch), from 0, at the start of "
                f"each. {alternating.info.inactive_epochs_hint}"
            )
        return [each for each in self.method_state.parts if each.method.takes_part(epoch or 0)]

    def _model_loss(self, batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
        keywords = {} if plan is None else {PLAN_KEYWORD: plan}
        if model is None:
            return loss_and_outputs(self._trained_model(**batch, **keywords))
        with in_precision_of(self.model, model):
            return loss_and_outputs(model(**batch, **keywords))

    def _additional_pass(self, batch: Batch, plan: Plan) -> tuple[Tensor, Any]:
        assert self.adapter is not None
        return self.training.evaluate(self.model, batch, self.adapter.bind(plan))

    def _weight_like(self, loss: Tensor) -> Tensor:
        """Return the weight of the loss as a tensor on its device, without synchronisation."""
        weight = self.loss_weight
        return weight.to(loss) if isinstance(weight, Tensor) else loss.new_full((), weight)

    def _with_mean_loss(self, compute_loss: ComputeLoss) -> ComputeLoss:
        """Wrap a training pass: its plan is bound to the model, and its loss is a mean, as methods expect it."""

        def wrapped(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
            if plan is not None and model is None:  # that of another model is bound to it
                if self.adapter is None:
                    raise AttendropError(f"Method '{self.method.name}' has a plan, but declares uses_attention=False.")
                plan = self.adapter.bind(plan)
            loss, outputs = compute_loss(batch, plan) if model is None else compute_loss(batch, plan, model)
            weight = self._weight_like(loss)
            # The loss of a micro-batch without labels is 0, and stays so.
            return loss / weight.where(weight != 0, 1), named_outputs(outputs, batch)

        return wrapped


def _row_indices(rows: Sequence[int] | Tensor, count: int) -> Tensor:
    """Check the indices of ``count`` rows."""
    try:
        found = torch.as_tensor(rows)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0)
    if found.ndim != 1 or found.is_floating_point() or found.is_complex():
        raise AttendropError("rows has the index of each row of the batch in the training data: a list of integers.")
    if len(found) != count:
        raise AttendropError(f"rows has {len(found)} indices, and the batch {count} rows.")
    return found
