"""Activation checkpointing by the name that the installed transformers has for it: before 5.23, of gradients."""

from __future__ import annotations

from typing import Any

from transformers import TrainingArguments

_NAME = "activation" if "activation_checkpointing" in TrainingArguments.__dataclass_fields__ else "gradient"


def checkpoint_activations(model: Any) -> None:
    getattr(model, f"{_NAME}_checkpointing_enable")({"use_reentrant": False})


def checkpointing_arguments(**keywords: Any) -> dict[str, Any]:
    """Make training arguments."""
    return {f"{_NAME}_checkpointing": True} | ({f"{_NAME}_checkpointing_kwargs": keywords} if keywords else {})
