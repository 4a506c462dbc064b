"""Export of models that run without this library, as ONNX and by ``torch.export``, for any batch and length."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.errors import AttendropError, check_choice
from attendrop.pruning.packed import GatheredLayout, PackedLayer, PaddedLayout, has_fast_form
from attendrop.pruning.pruned_model import PrunedModel
from attendrop.pruning.selection import Array
from attendrop.support.files import disk_errors, write_bytes
from attendrop.support.models import logits_of, position_limit

QUANTIZATIONS = ("int8",)
TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# Largest difference of an ONNX file's logits from the model's, relative to the largest logit (at least 1), in single
# and in half precision; sums are computed in a different order.
TOLERANCE, TOLERANCE_HALF = 1e-4, 2e-2


def onnx_model(path: Path) -> Callable[[Mapping[str, Any]], Array]:
    """Open a file in ONNX Runtime, on the CPU, with as many threads as PyTorch has, as a function to logits.

    Its inputs are named tensors or arrays; those that the file does not have are ignored.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    types = {each.name: np.float32 if "float" in each.type else np.int64 for each in session.get_inputs()}

    def run(inputs: Mapping[str, Any]) -> Array:
        feed = {name: np.asarray(inputs[name], dtype=dtype) for name, dtype in types.items()}
        return np.asarray(session.run(["logits"], feed)[0])

    return run


def export_onnx(
    model: Any, path: str | Path, *, quantize: str | None = None, metadata: Mapping[str, str] | None = None
) -> float:
    """Write a model as ONNX, for onnxruntime and others, and check it against the model.

    Inputs are those of the model's tokenizer, int64 ``(batch, length)``, for multiple choice ``(batch, choices,
    length)``: ``input_ids``, ``attention_mask`` and, for models with more than one type of token, ``token_type_ids``.
    The output is ``logits``, for question answering those of start and end, ``(batch, length, 2)``; logits of padding
    are undefined. If a model has a fast form, pruned or not, the file computes padding in attention only, and logits in
    int8 do not depend on it. DeBERTa-v3 and ModernBERT need padding on the right. The metadata contain ``id2label``
    (JSON) and ``problem_type``.

    Args:
        model: A :class:`PrunedModel`, or a model of transformers for texts.
        path: The file, below 2 GB including the weights. It is replaced when the new one is complete.
        quantize: ``"int8"``: eight-bit weights of matrix products and embeddings, with one scale for each output, a
            quarter of the size; measure how much score is lost. The other factor is quantized at run time, by the range
            of the whole batch.
        metadata: Additional metadata of the file.

    Returns:
        The largest difference of a logit of the file from that of the model, on example inputs. Before quantization, it
        is at most 1e-4 (in half precision 0.02) times the largest logit, if that is above 1.

    Raises:
        AttendropError: onnx or onnxruntime is not installed, the model cannot be exported, or the logits of the
            file differ from the model's.
    """
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        raise AttendropError(f"Export to ONNX needs {', '.join(missing)}; run `pip install 'attendrop[export]'`.")
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZATIONS)
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    wrapped, inputs, sizes = _prepared(model, GatheredLayout)
    parent = Path(path).absolute().parent
    with disk_errors(Path(path)):
        parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".onnx-") as folder:
        partial = Path(folder) / "model.onnx"
        named: dict[str, Any] = {"input_names": list(wrapped.names), "output_names": ["logits"]}
        with _exporting(model), disk_errors(Path(path)):
            named |= {"dynamic_shapes": (sizes,), "dynamo": True, "external_data": False, "verbose": False}
            torch.onnx.export(wrapped, inputs, partial, **named)
        with _exporting(model):  # onnxruntime opens no file in bfloat16
            run = onnx_model(partial)
        difference = _difference(run, model, wrapped.names)
        if quantize is not None:
            traced = onnx.load(partial)
            del traced.graph.value_info[:]  # the exporter records shapes before it transposes the weights
            with _exporting(model):
                quantize_dynamic(traced, partial, weight_type=QuantType.QInt8, per_channel=True)
            difference = _difference(onnx_model(partial), model, wrapped.names, checked=False)
        config, found = wrapped.model.config, onnx.load(partial)
        for part in (*found.graph.node, *found.graph.value_info, *(node for f in found.functions for node in f.node)):
            del part.metadata_props[:]  # stack traces, which have local paths
        own = {"id2label": json.dumps(config.id2label), "problem_type": config.problem_type or ""}
        own |= {"quantization": quantize or "none", **(metadata or {})}
        onnx.helper.set_model_props(found, own)
        onnx.save(found, partial)
        os.replace(partial, path)
    return difference


def export_torch(model: Any, path: str | Path) -> float:
    """Write a model as a ``torch.export`` program (``.pt2``), and check it against the model.

    See :func:`export_onnx` for inputs, output, what is returned, and errors.
    """
    wrapped, inputs, sizes = _prepared(model, PaddedLayout)
    content = io.BytesIO()  # PyTorch's file writer aborts the process if the disk is full
    with _exporting(model), torch.no_grad():  # parts that switch gradients off themselves, as rotary embeddings, fail
        torch.export.save(torch.export.export(wrapped, inputs, dynamic_shapes=(sizes,)), content)
        content.seek(0)
        program = torch.export.load(content).module()

    def run(given: Mapping[str, Any]) -> Array:
        return np.asarray(program(*(given[name] for name in wrapped.names)).detach().float())

    difference = _difference(run, model, wrapped.names)
    write_bytes(Path(path), content.getvalue())
    return difference


