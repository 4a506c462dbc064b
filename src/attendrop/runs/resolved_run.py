"""Runs whose options are resolved to the method, the task and the rows that they name."""

from __future__ import annotations

from dataclasses import dataclass

from attendrop.methods.core.base import Method
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, load_data
from attendrop.tasks.base import Task, TaskData


@dataclass(frozen=True)
class ResolvedRun:
    """Run with resolved options: they are read once, here, and what they name is passed on.

    Attributes:
        config: The options.
        data: The task with all its rows.
        parts: The rows as the run uses them; not encoded.
    """

    config: RunConfig
    data: TaskData
    parts: Parts

    @property
    def method(self) -> Method:
        """The method with its options."""
        return self.config.regularizer

    @property
    def task(self) -> Task:
        """The task that is learnt."""
        return self.data.task


def resolve_run(config: RunConfig) -> ResolvedRun:
    """Resolve the options of a run: build its method, load and divide its data.

    Raises:
        AttendropError: The data cannot be read, or not be divided as the options say.
    """
    data = load_data(config)
    return ResolvedRun(config, data, divide(config, data))
