"""Export of models that run without this library, as ONNX and by ``torch.export``, for any batch and length."""

from __future__ import annotations

import copy
import importlib.util
import io
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES

from attendrop.argument_checks import check_choice
from attendrop.attention.model_outputs import logits_of
from attendrop.errors import AttendropError
from attendrop.files.output_files import disk_errors, write_bytes
from attendrop.model_support.models import position_limit
from attendrop.pruning.constant_attention import held_attention
from attendrop.pruning.families import has_fast_form
from attendrop.pruning.packed_layer import PackedLayer
from attendrop.pruning.pruned_model import PrunedModel, unpadded
from attendrop.pruning.token_layouts import GatheredLayout, PaddedLayout

Array = np.ndarray[Any, np.dtype[Any]]


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


def describe(path: Path, config: Any, metadata: Mapping[str, str]) -> None:
    """Write label names and other metadata into the file, and remove stack traces, which have local paths."""
    import onnx

    model = onnx.load(path)
    for traced in (*model.graph.node, *model.graph.value_info, *(node for f in model.functions for node in f.node)):
        del traced.metadata_props[:]
    own = {"id2label": json.dumps(config.id2label), "problem_type": config.problem_type or ""}
    onnx.helper.set_model_props(model, {**own, **metadata})
    onnx.save(model, path)


def quantize_int8(path: Path) -> None:
    """Replace the weights of matrix products and embeddings by eight-bit integers, one scale for each output.

    The other factor is quantized at run time, by the range of the whole batch.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(path)
    del model.graph.value_info[:]  # the exporter records shapes before it transposes the weights
    quantize_dynamic(model, path, weight_type=QuantType.QInt8, per_channel=True)


TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
PIXELS = "pixel_values"


def _inputs_of(model: Any) -> tuple[tuple[str, ...], dict[int, Any]]:
    """Return the names of a model's inputs, and their dimensions of free size by number; an image's are the model's."""
    if model.main_input_name == PIXELS:
        return (PIXELS,), {0: torch.export.Dim("batch")}
    sizes = ("batch", "choices", "length") if _is_choice(model) else ("batch", "length")
    free = {
        number: torch.export.Dim(name, max=_longest(model) if name == "length" else None)
        for number, name in enumerate(sizes)
    }
    return TEXT_INPUTS if getattr(model.config, "type_vocab_size", 0) > 1 else TEXT_INPUTS[:2], free


def _example_batch(model: Any, *, batch: int, choices: int, length: int) -> dict[str, Tensor]:
    """Make a batch of texts of different lengths, the first without padding, or of images of random pixels.

    The length is lowered to the longest that the model reads.
    """
    generator = torch.Generator().manual_seed(0)
    if model.main_input_name == PIXELS:
        config = getattr(model.config, "vision_config", model.config)
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {PIXELS: torch.randn(batch, config.num_channels, height, width, generator=generator)}
    length = min(length, _longest(model) or length)
    shape = (batch, choices, length) if _is_choice(model) else (batch, length)
    tokens = torch.randint(model.config.vocab_size, shape, generator=generator)
    mask = (torch.arange(length) < length - torch.arange(batch)[:, None] % length).long()
    mask = mask.view(batch, *(1 for _ in shape[2:]), length).expand(shape).contiguous()
    if model.config.is_encoder_decoder:  # whose classifiers read the one token that ends each text
        end = model.config.eos_token_id
        tokens[tokens == end] = (end + 1) % model.config.vocab_size
        tokens.scatter_(-1, mask.sum(-1, keepdim=True) - 1, end)
    return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": torch.zeros_like(tokens)}


def _is_choice(model: Any) -> bool:
    return type(model).__name__ in MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES.values()


def _inner(model: Any) -> Any:
    return model.model if isinstance(model, PrunedModel) else model


def _longest(model: Any) -> int | None:
    """Return the maximum text length of a model, from the configuration if positions are unlimited; None: any."""
    limit = position_limit(model)
    limit = getattr(model.config, "max_position_embeddings", None) if limit is None else limit
    return None if limit == -1 else limit  # what XLNet says of any length


QUANTIZATIONS = ("int8",)
# Largest difference of an ONNX file's logits from the model's, relative to the largest logit (at least 1), in single
# and in half precision; sums are computed in a different order.
TOLERANCE, TOLERANCE_HALF = 1e-4, 2e-2


