"""A method applied to a model, step by step: for a loop of one's own (``regularize``), and for the trainer.

Also the labelled rows that methods read beside the training batches.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Cache

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.hooks import is_compiled, replaced_attribute
from attendrop.attention.interface import refuse_unsavable
from attendrop.attention.plan import Plan, keywords
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState, check_state, refuse_with_adapter
from attendrop.methods.core.context import (
    ComputeLoss,
    LabelledRows,
    Processes,
    RunningStatistics,
    StepContext,
    TrainingContext,
    tokens_of,
)
from attendrop.methods.core.registry import check_method
from attendrop.randomness.keyed_random import SampleKey
from attendrop.support.models import (
    ROW_INDEX,
    WITHOUT_DOUBLES,
    Batch,
    before_step,
    freeze_unsaved,
    gathered,
    has_adapter,
    loss_and_outputs,
    model_inputs,
    named_outputs,
    number_of_rows,
    sharding_mesh,
    skips_step,
)
from attendrop.wording import counted

# The names of the model in the wrappers of torch.compile and of Lightning Fabric.
_WRAPPED = ("_orig_mod", "_forward_module")
# No training loop multiplies a loss by more than this. Gradient scalers do, from their first step on.
_LARGEST_LOSS_FACTOR = 100.0
# Those that were not closed: a model is regularised by one at a time.
_OPEN: weakref.WeakSet[Regularization] = weakref.WeakSet()
logger = logging.getLogger(__name__)


class Regularization:
    """A method applied to a model.

    :func:`regularize` yields one for a custom training loop; :class:`RegularizedTrainer` uses one itself.

    Args:
        training: The model, and what else the method may need.
        method: The method.
        run: What runs the training pass, the model in wrappers or compiled. None: the model itself.

    Attributes:
        method_state: The state of the method.
        adapter: Adapter of the model; None if the method does not act on attention.
        steps_taken: Number of optimizer steps so far.
        sequences: Number of rows since the last step whose loss was computed.
        batches: Number of micro-batches so far in this epoch.
        idle: Whether the method regularises nothing, like plain fine-tuning.
        loss_scale: The factor by which gradients are multiplied under float16.
        loss_weight: The weight of a mean over the micro-batch in the loss of the step.
        accumulation_steps: Number of micro-batches whose losses are averaged beside that weight.
        as_inputs: Returns what the model receives for a batch; None: all its columns. See :class:`StepContext`.
    """

    # One optimizer step, in a loop of one's own or in the trainer:
    #
    # - begin_step() of the trainer, or the last step(): `steps_taken` keys the random numbers; no `sequences` yet.
    # - loss() or compute(), for each micro-batch: a StepContext with the key of its rows; the method state runs its
    #   passes, each with a plan that is bound to the model, and reports what it did to `_statistics`.
    # - The backward pass; methods may read gradients in hooks, and the loss is refused if its scale is not known.
    # - The optimizer's step, before which methods edit the unscaled gradients, unless the scaler skips it.
    # - step(): the method state is updated, and its metrics wait in `_metrics` until metrics() or logs() takes them.

    def __init__(self, training: TrainingContext, method: Method, run: nn.Module | None = None) -> None:
        if next(training.model.parameters()).device.type in WITHOUT_DOUBLES:
            raise AttendropError(
                "Apple's GPUs (MPS) have no 64-bit floating-point numbers, which the library needs; train on the CPU, "
                "in a trainer with TrainingArguments(use_cpu=True)."
            )
        self.model = training.model
        self._trained_model = training.model if run is None else run
        self.method = method
        self.training = training
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
        self._effective: set[str] = set()  # methods that had an effect so far, by their names in logs
        self._scale_is_known = training.scaler is not None or not method.info.needs_loss_scale
        self._statistics = RunningStatistics()
        self._metrics: dict[str, float] = {}
        self.adapter: ModelAdapter | None = None
        self._open = ExitStack()
        for parameter in freeze_unsaved(training.model):
            self._open.callback(parameter.requires_grad_)
        self.method_state = MethodState(method)
        self.idle = method.regularized_epochs(0) is None
        if self.idle:
            return
        try:
            if has_adapter(self.model):
                refuse_with_adapter(self.method)
            whole = next((part for part in self.method.parts if part.needs_whole_model), None)
            if whole is not None and sharding_mesh(self.model) is not None:
                raise AttendropError(
                    f"Method '{whole.name}' needs the whole model in each process, and fully_shard (FSDP2) divides its "
                    "parameters; train with RegularizedTrainer and DDP (torchrun), or with another method."
                )
            if run is not None or is_compiled(training.model):
                import torch._dynamo as dynamo  # only then: it takes seconds to import

                # Such code ignores added and removed hooks by default.
                self._open.enter_context(dynamo.config.patch(skip_nnmodule_hook_guards=False))
                torch.compiler.reset()
            if self.method.info.uses_attention:
                self.adapter = ModelAdapter(self.model)
                refuse_unsavable(self.model, self.adapter.configs)
            self.method_state = check_state(self.method, self.method.start(self.training))
            if editing := [part for part in self.method.parts if part.defines("edit_gradients")]:
                if self.training.optimizer is None:
                    raise AttendropError(
                        f"Method '{editing[0].name}' acts on gradients just before the optimizer does: pass your "
                        "optimizer, regularize(..., optimizer=optimizer)."
                    )
                parameters, optimizer = dict(self.model.named_parameters()), self.training.optimizer

                @torch.no_grad()
                def edit() -> None:
                    if skips_step(optimizer):
                        return
                    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
                    if scale is not None:  # of float16: unscale them, as the optimizer would do in the step
                        for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                            if parameter.grad is not None:
                                parameter.grad.div_(scale.to(parameter.grad.device))
                        optimizer.grad_scale = None  # type: ignore[attr-defined]
                    self.method_state.edit_gradients(parameters)

                self._open.callback(before_step(optimizer, edit).remove)
            if self.adapter is not None:
                self.adapter.attach()
            if any(each.model is self.model for each in _OPEN):
                raise AttendropError(
                    f"{type(self.model).__name__} is already regularised; leave the other block first, or join both "
                    "methods by Compose."
                )
            _OPEN.add(self)
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
            found = state.after_step(self.steps_taken)
            self._metrics |= {f"{state.method.source}/{name}": value for name, value in found.items()}

    def finish(self) -> None:
        """Complete the period of a method that works in periods; call after the last step."""
        for state in self.method_state.parts:
            self._metrics |= {f"{state.method.source}/{name}": value for name, value in state.finish().items()}

    def warn_of_inactive_epochs(self, num_epochs: int) -> None:
        """Warn before training of methods that act in none of the epochs (``sys.maxsize``: their number is unknown)."""
        for method in () if self.training.processes.rank or num_epochs == sys.maxsize else self.method.parts:
            if method.regularized_epochs(num_epochs) == []:
                logger.warning(
                    "Method %s would regularise none of %s. %s",
                    method.name, counted(num_epochs, "epoch"), method.info.inactive_epochs_hint,
                )  # fmt: skip

    def warn_of_no_effect(self, trained: bool = False) -> None:
        """Warn after training of methods that never acted, or never dropped anything, or are still searching.

        The model was ``trained`` for sure if its weights have changed.
        """
        self._note_effects()
        if self.idle or self.training.processes.rank:
            return
        if self._called > 1 and not self._stepped:
            logger.warning(
                "reg.step() was never called, so method %s took all losses as one optimizer step. Call it after each "
                "optimizer.step().",
                self.method.name,
            )
        for method in self.method.parts if self._called or self._stepped or trained else ():
            if method.source not in self._effective:
                how = "fine-tuned without it" if self._effective else "fine-tuned plainly"
                if not self._called:
                    how = "called without it; compute the loss by reg.loss"
                hint = f" {method.info.inactive_epochs_hint}".rstrip() if method.needs_epoch() else ""
                logger.warning("Method %s never took effect: the model was %s.%s", method.name, how, hint)
        for state in self.method_state.parts:
            if self._called and state.searching:
                logger.warning(
                    "Training ended after %d of %s planned steps, within the search of method %s: the weights are of "
                    "the search, which it would have discarded. Plan as many optimizer steps as you take.",
                    self.steps_taken, self.training.total_steps, state.method.name,
                )  # fmt: skip

    def _note_effects(self) -> None:
        """Note which methods had an effect while the present statistics were collected."""
        statistics = self._statistics
        for method in self.method.parts:
            dropped, counts = f"{method.source}/dropped/", list[Tensor]()
            if statistics.active[method.source] and method.info.reports_all_effects:
                counts = [pair for name, pair in statistics.sums.items() if name.startswith(dropped)]
            if statistics.active[method.source] and (not counts or any(pair[0] > 0 for pair in counts)):
                self._effective.add(method.source)

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
            indices = rows.tolist() if isinstance(rows, Tensor) else list(rows)
            if len(indices) != number_of_rows(batch) or not all(isinstance(each, Integral) for each in indices):
                raise AttendropError(
                    "rows has the index of each row of the batch in the training data: a list of as many integers."
                )
            batch = {**batch, ROW_INDEX: torch.tensor(indices)}
        if self.model.training:
            self.batches += 1

        def training_pass(given: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
            if model is None:
                return run_model(self._trained_model, given, plan)
            # A copy runs in the mixed precision that accelerate has wrapped the model for.
            own = vars(self.model)
            wrapped = getattr(own.get("forward"), "__func__", None) if "_original_forward" in own else None
            if wrapped is None:
                return run_model(model, given, plan)
            with replaced_attribute(model, "forward", MethodType(wrapped, model)):
                return run_model(model, given, plan)

        return self.compute(batch, training_pass)[0]

    def compute(self, batch: Batch, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss as :meth:`loss` does, and the model's outputs, with a custom training pass.

        This pass, ``compute_loss(batch, plan, model) -> (loss, outputs)``, must pass the plan to the model as the
        keyword ``attendrop_plan``, and only the columns of the batch that the model reads.
        """
        if not self.model.training:
            if torch.is_grad_enabled():
                raise AttendropError(
                    "The model is in evaluation mode, in which nothing is regularised: call model.train() before you "
                    "train. To evaluate, switch gradients off: torch.no_grad()."
                )
            return compute_loss(batch)
        self._called += 1
        rows = number_of_rows(batch)
        processes = self.training.processes
        first = self.sequences * processes.world_size + processes.rank * rows
        self.sequences += rows
        if not self.idle and self.epoch is None and self.method.needs_epoch():
            alternating = next(part for part in self.method.parts if part.needs_epoch())
            raise AttendropError(
                f"Method '{alternating.name}' acts in some epochs: call set_epoch(epoch), from 0, at the start of "
                f"each. {alternating.info.inactive_epochs_hint}"
            )
        methods = [] if self.idle else [state.method for state in self.method_state.parts]
        epoch = self.epoch or 0
        taking_part = [method for method in methods if method.active(epoch) or method.needs_rows]  # or observe it
        self._statistics.passes += 1
        self._statistics.active.update(method.source for method in taking_part if method.active(epoch))
        if not taking_part:
            return compute_loss(batch)
        if self.adapter is not None or self.method.defines("penalty") or self.method.defines("loss"):
            for name, value in batch.items():
                if isinstance(value, Cache):
                    raise AttendropError(
                        f"The batch's {name!r} is a cache, which each pass of the model extends, but the method needs "
                        "passes of its own; train on whole sequences, without a cache."
                    )
        if self.training.scaler is not None and self.method.info.needs_loss_scale:  # the host waits for it
            self.loss_scale = self.training.scaler.get_scale()
        total = self.training.total_steps

        weight = self.loss_weight

        def mean_loss(given: Batch, plan: Plan | None = None, model: nn.Module | None = None) -> tuple[Tensor, Any]:
            """Run the training pass with the plan bound to the model; its loss is a mean, as methods expect it."""
            if plan is not None and model is None:  # that of another model is bound to it
                if self.adapter is None:
                    raise AttendropError(f"Method '{self.method.name}' has a plan, but declares uses_attention=False.")
                plan = self.adapter.bind(plan)
            loss, outputs = compute_loss(given, plan, model)
            # The loss of a micro-batch without labels is 0, and stays so. Nothing here waits for the device.
            if isinstance(weight, Tensor):
                own = weight.to(loss)
                loss = loss / own.where(own != 0, 1)
            elif weight not in (0, 1):
                loss = loss / weight
            return loss, named_outputs(outputs, given)

        def refuse_unknown_scale(gradient: Tensor) -> None:
            factor = float(gradient) / self.loss_scale
            if abs(factor) > _LARGEST_LOSS_FACTOR:
                raise AttendropError(
                    f"The loss was multiplied by {factor:g} before the backward pass. Method '{self.method.name}' "
                    "reads gradients, and must know by how much these are scaled: pass your gradient scaler, "
                    "regularize(..., scaler=scaler)."
                )

        def own_loss(model: nn.Module, given: Batch, plan: Plan | None = None) -> tuple[Tensor, Any]:
            return compute_loss(given, plan, model)

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
            / (weight.clamp(min=1e-12) if isinstance(weight, Tensor) else max(weight, 1e-12)),
            loss_scale=self.loss_scale,
            as_inputs=self.as_inputs,
            evaluate=own_loss if self.training.evaluate is run_model else self.training.evaluate,
            adapter=cast(ModelAdapter, self.adapter),
        )
        if self.adapter is not None:
            self.adapter.trace(context.inputs)
        loss, outputs = self.method_state.loss(context, mean_loss)
        if isinstance(weight, Tensor) or weight != 1:
            loss = loss * (weight.to(loss) if isinstance(weight, Tensor) else weight)
        if not self._scale_is_known and loss.requires_grad:
            loss.register_hook(refuse_unknown_scale)  # type: ignore[no-untyped-call]
            self._scale_is_known = True
        return loss, outputs

    def logs(self) -> dict[str, float]:
        """Return the metrics since the last call, and reset them.

        ``<method>/active`` is the fraction of passes in which the method acted. If it did, ``<method>/dropped`` is the
        fraction of positions dropped, of those in rows that can have candidates, and
        ``<method>/dropped/<kind>.<layer>`` that of one layer. Methods add metrics of their own, and those of
        :meth:`metrics`. If several processes train a model, all must call this, and get the metrics of all.
        """
        if self.idle:
            return {}
        sources = [method_state.method.source for method_state in self.method_state.parts]
        processes = self.training.processes
        found = self._statistics.summary(sources, processes.total, processes.gather) | self.metrics()
        self._note_effects()
        self._statistics = RunningStatistics()
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state without that of the method, as plain values."""
        return {
            "seed": self.training.seed,
            "steps_taken": self.steps_taken,
            "epoch": self.epoch,
            "batches": self.batches,
            "acted": sorted(self._effective),
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
        self._effective = set(state["acted"])
        self._statistics = RunningStatistics(**state["statistics"])
        self._metrics = dict(state["metrics"])
        self.method_state.load_state_dict(*method_state)

    def close(self) -> None:
        """Detach the method from the model and the optimizer. Idempotent."""
        self._closed = True
        _OPEN.discard(self)
        self._open.close()
        self.method_state.close()
        if self.adapter is not None:
            self.adapter.detach()


def run_model(model: nn.Module, batch: Batch, plan: Plan | None = None) -> tuple[Tensor, Any]:
    """Run a model that computes its own loss."""
    return loss_and_outputs(model(**model_inputs(batch), **keywords(plan)))


@contextmanager
def regularize(
    model: nn.Module,
    method: Method,
    *,
    seed: int = 0,
    total_steps: int | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    max_grad_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
    reward_data: Any = None,
    train_data: Any = None,
    tokenizer: Any = None,
) -> Iterator[Regularization]:
    """Regularise the training of ``model`` by ``method`` within a ``with`` block.

    At the end of the block, even after an exception, the model is exactly as it would be without the library, except
    for what training did to its weights. Within it, parameters that the model's class leaves out of its files, Marian's
    computed positions, are not trained.

    Example:
        >>> model.train()  # models come from ``from_pretrained`` in evaluation mode
        >>> with regularize(model, ADDrop()) as reg:
        ...     for epoch in range(4):
        ...         reg.set_epoch(epoch)
        ...         for batch in loader:
        ...             loss = reg.loss(batch)
        ...             loss.backward()
        ...             optimizer.step()
        ...             optimizer.zero_grad()
        ...             reg.step()

    Args:
        model: A transformers model, or a class of your own whose forward pass hands ``**kwargs`` on to one in it;
            compiled or not, set up by Lightning Fabric for one device or not; without wrappers such as
            DistributedDataParallel. If ``fully_shard`` (FSDP2) has divided it among processes, each passes its own part
            of a batch, with the same number of rows, and calls the same functions, including
            :meth:`Regularization.logs`.
        method: The method, such as ``ADDrop()``.
        seed: Seed of the method's random numbers. They do not touch torch's global random state.
        total_steps: Number of optimizer steps planned. Methods that follow a schedule need it.
        optimizer: The model's optimizer. Needed by methods that act on gradients (if you have several, pass the one
            that steps first, before which a gradient scaler must ``unscale_`` the others), restart training, or train a
            second model with another optimizer like it.
        max_grad_norm: Norm to which you clip the model's gradients; also used for those of a method's second model.
        scaler: The gradient scaler, if you train in float16 with one. Methods that read gradients themselves need it.
        reward_data: Rows on which methods score models during training: a ``DataLoader`` over labelled rows that are
            not trained on, or a list of batches, which are used as they are, whatever batch size the method asks for.
        train_data: The training rows, in the same forms, for methods that look at them beforehand.
        tokenizer: The tokenizer of the model, for methods that change tokens and have to know which are special.

    Raises:
        AttendropError: The model is not supported by the method, or the method needs something that is not given; or
            the method needs the whole model, and its parameters are divided among processes; or it cannot be combined
            with that of another block around the same model.
    """
    check_method(method)
    run = model
    # The wrappers of torch.compile and of Lightning Fabric run the training pass, and methods act on the model in them:
    # the names of its parameters, which key random masks, are then the same with and without.
    while inner := next((model._modules[name] for name in _WRAPPED if name in model._modules), None):
        model = inner
    children = [name for name, _ in model.named_children()]
    if children in (["module"], ["_fsdp_wrapped_module"]):
        raise AttendropError(
            f"{type(model).__name__} is a wrapper around the model; pass the model itself, its .{children[0]}, and "
            "take one device. RegularizedTrainer trains on several (torchrun), and so does a loop of your own with a "
            "model that fully_shard (FSDP2) has divided."
        )
    if isinstance(optimizer, Sequence):
        raise AttendropError(
            f"regularize takes one optimizer, not {len(optimizer)}: pass one with all parameters that are trained; a "
            "method that only edits gradients can do with the one that steps first."
        )
    device = next(model.parameters()).device
    mesh = sharding_mesh(model)

    def total(tensor: Tensor) -> Tensor:
        found = tensor.to(device, copy=True)
        distributed.all_reduce(found, group=mesh.get_group())
        return found

    processes = Processes()
    if mesh is not None:
        processes = Processes(mesh.get_local_rank(), mesh.size(), total, partial(gathered, group=mesh.get_group()))
    training = TrainingContext(
        model=model,
        evaluate=run_model,
        seed=seed,
        processes=processes,
        total_steps=total_steps,
        optimizer=getattr(optimizer, "optimizer", optimizer),  # of Accelerate
        max_grad_norm=max_grad_norm,
        scaler=scaler,
        reward_data=labelled_data("reward_data", reward_data, device),
        train_data=labelled_data("train_data", train_data, device),
        **tokens_of(tokenizer),
    )
    regularization = Regularization(training, method, run)
    changes = number_of_changes(model)
    try:
        yield regularization
        regularization.finish()
        regularization.warn_of_no_effect(trained=number_of_changes(model) != changes)
    finally:
        regularization.close()


def number_of_changes(model: nn.Module) -> int:
    """Count how often the trained parameters of a model were changed in place, as steps of optimizers do."""
    return sum(parameter._version for parameter in model.parameters() if parameter.requires_grad)


def labelled_data(name: str, value: Any, device: torch.device) -> LabelledRows | None:
    """Make labelled data of a ``DataLoader`` over a data set with random access, or of a list of batches."""
    if value is None or isinstance(value, LabelledRows):
        return value
    if isinstance(value, DataLoader):
        if is_stream(value.dataset):
            raise AttendropError(f"{name} is a loader over a stream; pass one over a data set with random access.")
        return LabelledRows(value.dataset, value.collate_fn, device)
    if isinstance(value, Sequence) and all(isinstance(batch, Mapping) for batch in value):
        return LabelledRows(value, None, device)
    raise AttendropError(f"{name} must be a DataLoader or a list of batches with labels, not {type(value).__name__}.")


def is_stream(rows: Any) -> bool:
    """Return whether a data set is a stream, without random access; False for None."""
    if rows is None:
        return False
    return isinstance(rows, IterableDataset) or not (hasattr(rows, "__getitem__") and hasattr(rows, "__len__"))
