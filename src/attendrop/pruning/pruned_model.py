"""Models with constant attention in some layers: made, saved and loaded; and adapters of PEFT, loaded merged."""

from __future__ import annotations

import copy
import itertools
import json
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig

from attendrop.attention.adapter import ModelAdapter, find_attention_layers
from attendrop.attention.blocks import query_key_parameters
from attendrop.attention.hooks import evaluating, in_full_precision
from attendrop.attention.interface import use_implementation
from attendrop.attention.layers import AttentionLayer, select_self_attention
from attendrop.attention.plan import AttentionCall, ConstantAttention, Plan
from attendrop.attention.tracing import example_inputs
from attendrop.attribution.recording import RecordPlan
from attendrop.errors import AttendropError
from attendrop.pruning.packed import encoder_layers, family_of, has_fast_form, pack_layers
from attendrop.support.files import (
    ADAPTER_CONFIG,
    BASELINE_CONFIG,
    PRUNED_CONFIG,
    WEIGHTS,
    model_sha256,
    resolve_model,
    write_json,
    write_text,
)
from attendrop.support.models import has_adapter, transformers_model
from attendrop.tasks.types.model_classes import read_config, saved_model_class
from attendrop.tasks.types.modeling_mean_pooling import MeanPoolingConfig

# The configuration of the model with its head, which an adapter lacks. Not config.json: transformers would take the
# folder for that of a whole model.
MODEL_CONFIG = "model_config.json"
_ADAPTER_WEIGHTS = "adapter_model.safetensors"
# Entry of that file: the hash of the weights that the adapter is on, if they are in a folder.
_BASE_SHA256 = "attendrop_base_sha256"


def prunable_layers(model: Any) -> list[AttentionLayer]:
    """List the attention layers that can be pruned: the encoder's self-attention, or that of a decoder-only model."""
    if has_adapter(model):
        raise AttendropError(
            f"{type(model).__name__} has an adapter of PEFT and cannot be pruned; merge it first: "
            "model.merge_and_unload()."
        )
    return select_self_attention(find_attention_layers(model), "all")


def mask_layers(model: Any, layers: Collection[int]) -> Any:
    """Copy a model, with constant attention in some layers, numbered from 0: their queries and keys are zero.

    With scores of zero, softmax gives all valid keys exactly the same weight. The copy is a model of the same class,
    which transformers runs and trains like any other. Queries and keys stay zero in training, because the gradients of
    both vanish. Refused are models that add other terms to their scores, or also make gates (Qwen3-Next), values
    (Gemma 4), or the keys of other layers (Gemma 3n) with these projections.
    """
    attention_layers = prunable_layers(model)
    masked, chosen = copy.deepcopy(model), [attention_layers[number] for number in layers]
    if not chosen:
        return masked

    def run(plan: Plan) -> Tensor:
        """Compute the first output of the copy for an example, such as its logits."""
        batch = example_inputs(masked)
        with ModelAdapter(masked) as adapter, torch.no_grad(), evaluating(masked):
            adapter.trace(batch)
            output: Tensor = adapter.forward(batch, plan)[0]
            return output

    uneven: list[float] = []  # how far weights deviate from those of equal attention, relative to these

    def measure(call: AttentionCall, weights: Tensor) -> None:
        visible, weights = weights > 0, weights.float()  # keys without weight are hidden
        uneven.append(float((weights * visible.sum(-1, keepdim=True) - visible.float()).abs().max()))

    found = []
    for layer in chosen:  # none, if a module serves several layers, or adds a position bias
        module = masked.get_submodule(layer.name.partition("#")[0])
        biased = hasattr(module, "has_relative_attention_bias") or hasattr(module, "relative_attention_bias")
        found.append([] if biased or "#" in layer.name else query_key_parameters(module))
    if all(found):
        keys = [layer.key for layer in chosen]
        expected = run(ConstantAttention(keys))
        for parameter, rows in itertools.chain(*found):
            with torch.no_grad():
                parameter[rows] = 0
            if rows == (slice(None),):
                parameter.requires_grad_(False)
        run(RecordPlan(chosen, measure))
        tolerance = 1e-4 if model.dtype in (torch.float32, torch.float64) else 1e-2
        # Both outputs come from the same operations, in any precision.
        if torch.allclose(run(ConstantAttention(keys)), expected, equal_nan=True) and max(uneven) < tolerance:
            return masked
    raise AttendropError(
        f"{type(model).__name__} cannot be pruned: its layers share weights, add to their scores (position biases) "
        "or make gates or values with their queries and keys, so no weights make their attention constant."
    )


