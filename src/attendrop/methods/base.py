"""What a method is: its options, and what it does in a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from attendrop.attention import Attachment, Combined, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey
from attendrop.methods.compatibility import ANY, Rule
from attendrop.methods.options import check_options
from attendrop.sites import Site, select_sites
from attendrop.tally import Tally
from attendrop.validation import check_choice as check_choice
from attendrop.validation import check_count as check_count
from attendrop.validation import check_positive as check_positive
from attendrop.validation import check_share as check_share
from attendrop.validation import check_switch as check_switch
from attendrop.validation import suggestion as suggestion

if TYPE_CHECKING:
    from attendrop.methods.replay import Replay

Batch = Mapping[str, Any]


class ComputeLoss(Protocol):
    """A pass and its loss: ``(loss, outputs)`` of a batch, with a plan for the attention if there is one.

    The loss is a mean over the micro-batch. What a method makes of it is weighted afterwards, as accumulation and DDP
    need it, together with what the method adds to it.

    ``model`` is the model to run where it is not the one that trains: a copy of it, without wrappers.
    """

    def __call__(self, batch: Batch, plan: Plan | None = None, model: nn.Module | None = None, /) -> tuple[Tensor, Any]:
        """Run the model."""
        ...


@dataclass(frozen=True)
class Processes:
    """Those that train together.

    Attributes:
        rank: Number of this one.
        world_size: How many there are. Each is given as many sequences as the others.
        total: Adds a tensor up over them.
    """

    rank: int = 0
    world_size: int = 1
    total: Callable[[Tensor], Tensor] = lambda tensor: tensor


class LabelledData(Protocol):
    """Rows with labels that a method may look at beside the batches that train."""

    def draw(self, seed: int, count: int, size: int) -> Sequence[Batch]:
        """Draw ``count`` items of ``size`` samples each, on the model's device; the seed decides which."""
        ...

    def in_order(self, size: int, processes: Processes) -> Iterator[Batch]:
        """All rows once, ``size`` at a time, on the model's device; of these batches the share of this process."""
        ...


@dataclass(frozen=True)
class Setup:
    """What a method finds when training begins.

    Attributes:
        model: The model without wrappers.
        seed: Seed of the method's own random draws.
        processes: Those that train together.
        total_steps: How many optimizer steps are planned, if that is known.
        optimizer: The model's optimizer, if it is known.
        max_grad_norm: Gradients are clipped to this norm, if any.
        scaler: The gradient scaler of float16 training, if there is one.
        reward_data: What models may be scored on, if anything.
        train_data: The training rows, if they are known.
        evaluate: The mean loss of a model on a batch, and its outputs.
        metric: From logits and labels to a score of which more is better, if there is one.
        mask_token: The id that stands for a masked token, if there is one.
        special_tokens: Ids that are never masked.
        accompany: To be called with a second model that a method trains beside: whatever else regularises the first is
            then done to it, too. Gives what to call with it before each step of its optimizer.
    """

    model: nn.Module
    evaluate: Callable[[nn.Module, Batch], tuple[Tensor, Any]]
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    total_steps: int | None = None
    optimizer: torch.optim.Optimizer | None = None
    max_grad_norm: float | None = None
    scaler: torch.amp.GradScaler | None = None
    reward_data: LabelledData | None = None
    train_data: LabelledData | None = None
    metric: Callable[[Any, Any], float] | None = None
    mask_token: int | None = None
    special_tokens: tuple[int, ...] = ()
    accompany: Callable[[nn.Module], Callable[[], None]] = lambda model: lambda: None


