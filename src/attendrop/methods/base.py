"""What a method is: its options, and what it does in a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from attendrop.attention import Attachment, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey
from attendrop.sites import Site, select_sites

Batch = Mapping[str, Any]


class ComputeLoss(Protocol):
    """A pass and its loss: ``(loss, outputs)`` of a batch, with a plan for the attention if there is one.

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


class RewardData(Protocol):
    """Labelled data that a method may score models on while it trains."""

    def draw(self, seed: int, count: int, size: int) -> Sequence[Batch]:
        """Draw ``count`` items of ``size`` samples each, on the model's device; the seed decides which."""
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
        reward_data: What models may be scored on, if anything.
        evaluate: The mean loss of a model on a batch, and its outputs.
        metric: From logits and labels to a score of which more is better, if there is one.
        mask_token: The id that stands for a masked token, if there is one.
        special_tokens: Ids that are never masked.
    """

    model: nn.Module
    evaluate: Callable[[nn.Module, Batch], tuple[Tensor, Any]]
    seed: int = 0
    processes: Processes = field(default_factory=Processes)
    total_steps: int | None = None
    optimizer: torch.optim.Optimizer | None = None
    max_grad_norm: float | None = None
    reward_data: RewardData | None = None
    metric: Callable[[Any, Any], float] | None = None
    mask_token: int | None = None
    special_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pass:
    """What a method is given for one micro-batch.

    Attributes:
        attachment: The model without wrappers, its attention sites, and passes of its own making.
        batch: The model's inputs, with labels.
        inputs: What the pass that trains gives the model: ``batch``, without labels where the loss is computed outside.
        key: What fixes the random draws.
        loss_scale: The factor by which gradients are multiplied under float16, else 1.
        report: Called with a site's key, the number of positions dropped there, and the number that could have been.
        progress: Share of the planned optimizer steps that were taken, in [0, 1]; None if it is not known how many.
    """

    attachment: Attachment
    batch: Batch
    inputs: Batch
    key: DrawKey
    loss_scale: float
    report: Callable[[str, Tensor, Tensor], None]
    progress: float | None = None


@dataclass(frozen=True)
class Method:
    """A way to regularise training. Subclasses are frozen dataclasses whose fields are the method's options.

    Options are checked when the object is made. A subclass overrides :meth:`plan` if it acts on attention, and
    :meth:`loss` if it needs other passes than one.

    Attributes:
        name: Name on the command line and in checkpoints.
        summary: One line that says what it does.
        paper: Source, as "Authors (year), title".
        bibtex: The source as a BibTeX entry, for model cards.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    paper: ClassVar[str]
    bibtex: ClassVar[str] = ""

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

    def plan(self, step: Pass) -> Plan | None:
        """Decide what the pass that trains does to attention."""
        return None

    def loss(self, step: Pass, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, and the model's outputs."""
        return compute_loss(step.batch, self.plan(step))

    def rewarded_on(self) -> str | None:
        """What models are scored on while the method trains them.

        ``"split"``: rows set aside from the training data; ``"eval"``: the development set; None: nothing.
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

    def loss(self, step: Pass, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, and the model's outputs."""
        return self.method.loss(step, compute_loss)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        """Called when the optimizer has taken its ``steps_taken``-th step. Returns figures to log, if there are any."""
        return {}

    def finish(self) -> dict[str, float]:
        """Called after the last planned step. Returns figures to log, if there are any."""
        return {}

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


@dataclass(frozen=True)
class FineTune(Method):
    """Plain fine-tuning: the baseline. The model is not touched."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "plain fine-tuning, the baseline"
    paper: ClassVar[str] = ""

    def active(self, epoch: int) -> bool:
        return False

    def regularized_epochs(self, num_epochs: int) -> None:
        return None


def _plain(value: Any) -> Any:
    """Tuples as the lists that JSON gives back, on every level."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise AttendropError(f"{name}={value!r} is not known.{suggestion(str(value), choices)}")


def check_share(name: str, value: float, *, one_allowed: bool) -> None:
    """Raise unless ``value`` is a probability above 0 and below 1, or up to 1."""
    inside = isinstance(value, int | float) and not isinstance(value, bool)
    if not inside or not (0 < value < 1 or (one_allowed and value == 1)):
        raise AttendropError(f"{name}={value!r} must be above 0 and {'at most' if one_allowed else 'below'} 1.")


def suggestion(value: str, choices: tuple[str, ...]) -> str:
    """Name the choice that ``value`` was probably meant to be, and all of them."""
    close = get_close_matches(value.lower().replace("_", "-"), [c.replace("_", "-") for c in choices], n=1, cutoff=0.5)
    nearest = next((c for c in choices if close and c.replace("_", "-") == close[0]), None)
    hint = f" Did you mean {nearest!r}?" if nearest else ""
    return f"{hint} Choose from: {', '.join(choices)}."