class PrunedModel(nn.Module):
    """A model with constant attention in some layers, for inference. Made by :func:`prune`, loaded by ``load``.

    Inputs and outputs are those of the original model. Families in ``FAMILIES`` have a fast form: pruned layers keep
    one matrix, applied to one vector for each sequence (in local attention, for each token); padding is not computed,
    and if the head reads only the first token, the last layer computes no other. Others run as fast as before.

    Args:
        masked: A model with constant attention in the pruned layers, as :func:`mask_layers` makes it, which is not
            changed.

    Attributes:
        model: The transformers model inside, for pipelines and a trainer's evaluation, which take no other.
        layers: The pruned layers, from 0.
        num_layers: Number of layers of attention.
        fast: Whether it has the fast form.
    """

    def __init__(self, masked: Any) -> None:
        super().__init__()
        attention_layers = prunable_layers(masked)
        of_layers = (query_key_parameters(masked.get_submodule(x.name.partition("#")[0])) for x in attention_layers)
        self.num_layers = len(attention_layers)
        self.layers = tuple(
            number
            for number, found in enumerate(of_layers)
            if found and all(not parameter.detach()[rows].any() for parameter, rows in found)
        )
        self.fast = has_fast_form(masked)
        with in_full_precision(masked):  # also if a trainer has prepared it for autocast
            self.model: Any = copy.deepcopy(masked)
        vars(self.model).pop("_original_forward", None)
        if self.fast:
            family = family_of(masked)
            for number in self.layers:  # four matrices become one, W_V W_O, computed in float64
                layer = encoder_layers(self.model)[number]
                output: Any = layer.get_submodule(family.output)
                value: Any = layer.get_submodule(f"{family.attention}.{family.projections[-1]}")
                rows = slice(-output.in_features, None)  # of one that makes queries, keys and values, the last third
                weight = output.weight.detach().double()
                if output.bias is not None:
                    bias = weight @ value.bias[rows].detach().double() + output.bias.double()
                    output.bias = nn.Parameter(bias.to(output.bias.dtype))
                weight = weight @ value.weight[rows].detach().double()
                output.weight = nn.Parameter(weight.to(output.weight.dtype))
                _drop_attention(self.model, number)
            pack_layers(self.model)
        self.eval()

    @property
    def config(self) -> Any:
        """Configuration of the transformers model inside."""
        return self.model.config

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on its usual inputs.

        Raises:
            AttendropError: Attention weights or hidden states are requested, which the fast form does not compute.
        """
        for name in ("output_attentions", "output_hidden_states"):
            if self.fast and kwargs.get(name, getattr(self.config, name, False)):
                raise AttendropError(f"A pruned model does not return {name}; its to_stock() does.")
        return self.model(*args, **kwargs)

    def train(self, mode: bool = True) -> PrunedModel:
        """Raise AttendropError for ``mode=True``: a pruned model does not train."""
        if mode:
            raise AttendropError("A pruned model does not train; train its to_stock(), and prune that.")
        super().train(False)
        return self

    def to_stock(self) -> Any:
        """Return a transformers model that computes the same, with zero queries in the pruned layers.

        It can be trained (the queries are frozen), and saved for use without this library.

        Raises:
            AttendropError: Parts were replaced.
        """
        if not self.fast:
            return copy.deepcopy(self.model)
        found = self._own_weights("call to_stock()", "that returns")
        stock = type(self.model)(stock_config(self.model.config))
        _cast(stock, dict.fromkeys(stock.state_dict(), self.model.dtype))
        stock.to(self.model.device)
        family, layers = family_of(self.model), encoder_layers(self.model)
        path = next(name for name, module in self.model.named_modules() if module is layers)
        for number in self.layers:
            prefix = f"{path}.{number}."
            folded = found[f"{prefix}{family.output}.weight"]  # a product, of which an identity becomes the other part
            found[f"{prefix}{family.output}.weight"] = torch.eye(len(folded)).to(folded)
            for name in (f"{family.attention}.{projection}" for projection in family.projections):
                for kind, parameter in stock.get_submodule(prefix + name).named_parameters():
                    found[f"{prefix}{name}.{kind}"] = torch.zeros_like(parameter)
            # Values are made last, by a separate projection or by the last rows of one that makes all.
            found[f"{prefix}{name}.weight"][-len(folded) :] = folded
        _without_pooler(stock, stock.state_dict().keys() - found.keys())
        stock.load_state_dict(found)
        return mask_layers(stock, self.layers).eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Save to a folder that ``load`` reads, and transformers alone refuses: it lacks queries and keys.

        Models without a fast form are saved as ordinary models.

        Raises:
            AttendropError: The folder holds another model, or parts were replaced, which ``load`` would not know.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        others = (ADAPTER_CONFIG, BASELINE_CONFIG, "config.json" if self.fast else PRUNED_CONFIG)
        if any((folder / name).exists() for name in others):
            raise AttendropError(f"The folder '{folder}' holds another model; name an empty or a new one.")
        if not self.fast:
            self.model.save_pretrained(folder)
            return
        found = self._own_weights("save it", "load() returns")
        config = {
            "architecture": type(self.model).__name__,
            "pruned_layers": list(self.layers),
            "stock": json.loads(stock_config(self.model.config).to_json_string(use_diff=True)),
        }
        write_json(folder / PRUNED_CONFIG, config)
        tensors: dict[int, tuple[str, Tensor]] = {}  # by memory: safetensors saves each tensor under one name
        for name, value in found.items():
            tensors.setdefault(value.data_ptr() or id(value), (name, value.contiguous()))
        save_file(dict(tensors.values()), folder / WEIGHTS, metadata={"format": "pt"})

    def _own_weights(self, action: str, then: str) -> dict[str, Tensor]:
        """Return the state of the model inside; raise AttendropError if parts were replaced, with what to do."""
        found: dict[str, Tensor] = self.model.state_dict()
        with torch.device("meta"):
            known = type(self.model)(stock_config(self.model.config)).state_dict()
        for name, value in found.items():
            if name not in known or known[name].shape != value.shape:
                raise AttendropError(
                    f"Parts of the pruned model were replaced ({name}), as by quantization or an adapter, and its "
                    f"configuration does not describe them; {action} before, and replace them again in what {then}."
                )
        return found


def load_model(folder: str | Path) -> Any:
    """Load a model as :func:`attendrop.load` does, without a check of its files, and without ``predict``.

    Errors are those of the libraries that read damaged files.
    """
    folder = Path(folder)
    if is_adapter(folder):
        return load_adapter(folder)
    if not is_pruned(folder):
        saved = read_json(folder / "config.json")
        own = None  # the configuration, if transformers is not to read the file
        if saved.get("model_type") == MeanPoolingConfig.model_type:
            own = read_config(str(folder))
            saved = own.to_dict()
        cls = model_class(folder, (saved.get("architectures") or [None])[0], saved)
        model, info = cls.from_pretrained(folder, config=own, use_safetensors=True, output_loading_info=True)
        if missing := _without_pooler(model, info["missing_keys"]):
            raise AttendropError(f"The weights in '{folder}' are incomplete: {missing[0]}.")
        return model.eval()
    config = read_json(folder / PRUNED_CONFIG)
    cls = model_class(folder, config.get("architecture"), config["stock"])
    model = cls(cls.config_class.from_dict(config["stock"]))
    pruned = PrunedModel.__new__(PrunedModel)  # without folding the matrices, which are folded already
    nn.Module.__init__(pruned)
    pruned.layers, pruned.num_layers, pruned.fast = tuple(config["pruned_layers"]), len(encoder_layers(model)), True
    for number in pruned.layers:
        _drop_attention(model, number)
    try:
        weights = load_file(folder / WEIGHTS)
    except Exception as error:  # safetensors raises its own exception class
        raise AttendropError(f"The weights in '{folder}' cannot be read ({error}).") from None
    _without_pooler(model, model.state_dict().keys() - weights.keys())
    _cast(model, {name: value.dtype for name, value in weights.items()})
    here = model.state_dict()
    wrong = [name for name, value in weights.items() if name in here and here[name].shape != value.shape]
    if not wrong:
        found = model.load_state_dict(weights, strict=False)
        loaded = {here[name].data_ptr() for name in weights if name in here}
        wrong = [name for name in found.missing_keys if here[name].data_ptr() not in loaded]
        wrong += found.unexpected_keys
    if wrong:
        raise AttendropError(f"The weights in '{folder}' do not match the model: {wrong[0]}.")
    pack_layers(model)
    pruned.model = model
    return pruned.eval()


def _drop_attention(model: Any, number: int) -> None:
    """Remove the projections to queries, keys and values from a layer."""
    family = family_of(model)
    attention = encoder_layers(model)[number].get_submodule(family.attention)
    for name in family.projections:
        delattr(attention, name)  # load_state_dict would overlook the weights of a module that is None


def is_pruned(folder: str | Path) -> bool:
    """Return whether a folder holds a pruned model that transformers alone does not load."""
    return (Path(folder) / PRUNED_CONFIG).is_file()


def model_class(folder: Path, name: Any, config: Mapping[str, Any]) -> Any:
    """Return the model class of transformers, or of this library, that a file in ``folder`` names."""
    found = saved_model_class(str(name), config.get("model_type", ""))
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise AttendropError(f"The model in '{folder}' is of an unknown class, {name!r}.")
    return found


def stock_config(config: Any) -> Any:
    """Copy the configuration of a pruned model, as the model of transformers has it."""
    stock = copy.deepcopy(config)
    use_implementation(stock, None)
    return stock


def _without_pooler(model: Any, missing: Collection[str]) -> list[str]:
    """Remove a base model's pooler if all of its weights are missing, as one without it is saved; return the others."""
    own = {name for name in model.state_dict() if name.startswith("pooler.")}
    if own and own.issubset(missing):
        model.pooler = None
        return sorted({*missing} - own)
    return sorted(missing)


