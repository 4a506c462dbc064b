"""Base classes of a method's options and of its state during a run, and checks of what a method declares."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.errors import AttendropError, check_declared, defines
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import (
    ANY,
    DECIDES_PASSES,
    EXCHANGES_WEIGHTS,
    REPLACES_PARAMETERS,
    SCORES_ROWS,
    SECOND_MODEL,
    LayerRanking,
    MethodInfo,
    Preset,
)
from attendrop.methods.core.options import check_options, read_option
from attendrop.support.models import Batch


@dataclass(frozen=True)
class Method:
    """Base class of regularisation methods. Subclasses are frozen dataclasses; their fields are the method's options.

    Options are declared with their ranges by :func:`attendrop.methods.core.options.option`. Creating the object checks
    them (AttendropError); a ``__post_init__`` of a subclass calls this one first. A subclass overrides :meth:`batch`,
    :meth:`plan` or :meth:`penalty` to change a forward pass, or :meth:`loss` to run passes of its own. A method that
    has state, or acts on parameters or gradients, returns its own :class:`MethodState` from :meth:`start`.

    Attributes:
        info: Facts of the method. What it declares is checked when training starts.
        name: Name on the command line and in checkpoints, that of ``info``.
    """

    info: ClassVar[MethodInfo]
    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "info" in vars(cls):
            cls.name = cls.info.name

    def __post_init__(self) -> None:
        check_options(self)

    # What happens in a training step.

    def batch(self, context: StepContext) -> Batch:
        """Return the batch to train on, given ``context.batch``. Copies of a repeated row are adjacent."""
        return context.batch

    def plan(self, context: StepContext) -> Plan | None:
        """Return the edits of attention, blocks and features for the training pass; None for no edits."""
        return None

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        """Compute the penalty to add to the loss, a mean over the micro-batch, from outputs of the training pass."""
        return None

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any] | None:
        """Run the passes of a method with the trait ``DECIDES_PASSES``, see :meth:`MethodState.loss`; None for one."""
        return None

    def start(self, training: TrainingContext) -> MethodState:
        """Create the state of the method for a run. Methods with state return their own subclass."""
        return MethodState(self)

    def prepare(self, model: nn.Module, seed: int) -> None:
        """Change a model before its head is initialised from its features; not called when a run is resumed.

        The state of the method makes the same change in the first step.
        """

    # When and where it acts.

    def active(self, epoch: int) -> bool:
        """Return whether the method is active in ``epoch``, counted from 0."""
        return True

    def takes_part(self, epoch: int) -> bool:
        """Return whether the method takes part in the passes of ``epoch``: it is active, or only observes them."""
        return self.active(epoch)

    def needs_epoch(self) -> bool:
        """Return whether :meth:`active` depends on the epoch; by default, whether it is the method's own."""
        return defines(self, Method, "active") and self.regularized_epochs(0) is not None

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """Return the epochs, from 0, in which the method is active; None for a method that never regularises."""
        return [epoch for epoch in range(num_epochs) if self.active(epoch)]

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        """Select the layers to act on by the option ``layers``; AttendropError if the model has no such layers."""
        select = select_self_attention if self.info.self_attention_only else select_layers
        return select(attention_layers, getattr(self, "layers", "all"))

    # Data that it needs.

    def for_data(self, classes: int, rows: int) -> Method:
        """Resolve options that depend on the training data: its ``rows`` and text ``classes`` (1 for other tasks).

        The data is split before this is called, so the rows for rewards must not depend on it.
        """
        return self

    @property
    def needs_rows(self) -> bool:
        """Whether the method needs the index of each row in the training data, in the column ``ROW_INDEX``."""
        return False

    def rewarded_on(self) -> str | None:
        """Return the labelled rows on which models are scored during training: the option ``reward_data``.

        ``"split"``: rows held out for this purpose only; ``"eval"``: the development set. None without the trait
        ``SCORES_ROWS``.
        """
        return next((getattr(part, "reward_data", None) for part in self.parts if part._has_own(SCORES_ROWS)), None)

    def rewarded_fraction(self) -> float:
        """Return the fraction of the training rows to hold out for ``"split"``."""
        return max(getattr(part, "reward_fraction", 0.0) for part in self.parts)

    @property
    def rewarded_by(self) -> str:
        """Return the option that needs the rows of :meth:`rewarded_on`, for messages."""
        return f"reward_data={self.rewarded_on()!r}"

    # Its published settings, and what it reports of a run.

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Look up the options in a published setting (``"paper"``) for a named ``task``; None for custom files."""
        return Preset()

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Collect the method's log entries at the end of each period of a run, for ``metrics.json``."""
        return []

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Describe the method's part in a finished run, given its ``metrics.json``. Returns texts by caption."""
        return {}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        """Rank layers for pruning by the metrics of a finished run; None if the method provides no ranking."""
        return None

    # What follows from the options and the declared facts.

    @property
    def source(self) -> str:
        """Name in logs."""
        return self.name.replace("-", "_")

    @property
    def parts(self) -> tuple[Method, ...]:
        """Component methods; for a single method, the method itself."""
        return (self,)

    def options(self) -> dict[str, Any]:
        """Return the options as JSON-serialisable values."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @property
    def evidence(self) -> str:
        """The sentence of ``info.evidence`` on exactly these options; empty if they were not measured."""
        return next((sentence for options, sentence in self.info.evidence if type(self)(**options) == self), "")

    def has(self, trait: str) -> bool:
        """Return whether the method has a trait with its current options; its name is also a trait."""
        return trait in (ANY, self.name) or self._has_own(trait)

    @property
    def decides_passes(self) -> bool:
        """Whether the method runs the passes itself, in ``loss``: the trait ``DECIDES_PASSES``."""
        return self.has(DECIDES_PASSES)

    @property
    def needs_whole_model(self) -> bool:
        """Whether parameters and gradients must be whole in each process, which they are not under FSDP."""
        acts_on_weights = self.info.edits_gradients or self.info.edits_pretrained_weights or self.info.reads_weights
        traits = (EXCHANGES_WEIGHTS, REPLACES_PARAMETERS, SCORES_ROWS, SECOND_MODEL)
        return acts_on_weights or any(map(self.has, traits))

    def _has_own(self, trait: str) -> bool:
        condition = self.info.traits.get(trait)
        if not condition:
            return condition is not None
        option, equals, value = condition.partition("=")
        if equals:
            return bool(getattr(self, option) == read_option(type(self), option, value))
        option, _, least = condition.partition(" above ")
        return bool(getattr(self, option) > float(least))


class MethodState:
    """State of a method during a run. This base class is stateless."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def parts(self) -> Sequence[MethodState]:
        """States of the methods of a composition; otherwise this state only."""
        return (self,)

    def batch(self, context: StepContext) -> Batch:
        return self.method.batch(context)

    def plan(self, context: StepContext) -> Plan | None:
        return self.method.plan(context)

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        return self.method.penalty(context, outputs)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, a mean over it, and the model's outputs.

        A method that does not run exactly one pass overrides this, or :meth:`Method.loss`, and has the trait
        ``DECIDES_PASSES``. ``compute_loss`` applies the other methods of a composition; :meth:`batch`, :meth:`plan` and
        :meth:`penalty` of this one are not called.
        """
        found = self.method.loss(context, compute_loss)
        if found is not None:
            return found
        context = dataclasses.replace(context, batch=self.batch(context))
        return run_pass([(self, context)], compute_loss, context.batch)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Edit the accumulated, unscaled and clipped gradients just before the optimizer step."""

    def act_on_second_model(self, model: nn.Module) -> None:
        """Apply the method to a second model that another method trains beside the first."""

    def after_step(self, steps_taken: int) -> dict[str, float]:
        """Update the state after the ``steps_taken``-th optimizer step; returns metrics to log, if any."""
        return {}

    def searching(self) -> bool:
        """Return whether the current weights will be discarded, so that their scores are not a result."""
        return False

    def finish(self) -> dict[str, float]:
        """Complete pending updates after the last step, even if it is early; returns metrics to log, if any."""
        return {}

    def with_log_names(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Rename the metrics of a step to their names in the log."""
        return {f"{self.method.source}/{name}": value for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state shared by all processes, as tensors and plain values, for checkpoints."""
        return {}

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the state of this process only, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict` and a :meth:`rank_state_dict`."""

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report on a finished run for ``metrics.json``; ``batches`` are held-out data, or else the training data."""
        return {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors trained beside the model, by the name of the file to save them in."""
        return {}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what a finished run learnt from its ``metrics.json`` and :meth:`tensors`, to show what it drops."""

    def close(self) -> None:
        """Remove hooks, and free resources used only in training."""


def run_pass(
    parts: Sequence[tuple[MethodState, StepContext]],
    compute_loss: ComputeLoss,
    batch: Batch,
    plan: Plan | None = None,
    model: nn.Module | None = None,
) -> tuple[Tensor, Any]:
    """Run the model once on a batch, with the plans and penalties of all ``parts``, and an additional ``plan``.

    A ``model`` that runs in place of the trained one gets the penalties, and ``plan`` as its only plan.
    """
    parts = [(state, dataclasses.replace(context, batch=batch)) for state, context in parts]
    plans = [plan, *(state.plan(context) for state, context in parts if model is None)]
    found = [item for item in plans if item is not None]
    loss, outputs = compute_loss(batch, CombinedPlan(found) if len(found) > 1 else found[0] if found else None, model)
    for state, context in parts:
        penalty = state.penalty(context, outputs)
        loss = loss if penalty is None else loss + penalty
    return loss, outputs


def check_declarations(state: MethodState) -> None:
    """Raise AttendropError unless a method declares exactly the capabilities that it and its state define."""
    method = state.method
    for trait, condition in method.info.traits.items():
        option = re.split("=| above ", condition)[0]
        if option and option not in method.options():
            raise AttendropError(
                f"Method '{method.name}' has no option {option!r}, on which its trait {trait} depends."
            )
    try:
        json.dumps(method.options())
    except TypeError as error:
        raise AttendropError(
            f"Options of method '{method.name}' cannot be written to files as JSON: {error}."
        ) from None
    for name, declaration, declared in (
        ("loss", "the trait DECIDES_PASSES in MethodInfo.traits", method.decides_passes),
        ("edit_gradients", "MethodInfo.edits_gradients = True", method.info.edits_gradients),
        ("penalty", "MethodInfo.adds_penalty = True", method.info.adds_penalty),
    ):
        defined = defines(state, MethodState, name) or (hasattr(Method, name) and defines(method, Method, name))
        function = f"MethodState.{name}" if name == "edit_gradients" else name
        check_declared(f"Method '{method.name}'", function, declaration, defined=defined, declared=declared)


def refuse_sharded(method: Method) -> None:
    """Raise AttendropError if a method cannot act on a model whose parameters are divided among processes."""
    for part in method.parts:
        if part.needs_whole_model:
            raise AttendropError(
                f"Method '{part.name}' needs the whole model in each process, and fully_shard (FSDP2) divides its "
                "parameters; train with RegularizedTrainer and DDP (torchrun), or with another method."
            )


def refuse_with_adapter(method: Method) -> None:
    """Raise AttendropError if a method cannot act on a model with an adapter."""
    for part in method.parts:
        if part.info.edits_pretrained_weights:
            raise AttendropError(
                f"Method '{part.name}' changes weights of the model itself, which are not saved with an adapter; train "
                "without an adapter, or with another method."
            )


def _plain(value: Any) -> Any:
    """Convert tuples to lists recursively, as JSON does."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
