"""What a method is: its facts, its options, and its state during a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.errors import AttendropError
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.options import check_options, read_option
from attendrop.support.models import Batch

# Traits, to which rules refer.
ANY = "any method"
DECIDES_PASSES = "decides which passes a step takes"
EXCHANGES_WEIGHTS = "puts other weights into the model between steps"
REPLACES_PARAMETERS = "replaces the parameters of a pass"
REPLACES_DROPOUT = "replaces the model's own dropout of attention weights"
SCORES_ROWS = "needs labelled rows set aside"
SKIPS_BLOCKS = "leaves out blocks"
SECOND_MODEL = "trains a second model"


@dataclass(frozen=True)
class Rule:
    """Compatibility rule: methods with the traits, or names, ``one`` and ``other`` are not combined, for a reason."""

    one: str
    other: str
    reason: str


@dataclass(frozen=True)
class MethodInfo:
    """Facts of a method: its identity, its row in the table of the documentation, and its capabilities.

    Attributes:
        name: Name on the command line and in checkpoints: letters, digits, ``-`` and ``_``.
        summary: Description in one line.
        paper: Source, as "Authors (year), title"; empty if there is none.
        link: Address of the paper.
        evidence: How it compared with plain fine-tuning when measured, for logs and documentation: for each measured
            setting, the options that are not the defaults, and a sentence. Logs quote it for exactly that setting.
        compared: Whether comparisons include it where no methods are named.
        acts_on: Some of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward: Forward passes per step; plain fine-tuning takes one.
        backward: Backward passes per step.
        state: State kept between steps.
        tasks: Supported tasks.
        units: The units whose dropped fraction is logged.
        order: Position among several methods that change or read the same thing, such as the batch, the outputs of
            heads or weights: lower numbers come first, then names. The order within a composition has no effect.
        traits: Traits that restrict combinations, mapped to the option value under which the method has them:
            ``"where=weights"``, ``"structure above 0"``; empty if always. ``DECIDES_PASSES`` is not declared: a method
            has it if it, or its state, defines ``loss``.
        rules: The method's own compatibility rules.
        uses_attention: Whether it needs a model with supported attention layers; if False, any model works.
        self_attention_only: Whether it acts on self-attention only: the selected layers of the encoder, or, if there
            are none, those of the decoder.
        edits_pretrained_weights: Whether it changes weights of the model even if they are frozen. A PEFT adapter is
            saved without them, so the method is refused with an adapter.
        reads_weights: Whether its penalty is computed from weights of the model itself.
        skips_parameters: Whether some parameters may get no gradient in a step (needed for DDP).
        needs_loss_scale: Whether it reads gradients that are multiplied by the loss scale of float16.
        reports_all_effects: Whether the reported dropped units are its only effect, so that zero means no effect.
        inactive_epochs_hint: Sentence for warnings: the epochs in which it is inactive, and how to activate it in all.
    """

    name: str
    summary: str = ""
    paper: str = ""
    link: str = ""
    evidence: tuple[tuple[Mapping[str, Any], str], ...] = ()
    compared: bool = False
    acts_on: tuple[str, ...] = ()
    forward: str = "1"
    backward: str = "1"
    state: str = "none"
    tasks: str = "all"
    units: str = "attention positions"
    order: int = 0
    traits: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    uses_attention: bool = True
    self_attention_only: bool = False
    edits_pretrained_weights: bool = False
    reads_weights: bool = False
    skips_parameters: bool = False
    needs_loss_scale: bool = False
    reports_all_effects: bool = True
    inactive_epochs_hint: str = ""

    def citation(self) -> str:
        """Return the paper in Markdown, with its link if it has one; empty if there is none."""
        return f"[{self.paper}]({self.link})" if self.link else self.paper

    def measured(self) -> str:
        """Return the evidence in sentences that name the setting of each; empty if there is none."""
        found = []
        for options, sentence in self.evidence:
            setting = " ".join(f"{name}={value}" for name, value in options.items()) or "the defaults"
            found.append(f"Measured with {setting}: {sentence}")
        return " ".join(found)


RULES = (
    Rule(DECIDES_PASSES, DECIDES_PASSES, "Both control the passes of a training step."),
    Rule(EXCHANGES_WEIGHTS, EXCHANGES_WEIGHTS, "Both replace the model's weights during training."),
    Rule(
        REPLACES_PARAMETERS,
        REPLACES_PARAMETERS,
        "Both replace the parameters of a pass, and only one replacement would take effect.",
    ),
    Rule(REPLACES_DROPOUT, REPLACES_DROPOUT, "Both replace the model's dropout of attention weights."),
    Rule(SCORES_ROWS, SCORES_ROWS, "Both need held-out labelled rows."),
)


def rules_among(own: Iterable[Sequence[Rule]]) -> list[Rule]:
    """Return the general rules, followed by each method's ``own`` rules."""
    return list(dict.fromkeys((*chain.from_iterable(own), *RULES)))


@dataclass(frozen=True)
class Preset:
    """Options of a method in a published setting.

    Attributes:
        training: Options of the run, such as ``max_length``, that differ from the setting's defaults.
        options: Options of the method.
    """

    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRanking:
    """Ranking of layers for pruning.

    Attributes:
        ranked_by: Name of the criterion, for reports.
        drop_fractions: Fraction of dropped units, by layer key. Layers with the highest fractions are pruned first.
        significant: Whether the fractions are statistically significant; otherwise they are used on request only.
    """

    ranked_by: str
    drop_fractions: Mapping[str, float]
    significant: bool = True


