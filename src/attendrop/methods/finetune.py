"""Plain fine-tuning, the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from attendrop.methods.compatibility import ANY, Rule
from attendrop.validation import check_choice as check_choice
from attendrop.validation import check_count as check_count
from attendrop.validation import check_positive as check_positive
from attendrop.validation import check_probability as check_probability
from attendrop.validation import check_switch as check_switch
from attendrop.validation import suggestion as suggestion

if TYPE_CHECKING:
    pass
from attendrop.methods.base import Method


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
