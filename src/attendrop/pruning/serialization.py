"""Files of pruned models: configuration and weights."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from attendrop.attention.interface import forget_implementation
from attendrop.errors import AttendropError

# Not config.json, so that transformers raises an error instead of loading an incomplete model.
CONFIG = "pruned_config.json"
WEIGHTS = "model.safetensors"


def is_pruned(folder: str | Path) -> bool:
    """Tell whether a folder holds a pruned model that transformers alone does not load."""
    return (Path(folder) / CONFIG).is_file()


def model_class(folder: Path, name: Any, config: Mapping[str, Any]) -> Any:
    """Return the model class of transformers, or of this library, that a file in ``folder`` names.

    Args:
        folder: For messages.
        name: Name of the class.
        config: Configuration of the model.
    """
    from attendrop.tasks.heads.registry import saved_model_class  # needs packages that pruning does not

    found = saved_model_class(str(name), config.get("model_type", ""))
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise AttendropError(f"The model in '{folder}' is of an unknown class, {name!r}.")
    return found


def stock_config(config: Any) -> Any:
    """Copy the configuration of a pruned model, as the model of transformers has it."""
    stock = copy.deepcopy(config)
    forget_implementation(stock)
    return stock


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights in a folder into a pruned model; raise AttendropError if they are incomplete."""
    try:
        weights = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises its own exception class
        raise AttendropError(f"The weights in '{folder}' cannot be read ({error}).") from None
    dtypes = {value.dtype for value in weights.values() if value.is_floating_point()}
    model.to(next(iter(dtypes)))
    found = model.load_state_dict(weights, strict=False)
    here = model.state_dict()
    loaded = {here[name].data_ptr() for name in weights if name in here}
    missing = [name for name in found.missing_keys if here[name].data_ptr() not in loaded]
    if missing or found.unexpected_keys:
        raise AttendropError(f"The weights in '{folder}' are not whole: {(missing or found.unexpected_keys)[0]}.")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model; raise AttendropError if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise AttendropError(f"'{path.parent}' holds no model: it has no {path.name}.") from None
    except ValueError:
        raise AttendropError(f"{path} is not valid JSON.") from None
    return found


def without_shared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Remove the second and further names of a tensor, since safetensors saves each tensor once."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        if value.data_ptr() not in seen or not value.numel():
            seen.add(value.data_ptr())
            found[name] = value
    return found
