"""Models with constant attention in some layers: made, saved and loaded."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from attendrop.attention.isolation import in_full_precision
from attendrop.errors import AttendropError
from attendrop.files.model_files import PRUNED_CONFIG, first_line
from attendrop.files.output_files import write_json
from attendrop.pruning.constant_attention import (
    HeldAttention,
    held_attention,
    mask_layers,
    masked_layers,
    prunable_layers,
)
from attendrop.pruning.families import encoder_layers, encoder_layers_path, family_of, has_fast_form
from attendrop.pruning.packed_layer import pack_layers
from attendrop.pruning.serialization import (
    WEIGHTS,
    cast,
    is_adapter,
    is_pruned,
    load_adapter,
    load_weights,
    model_class,
    read_json,
    stock_config,
    without_pooler,
    without_shared,
)
from attendrop.tasks.heads.model_classes import read_config
from attendrop.tasks.heads.modeling_mean_pooling import MeanPoolingConfig

logger = logging.getLogger(__name__)


class PrunedModel(nn.Module):
    """A model with constant attention in some layers, for inference. Made by :func:`prune`, loaded by ``load``.

    Inputs and outputs are those of the original model. Families in ``FAMILIES`` have a fast form: pruned layers keep
    one matrix, applied to one vector for each sequence (in local attention, for each token); padding is not computed,
    and if the head reads only the first token, the last layer computes no other. Other families run in the plain form,
    as fast as before.

    Args:
        masked: A model with constant attention in the pruned layers, as :func:`mask_layers` makes it, which is not
            changed.

    Attributes:
        model: The transformers model inside, for pipelines and a trainer's evaluation, which take no other.
        layers: The pruned layers, from 0.
        num_layers: Number of layers of attention.
        fast: Whether it has the fast form.
        held: Whether this library keeps the attention constant, because zero queries would not, or would change more:
            such a model has no stock form, and cannot be exported.
    """

    def __init__(self, masked: Any) -> None:
        super().__init__()
        self.layers = tuple(masked_layers(masked))
        self.num_layers = len(prunable_layers(masked))
        self.held = held_attention(masked) is not None
        self.fast = has_fast_form(masked) and not self.held
        with in_full_precision(masked):  # also if a trainer has prepared it for autocast
            self.model: Any = copy.deepcopy(masked)
        vars(self.model).pop("_original_forward", None)
        if self.held:
            HeldAttention(self.model, self.layers)
        if self.fast:
            _fold(self.model, self.layers)
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
            raise AttendropError(f"A pruned model does not train; {self.train_instead}.")
        super().train(False)
        return self

    @property
    def train_instead(self) -> str:
        """Alternative to training it, as the end of a sentence."""
        return "train the model that it came from" if self.held else "train its to_stock(), and prune that"

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self.held:  # copies of the model inside have its own attention
            HeldAttention(self.model, self.layers)

    def to_stock(self) -> Any:
        """Return a transformers model that computes the same, with zero queries in the pruned layers.

        It can be trained (the queries are frozen), and saved for use without this library. Where two matrices were
        folded, one becomes their product and the other an identity.

        Raises:
            AttendropError: No weights make the attention constant, or parts were replaced.
        """
        if self.held:
            raise AttendropError(
                f"The attention of {type(self.model).__name__} is constant only under this library, since zero queries "
                "would not make it so, or would change more: layers share weights, add to their scores, or project to "
                "gates or values with their queries and keys. It has no stock form."
            )
        if not self.fast:
            return copy.deepcopy(self.model)
        found = self._own_weights("call to_stock()", "that returns")
        stock = type(self.model)(stock_config(self.model.config))
        cast(stock, dict.fromkeys(stock.state_dict(), self.model.dtype))
        stock.to(self.model.device)
        family, path = family_of(self.model), encoder_layers_path(self.model)
        for number in self.layers:
            prefix = f"{path}.{number}."
            folded = found[f"{prefix}{family.output}.weight"]
            found[f"{prefix}{family.output}.weight"] = torch.eye(len(folded)).to(folded)
            for name in family.projection_paths:
                for kind, parameter in stock.get_submodule(prefix + name).named_parameters():
                    found[f"{prefix}{name}.{kind}"] = torch.zeros_like(parameter)
            # Values are made last, by a separate projection or by the last rows of one that makes all.
            found[f"{prefix}{name}.weight"][-len(folded) :] = folded
        without_pooler(stock, stock.state_dict().keys() - found.keys())
        stock.load_state_dict(found)
        return mask_layers(stock, self.layers).eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Save to a folder that ``load`` reads. The queries and keys of pruned layers are not in it.

        transformers alone refuses to load the folder of a fast model, because it lacks weights, and of one whose
        attention is held constant. Other models are saved as ordinary models.

        Raises:
            AttendropError: The folder holds another model, or parts were replaced, which ``load`` would not know.
        """
        folder, stock = Path(folder), not self.fast and not self.held
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / (PRUNED_CONFIG if stock else "config.json")).exists():
            raise AttendropError(f"The folder '{folder}' holds another model; name an empty or a new one.")
        if stock:
            self.model.save_pretrained(folder)
            return
        found = self._own_weights("save it", "load() returns")
        config = {
            "architecture": type(self.model).__name__,
            "form": "fast" if self.fast else "held",
            "pruned_layers": list(self.layers),
            "stock": json.loads(stock_config(self.model.config).to_json_string(use_diff=True)),
        }
        write_json(folder / PRUNED_CONFIG, config)
        tensors = {name: value.contiguous() for name, value in found.items()}
        save_file(without_shared(tensors), folder / WEIGHTS, metadata={"format": "pt"})

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
    """Load a model as :func:`attendrop.load` does, without a check of its files, and without ``predict``."""
    folder = Path(folder)
    if is_adapter(folder):
        return load_adapter(folder)
    if not is_pruned(folder):
        saved = read_json(folder / "config.json")
        own = None  # the configuration, if transformers is not to read the file
        try:
            if saved.get("model_type") == MeanPoolingConfig.model_type:
                own = read_config(str(folder))
                saved = own.to_dict()
            cls = model_class(folder, (saved.get("architectures") or [None])[0], saved)
            model, info = cls.from_pretrained(folder, config=own, use_safetensors=True, output_loading_info=True)
        except AttendropError:
            raise
        except Exception as error:  # safetensors raises its own exception class
            raise AttendropError(f"The model in '{folder}' cannot be loaded ({first_line(error)}).") from error
        if missing := without_pooler(model, info["missing_keys"]):
            raise AttendropError(f"The weights in '{folder}' are incomplete: {missing[0]}.")
        return model.eval()
    config = read_json(folder / PRUNED_CONFIG)
    cls = model_class(folder, config.get("architecture"), config["stock"])
    model = cls(cls.config_class.from_dict(config["stock"]))
    if config.get("form") == "held":
        load_weights(model, folder)
        HeldAttention(model, config["pruned_layers"])
        return PrunedModel(model)
    pruned = PrunedModel.__new__(PrunedModel)
    nn.Module.__init__(pruned)
    pruned.layers, pruned.num_layers = tuple(config["pruned_layers"]), len(encoder_layers(model))
    pruned.fast, pruned.held = True, False
    for number in pruned.layers:
        _drop_attention(model, number)
    load_weights(model, folder)
    pack_layers(model)
    pruned.model = model
    return pruned.eval()