def _cast(model: torch.nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
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
    setattr(config, _BASE_SHA256, model_sha256(base, (".safetensors",)))
    write_text(folder / MODEL_CONFIG, config.to_json_string())
    if own.can_generate():  # as it was set for the run
        own.generation_config.save_pretrained(folder)


def adapted_class_and_config(folder: Path) -> tuple[Any, PreTrainedConfig]:
    """Return the class of the model that an adapter is on, and its configuration, with the head."""
    if not (folder / MODEL_CONFIG).is_file():
        raise AttendropError(
            f"The adapter in '{folder}' was not saved by attendrop: it has no {MODEL_CONFIG}, which tells its classes. "
            "Load it with peft, and save what merge_and_unload() returns."
        )
    saved = read_json(folder / MODEL_CONFIG)
    cls = model_class(folder, (saved.get("architectures") or [None])[0], saved)
    return cls, cls.config_class.from_dict(saved)


def load_adapter(folder: Path) -> Any:
    """Load an adapter of a run, merged into its model, in evaluation mode, on the CPU."""
    cls, config = adapted_class_and_config(folder)
    settings = read_json(folder / ADAPTER_CONFIG)
    if not (folder / _ADAPTER_WEIGHTS).is_file():
        raise AttendropError(f"The folder '{folder}' holds no weights of an adapter: it has no {_ADAPTER_WEIGHTS}.")
    name = settings.get("base_model_name_or_path") or ""
    try:
        place = resolve_model(name)
    except AttendropError as error:
        raise AttendropError(
            f"The adapter in '{folder}' is on the model {name!r}, which cannot be found ({error}) Put it back, or "
            f"change base_model_name_or_path in {ADAPTER_CONFIG}."
        ) from None
    if (written := vars(config).pop(_BASE_SHA256, "")) and written != model_sha256(place, (".safetensors",)):
        raise AttendropError(
            f"The weights of the model {name!r} are not those that the adapter in '{folder}' was trained on; put them "
            "back, or train it again."
        )
    with without_report():  # which would say that the head is random, though the adapter has it
        how: dict[str, Any] = {"use_safetensors": True, "ignore_mismatched_sizes": True, "output_loading_info": True}
        base, found = cls.from_pretrained(place, config=config, dtype="float32", **how)
    if (folder / "generation_config.json").is_file():
        base.generation_config = GenerationConfig.from_pretrained(folder)
    missing = sorted({*found["missing_keys"], *(key[0] for key in found["mismatched_keys"])})
    saved = tuple(f"{name}." for name in settings.get("modules_to_save") or ())
    if lost := [key for key in missing if not any(name in key for name in saved)]:
        raise AttendropError(f"Neither the adapter in '{folder}' nor its model has the weights {lost[0]}.")
    with quiet_peft() as peft:
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
def quiet_peft() -> Iterator[Any]:
    """Import PEFT, and ignore warnings that it causes itself; raises AttendropError if it is not installed."""
    try:
        import peft
    except ModuleNotFoundError:
        raise AttendropError("Adapters need peft; run `pip install 'attendrop[peft]'`.") from None
    with warnings.catch_warnings():
        for message in ("fan_in_fan_out", "`is_gradient_checkpointing` is deprecated"):
            warnings.filterwarnings("ignore", message=message)
        yield peft
