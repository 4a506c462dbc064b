"""Time of prediction with and without constant attention."""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import Contender, Step
from transformers import BertForSequenceClassification, PreTrainedModel
from workloads import Batch, Setting

from attendrop import export_onnx, prune


def contenders(model: PreTrainedModel) -> dict[str, Contender]:
    """The stock model; the same without padding; and with all layers constant but the first."""
    model = model.eval()
    last = range(1, model.config.num_hidden_layers)
    return {
        "stock": of_model(model),
        "unpadded": of_model(prune(model, [])),
        "pruned": of_model(prune(model, list(last))),
    }


def onnx_contenders(setting: Setting, model: BertForSequenceClassification) -> dict[str, Contender]:
    """The stock model and the pruned one, both in ONNX Runtime; nothing if that is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return {}
    import onnxruntime

    model = model.eval()
    models: Mapping[str, Any] = {"stock": model, "pruned": prune(model, list(range(1, model.config.num_hidden_layers)))}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    found: dict[str, Contender] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, exported in models.items():
            path = Path(folder) / f"{name}.onnx"
            export_onnx(exported, path)
            method_state = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            found[name] = _of_session(method_state)
    return found


def of_model(model: Callable[..., Any]) -> Contender:
    """Return the passes of a model."""

    @contextmanager
    def contender() -> Iterator[Step]:
        with torch.inference_mode():
            yield lambda batch: model(**batch)

    return contender


def _of_session(method_state: Any) -> Contender:
    @contextmanager
    def contender() -> Iterator[Step]:
        def step(batch: Batch) -> None:
            types = {"token_type_ids": torch.zeros_like(batch["input_ids"])}
            method_state.run(None, {name: value.numpy() for name, value in (batch | types).items()})

        yield step

    return contender