class _Logits(nn.Module):
    """Model with tensors as inputs and logits as output."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        return logits_of(self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True))


def _prepared(model: Any, layout: type[PaddedLayout]) -> tuple[_Logits, tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """Prepare the model with its tokens in a layout, example inputs, and their dynamic sizes by dimension."""
    given = model.model if isinstance(model, PrunedModel) else model
    packed = any(isinstance(module, PackedLayer) for module in given.modules())
    if isinstance(given, PreTrainedModel) and not packed and has_fast_form(given):
        given = PrunedModel(given).model
    if given.main_input_name != "input_ids":
        raise AttendropError(
            f"{type(given).__name__} reads {given.main_input_name}; only models of texts are exported."
        )
    inner = copy.deepcopy(given).eval().cpu()
    if hasattr(inner.config, "relative_attention_num_buckets"):  # as T5, with which the fused kernel is not exported
        inner.set_attn_implementation("eager")
    for module in inner.modules():
        if isinstance(module, PackedLayer):
            module.exported = layout
    inputs = _example_batch(inner, batch=3, choices=2, length=7)  # exporters treat a size of 1 as a constant
    names = TEXT_INPUTS if getattr(inner.config, "type_vocab_size", 0) > 1 else TEXT_INPUTS[:2]
    free = {0: torch.export.Dim("batch")}
    if inputs["input_ids"].ndim == 3:
        free[1] = torch.export.Dim("choices")
    free[len(free)] = torch.export.Dim("length", max=_longest(inner))
    return _Logits(inner, names), tuple(inputs[name] for name in names), tuple(free for _ in names)


def _longest(model: Any) -> int | None:
    """Return the maximum text length of a model, from the configuration if positions are unlimited; None: any."""
    limit = position_limit(model)
    limit = getattr(model.config, "max_position_embeddings", None) if limit is None else limit
    return None if limit == -1 else limit  # what XLNet says of any length


def _example_batch(model: Any, *, batch: int, choices: int, length: int) -> dict[str, Tensor]:
    """Make a batch of texts of different lengths, of which the model reads the longest, and one has no padding."""
    length = min(length, _longest(model) or length)
    several = type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values()
    shape = (batch, choices, length) if several else (batch, length)
    tokens = torch.randint(model.config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None] % length).long()
    mask = mask.view(batch, *(1 for _ in shape[2:]), length).expand(shape).contiguous()
    if model.config.is_encoder_decoder:  # whose classifiers read the one token that ends each text
        end = model.config.eos_token_id
        tokens[tokens == end] = (end + 1) % model.config.vocab_size
        tokens.scatter_(-1, mask.sum(-1, keepdim=True) - 1, end)
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens)}


def _difference(
    run: Callable[[Mapping[str, Any]], Array], model: Any, names: tuple[str, ...], *, checked: bool = True
) -> float:
    """Return the largest difference of a logit of a file, which ``run`` computes, from the model's, for several sizes.

    Raises AttendropError if a size fails, or it is ``checked`` and more than a tolerance times the largest logit, or 1.
    """
    tolerance = TOLERANCE if next(model.parameters()).dtype in (torch.float32, torch.float64) else TOLERANCE_HALF
    tolerance = tolerance if checked else math.inf
    reference, found = copy.deepcopy(model).eval().cpu(), []
    inner = reference.model if isinstance(reference, PrunedModel) else reference
    for batch, length in ((1, 5), (2, 16), (5, 11)):
        inputs = _example_batch(inner, batch=batch, choices=3, length=length)
        with torch.no_grad():
            expected = logits_of(reference(**{name: inputs[name] for name in names})).float()
        valid = inputs["attention_mask"].bool() if expected.ndim == 3 else ...  # logits of each token, or of the text
        with _exporting(model):
            logits = torch.from_numpy(run(inputs)).float()
        difference = logits[valid] - expected[valid]
        most, largest = float(difference.abs().max()), float(expected.abs().max())
        if not most <= tolerance * max(1.0, largest):
            raise AttendropError(
                f"{type(model).__name__} was not exported: on example inputs the file's logits differ from the model's "
                f"by up to {most:.2g}, more than {tolerance} times the largest, {largest:.2g}."
            )
        found.append(most)
    return max(found)


@contextmanager
def _exporting(model: Any) -> Iterator[None]:
    """Silence the warnings of exporters and quantizers, and convert their errors, which are of many types."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except OSError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # exporters wrap it in their instructions
            cause = cause.__cause__
        told = (str(cause) or repr(cause)).splitlines()[0]
        raise AttendropError(f"{type(model).__name__} cannot be exported ({told}).") from error
    finally:
        logging.disable(level)
