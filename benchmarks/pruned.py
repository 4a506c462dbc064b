"""Time of prediction with and without constant attention."""

import importlib.util
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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
    last = list(range(1, model.config.num_hidden_layers))
    models = {"stock": model, "unpadded": prune(model, []), "pruned": prune(model, last)}
    return {name: predicting(lambda batch, each=each: each(**batch)) for name, each in models.items()}


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
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            found[name] = predicting(partial(_run, session))
    return found


def predicting(program: Step) -> Contender:
    """Return the passes of a program on a batch, without gradients."""

    @contextmanager
    def contender() -> Iterator[Step]:
        with torch.inference_mode():
            yield program

    return contender


def _run(session: Any, batch: Batch) -> None:
    types = {"token_type_ids": torch.zeros_like(batch["input_ids"])}
    session.run(None, {name: value.numpy() for name, value in (batch | types).items()})
