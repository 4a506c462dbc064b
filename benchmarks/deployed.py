"""A model as it is served: pruned to one attention layer, ONNX in int8, against the stock model on the same texts."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import Dataset
from measure import Contender, Step, interleave, ratios
from pruned import of_model
from rows import Row
from texts import minilm_folder, why_no_real_data
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from workloads import Batch, Setting

from attendrop import cli
from attendrop.pruning.export import onnx_model
from attendrop.runs.export import export_run
from attendrop.runs.run_folder import read_metrics
from attendrop.tasks.base import encode
from attendrop.tasks.registry import get_task, load_task

_FOLDER = Path("build/deployed")
_ROWS = 64


def deployed(setting: Setting) -> Iterator[Row]:
    """Time of prediction on texts of MRPC, one at a time and 16 at a time, with both models' scores beside it."""
    if why_no_real_data():
        print(f"deployed: skipped, {why_no_real_data()}.")
        return
    stock_folder, file, note = _served(setting)
    stock = AutoModelForSequenceClassification.from_pretrained(stock_folder).eval()
    contenders = {"stock": of_model(stock), "int8": _of_file(file)}
    for size in (1, 16):
        batches = _batches(size, 16 if setting.quick else _ROWS)
        times = interleave(contenders, batches, rounds=max(5, setting.rounds), seconds=0)
        case = f"all-MiniLM-L6-v2, MRPC, {f'{size} at a time' if size > 1 else 'one at a time'}"
        figure = "stock PyTorch / one attention layer, int8 in ONNX Runtime"
        yield Row(figure, case, ratios(times, "stock", "int8"), 4.0, at_least=True, note=note)


def _served(setting: Setting) -> tuple[Path, Path, str]:
    """Train, prune and export, or take what an earlier benchmark left; returns the folder, the file and the scores."""
    folder = _FOLDER / "quick" if setting.quick else _FOLDER
    run, light = folder / "mrpc", folder / "light"
    if not (run / "metrics.json").exists():
        rows, epochs = ("48", "1") if setting.quick else ("512", "4")
        _command(
            *("train", "--task", "mrpc", "--model", "minilm", "--method", "finetune", "--quiet", "--resume"),
            *("--max-train-samples", rows, "--epochs", epochs, "--batch-size", "16", "--learning-rate", "1e-4"),
            *("--pooling", "cls", "--head-init", "random", "--selection-fraction", "0.1", "--no-refit"),
            *("--output-dir", str(run)),
        )
    if not (light / "metrics.json").exists():
        _command("prune", str(run), "--layers", "5", "--recover-epochs", "1", "--output-dir", str(light), "--quiet")
    found = export_run(str(light), str(folder / "served"), quantize="int8", overwrite=True)
    before, loss = (read_metrics(run) or {})["score"], found["loss"]
    note = f"accuracy {before:.3f} stock, {loss['before']:.3f} pruned, {loss['after']:.3f} in int8"
    labels = Counter(_development_rows()["label"])
    larger = max(labels.values()) / labels.total()
    return run, Path(found["output"]), f"{note}, {larger:.3f} the larger class; {loss['rows']} rows"


def _command(*arguments: str) -> None:
    if code := cli.main([*arguments]):
        raise SystemExit(code)


def _of_file(file: Path) -> Contender:
    run = onnx_model(file)

    @contextmanager
    def contender() -> Iterator[Step]:
        yield run

    return contender


def _development_rows() -> Dataset:
    return load_task("mrpc", data_dir=os.environ["ATTENDROP_DATA"], splits=("dev",)).splits["dev"]


def _batches(size: int, rows: int) -> list[Batch]:
    """Batches of the development set as it comes, each padded to its longest text."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    encoded = encode(_development_rows().select(range(rows)), get_task("mrpc"), tokenizer, 128)
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [
        dict(tokenizer.pad({name: encoded[start : start + size][name] for name in names}, return_tensors="pt"))
        for start in range(0, rows, size)
    ]
