"""What a method is: its facts, its options, and its state during a run; and a composition of several."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce, update_wrapper
from itertools import chain
from operator import or_
from typing import Any, ClassVar

from torch import Tensor, nn

from attendrop.attention.layers import AttentionLayer, select_layers, select_self_attention
from attendrop.attention.plan import CombinedPlan, Plan
from attendrop.errors import AttendropError
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.options import check_options, read_option
from attendrop.support.models import Batch, number_of_rows

# Traits, to which rules refer.
ANY = "any method"
DECIDES_PASSES = "decides which passes a step takes"
EXCHANGES_WEIGHTS = "puts other weights into the model between steps"
REPLACES_PARAMETERS = "replaces the parameters of a pass"
REPLACES_DROPOUT = "replaces the model's own dropout of attention weights"
NEEDS_ROWS = "needs to know the rows of a batch"
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
        paper: Source, as "Authors (year), title".
        link: Address of the paper.
        evidence: How it compared with plain fine-tuning: for each measured setting, the options that are not the
            defaults, and a sentence. Logs quote it for exactly that setting.
        compared: Whether comparisons include it where no methods are named.
        acts_on: Some of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward, backward: Passes per step; plain fine-tuning takes one of each.
        state: State kept between steps.
        tasks: Supported tasks.
        units: The units whose dropped fraction is logged.
        order: Position among several methods that change or read the same thing: lower numbers come first, then names.
        traits: Traits that restrict combinations, mapped to the option value under which the method has them:
            ``"where=weights"``, ``"structure above 0"``; empty if always. ``DECIDES_PASSES`` is not declared: a method
            has it if it, or its state, defines ``loss``.
        rules: The method's own compatibility rules.
        uses_attention: Whether it needs a model with supported attention layers; if False, any model works.
        self_attention_only: Whether it acts on the self-attention of the encoder only, or, without one, the decoder.
        edits_pretrained_weights: Whether it changes weights even if they are frozen; refused with a PEFT adapter, which
            is saved without them.
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

    def measured(self) -> str:
        """Return the evidence in sentences that name the setting of each; empty if there is none."""
        lines = ((" ".join(f"{name}={value}" for name, value in found.items()), text) for found, text in self.evidence)
        return " ".join(f"Measured with {setting or 'the defaults'}: {text}" for setting, text in lines)


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


@dataclass(frozen=True)
class Preset:
    """Options of the run (``training``) and of the method in a published setting, where they are not its defaults."""

    training: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerRanking:
    """Ranking of layers for pruning: those with the highest ``drop_fractions``, by layer key, are pruned first.

    ``ranked_by`` names the criterion, for reports. Fractions that are not ``significant`` are used on request only.
    """

    ranked_by: str
    drop_fractions: Mapping[str, float]
    significant: bool = True


class MethodState:
    """State of a method during a run. This base class is stateless.

    The time line of a step: for each micro-batch :meth:`loss`, which calls :meth:`batch`, :meth:`plan` and
    :meth:`penalty`; then :meth:`edit_gradients`; then, after the optimizer's step, :meth:`after_step`. ``searching``
    says that the current weights will be discarded, so that their scores are not a result.
    """

    searching = False

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

    An option ``layers`` selects the attention layers, or blocks, to act on: ``"all"``, ``"first"``, numbers, or a kind,
    see :func:`attendrop.attention.layers.select_layers`.

    Attributes:
        info: Facts of the method.
        name: Name on the command line and in checkpoints, that of ``info``.
        source: Name in logs: with ``_`` for ``-``.
    """

    info: ClassVar[MethodInfo]
    name: ClassVar[str]
    source: ClassVar[str]
    state_class: ClassVar[type[MethodState]] = MethodState
    """Class of its state."""

    def __init_subclass__(cls) -> None:
        if "info" in vars(cls):
            cls.name, cls.source = cls.info.name, cls.info.name.replace("-", "_")

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
        """Change a new model, as the state does in the first step, before its head is initialised from its features."""

    # When and where it acts.

    def active(self, epoch: int) -> bool:
        """Return whether the method is active in ``epoch``, counted from 0."""
        return True

    def needs_epoch(self) -> bool:
        """Return whether a part of the method acts in some epochs only; looks at the first hundred."""
        acting = [part for part in self.parts if part.regularized_epochs(0) is not None]
        return any(not all(map(part.active, range(100))) for part in acting)

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """Return the epochs, from 0, in which the method is active; None for a method that never regularises."""
        first = int(all(part.has(NEEDS_ROWS) for part in self.parts))  # there are no records in the first epoch
        return [epoch for epoch in range(first, num_epochs) if self.active(epoch)]

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        """Select the layers to act on by the option ``layers``; AttendropError if the model has no such layers."""
        select = select_self_attention if self.info.self_attention_only else select_layers
        return select(attention_layers, getattr(self, "layers", "all"))

    # Data that it needs.

    def for_data(self, classes: int, rows: int) -> Method:
        """Resolve options, except those of rewards, by the training ``rows`` and text ``classes`` (1: other tasks)."""
        return self

    @property
    def needs_rows(self) -> bool:
        """Whether the method needs the index of each row in the training data, in the column ``ROW_INDEX``."""
        return any(part.has(NEEDS_ROWS) for part in self.parts)

    def rewarded_on(self) -> str | None:
        """Return the option ``reward_data``: models are scored on rows held out for it, ``"split"``, or on ``"eval"``.

        None without the trait ``SCORES_ROWS``.
        """
        return next((getattr(part, "reward_data", None) for part in self.parts if part.has(SCORES_ROWS)), None)

    def rewarded_fraction(self) -> float:
        """Return the fraction of the training rows to hold out for ``"split"``."""
        return max(getattr(part, "reward_fraction", 0.0) for part in self.parts)

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
    def parts(self) -> tuple[Method, ...]:
        """Component methods; for a single method, the method itself."""
        return (self,)

    def options(self) -> dict[str, Any]:
        """Return the options as JSON-serialisable values; raises AttendropError if they cannot be written so."""
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        try:
            found: dict[str, Any] = json.loads(json.dumps(options))
        except TypeError as error:
            raise AttendropError(f"Options of method '{self.name}' cannot be written as JSON: {error}.") from None
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
    """Return what a method's ``start`` returned; raise AttendropError unless its ``state_class`` says what it does."""
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


