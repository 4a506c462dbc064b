"""Base classes of a method's options and of its state during a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.batches import Batch
from attendrop.methods.core.compatibility import (
    ANY,
    DECIDES_PASSES,
    EXCHANGES_WEIGHTS,
    REPLACES_PARAMETERS,
    SCORES_ROWS,
    SECOND_MODEL,
    Rule,
)
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import LayerRanking, MethodInfo, Preset, references
from attendrop.methods.core.options import check_options
from attendrop.methods.core.replay import Replay


@dataclass(frozen=True)
class Method:
    """Base class of regularisation methods. Subclasses are frozen dataclasses; their fields are the method's options.

    Options are declared with their ranges by :func:`attendrop.methods.core.options.option`, and checked when the
    object is created; a ``__post_init__`` of a subclass calls this one first. A subclass overrides :meth:`batch`,
    :meth:`plan` or :meth:`penalty` to change a forward pass. A method that has state, runs passes of its own, or acts
    on parameters or gradients returns its own :class:`MethodState` from :meth:`start`.

    Attributes:
        name: Name on the command line and in checkpoints.
        summary: Description in one line.
        paper: Source, as "Authors (year), title".
        bibtex: The source as a BibTeX entry, for model cards; empty: that of its name in ``references.bib``, if any.
        info: The method's row in the table of the documentation.
        uses_attention: Whether it needs a model with supported attention layers; if False, any model works.
        adds_penalty: Whether it, or its state, defines a :meth:`penalty`.
        edits_gradients: Whether its state defines :meth:`MethodState.edit_gradients`.
        edits_pretrained_weights: Whether it writes into weights of the model also where they are frozen. An adapter of
            PEFT is not saved with them, so the method is refused with one.
        reads_weights: Whether its penalty is computed from weights of the model itself.
        self_attention_only: Whether it acts on self-attention only: the selected layers of the encoder, or, if there
            are none, those of the decoder.
        skips_parameters: Whether some parameters may get no gradient in a step (needed for DDP).
        order: Position among several methods that change or read the same thing, such as the batch, the outputs of
            heads or weights. Lower numbers come first; ties are resolved by name. The order within a composition has
            no effect.
        traits: Traits that restrict combinations (see :mod:`attendrop.methods.core.compatibility`), mapped to the
            options under which the method has them; empty if always.
        rules: The method's own compatibility rules.
        needs_loss_scale: Whether it reads gradients that are multiplied by the loss scale of float16.
        reports_all_effects: Whether the reported dropped units are its only effect, so that zero means no effect.
        compared: Whether comparisons include it where no methods are named.
        evidence: What was measured of it against plain fine-tuning, as a sentence for logs and documentation; empty if
            nothing was.
        inactive_epochs_hint: Sentence for warnings: the epochs in which it is inactive, and how to activate it in all.
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
    edits_pretrained_weights: ClassVar[bool] = False
    reads_weights: ClassVar[bool] = False
    skips_parameters: ClassVar[bool] = False
    order: ClassVar[int] = 0
    traits: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()
    needs_loss_scale: ClassVar[bool] = False
    reports_all_effects: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    evidence: ClassVar[str] = ""
    inactive_epochs_hint: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def source(self) -> str:
        """Name in logs."""
        return self.name.replace("-", "_")

    @classmethod
    def citation(cls) -> str:
        """Return the source as a BibTeX entry; empty if there is none."""
        return cls.bibtex or references().get(cls.name, "")

    @property
    def columns(self) -> Mapping[str, str]:
        """Return the columns of the training data that only the method reads, with their kinds.

        ``"numbers"``: one number per token; ``"positions"``: the position of another token, -1 for none (recomputed
        when a text is truncated to the model's maximum length); ``"matrix"``: one number per pair of tokens. They are
        passed in :attr:`StepContext.extra` as ``(batch, n)`` or ``(batch, n, n)``, padded with -1; their rows are the
        rows of the batch before any method repeats them.
        """
        return {}

    @property
    def needs_rows(self) -> bool:
        """Whether it must know which row of the training data each row of a batch is: the column ``ROW_INDEX``."""
        return False

    @property
    def parts(self) -> tuple[Method, ...]:
        """Component methods; for a single method, the method itself."""
        return (self,)

    def has(self, trait: str) -> bool:
        """Return whether the method has a trait with its current options; its name is also a trait."""
        return trait in (ANY, self.name, *self.traits)

    @property
    def decides_passes(self) -> bool:
        """Whether the state runs the passes, in :meth:`MethodState.loss`: the trait ``DECIDES_PASSES``."""
        return self.has(DECIDES_PASSES)

    @property
    def needs_whole_model(self) -> bool:
        """Whether parameters and gradients must be whole in each process, which they are not under FSDP."""
        acts_on_weights = self.edits_gradients or self.edits_pretrained_weights or self.reads_weights
        traits = (EXCHANGES_WEIGHTS, REPLACES_PARAMETERS, SCORES_ROWS, SECOND_MODEL)
        return acts_on_weights or any(map(self.has, traits))

    def prepare(self, model: nn.Module, seed: int) -> None:
        """Change a model before its head starts from the features; a method that does so repeats it in its first step.

        Not called where a run resumes.
        """

    def active(self, epoch: int) -> bool:
        """Return whether the method is active in ``epoch``, counted from 0."""
        return True

    def takes_part(self, epoch: int) -> bool:
        """Return whether the method has a part in the passes of ``epoch``: it is active, or only observes them."""
        return self.active(epoch)

    def needs_epoch(self) -> bool:
        """Return whether :meth:`active` depends on the epoch."""
        return False

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """Return the epochs, from 0, in which the method is active; None for a method that never regularises."""
        return [epoch for epoch in range(num_epochs) if self.active(epoch)]

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        """Select the layers to act on by the option ``layers``; all without one.

        Raises:
            AttendropError: The options do not match the model's layers.
        """
        select = select_self_attention if self.self_attention_only else select_layers
        return select(attention_layers, getattr(self, "layers", "all"))

    def batch(self, context: StepContext) -> Batch:
        """Return the batch to train on, given ``context.batch``. Copies of a repeated row are adjacent."""
        return context.batch

    def plan(self, context: StepContext) -> Plan | None:
        """Return the edits of attention, blocks and features for the training pass; None for no edits."""
        return None

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        """Compute the penalty to add to the loss, a mean over the micro-batch, from outputs of the training pass."""
        return None

    def rewarded_on(self) -> str | None:
        """Return the source of the labelled rows on which models are scored during training.

        ``"selection"``: the rows on which the best epoch is selected; ``"split"``: rows held out from the training
        data for this purpose only; ``"eval"``: the development set; None: no rows are needed.
        """
        return None

    def rewarded_fraction(self) -> float:
        """Return the fraction of the training rows to hold out if :meth:`rewarded_on` returns ``"split"``."""
        return 0.0

    @property
    def rewarded_by(self) -> str:
        """Return the option or method that needs the rows of :meth:`rewarded_on`, for messages."""
        return f"method '{self.name}'"

    @classmethod
    def preset(cls, name: str, task: str | None) -> Preset:
        """Look up the options of this method in a published setting.

        Args:
            name: Name of the setting; ``"paper"`` for that of the method's own paper.
            task: Name of the task; None for custom files.
        """
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

    def start(self, training: TrainingContext) -> MethodState:
        """Create the state of the method for a run. Methods with state return their own subclass."""
        return MethodState(self)

    def options(self) -> dict[str, Any]:
        """Return the options as JSON-serialisable values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in values.items()}


class MethodState:
    """State of a method during a run. This base class is stateless."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def parts(self) -> Sequence[MethodState]:
        """States of the methods of a composition; otherwise this state only."""
        return (self,)

    def batch(self, context: StepContext) -> Batch:
        """See :meth:`Method.batch`."""
        return self.method.batch(context)

    def plan(self, context: StepContext) -> Plan | None:
        """See :meth:`Method.plan`."""
        return self.method.plan(context)

    def penalty(self, context: StepContext, outputs: Any) -> Tensor | None:
        """See :meth:`Method.penalty`."""
        return self.method.penalty(context, outputs)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, a mean over it, and the model's outputs.

        A method that does not run exactly one pass overrides this and has the trait ``DECIDES_PASSES``.
        ``compute_loss`` then applies the other methods of a composition, and :meth:`batch`, :meth:`plan` and
        :meth:`penalty` of this method are not called. A composition has at most one such method.
        """
        context = dataclasses.replace(context, batch=self.batch(context))
        return run_pass([(self, context)], compute_loss, context.batch)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Edit the accumulated, unscaled and clipped gradients just before the optimizer step."""

    def act_on_second_model(self, model: nn.Module) -> None:
        """Apply the method to a second model that another method trains beside the first."""

    def after_step(self, steps_taken: int) -> dict[str, float]:
        """Update the state after the ``steps_taken``-th optimizer step; returns metrics to log, if any."""
        return {}

    def replay(self) -> Replay | None:
        """Return the replay that records or repeats steps at present; None if there is none."""
        return None

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
        """Report on a finished run, as plain values for ``metrics.json``.

        Args:
            batches: Held-out data, if any; otherwise the training data.
        """
        return {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the tensors trained beside the model, by the name of the file to save them in."""
        return {}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Restore what a finished run learnt, to show what it drops; training cannot go on from there.

        Args:
            metrics: The run's ``metrics.json``.
            tensors: What :meth:`tensors` returned, as far as it was saved.

        Raises:
            AttendropError: What was learnt was not saved.
        """

    def close(self) -> None:
        """Remove hooks, and free resources used only in training."""


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
        plan: An additional plan.
        model: A model to run in place of the trained one; it gets the penalties, but no plan.
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
    """Convert tuples to lists recursively, as JSON does."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