class MethodState:
    """State of a method during a run. This base class is stateless.

    The time line of a step: for each micro-batch :meth:`loss`, which calls :meth:`batch`, :meth:`plan` and
    :meth:`penalty`; then :meth:`edit_gradients`; then, after the optimizer's step, :meth:`after_step`.
    """

    def __init__(self, method: Method, training: TrainingContext | None = None) -> None:
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

        A method that does not run exactly one pass overrides this, or :meth:`Method.loss`. ``compute_loss`` applies the
        other methods of a composition; :meth:`batch`, :meth:`plan` and :meth:`penalty` of this one are not called.
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


@dataclass(frozen=True)
class Method:
    """Base class of regularisation methods. Subclasses are frozen dataclasses; their fields are the method's options.

    Options are declared with their ranges by :func:`attendrop.methods.core.options.option`. Creating the object checks
    them (AttendropError); a ``__post_init__`` of a subclass calls this one first. A subclass overrides :meth:`batch`,
    :meth:`plan` or :meth:`penalty` to change a forward pass, or :meth:`loss` to run passes of its own. A method that
    has state, or acts on parameters or gradients, names its own subclass of :class:`MethodState`.

    Attributes:
        info: Facts of the method.
        name: Name on the command line and in checkpoints, that of ``info``.
    """

    info: ClassVar[MethodInfo]
    name: ClassVar[str]
    state_class: ClassVar[type[MethodState]] = MethodState
    """Class of its state."""

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
        """Run the passes of a method that does not run exactly one, see :meth:`MethodState.loss`."""
        return None

    def start(self, training: TrainingContext) -> MethodState:
        """Create the state of the method for a run: a ``state_class``, or a subclass that defines no more passes."""
        return self.state_class(self, training)

    def prepare(self, model: nn.Module, seed: int) -> None:
        """Change a model before its head is initialised from its features; not called when a run is resumed.

        The state of the method makes the same change in the first step.
        """

    # When and where it acts.

    def active(self, epoch: int) -> bool:
        """Return whether the method is active in ``epoch``, counted from 0."""
        return True

    def takes_part(self, epoch: int) -> bool:
        """Return whether the method takes part in the passes of ``epoch``: it is active, or observes its rows."""
        return self.active(epoch) or self.needs_rows

    def needs_epoch(self) -> bool:
        """Return whether the method acts in some epochs only; looks at the first hundred."""
        return self.regularized_epochs(0) is not None and not all(map(self.active, range(100)))

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """Return the epochs, from 0, in which the method is active; None for a method that never regularises.

        A method that needs records of rows has none in the first epoch.
        """
        first = int(all(part.needs_rows for part in self.parts))
        return [epoch for epoch in range(first, num_epochs) if self.active(epoch)]

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
        return next((getattr(part, "reward_data", None) for part in self.parts if part.has(SCORES_ROWS)), None)

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
        """Return the options as JSON-serialisable values; raises AttendropError if they cannot be written so."""
        try:
            found: dict[str, Any] = json.loads(
                json.dumps({field.name: getattr(self, field.name) for field in dataclasses.fields(self)})
            )
        except TypeError as error:
            raise AttendropError(
                f"Options of method '{self.name}' cannot be written to files as JSON: {error}."
            ) from None
        return found

    @property
    def evidence(self) -> str:
        """The sentence of ``info.evidence`` on exactly these options; empty if they were not measured."""
        return next((sentence for options, sentence in self.info.evidence if type(self)(**options) == self), "")

    def defines(self, function: str) -> bool:
        """Return whether the method, or its state, defines ``loss``, ``penalty`` or ``edit_gradients``."""
        pairs = ((type(self), Method), (self.state_class, MethodState))
        return any(getattr(kind, function, None) is not getattr(base, function, None) for kind, base in pairs)

    def has(self, trait: str) -> bool:
        """Return whether the method has a trait with its current options; its name is also a trait."""
        if trait == DECIDES_PASSES:
            return self.defines("loss")
        condition = self.info.traits.get(trait)
        if not condition:
            return condition is not None or trait in (ANY, self.name)
        option, equals, value = condition.partition("=")
        if equals:
            return bool(getattr(self, option) == read_option(type(self), option, value))
        option, _, least = condition.partition(" above ")
        return bool(getattr(self, option) > float(least))

    @property
    def needs_whole_model(self) -> bool:
        """Whether parameters and gradients must be whole in each process, which they are not under FSDP."""
        acts_on_weights = (
            self.info.edits_pretrained_weights or self.info.reads_weights or self.defines("edit_gradients")
        )
        traits = (EXCHANGES_WEIGHTS, REPLACES_PARAMETERS, SCORES_ROWS, SECOND_MODEL)
        return acts_on_weights or any(map(self.has, traits))


@dataclass(frozen=True)
class FineTune(Method):
    """Plain fine-tuning, the baseline. The model is not modified."""

    info = MethodInfo(
        "finetune",
        "plain fine-tuning, the baseline",
        uses_attention=False,
        rules=(Rule("finetune", ANY, "Plain fine-tuning adds nothing to another method."),),
    )

    def active(self, epoch: int) -> bool:
        return False

    def regularized_epochs(self, num_epochs: int) -> None:
        return None


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


def check_state(method: Method, state: object) -> MethodState:
    """Return what ``start`` of a method returned; raise AttendropError unless it is a state of its ``state_class``."""
    if not isinstance(state, MethodState) or not hasattr(state, "method"):
        raise AttendropError(
            f"Method '{method.name}' must return a MethodState from start, made by super().__init__(method)."
        )
    for part in state.parts:
        for name in ("loss", "penalty", "edit_gradients"):
            if getattr(type(part), name) is not getattr(MethodState, name) and not part.method.defines(name):
                raise AttendropError(
                    f"Method '{part.method.name}': its state defines {name}, which must be known before it starts; set "
                    f"the class attribute state_class = {type(part).__name__}."
                )
    return state


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
