"""Export of a run's model for other programs, with its tokenizer and the cost of eight-bit weights."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from attendrop.errors import AttendropError, check_choice
from attendrop.pruning.export import QUANTIZATIONS, export_onnx, export_torch, onnx_model
from attendrop.pruning.pruned_model import is_pruned, stock_config
from attendrop.pruning.selection import Array, paired_difference
from attendrop.runs.finished_run import FinishedRun, check_finished, load_finished_run, load_run_model
from attendrop.runs.run_folder import input_files, read_run, run_options
from attendrop.support.files import check_output, disk_errors, share_permissions
from attendrop.tasks.heads.registry import head_of_model
from attendrop.tasks.tokenization import columns_of
from attendrop.tasks.tokenizers import DEFAULT_MAX_LENGTH

# The format, and the name of its file in a folder.
FORMATS = {"onnx": "model.onnx", "torch": "model.pt2"}
logger = logging.getLogger(__name__)


def export_run(
    run_dir: str,
    output: str,
    *,
    format: str = "onnx",
    quantize: str | None = None,
    overwrite: bool = False,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Export the model of a finished run to a file, with its tokenizer and ``config.json``.

    Args:
        run_dir: Folder of the run, of a pruned model, or of any model that transformers saved.
        output: The file; without an extension a folder, which gets ``model.onnx`` or ``model.pt2``. In the run's own
            folder only this file is written, since the others are there.
        format: ``"onnx"``, which is checked against the model (:func:`attendrop.export_onnx`), or ``"torch"``.
        quantize: ``"int8"``, for ONNX. The loss in score is measured on the reported rows of the run, otherwise on its
            selection split.
        overwrite: Replace existing files.
        data_dir: Folder of the run's task, if it was moved.

    Returns:
        ``model, format, output, bytes``; for ONNX ``difference`` (of a logit from the model's on example inputs), and
        with ``quantize`` its ``loss``: the ``set`` with its ``rows``, the ``metric``, ``before``, ``after`` and the
        ``difference``; None if there are no data.

    Raises:
        AttendropError: There is no such format or finished run, the run is of a baseline, or the output cannot be
            written or exists.
    """
    if format not in FORMATS:
        raise AttendropError(f"format {format!r} is not known. Choose from: {', '.join(FORMATS)}.")
    if quantize is not None:
        check_choice("quantize", quantize, QUANTIZATIONS)
        if format != "onnx":
            raise AttendropError(f"quantize is for the format onnx, not for {format!r}.")
    check_finished(run_dir)
    target = _target(output, FORMATS[format])
    check_output(target, input_files(Path(run_dir)), overwrite=overwrite)
    model, tokenizer = load_run_model(run_dir)
    head_of_model(model.config).refuse("export")
    found: dict[str, Any] = {"model": run_dir, "format": format, "output": str(target)}
    with _beside(target, overwrite=overwrite) as partial:
        file = partial / target.name
        if target.parent.resolve() != Path(run_dir).resolve():
            if is_pruned(target.parent) or read_run(target.parent) is not None:
                raise AttendropError(f"'{target.parent}' holds another run; name a file in a folder of its own.")
            tokenizer.save_pretrained(partial)
            stock_config(model.config).save_pretrained(partial)
        if format == "torch":
            export_torch(model, file)
        else:
            options = run_options(Path(run_dir))
            length = options.get("max_length") or DEFAULT_MAX_LENGTH
            length = min(length, getattr(tokenizer, "model_max_length", length))  # it has no positions for more tokens
            read = {"max_length": length, "long_texts": options.get("long_texts")}
            metadata = {name: str(value) for name, value in read.items() if value is not None}
            found["difference"] = export_onnx(model, file, quantize=quantize, metadata=metadata)
        if quantize is not None:
            found["loss"] = _loss(run_dir, data_dir, file)
    return found | {"bytes": target.stat().st_size}


@contextmanager
def _beside(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder, whose files are moved into that of ``target`` when the block ends without an error."""
    made = not target.parent.exists()
    target.parent.mkdir(exist_ok=True)
    try:
        with disk_errors(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as name:
            partial = Path(name)
            yield partial
            if not overwrite:
                _check_others(partial, target)
            share_permissions(partial)
            for path in partial.iterdir():
                path.replace(target.parent / path.name)
    except BaseException:
        if made:
            shutil.rmtree(target.parent, ignore_errors=True)
        raise


def _target(output: str, name: str) -> Path:
    """Choose the file to write: the output, if its extension is that of the format, otherwise one in this folder."""
    target = Path(output)
    if target.suffix in {Path(each).suffix for each in FORMATS.values()} - {Path(name).suffix}:
        raise AttendropError(f"'{output}' is the name of another format; name it {Path(name).suffix}, or a folder.")
    if target.is_dir() or target.suffix != Path(name).suffix:
        target = target / name
        writable = target.parent.parent.is_dir()
    else:
        writable = target.parent.absolute().is_dir()
    if not writable or target.is_dir() or target.parent.is_file():
        raise AttendropError(f"'{output}' cannot be written; name a file, or a new folder, in a folder that exists.")
    return target


def _check_others(partial: Path, target: Path) -> None:
    """Raise AttendropError if a file that is written beside the target exists, and is another."""
    for path in partial.iterdir():
        there = target.parent / path.name
        if path.name != target.name and there.exists() and there.read_bytes() != path.read_bytes():
            raise AttendropError(
                f"'{there}' exists and belongs to another model; name a file in a folder of its own. --overwrite "
                "replaces it."
            )


def _loss(run_dir: str, data_dir: str | None, file: Path) -> dict[str, Any] | None:
    """Measure the loss of score due to eight-bit weights."""
    try:
        run = load_finished_run(run_dir, data_dir=data_dir)
    except AttendropError as error:
        logger.warning("The loss of score due to int8 was not measured: %s", error)
        return None
    name = next((name for name in ("dev", *run.sets) if name in run.sets), None)
    if name is None:
        logger.warning("The loss of score due to int8 was not measured: the run has no rows except its training rows.")
        return None
    before = run.predictions(name, run.outputs(name))
    after = run.predictions(name, _onnx_logits(run, name, onnx_model(file)))
    return {
        "set": name,
        "rows": len(before.labels),
        "metric": run.task.metric,
        "before": before.score,
        "after": after.score,
        "difference": paired_difference(before, after).as_dict(),
    }


def _onnx_logits(run: FinishedRun, name: str, model: Callable[[Mapping[str, Any]], Array]) -> Array:
    rows = run.sets[name]
    order = np.argsort(rows["length"], kind="stable")
    batches = run.batches(rows.select(order), run.config.eval_batch_size)
    if "input_ids" in rows.column_names:  # a tokenizer may make no token types
        batches = [{"token_type_ids": np.zeros_like(batch["input_ids"]), **batch} for batch in batches]
    logits = [model(batch) for batch in batches]
    head = run.task.head
    return head.row_outputs(head.concatenate(logits)[np.argsort(order)], columns_of(rows), run.tokenizer)