@dataclass(frozen=True)
class Pass:
    """What a method is given for one micro-batch.

    Attributes:
        model: The model without wrappers.
        batch: Its inputs, with labels.
        key: What fixes the random draws.
        tally: What happens is counted here; see :meth:`report` and :meth:`note`.
        source: The method's name in logs.
        epoch: Number of the epoch, from 0, if it is known.
        progress: Share of the planned optimizer steps that were taken, in [0, 1]; None if it is not known how many.
        micro_batches: How many micro-batches like this one the global batch holds, by the items that losses average
            over: a penalty that is a sum over this one, times this, is a sum over the global batch.
        loss_scale: The factor by which gradients are multiplied under float16, else 1.
        given: Names of the batch's columns that the pass that trains gives the model (a loss that is computed outside
            of the model keeps the labels from it); None for all.
        extra: Columns of the batch that the method asked for and the model does not know; see :attr:`Method.columns`.
        attached: The model's attention sites, and passes of its own making; None for methods that say that they do not
            use attention.
    """

    model: nn.Module
    batch: Batch
    key: DrawKey
    tally: Tally
    source: str
    epoch: int | None = None
    progress: float | None = None
    micro_batches: float | Tensor = 1.0
    loss_scale: float = 1.0
    given: Collection[str] | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    attached: Attachment | None = None

    @property
    def attachment(self) -> Attachment:
        """The model without wrappers, its attention sites, and passes of the method's own making."""
        assert self.attached is not None
        return self.attached

    @property
    def inputs(self) -> Batch:
        """What of ``batch`` the pass that trains gives the model."""
        return {name: value for name, value in self.batch.items() if self.given is None or name in self.given}

    def report(self, site: str, dropped: Tensor, possible: Tensor) -> None:
        """Log the share of what was dropped at a site: how many, of how many that could have been."""
        self.tally.count(self.source, site, dropped, possible)

    def note(self, name: str, value: Tensor | float) -> None:
        """Log a number; the log has its mean over the passes."""
        self.tally.note(self.source, name, value)

    def planned_progress(self) -> float:
        """``progress``; raises AttendropError if it is not known."""
        if self.progress is None:
            raise AttendropError(
                f"Method '{self.source.replace('_', '-')}' follows the training progress; pass total_steps=, the "
                "number of optimizer steps that are planned, to regularize(...)."
            )
        return self.progress


@dataclass(frozen=True)
class Facts:
    """What the table of methods in the documentation says of one.

    Attributes:
        acts_on: Of ``scores``, ``weights``, ``heads``, ``layers``, ``hidden states``, ``embeddings``, ``inputs``,
            ``parameters``, ``gradients`` and ``loss``.
        forward: Passes forward in a step, where plain fine-tuning takes one.
        backward: Passes backward.
        state: What it keeps from step to step.
        tasks: What it can train.
        units: What the share in the log is of that is called dropped.
    """

    acts_on: tuple[str, ...] = ()
    forward: str = "1"
    backward: str = "1"
    state: str = "none"
    tasks: str = "all"
    units: str = "attention positions"


