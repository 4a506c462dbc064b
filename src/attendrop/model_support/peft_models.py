"""Models with adapters of PEFT, known by their attributes: PEFT itself need not be installed."""

from __future__ import annotations

from typing import Any

from attendrop.errors import AttendropError


def has_adapter(model: Any) -> bool:
    """Tell whether a model has an adapter: a ``PeftModel``, or a model of transformers after ``add_adapter``."""
    return bool(getattr(model, "peft_config", None))


def transformers_model(model: Any) -> Any:
    """Return the model of transformers in a ``PeftModel``; any other model is returned as it is."""
    return getattr(model, "get_base_model", lambda: model)()


def refuse_adapter(model: Any, action: str) -> None:
    """Raise AttendropError if a model has an adapter; ``action`` is what is refused, such as "pruned"."""
    if has_adapter(model):
        raise AttendropError(
            f"{type(model).__name__} has an adapter of PEFT and cannot be {action}; merge it first: "
            "model.merge_and_unload()."
        )


def refuse_virtual_tokens(model: Any) -> None:
    """Raise AttendropError if an adapter prepends tokens of its own (prompt, prefix and P-tuning)."""
    config: Any = getattr(model, "active_peft_config", None)
    if getattr(config, "is_prompt_learning", False):
        raise AttendropError(
            f"{type(model).__name__} prepends {config.num_virtual_tokens} virtual tokens ({config.peft_type.value}), "
            "which shift the positions of all others, so a method cannot tell which tokens it acts on. Use an adapter "
            "without them, such as LoRA."
        )
