"""A model as it is served: pruned to one attention layer and in int8, beside what else a user would pick.

That is the whole model in int8, by ONNX Runtime and by OpenVINO. OpenVINO is left out where it is not installed:
``pip install openvino==2025.4 nncf==2.19``, which go together, in an environment of its own.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd
import torch
from measure import interleave, ratios
from pruned import predicting
from rows import Row
from texts import why_no_real_data
from transformers import AutoTokenizer
from workloads import Batch, Setting

from attendrop import cli, export_onnx, load
from attendrop.pruning.export import TEXT_INPUTS, onnx_model

_FOLDER = Path("build/deployed")
_TIMED, _CALIBRATION, _LENGTH = 64, 100, 64
_OPENVINO = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
Program = Callable[[Batch], Any]


def deployed(setting: Setting) -> Iterator[Row]:
    """Time of prediction on texts of Banking77, one at a time and 16 at a time, with the score of each program."""
    if why_no_real_data():
        print(f"deployed: skipped, {why_no_real_data()}.")
        return
    folder = _FOLDER / "quick" if setting.quick else _FOLDER
    _train(folder, quick=setting.quick)
    programs = _programs(folder)
    rows = _read("test").head(64 if setting.quick else None)
    expected = rows["category"].map(load(folder / "whole").config.label2id).to_numpy()
    scores = {}
    for name, program in programs.items():
        with torch.inference_mode():
            logits = np.concatenate([np.asarray(program(batch)) for batch in _batches(folder, rows, 64)])
        scores[name] = float((logits.argmax(-1) == expected).mean())
    contenders = {name: predicting(program) for name, program in programs.items()}
    for size in (1, 16):
        times = interleave(
            contenders, _batches(folder, rows.head(_TIMED), size), rounds=max(5, setting.rounds), seconds=0
        )
        case = f"all-MiniLM-L6-v2, Banking77, {f'{size} at a time' if size > 1 else 'one at a time'}"
        for name in list(programs)[1:]:
            note = f"accuracy {scores[name]:.3f}, stock {scores['stock PyTorch']:.3f}; {len(rows)} rows"
            yield Row(f"stock PyTorch / {name}", case, ratios(times, "stock PyTorch", name), None, note=note)
        if rival := next((name for name in programs if name.startswith("whole") and "OpenVINO" in name), None):
            ours = min((name for name in programs if "pruned, int8" in name), key=lambda name: median(times[name]))
            yield Row(f"{rival} / {ours}", case, ratios(times, rival, ours), 2.0, at_least=True)


def _train(folder: Path, *, quick: bool) -> None:
    """Fine-tune and prune, or take what an earlier benchmark left."""
    rows, epochs = ("96", "1") if quick else ("2000", "4")
    if not (folder / "whole" / "metrics.json").exists():
        _command(
            *("train", "--train-file", str(_file("train")), "--text-columns", "text", "--label-column", "category"),
            *("--model", "minilm", "--method", "finetune", "--max-train-samples", rows, "--epochs", epochs),
            *("--batch-size", "16", "--learning-rate", "2e-4", "--max-length", str(_LENGTH), "--pooling", "cls"),
            *("--bf16", "--head-init", "random", "--selection-fraction", "0.1", "--no-refit", "--resume", "--quiet"),
            *("--output-dir", str(folder / "whole")),
        )
    if not (folder / "light" / "metrics.json").exists():
        prune = ("prune", str(folder / "whole"), "--layers", "5", "--recover-epochs", "1", "--quiet")
        _command(*prune, "--output-dir", str(folder / "light"))


def _programs(folder: Path) -> dict[str, Program]:
    """Make the programs, each a function from a batch to logits; the stock model first."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    stock, light = load(folder / "whole"), load(folder / "light")
    files = {name: folder / f"{name}.onnx" for name in ("whole", "whole_int8", "light", "light_int8")}
    inputs, names = _batches(folder, _read("train").head(3), 3)[0], list(TEXT_INPUTS)
    named: dict[str, Any] = {"input_names": names, "output_names": ["logits"], "opset_version": 17}
    named["dynamic_axes"] = {name: {0: "batch", 1: "length"} for name in names}
    # By the older exporter: OpenVINO is a tenth faster on what it writes.
    torch.onnx.export(stock, tuple(inputs[name] for name in names), files["whole"], dynamo=False, **named)
    quantize_dynamic(files["whole"], files["whole_int8"], weight_type=QuantType.QInt8, per_channel=True)
    export_onnx(light, files["light"])
    export_onnx(light, files["light_int8"], quantize="int8")
    programs: dict[str, Program] = {
        "stock PyTorch": lambda batch: stock(**batch).logits,
        "pruned, PyTorch": lambda batch: light(**batch).logits,
        "whole, int8 in ONNX Runtime": onnx_model(files["whole_int8"]),
        "pruned, ONNX Runtime": onnx_model(files["light"]),
        "pruned, int8 in ONNX Runtime": onnx_model(files["light_int8"]),
    }
    if importlib.util.find_spec("openvino") is None or importlib.util.find_spec("nncf") is None:
        print("deployed: without OpenVINO, which needs openvino and nncf.")
        return programs
    texts = _batches(folder, _read("train").head(_CALIBRATION), 1)
    whole, pruned = (_openvino(files[name], texts) for name in ("whole", "light"))
    return programs | {"whole, int8 in OpenVINO": whole, "pruned, int8 in OpenVINO": pruned}


def _openvino(file: Path, texts: list[Batch]) -> Program:
    """Quantize an ONNX file for OpenVINO, weights and activations, by the ranges on some texts."""
    import nncf
    import openvino

    arrays = partial(_arrays, names=TEXT_INPUTS)
    core = openvino.Core()
    data = nncf.Dataset(texts, arrays)
    model = nncf.quantize(core.read_model(file), data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(texts))
    request = core.compile_model(model, "CPU", _OPENVINO).create_infer_request()
    return lambda batch: request.infer(arrays(batch))[0]


def _arrays(batch: Batch, names: tuple[str, ...]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: batch[name].numpy() for name in names}


def _command(*arguments: str) -> None:
    if code := cli.main([*arguments]):
        raise SystemExit(code)


def _file(split: str) -> Path:
    return Path(os.environ["ATTENDROP_DATA"]) / "banking77" / f"{split}.csv"


def _read(split: str) -> pd.DataFrame:
    """The rows of a file, in an order that mixes its classes."""
    return pd.read_csv(_file(split)).sample(frac=1, random_state=0)


def _batches(folder: Path, rows: pd.DataFrame, size: int) -> list[Batch]:
    """Batches of the rows as they come, each padded to its longest text."""
    tokenizer, texts = AutoTokenizer.from_pretrained(folder / "whole"), rows["text"].tolist()
    how: dict[str, Any] = {"truncation": True, "max_length": _LENGTH, "padding": True, "return_tensors": "pt"}
    return [dict(tokenizer(texts[start : start + size], **how)) for start in range(0, len(texts), size)]
