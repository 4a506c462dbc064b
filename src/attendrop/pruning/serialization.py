"""Files of pruned models and of adapters of PEFT, which are loaded merged into their model."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedConfig

from attendrop.attention.interface import forget_implementation
from attendrop.errors import AttendropError
from attendrop.files.model_files import ADAPTER_CONFIG, PRUNED_CONFIG, resolve_model
from attendrop.files.output_files import write_text
from attendrop.model_support.models import transformers_model

WEIGHTS = "model.safetensors"


def is_pruned(folder: str | Path) -> bool:
    """Return whether a folder holds a pruned model that transformers alone does not load."""
    return (Path(folder) / PRUNED_CONFIG).is_file()


def model_class(folder: Path, name: Any, config: Mapping[str, Any]) -> Any:
    """Return the model class of transformers, or of this library, that a file in ``folder`` names."""
    from attendrop.tasks.heads.model_classes import saved_model_class  # needs packages that pruning does not

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
    """Load the weights in a folder into a pruned model, in their types; raise AttendropError if they are incomplete."""
    try:
        weights = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises its own exception class
        raise AttendropError(f"The weights in '{folder}' cannot be read ({error}).") from None
    without_pooler(model, model.state_dict().keys() - weights.keys())
    cast(model, {name: value.dtype for name, value in weights.items()})
    here = model.state_dict()
    wrong = [name for name, value in weights.items() if name in here and here[name].shape != value.shape]
    if not wrong:
        found = model.load_state_dict(weights, strict=False)
        loaded = {here[name].data_ptr() for name in weights if name in here}
        wrong = [name for name in found.missing_keys if here[name].data_ptr() not in loaded]
        wrong += found.unexpected_keys
    if wrong:
        raise AttendropError(f"The weights in '{folder}' do not match the model: {wrong[0]}.")


def without_pooler(model: Any, missing: Collection[str]) -> list[str]:
    """Remove a base model's pooler if all of its weights are missing, as one without it is saved; return the others."""
    own = {name for name in model.state_dict() if name.startswith("pooler.")}
    if own and own.issubset(missing):
        model.pooler = None
        return sorted({*missing} - own)
    return sorted(missing)


def cast(model: torch.nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Convert saved tensors to dtypes by name; computed ones, such as rotary frequencies, keep theirs."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in dtypes and tensor.is_floating_point():
            tensor.data = tensor.data.to(dtypes[name])


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file of a model; raise AttendropError if there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise AttendropError(f"'{path.parent}' holds no model: it has no {path.name}.") from None
    except (ValueError, RecursionError):
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


# The configuration of the model with its head, which an adapter lacks. Not config.json: transformers would take the
# folder for that of a whole model.
MODEL_CONFIG = "model_config.json"
_WEIGHTS = "adapter_model.safetensors"


def is_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter of PEFT without its model."""
    folder = Path(folder)
    return (folder / ADAPTER_CONFIG).is_file() and not (folder / "config.json").is_file()


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Save the adapter of a ``PeftModel`` on ``base`` as PEFT does, and the model's configuration beside it."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = base
    model.save_pretrained(folder, save_embedding_layers=False)
    own = transformers_model(model)
    config = copy.deepcopy(own.config)
    config.architectures = [type(own).__name__]
    write_text(folder / MODEL_CONFIG, config.to_json_string())


def saved_config(folder: Path) -> PreTrainedConfig:
    """Load the configuration of the model that :func:`load_adapter` returns."""
    return _class_and_config(folder)[1]


def load_adapter(folder: Path) -> Any:
    """Load an adapter of a run, merged into its model, in evaluation mode, on the CPU."""
    peft = import_peft()
    cls, config = _class_and_config(folder)
    settings = read_json(folder / ADAPTER_CONFIG)
    if not (folder / _WEIGHTS).is_file():
        raise AttendropError(f"The folder '{folder}' holds no weights of an adapter: it has no {_WEIGHTS}.")
    with without_report():  # which would say that the head is random, though the adapter has it
        base, found = cls.from_pretrained(
            _place_of_base(folder, settings),
            config=config,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            dtype="float32",
        )
    missing = sorted({*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])})
    saved = tuple(f"{name}." for name in settings.get("modules_to_save") or ())
    if lost := [key for key in missing if not any(name in key for name in saved)]:
        raise AttendropError(f"Neither the adapter in '{folder}' nor its model has the weights {lost[0]}.")
    with quiet_peft():
        return peft.PeftModel.from_pretrained(base, str(folder)).merge_and_unload().requires_grad_(True).eval()


@contextmanager
def without_report() -> Iterator[None]:
    """Silence transformers' table of loaded weights; the caller reports what matters."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers.logging.set_verbosity(before)


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Ignore warnings that PEFT causes itself: settings that GPT-2 layers need, and its use of an older name."""
    with warnings.catch_warnings():
        for message in ("fan_in_fan_out", "`is_gradient_checkpointing` is deprecated"):
            warnings.filterwarnings("ignore", message=message)
        yield


def import_peft() -> Any:
    """Import PEFT; raises AttendropError if it is not installed."""
    try:
        import peft
    except ModuleNotFoundError:
        raise AttendropError("Adapters need peft; run `pip install 'attendrop[peft]'`.") from None
    return peft


def _class_and_config(folder: Path) -> tuple[Any, PreTrainedConfig]:
    """Return the class of the model and its configuration, with the head."""
    if not (folder / MODEL_CONFIG).is_file():
        raise AttendropError(
            f"The adapter in '{folder}' was not saved by attendrop: it has no {MODEL_CONFIG}, which tells its classes. "
            "Load it with peft, and save what merge_and_unload() returns."
        )
    saved = read_json(folder / MODEL_CONFIG)
    cls = model_class(folder, (saved.get("architectures") or [None])[0], saved)
    return cls, cls.config_class.from_dict(saved)


def _place_of_base(folder: Path, settings: dict[str, Any]) -> str:
    name = settings.get("base_model_name_or_path") or ""
    try:
        return resolve_model(name)
    except AttendropError as error:
        raise AttendropError(
            f"The adapter in '{folder}' is on the model {name!r}, which cannot be found ({error}) Put it back, or "
            f"change base_model_name_or_path in {ADAPTER_CONFIG}."
        ) from None
