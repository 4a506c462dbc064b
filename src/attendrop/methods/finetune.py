"""Plain fine-tuning, the baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attendrop.methods.core.base import Method
from attendrop.methods.core.compatibility import ANY, Rule


@dataclass(frozen=True)
class FineTune(Method):
    """Plain fine-tuning, the baseline. The model is not modified."""

    name: ClassVar[str] = "finetune"
    summary: ClassVar[str] = "plain fine-tuning, the baseline"
    paper: ClassVar[str] = ""
    uses_attention: ClassVar[bool] = False
    rules: ClassVar[tuple[Rule, ...]] = (Rule("finetune", ANY, "Plain fine-tuning adds nothing to another method."),)

    def active(self, epoch: int) -> bool:
        return False

    def regularized_epochs(self, num_epochs: int) -> None:
        return None
