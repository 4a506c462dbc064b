"""What a method is: its options, and what it does in a training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import Tensor

from attendrop.attention import Attachment, Plan
from attendrop.errors import AttendropError
from attendrop.masks import DrawKey

Batch = Mapping[str, Any]
# A pass of the model that trains: a batch and, optionally, a plan for its attention -> (loss, outputs).
ComputeLoss = Callable[[Batch, Plan | None], tuple[Tensor, Any]]


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
    """

    attachment: Attachment
    batch: Batch
    inputs: Batch
    key: DrawKey
    loss_scale: float
    report: Callable[[str, Tensor, Tensor], None]


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

    def plan(self, step: Pass) -> Plan | None:
        """Decide what the pass that trains does to attention."""
        return None

    def loss(self, step: Pass, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        """Compute the training loss of one micro-batch, and the model's outputs."""
        return compute_loss(step.batch, self.plan(step))

    def options(self) -> dict[str, Any]:
        """The options as plain values, fit for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


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
