"""What the documentation's table says of a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendrop.validation import check_choice as check_choice
from attendrop.validation import check_count as check_count
from attendrop.validation import check_positive as check_positive
from attendrop.validation import check_probability as check_probability
from attendrop.validation import check_switch as check_switch
from attendrop.validation import suggestion as suggestion

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class MethodInfo:
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