def warn_if_slow(light: PrunedModel) -> None:
    """Log a warning if a pruned model is not faster."""
    if not light.fast:
        logger.warning(
            "%s has no fast form here: its pruned layers attend equally to all tokens, and take as long as before.",
            type(light.model).__name__,
        )


def unpadded(model: Any) -> PrunedModel:
    """Convert a model to the form that computes no padding, without pruning a layer."""
    if not has_fast_form(model):
        raise AttendropError(f"{type(model).__name__} has no form without padding here.")
    return PrunedModel(model)


def _fold(model: Any, layers: Collection[int]) -> None:
    """Replace four matrices of each pruned layer by one: ``W_V W_O``, computed in float64."""
    family = family_of(model)
    for number in layers:
        layer = encoder_layers(model)[number]
        output: Any = layer.get_submodule(family.output)
        value: Any = layer.get_submodule(family.projection_paths[-1])
        rows = slice(-output.in_features, None)  # of one that makes queries, keys and values, the last third
        weight = output.weight.detach().double()
        bias = None if output.bias is None else weight @ value.bias[rows].detach().double() + output.bias.double()
        weight = weight @ value.weight[rows].detach().double()
        _drop_attention(model, number)
        output.weight = nn.Parameter(weight.to(output.weight.dtype))
        if bias is not None:
            output.bias = nn.Parameter(bias.to(output.bias.dtype))


def _drop_attention(model: Any, number: int) -> None:
    """Remove the projections to queries, keys and values from a layer."""
    family = family_of(model)
    attention = encoder_layers(model)[number].get_submodule(family.attention)
    for name in family.projections:
        delattr(attention, name)  # load_state_dict would overlook the weights of a module that is None
