"""Properties of models: adapters of PEFT (which need not be installed), positions, trained tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendrop.errors import AttendropError

if TYPE_CHECKING:
    from torch import Tensor, nn

_EMBEDDINGS = ("position_embeddings", "position_embedding", "embed_positions", "wpe")


def has_adapter(model: Any) -> bool:
    """Return whether a model has an adapter: a ``PeftModel``, or a model of transformers after ``add_adapter``."""
    return bool(getattr(model, "peft_config", None))


def transformers_model(model: Any) -> Any:
    """Return the model of transformers in a ``PeftModel``; any other model is returned as it is."""
    return getattr(model, "get_base_model", lambda: model)()


def freeze_unsaved(model: Any) -> list[Tensor]:
    """Freeze what a model does not save: Marian's computed positions, which transformers 5.24 would train, and lose.

    Returns what was not frozen before.
    """
    model = transformers_model(model)
    unsaved = getattr(model, "_keys_to_ignore_on_save", None) or ()
    trained = [each for name, each in model.named_parameters() if name in unsaved and each.requires_grad]
    return [parameter.requires_grad_(False) for parameter in trained]


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


def position_limit(model: Any) -> int | None:
    """Return the maximum number of tokens that a model's position embedding allows; patch positions do not count.

    None if the model has no such embedding: rotary and relative positions have no end.
    """
    from torch import nn

    limits = [
        module.num_embeddings - _reserved(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _EMBEDDINGS and "vis" not in name
    ]
    return min(limits, default=None)


def _reserved(embedding: Any) -> int:
    """Return the number of unused rows: RoBERTa's positions start after the padding id, BART's after an offset."""
    if embedding.padding_idx is None:
        return int(getattr(embedding, "offset", 0))
    return int(embedding.padding_idx) + 1


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the trainable parameters and the saved buffers of a model by name, without copying them."""
    saved = model.state_dict(keep_vars=True).keys()
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    return parameters | {name: buffer for name, buffer in model.named_buffers() if name in saved}
