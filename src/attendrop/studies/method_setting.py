"""Settings of methods in a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attendrop.methods.core.base import Method
from attendrop.methods.core.registry import given_options
from attendrop.runs.config import RunConfig


@dataclass(frozen=True)
class MethodSetting:
    """A method with options, and a learning rate.

    Attributes:
        method: Name of the method, or several joined by ``+``.
        options: Options of the method; those that are not given have their defaults.
        learning_rate: Learning rate; None: the run's own.
    """

    method: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    learning_rate: float | None = None

    @classmethod
    def of(cls, method: str | Method) -> MethodSetting:
        """Make the setting of a method, or of a name: its defaults."""
        if isinstance(method, str):
            return cls(method)
        return cls(method.name, given_options(method.name, method.options()))

    def applied(self, config: RunConfig, **changes: Any) -> RunConfig:
        """Return the options of a run with this setting."""
        if self.learning_rate is not None:
            changes["learning_rate"] = self.learning_rate
        return dataclasses.replace(config, method=self.method, options=dict(self.options), **changes)

    @property
    def label(self) -> str:
        """Name of the method with its options, such as "METHOD p=0.9"."""
        return " ".join([self.method, *self._changes])

    @property
    def described(self) -> str:
        """What differs from the defaults."""
        return " ".join(self._changes) or "its defaults"

    @property
    def _changes(self) -> list[str]:
        found = [f"{name}={value}" for name, value in self.options.items()]
        return found if self.learning_rate is None else [*found, f"learning_rate={self.learning_rate:g}"]
