"""Reports of a run's progress to the process that schedules it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_SECONDS_BETWEEN_REPORTS = 0.5


class StepReports(TrainerCallback):
    """Report the optimizer steps taken and planned, at most twice a second.

    Args:
        send: Called with a message: its ``kind``, ``"progress"``, ``steps`` and ``planned_steps``.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self.send = send
        self.last = 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if time.monotonic() - self.last >= _SECONDS_BETWEEN_REPORTS:
            self.last = time.monotonic()
            self.send({"kind": "progress", "steps": state.global_step, "planned_steps": state.max_steps})
