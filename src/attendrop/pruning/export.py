"""Models for other programs: ONNX and ``torch.export``, without this library, for any batch and length."""

from __future__ import annotations

import copy
import importlib.util
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.errors import AttendropError
from attendrop.pruning.model import PrunedModel
from attendrop.pruning.packed import PackedEncoder

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class _Logits(nn.Module):
    """From tensors to logits."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True).logits
        return logits


def export_onnx(model: Any, path: str | Path, *, token_types: bool | None = None) -> None:
    """Write a model as ONNX, for onnxruntime and others.

    Inputs are what the model's tokenizer gives, int64 ``(batch, length)``, for multiple choice ``(batch, choices,
    length)``: ``input_ids``, ``attention_mask`` and, for models that tell two texts apart, ``token_type_ids``. Output:
    ``logits``; where they are one for each token, those of padding have no meaning. Padding is computed (packed tensors
    have sizes that depend on values); constant attention and the last layer are as fast as in the model.

    Args:
        model: A :class:`PrunedModel`, or a text model of transformers.
        path: The file, below 2 GB: weights are in it.
        token_types: Whether it takes ``token_type_ids``. Default: if the model has more than one type.

    Raises:
        AttendropError: onnx is not installed, or the model cannot be exported.
    """
    missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if missing:
        raise AttendropError(f"Export to ONNX needs {' and '.join(missing)}; run `pip install attendrop[export]`.")
    wrapped, inputs, shapes = _prepared(model, token_types)
    try:
        with _quiet():
            torch.onnx.export(
                wrapped,
                inputs,
                path,
                input_names=list(wrapped.names),
                output_names=["logits"],
                dynamic_shapes=(shapes,),
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    except Exception as error:  # torch's exporter raises many kinds
        raise _failure(model, error) from error


def export_torch(model: Any, path: str | Path, *, token_types: bool | None = None) -> None:
    """Write a model as a ``torch.export`` program (``.pt2``): see :func:`export_onnx` for inputs and output."""
    wrapped, inputs, shapes = _prepared(model, token_types)
    try:
        with _quiet():
            program = torch.export.export(wrapped, inputs, dynamic_shapes=(shapes,))
            torch.export.save(program, path)
    except Exception as error:  # as above
        raise _failure(model, error) from error


def _prepared(model: Any, token_types: bool | None) -> tuple[_Logits, tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """The model in its form with padding, example inputs, and which of their sizes are free."""
    inner = copy.deepcopy(model.model if isinstance(model, PrunedModel) else model).eval().cpu()
    for module in inner.modules():
        if isinstance(module, PackedEncoder):
            module.padded = True
    if token_types is None:
        token_types = getattr(inner.config, "type_vocab_size", 0) > 1
    names = INPUTS if token_types else INPUTS[:2]
    # No size may be 1, which exporters take for a constant.
    sizes = {"batch": 3, "choices": 2, "length": 7}
    if type(inner).__name__ not in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values():
        del sizes["choices"]
    tokens = torch.arange(math.prod(sizes.values())).view(*sizes.values()) % inner.config.vocab_size
    mask = torch.ones_like(tokens)
    mask[1, ..., 4:] = 0
    inputs = (tokens, mask, torch.zeros_like(tokens))[: len(names)]
    free = {
        number: torch.export.Dim(name, max=_longest(inner) if name == "length" else None)
        for number, name in enumerate(sizes)
    }
    return _Logits(inner, names), inputs, tuple(free for _ in names)


def _longest(model: Any) -> int:
    config = model.config
    # RoBERTa's positions begin after the padding token's.
    taken = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return int(config.max_position_embeddings) - taken


def _failure(model: Any, error: Exception) -> AttendropError:
    return AttendropError(f"{type(model).__name__} cannot be exported ({(str(error) or repr(error)).splitlines()[0]}).")


class _quiet(warnings.catch_warnings):
    """Without the exporters' remarks."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        self._levels = {name: logging.getLogger(name).level for name in ("torch.onnx", "onnxscript", "torch.export")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        return found

    def __exit__(self, *raised: Any) -> None:
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        super().__exit__(*raised)
