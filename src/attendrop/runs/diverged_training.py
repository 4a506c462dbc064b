"""Detection of diverged training: NaN or infinite numbers."""

from __future__ import annotations

from typing import Any

import torch

from attendrop.errors import AttendropError
from attendrop.methods.core.registry import flat_options
from attendrop.runs.config import RunConfig

# Usual upper limits in fine-tuning; an option above its limit is named as the likely cause.
_HIGHEST = {"learning_rate": 1e-3, "weight_decay": 1.0}
_HIGHEST_OF_METHOD = 100.0


def refuse_diverged(config: RunConfig, *values: Any) -> None:
    """Raise AttendropError, with advice, if an array or a tensor has an entry that is NaN or infinite."""
    if not all(bool(torch.as_tensor(value).isfinite().all()) for value in values):
        raise AttendropError(f"Training diverged: the model's numbers are NaN or infinite. {_advice(config)}")


def _advice(config: RunConfig) -> str:
    given = {name: getattr(config, name) for name in _HIGHEST}
    absurd = {name: value for name, value in given.items() if value > _HIGHEST[name]}
    numbers = {name: value for name, value in flat_options(config.options).items() if isinstance(value, float)}
    absurd |= {name: value for name, value in numbers.items() if abs(value) > _HIGHEST_OF_METHOD}
    if absurd:
        named = " and ".join(f"{name.replace('_', '-')} is {value:g}" for name, value in absurd.items())
        return f"Much lower values are usual: {named}."
    half = ", or train without fp16" if config.fp16 else ""
    return f"Lower learning-rate, which is {config.learning_rate:g}{half}."
