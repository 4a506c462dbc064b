"""Predictions as a file: GLUE's submission format, or a table beside one's own file."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from attendrop.errors import AttendropError
from attendrop.tasks.base import Task
from attendrop.tasks.glue import GLUE
from attendrop.tasks.scores import Array, finite

_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def write_predictions(path: str | Path, task: Task, dataset: Dataset, logits: Array) -> None:
    """Write one prediction for every row of `dataset`, in its order, to a .tsv, .csv or .jsonl file.

    dataset: only its column "index" is read. logits: (rows, classes); for regression (rows,) or (rows, 1).

    GLUE tasks get the columns of a submission, `index` and `prediction`: the label as the official files write it, for
    STS-B the number cut to [0, 5] with three decimals. Other tasks get `index` (the row's number in the file, from 0)
    with `label` and `probability`, the softmax of the predicted class, or for regression with `score`.
    The file is put in place when it is complete. Raises AttendropError for another extension and for NaN.
    """
    path = Path(path)
    if path.suffix not in (*_DELIMITERS, ".jsonl"):
        raise AttendropError(f"predictions are written as .tsv, .csv or .jsonl, not as {path.name!r}.")
    logits = finite(logits)
    rows = (_glue_rows if task.name in GLUE else _own_rows)(task, dataset["index"], logits)
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        text = _delimited(rows, _DELIMITERS[path.suffix])
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(text, encoding="utf-8", newline="")
    unfinished.replace(path)


def _glue_rows(task: Task, index: Sequence[int], logits: Array) -> list[dict[str, Any]]:
    if task.label_names:
        answers = [GLUE[task.name].file_labels[label] for label in logits.argmax(axis=1)]
    else:
        answers = [f"{score:.3f}" for score in logits.reshape(-1).clip(0, 5)]
    return [{"index": i, "prediction": answer} for i, answer in zip(index, answers, strict=True)]


def _own_rows(task: Task, index: Sequence[int], logits: Array) -> list[dict[str, Any]]:
    if not task.label_names:
        return [{"index": i, "score": float(score)} for i, score in zip(index, logits.reshape(-1), strict=True)]
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    best = logits.argmax(axis=1)
    probabilities = exp.max(axis=1) / exp.sum(axis=1)
    return [
        {"index": i, "label": task.label_names[label], "probability": round(float(probability), 6)}
        for i, label, probability in zip(index, best, probabilities, strict=True)
    ]


def _delimited(rows: list[dict[str, Any]], delimiter: str) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, rows[0].keys() if rows else ["index"], delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
