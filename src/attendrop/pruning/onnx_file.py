"""Exported ONNX files: metadata, inference, quantization to eight bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]


def onnx_model(path: Path) -> Callable[[Mapping[str, Any]], Array]:
    """Open a file in ONNX Runtime, on the CPU, with as many threads as PyTorch has.

    Returns:
        A function from named inputs, tensors or arrays, to logits. Inputs that the file does not have are ignored.
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
    """Write the names of the labels and other metadata into the file."""
    import onnx

    model = onnx.load(path)
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
