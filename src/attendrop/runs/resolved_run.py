"""Runs with options resolved to method, task and rows."""

from __future__ import annotations

from dataclasses import dataclass

from attendrop.methods.core.base import Method
from attendrop.runs.config import RunConfig
from attendrop.runs.data import Parts, divide, load_data
from attendrop.tasks.base import Task, TaskData


@dataclass(frozen=True)
class ResolvedRun:
    """Run with resolved options, which are read only here.

    Attributes:
        config: The options.
        data: The task with all its rows.
        parts: The splits of the run, not encoded.
    """

    config: RunConfig
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


def resolve_run(config: RunConfig) -> ResolvedRun:
    """Resolve the options of a run: build its method, load and divide its data.

    Raises:
        AttendropError: The data cannot be read, or cannot be split as the options say.
    """
    data = load_data(config)
    return ResolvedRun(config, data, divide(config, data))