def refuse_with_adapter(method: Method) -> None:
    """Raise AttendropError if a method cannot act on a model with an adapter."""
    for part in method.parts:
        if part.info.edits_pretrained_weights:
            raise AttendropError(
                f"Method '{part.name}' changes weights of the model itself, which are not saved with an adapter; train "
                "without an adapter, or with another method."
            )


def _of_parts(hook: Callable[..., Any], combine: Callable[[list[Any]], Any] = lambda _: None) -> Any:
    """Make a method that calls a hook of each part, and combines the results, if it has any."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return combine([getattr(part, hook.__name__)(*args, **kwargs) for part in self.parts])

    return update_wrapper(call, hook)


# Of the results of several parts, which are dictionaries.
_merged: Callable[[list[Any]], dict[str, Any]] = partial(reduce, or_)


class ComposedState(MethodState):
    """State of several methods. The training loop takes the metrics of a step from its ``parts``."""

    def __init__(self, method: Method, training: TrainingContext) -> None:
        super().__init__(method)
        training = dataclasses.replace(training, act_on_second_model=self._act_on_second_model)
        self.states: list[MethodState] = []
        try:
            for part in method.parts:
                self.states.append(part.start(training))
        except BaseException:
            self.close()
            raise
        self.ordered = sorted(self.states, key=lambda state: (state.method.info.order, state.method.name))

    @property
    def parts(self) -> Sequence[MethodState]:
        return self.states

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        acting: list[tuple[MethodState, StepContext]] = []
        leader: MethodState | None = None
        batch = context.batch
        for state in self.ordered:
            if not (state.method.active(context.epoch or 0) or state.method.needs_rows):  # which observes the rows
                continue
            if state.method.defines("loss"):
                leader = state
                continue
            own = self._as_seen_by(state, context, batch)
            batch = state.batch(own)
            acting.append((state, own))

        def one_pass(batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
            return run_pass(acting, compute_loss, batch, plan, model)

        if leader is None:
            return one_pass(batch)
        return leader.loss(self._as_seen_by(leader, context, batch), one_pass)

    tensors = _of_parts(MethodState.tensors, _merged)
    restore = _of_parts(MethodState.restore)
    close = _of_parts(MethodState.close)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for state in self.ordered:
            state.edit_gradients(parameters)

    def state_dict(self) -> dict[str, Any]:
        return {state.method.name: own for state in self.states if (own := state.state_dict())}

    def rank_state_dict(self) -> dict[str, Any]:
        return {state.method.name: own for state in self.states if (own := state.rank_state_dict())}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        for part in self.states:
            part.load_state_dict(state.get(part.method.name, {}), rank_state.get(part.method.name, {}))

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        kept = list(batches)
        return _merged([state.final_report(kept) for state in self.states])

    def _act_on_second_model(self, model: nn.Module) -> Any:
        """Apply all methods except the one that trains this model."""
        others = [state for state in self.ordered if not state.method.defines("loss")]
        for state in others:
            state.act_on_second_model(model)
        parameters = dict(model.named_parameters())

        def before_step() -> None:
            for state in others:
                state.edit_gradients(parameters)

        return before_step

    def _as_seen_by(self, state: MethodState, context: StepContext, batch: Batch) -> StepContext:
        copies = number_of_rows(batch) // context.key.rows
        key = dataclasses.replace(context.key, salt=f"{state.method.name}/", copies=copies)
        return dataclasses.replace(context, batch=batch, key=key, source=state.method.source)


@dataclass(frozen=True, init=False)
class Compose(Method):
    """Composition of several methods.

    At each attention layer the drop masks of all methods are combined; penalties are summed; edits of parameters,
    gradients and the batch are all applied, in the declared order (:attr:`MethodInfo.order`), so that ``a+b`` and
    ``b+a`` are equal. Each method samples independently, follows its own epoch schedule, and logs under its own name.
    On the command line: ``--method ad-drop+r-drop --set ad-drop.p=0.3``.

    Example:
        >>> trainer = RegularizedTrainer(model=model, args=args, regularizer=Compose(ADDrop(p=0.3), RDrop(alpha=1.0)))

    Args:
        *methods: Two or more different methods.

    Raises:
        AttendropError: There are fewer than two methods, one is given twice, or two of them cannot be combined.
    """

    state_class = ComposedState

    methods: tuple[Method, ...]

    def __init__(self, *methods: Method) -> None:
        if wrong := [each for each in methods if not isinstance(each, Method)]:
            raise AttendropError(f"Compose takes methods, such as Compose(ADDrop(), RDrop()), and not {wrong[0]!r}.")
        flat = tuple(part for method in methods for part in method.parts)
        if len(flat) < 2:
            raise AttendropError(f"Compose takes two or more methods, not {len(flat)}.")
        facts = ("uses_attention", "skips_parameters", "needs_loss_scale")
        any_of: dict[str, Any] = {fact: any(getattr(part.info, fact) for part in flat) for fact in facts}
        info = MethodInfo("+".join(part.name for part in flat), "several methods at once", **any_of)
        vars(self).update(methods=flat, info=info, name=info.name, source=info.name.replace("-", "_"))
        rules = dict.fromkeys((*chain.from_iterable(part.info.rules for part in flat), *RULES))
        for number, one in enumerate(flat):
            for other in flat[:number]:
                if one.name == other.name:
                    raise AttendropError(f"Method '{one.name}' is given twice; give it once.")
                for rule in rules:
                    if (one.has(rule.one) and other.has(rule.other)) or (one.has(rule.other) and other.has(rule.one)):
                        raise AttendropError(f"'{other.name}' and '{one.name}' cannot be combined. {rule.reason}")

    @property
    def parts(self) -> tuple[Method, ...]:
        return self.methods

    for_data = _of_parts(Method.for_data, lambda parts: Compose(*parts))
    prepare = _of_parts(Method.prepare)
    active = _of_parts(Method.active, any)
    defines = _of_parts(Method.defines, any)
    dropout_steps = _of_parts(Method.dropout_steps, lambda found: [*chain.from_iterable(found)])
    summary_lines = _of_parts(Method.summary_lines, _merged)
    layer_ranking = _of_parts(Method.layer_ranking, lambda found: next((each for each in found if each), None))

    def selected_layers(self, attention_layers: Sequence[AttentionLayer]) -> list[AttentionLayer]:
        acting = [part for part in self.methods if part.info.uses_attention]
        found = {layer for part in acting for layer in part.selected_layers(attention_layers)}
        return [layer for layer in attention_layers if layer in found]

    def options(self) -> dict[str, Any]:
        """Return the options of each method, by its name."""
        return {part.name: part.options() for part in self.methods}
