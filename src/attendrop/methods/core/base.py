"""What a method is: its options, and what it does in a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.batches import Batch
from attendrop.methods.core.compatibility import ANY, DECIDES_PASSES, Rule
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import LayerRanking, MethodInfo, Preset
from attendrop.methods.core.options import check_options
from attendrop.methods.core.replay import Replay


@dataclass(frozen=True)
class Method:
    """A way to regularise training. Subclasses are frozen dataclasses whose fields are the method's options.

    Options are declared with their ranges, by :func:`attendrop.methods.core.options.option`, and checked when the
    object is made; a ``__post_init__`` of a subclass calls this one first. A subclass says what it changes of a pass:
    :meth:`batch`, :meth:`plan`, :meth:`penalty`. A method that keeps something, takes passes of its own, or acts on
    parameters or gradients, has a :class:`MethodState` for it, which :meth:`start` makes.

    Attributes:
        name: Name on the command line and in checkpoints.
        summary: One line that says what it does.
        paper: Source, as "Authors (year), title".
        bibtex: The source as a BibTeX entry, for model cards.
        info: For the table in the documentation.
        uses_attention: Whether it needs a model whose attention can be reached; without, any model will do.
        adds_penalty: Whether it, or its state, defines a :meth:`penalty`.
        edits_gradients: Whether its state defines :meth:`MethodState.edit_gradients`.
        self_attention_only: Whether it acts on self-attention alone: of the layers that are chosen the encoder's, or if
            there are none the decoder's.
        skips_parameters: Whether some parameters may get no gradient in a step (DDP must know).
        order: Where several methods change the same thing, such as the batch or what heads put out, those with lower
            numbers do so first, those with equal ones by name. How a composition lists them has no effect.
        traits: What decides with which methods it cannot be combined (see :mod:`attendrop.methods.core.compatibility`),
            each with the options under which it has the trait; empty if always.
        rules: With which it cannot be combined for reasons of its own.
        needs_loss_scale: Whether it reads gradients that the loss scale of float16 has multiplied.
        reports_all_effects: Whether what it reports as dropped is all that it does, so that zero means that it did
            nothing.
        inactive_epochs_hint: In which epochs it does not act, and how to make it act in all: a sentence for warnings.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    bibtex: ClassVar[str] = ""
    info: ClassVar[MethodInfo] = MethodInfo()
    uses_attention: ClassVar[bool] = True
    self_attention_only: ClassVar[bool] = False
    adds_penalty: ClassVar[bool] = False
    edits_gradients: ClassVar[bool] = False
    skips_parameters: ClassVar[bool] = False
    order: ClassVar[int] = 0
    traits: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()
    needs_loss_scale: ClassVar[bool] = False
    reports_all_effects: ClassVar[bool] = True
    inactive_epochs_hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def source(self) -> str:
        """The name in logs."""
        return self.name.replace("-", "_")

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns of the training data that the method reads and the model does not know, and what is in them.

        ``"numbers"``: one for each token; ``"positions"``: of another token, -1 for none (where a text is cut to the
        length that the model takes, they are counted anew); ``"matrix"``: one for each pair of tokens. They come in
        :attr:`StepContext.extra` as ``(batch, n)`` or ``(batch, n, n)``, padded with -1; their rows are those of the
        batch before any method repeated them.
        """
        return {}

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods that this one is made of."""
        return (self,)

    def has(self, trait: str) -> bool:
        """Whether it has one of its :attr:`traits`, with these options; its name is one, too."""
        return trait in (ANY, self.name, *self.traits)

    @property
    def decides_passes(self) -> bool:
        """Whether its state decides which passes a step takes, in :meth:`MethodState.loss`: the trait of this name."""
        return self.has(DECIDES_PASSES)

    def active(self, epoch: int) -> bool:
        """Whether the method acts in ``epoch``, counted from 0."""
        return True

    def needs_epoch(self) -> bool:
        """Whether :meth:`active` depends on the epoch."""
        return False

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """The epochs, from 0, in which the method acts; None for a method that regularises nothing."""
        return [epoch for epoch in range(num_epochs) if self.active(epoch)]

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        """Choose the layers to act on, by the option ``layers``; raises AttendropError if the options do not fit."""
        select = select_self_attention if self.self_attention_only else select_layers
        return select(attention_layers, getattr(self, "layers", "all"))

    def batch(self, context: StepContext) -> Batch:
        """Make the batch to train on of ``context.batch``; rows may be repeated, each by its copies side by side."""
        return context.batch

    def plan(self, context: StepContext) -> Plan | None:
        """Decide what the pass that trains does to attention, and around it."""
        return None

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        """What is added to the loss, given the outputs of the pass that trains: a mean over the micro-batch."""
        return None

    def rewarded_on(self) -> str | None:
        """What models are scored on while the method trains them.

        ``"selection"``: the rows that the best epoch is chosen on; ``"split"``: rows set aside from the training data
        for this alone; ``"eval"``: the development set; None: nothing.
        """
        return None

    def rewarded_fraction(self) -> float:
        """Return the fraction of the training rows to set aside where :meth:`rewarded_on` says ``"split"``."""
        return 0.0

    @property
    def rewarded_by(self) -> str:
        """What asks for the rows of :meth:`rewarded_on`, for messages."""
        return f"method '{self.name}'"

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Look up what a published setting says of this method.

        Args:
            name: Of the setting; ``"paper"``: that of the method's own paper.
            task: Name of the task; None: own files.
        """
        return Preset()

    def dropout_steps(self, log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Collect from the log of a run what the method learnt in each of its periods, for ``metrics.json``."""
        return []

    def summary_lines(self, metrics: Mapping[str, Any]) -> dict[str, str]:
        """Describe what the method did in a finished run, given its ``metrics.json``: texts by their captions."""
        return {}

    def layer_ranking(self, metrics: Mapping[str, Any]) -> LayerRanking | None:
        """Rank layers for pruning by what the method learnt in a finished run; None if it learnt no such thing."""
        return None

    def start(self, training: TrainingContext) -> MethodState:
        """Begin a run. A method that keeps something from step to step returns a state class of its own."""
        return MethodState(self)

    def options(self) -> dict[str, Any]:
        """Return the options as plain values, fit for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in values.items()}


class MethodState:
    """The state of a method during a run. This base class keeps nothing from step to step."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def parts(self) -> Sequence[MethodState]:
        """The states of the methods of a composition; otherwise this one alone."""
        return (self,)

    def batch(self, context: StepContext) -> Batch:
        """As :meth:`Method.batch`."""
        return self.method.batch(context)

    def plan(self, context: StepContext) -> Plan | None:
        """As :meth:`Method.plan`."""
        return self.method.plan(context)

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        """As :meth:`Method.penalty`."""
        return self.method.penalty(context, outputs)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, a mean over it, and the model's outputs.

        A method that takes other passes than one overrides this, and has the trait ``DECIDES_PASSES``; ``compute_loss``
        then brings in what the other methods of a composition do, and nothing else calls :meth:`batch`, :meth:`plan`
        and :meth:`penalty` of this one. Of such methods a composition has one at most.
        """
        context = dataclasses.replace(context, batch=self.batch(context))
        return run_pass([(self, context)], compute_loss, context.batch)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Edit the gradients just before the optimizer's step; they are accumulated, unscaled and clipped."""

    def act_on_second_model(self, model: nn.Module) -> None:
        """Act on a second model, which another method trains beside the first, as on the first."""

    def after_step(self, steps_taken: int) -> dict[str, float]:
        """Update the state after the ``steps_taken``-th optimizer step; returns metrics to log, if any."""
        return {}

    def replay(self) -> Replay | None:
        """Return the steps that are being recorded, or replayed in place of new ones; None if neither."""
        return None

    def searching(self) -> bool:
        """Whether the current weights will be discarded, so that their scores are no result."""
        return False

    def finish(self) -> dict[str, float]:
        """Complete what is unfinished after the last step, planned or not; returns metrics to log, if any."""
        return {}

    def with_log_names(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a step under their names in the log."""
        return {f"{self.method.source}/{name}": value for name, value in metrics.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is the same in all processes, for checkpoints: tensors and plain values."""
        return {}

    def rank_state_dict(self) -> dict[str, Any]:
        """Return the state of this process alone, for checkpoints."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict` and a :meth:`rank_state_dict`."""

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report on a finished run, as plain values for ``metrics.json``.

        Args:
            batches: Data that was not trained on, if any; otherwise the training data.
        """
        return {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors that were trained beside the model, by the name of the file to save them in."""
        return {}

    def close(self) -> None:
        """Remove hooks, and free what only training needs."""


def run_pass(
    parts: Sequence[tuple[MethodState, StepContext]],
    compute_loss: ComputeLoss,
    batch: Batch,
    plan: Plan | None = None,
    model: nn.Module | None = None,
) -> tuple[Tensor, Any]:
    """Run the model once, with the plans and penalties of all ``parts``.

    Args:
        parts: The states of the methods, each with its own context.
        compute_loss: Runs the model.
        batch: The batch to run it on.
        plan: A further plan.
        model: Another model to run in place of the one that trains; it gets the penalties, but no plan.
    """
    parts = [(method_state, dataclasses.replace(context, batch=batch)) for method_state, context in parts]
    plans = [plan, *(method_state.plan(context) for method_state, context in parts)] if model is None else []
    found = [item for item in plans if item is not None]
    loss, outputs = compute_loss(batch, CombinedPlan(found) if len(found) > 1 else found[0] if found else None, model)
    for method_state, context in parts:
        penalty = method_state.penalty(context, outputs)
        loss = loss if penalty is None else loss + penalty
    return loss, outputs


def _plain(value: Any) -> Any:
    """Convert tuples to lists, as JSON does, on every level."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
