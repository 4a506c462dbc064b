"""Runs with options resolved to method, task, rows and training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, load_data
from attendrop.runs.run_folder import number_of_processes
from attendrop.runs.small_data_recipe import with_selection, with_training
from attendrop.tasks.base import Task, TaskData


@dataclass(frozen=True)
class ResolvedRun:
    """Run with resolved options, which are read only here.

    Attributes:
        config: The options, all decided except the start of the head, which depends on the model.
        given: The options as they were given.
        data: The task with all its rows.
        parts: The splits of the run, not encoded.
    """

    config: RunConfig
    given: RunConfig
    data: TaskData
    parts: Parts

    @property
    def method(self) -> Method:
        """Method with its options."""
        return self.config.regularizer

    @property
    def task(self) -> Task:
        """Task of the run."""
        return self.data.task

    @property
    def chooses_epoch(self) -> bool:
        """Whether the best epoch is kept (if a selection split was requested) instead of the last."""
        if self.parts.selection is None:
            return False
        asked = bool(self.given.selection_fraction) or self.given.patience is not None
        return asked or self.config.protocol == "paper"

    def on_all_rows(self, max_steps: int | None = None) -> ResolvedRun:
        """Return the run on all training rows, including those held out here, for as many epochs or ``max_steps``."""
        steps = {} if max_steps is None else {"max_steps": max_steps}
        config = self.config.filled(selection_fraction=0.0, refit=False, patience=None, **steps)
        return ResolvedRun(config, config, self.data, divide(config, self.data))


def resolve_run(config: RunConfig, decided: Mapping[str, Any] | None = None) -> ResolvedRun:
    """Resolve the options of a run: build its method, load and split its data, and apply the recipe."""
    data = load_data(config)
    head = data.task.head
    if config.calibrate and not head.num_classes:
        raise AttendropError(f"calibrate is for classes; the labels are {head.labels_are}: omit it.")
    resolved = config.filled(**(decided or {}))
    resolved = with_selection(resolved, has_eval_rows="dev" in data.splits or bool(config.test_fraction))
    parts = divide(resolved, data)
    held_out = parts.selection if resolved.protocol == "honest" else None
    rewards = parts.reward if resolved.rewarded_on == "split" else None
    rows = sum(len(part) for part in (parts.train, held_out, rewards) if part is not None)
    resolved = with_training(resolved, rows, has_pooling=head.one_vector, processes=number_of_processes())
    method = resolved.regularizer.for_data(len(head.strata), rows)
    if method != resolved.regularizer:
        resolved = resolved.filled(options=method.options())
    return ResolvedRun(resolved, config, data, parts)