class _Logits(nn.Module):
    """Model with tensors as inputs and logits as output."""

    def __init__(self, model: Any, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        return logits_of(self.model(**dict(zip(self.names, tensors, strict=True)), return_dict=True))


def export_onnx(
    model: Any,
    path: str | Path,
    *,
    quantize: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> float:
    """Write a model as ONNX, for onnxruntime and others, and check it against the model.

    Inputs are those of the model's tokenizer, int64 ``(batch, length)``, for multiple choice ``(batch, choices,
    length)``: ``input_ids``, ``attention_mask`` and, for models with more than one type of token, ``token_type_ids``.
    An image model has the one input ``pixel_values``, float32 ``(batch, channels, height, width)``, for any batch size.
    The output is ``logits``, for question answering those of start and end, ``(batch, length, 2)``; logits of padding
    are undefined. If a model has a fast form, pruned or not, the file computes padding in attention only, and logits in
    int8 do not depend on it. DeBERTa-v3 and ModernBERT need padding on the right.

    The file's metadata contain ``id2label`` (JSON) and ``problem_type``.

    Args:
        model: A :class:`PrunedModel`, or a model of transformers for texts or images.
        path: The file, below 2 GB including the weights. It is replaced when the new one is complete.
        quantize: ``"int8"``: eight-bit weights, a quarter of the size; measure how much score is lost.
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
    wrapped, inputs, shapes = _prepared(model, GatheredLayout)
    with tempfile.TemporaryDirectory(dir=Path(path).absolute().parent, prefix=".onnx-") as folder, _quiet():
        partial = Path(folder) / "model.onnx"
        try:
            with disk_errors(Path(path)):
                torch.onnx.export(
                    wrapped,
                    inputs,
                    partial,
                    input_names=list(wrapped.names),
                    output_names=["logits"],
                    dynamic_shapes=(shapes,),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
        except OSError:
            raise
        except Exception as error:  # torch's exporter raises many types
            raise _failure(model, error) from error
        difference = _checked(partial, model, wrapped.names)
        if quantize is not None:
            quantize_int8(partial)
            difference = max(each for each, _ in _differences(partial, model, wrapped.names))
        describe(partial, wrapped.model.config, {"quantization": quantize or "none", **(metadata or {})})
        os.replace(partial, path)
    return difference


def _checked(path: Path, model: Any, names: Sequence[str]) -> float:
    """Return the largest difference of a logit; raise AttendropError if it is beyond the tolerance."""
    found = _differences(path, model, names)
    tolerance = TOLERANCE if next(model.parameters()).dtype in (torch.float32, torch.float64) else TOLERANCE_HALF
    for difference, largest in found:
        if not difference <= tolerance * max(1.0, largest):
            raise AttendropError(
                f"{type(model).__name__} was not exported: on example inputs the file's logits differ from the model's "
                f"by up to {difference:.2g}, more than {tolerance} times the largest, {largest:.2g}."
            )
    return max(difference for difference, _ in found)


def _differences(path: Path, model: Any, names: Sequence[str]) -> list[tuple[float, float]]:
    """Return, for batches of several sizes, the largest difference of a logit and the largest logit."""
    reference, found = copy.deepcopy(model).eval().cpu(), []
    try:
        run = onnx_model(path)
    except Exception as error:  # onnxruntime's exceptions have no common base; bfloat16 raises one
        raise _failure(model, error) from error
    for batch, length in ((1, 5), (2, 16), (5, 11)):
        inputs = _example_batch(_inner(reference), batch=batch, choices=3, length=length)
        with torch.no_grad():
            expected = logits_of(reference(**{name: inputs[name] for name in names})).float()
        valid = inputs["attention_mask"].bool() if expected.ndim == 3 else ...  # logits of each token, or of the text
        difference = torch.from_numpy(run(inputs)).float()[valid] - expected[valid]
        found.append((float(difference.abs().max()), float(expected.abs().max())))
    return found


def export_torch(model: Any, path: str | Path) -> None:
    """Write a model as a ``torch.export`` program (``.pt2``): see :func:`export_onnx` for inputs and output."""
    wrapped, inputs, shapes = _prepared(model, PaddedLayout)
    content = io.BytesIO()  # PyTorch's file writer aborts the process if the disk is full
    try:
        with _quiet(), torch.no_grad():  # parts that switch gradients off themselves, as rotary embeddings, else fail
            program = torch.export.export(wrapped, inputs, dynamic_shapes=(shapes,))
            torch.export.save(program, content)
    except Exception as error:  # as above
        raise _failure(model, error) from error
    write_bytes(Path(path), content.getvalue())


def _prepared(model: Any, layout: type[PaddedLayout]) -> tuple[_Logits, tuple[Tensor, ...], tuple[dict[int, Any], ...]]:
    """Prepare the model with its tokens in a layout, example inputs, and their dynamic sizes."""
    given = _inner(model)
    if held_attention(given) is not None:
        raise AttendropError(
            f"{type(given).__name__} has constant attention only under this library; it cannot be exported."
        )
    packed = any(isinstance(module, PackedLayer) for module in given.modules())
    if isinstance(given, PreTrainedModel) and not packed and has_fast_form(given):
        given = unpadded(given).model
    inner = copy.deepcopy(given).eval().cpu()
    if hasattr(inner.config, "relative_attention_num_buckets"):  # as T5, with which the fused kernel is not exported
        inner.set_attn_implementation("eager")
    for module in inner.modules():
        if isinstance(module, PackedLayer):
            module.exported = layout
    names, free = _inputs_of(inner)
    inputs = _example_batch(inner, batch=3, choices=2, length=7)  # exporters treat a size of 1 as a constant
    return _Logits(inner, names), tuple(inputs[name] for name in names), tuple(free for _ in names)


def _failure(model: Any, error: BaseException) -> AttendropError:
    while error.__cause__ is not None:  # exporters wrap it in their instructions
        error = error.__cause__
    return AttendropError(f"{type(model).__name__} cannot be exported ({(str(error) or repr(error)).splitlines()[0]}).")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings of exporters and quantizers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