@dataclass(frozen=True)
class Method:
    """A way to regularise training. Subclasses are frozen dataclasses whose fields are the method's options.

    Options are declared with their ranges, by :func:`attendrop.methods.options.option`, and checked when the object is
    made; a ``__post_init__`` of a subclass calls this one first. A subclass says what it changes of a pass:
    :meth:`batch`, :meth:`plan`, :meth:`penalty`. A method that keeps something, takes passes of its own, or acts on
    parameters or gradients, has a :class:`Session` for it, which :meth:`start` makes.

    Attributes:
        name: Name on the command line and in checkpoints.
        summary: One line that says what it does.
        paper: Source, as "Authors (year), title".
        bibtex: The source as a BibTeX entry, for model cards.
        facts: For the table in the documentation.
        uses_attention: Whether it needs a model whose attention can be reached; without, any model will do.
        skips_parameters: Whether some parameters may get no gradient in a step (DDP must know).
        order: Where several methods change the same thing, such as the batch or what heads put out, those with lower
            numbers do so first, those with equal ones by name. How a composition lists them has no effect.
        traits: What decides with which methods it cannot be combined (see :mod:`attendrop.methods.compatibility`), each
            with the options under which it has the trait; empty if always.
        rules: With which it cannot be combined for reasons of its own.
        needs_loss_scale: Whether it reads gradients that the loss scale of float16 has multiplied.
        counts_all: Whether what it reports as dropped is all that it does, so that zero means that it did nothing.
        rests: In which epochs it does not act, and how to make it act in all: a sentence for warnings.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    bibtex: ClassVar[str] = ""
    facts: ClassVar[Facts] = Facts()
    uses_attention: ClassVar[bool] = True
    skips_parameters: ClassVar[bool] = False
    order: ClassVar[int] = 0
    traits: ClassVar[Mapping[str, str]] = {}
    rules: ClassVar[tuple[Rule, ...]] = ()
    needs_loss_scale: ClassVar[bool] = False
    counts_all: ClassVar[bool] = True
    rests: ClassVar[str] = ""

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
        :attr:`Pass.extra` as ``(batch, n)`` or ``(batch, n, n)``, padded with -1; their rows are those of the batch
        before any method repeated them.
        """
        return {}

    @property
    def parts(self) -> tuple[Method, ...]:
        """The methods that this one is made of."""
        return (self,)

    def has(self, trait: str) -> bool:
        """Whether it has one of its :attr:`traits`, with these options; its name is one, too."""
        return trait in (ANY, self.name, *self.traits)

    def active(self, epoch: int) -> bool:
        """Whether the method acts in ``epoch``, counted from 0."""
        return True

    def needs_epoch(self) -> bool:
        """Whether :meth:`active` depends on the epoch."""
        return False

    def regularized_epochs(self, num_epochs: int) -> list[int] | None:
        """The epochs, from 0, in which the method acts; None for a method that regularises nothing."""
        return [epoch for epoch in range(num_epochs) if self.active(epoch)]

    def chosen(self, sites: Sequence[Site]) -> Sequence[Site]:
        """The attention sites to act on, of a model's; raises AttendropError if the options do not fit them."""
        return select_sites(sites, self.options().get("layers", "all"))

    def batch(self, step: Pass) -> Batch:
        """The batch to train on, made of ``step.batch``; its rows may be repeated, each by its copies side by side."""
        return step.batch

    def plan(self, step: Pass) -> Plan | None:
        """Decide what the pass that trains does to attention, and around it."""
        return None

    def penalty(self, step: Pass, outputs: Any) -> Tensor | None:
        """What is added to the loss, given the outputs of the pass that trains: a mean over the micro-batch."""
        return None

    def rewarded_on(self) -> str | None:
        """What models are scored on while the method trains them.

        ``"selection"``: the rows that the best epoch is chosen on; ``"split"``: rows set aside from the training data
        for this alone; ``"eval"``: the development set; None: nothing.
        """
        return None

    def reward_share(self) -> float:
        """The share of the training rows to set aside where :meth:`rewarded_on` says ``"split"``."""
        return 0.0

    def start(self, setup: Setup) -> Session:
        """Begin a run. A method that keeps something from step to step returns a session of its own kind."""
        return Session(self)

    def options(self) -> dict[str, Any]:
        """The options as plain values, fit for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _plain(value) for name, value in values.items()}


class Session:
    """A method at work, from the first step of a run to the last. This one keeps nothing."""

    def __init__(self, method: Method) -> None:
        self.method = method

    @property
    def parts(self) -> Sequence[Session]:
        """The sessions that this one is made of."""
        return (self,)

    def batch(self, step: Pass) -> Batch:
        """As :meth:`Method.batch`."""
        return self.method.batch(step)

    def plan(self, step: Pass) -> Plan | None:
        """As :meth:`Method.plan`."""
        return self.method.plan(step)

    def penalty(self, step: Pass, outputs: Any) -> Tensor | None:
        """As :meth:`Method.penalty`."""
        return self.method.penalty(step, outputs)

    def loss(self, step: Pass, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, a mean over it, and the model's outputs.

        A method that takes other passes than one overrides this, and has the trait ``DECIDES_PASSES``; ``compute_loss``
        then brings in what the other methods of a composition do. Of such methods a composition has one at most.
        """
        step = dataclasses.replace(step, batch=self.batch(step))
        return run_pass([(self, step)], compute_loss, step.batch)

    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Called just before the optimizer's step, with gradients that are summed up, unscaled and clipped."""

    def accompany(self, model: nn.Module) -> None:
        """Act on a second model, which another method trains beside, as on the first."""

    def after_step(self, steps_taken: int) -> dict[str, float]:
        """Called when the optimizer has taken its ``steps_taken``-th step. Returns figures to log, if there are any."""
        return {}

    def replay(self) -> Replay | None:
        """The steps that are recorded at the moment, or taken again instead of new ones; None if neither."""
        return None

    def searching(self) -> bool:
        """Whether the weights of this moment will be given up, so that what the model scores with them is no result."""
        return False

    def finish(self) -> dict[str, float]:
        """Called after the last step, planned or not. Returns figures to log, if there are any."""
        return {}

    def named(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The figures of a step under the names that they are logged by."""
        return {f"{self.method.source}/{name}": value for name, value in figures.items()}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold, the same in all processes: tensors and plain values."""
        return {}

    def own_state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold of this process alone."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict` and an :meth:`own_state_dict`."""

    def conclude(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """What is worth keeping of a finished run, as plain values.

        Args:
            batches: Data that was not trained on, if there is any; else the training data.
        """
        return {}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What was trained beside the model, by the name of a file to keep it in."""
        return {}

    def close(self) -> None:
        """Let go of the optimizer, and of what is needed for training alone."""


def run_pass(
    parts: Sequence[tuple[Session, Pass]],
    compute_loss: ComputeLoss,
    batch: Batch,
    plan: Plan | None = None,
    model: nn.Module | None = None,
) -> tuple[Tensor, Any]:
    """Run the model once, with the plans and penalties of all ``parts``.

    Args:
        parts: Sessions, each with the pass as it sees it.
        compute_loss: Runs the model.
        batch: What on.
        plan: A further plan.
        model: Another model than the one that trains; it gets the penalties, but no plan.
    """
    parts = [(session, dataclasses.replace(step, batch=batch)) for session, step in parts]
    plans = [plan, *(session.plan(step) for session, step in parts)] if model is None else []
    found = [item for item in plans if item is not None]
    loss, outputs = compute_loss(batch, Combined(found) if len(found) > 1 else found[0] if found else None, model)
    for session, step in parts:
        penalty = session.penalty(step, outputs)
        loss = loss if penalty is None else loss + penalty
    return loss, outputs


def overrides(thing: object, base: type, name: str) -> bool:
    """Whether the class of a thing has a method of its own in place of that of a base class."""
    return getattr(type(thing), name) is not getattr(base, name)


@dataclass(frozen=True)
class FineTune(Method):
    """Plain fine-tuning: the baseline. The model is not touched."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "plain fine-tuning, the baseline"
    paper: ClassVar[str] = ""
    uses_attention: ClassVar[bool] = False
    rules: ClassVar[tuple[Rule, ...]] = (Rule("finetune", ANY, "Plain fine-tuning adds nothing to another method."),)

    def active(self, epoch: int) -> bool:
        return False

    def regularized_epochs(self, num_epochs: int) -> None:
        return None


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON gives back, on every level."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def tokens_of(tokenizer: Any) -> dict[str, Any]:
    """What a :class:`Setup` says of tokens, of a tokenizer, of something else that processes inputs, or of None."""
    return {
        "mask_token": getattr(tokenizer, "mask_token_id", None),
        "special_tokens": tuple(getattr(tokenizer, "all_special_ids", ())),
    }
