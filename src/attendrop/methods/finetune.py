"""Plain fine-tuning, the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from attendrop.extend import ANY, Method, MethodInfo, Rule


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
