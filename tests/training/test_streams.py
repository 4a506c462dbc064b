"""Streams of rows: trained on in their own order, resumed where they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from helpers import zoo
from helpers.training import ALWAYS, Stop, examples, trainer_of, weights

from attendrop import ADDrop, Method, RegularizedTrainer

CROSS = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=True)


def shuffled_stream() -> Any:
    """Rows from two files, shuffled anew in each epoch, with a column that the model does not read."""
    rows = [{name: value.tolist() for name, value in row.items()} | {"text": "a cat"} for row in examples()]
    return Dataset.from_list(rows).to_iterable_dataset(num_shards=2).shuffle(seed=5, buffer_size=6)


def collate(rows: Sequence[Any]) -> zoo.Batch:
    return zoo.collate([{name: torch.as_tensor(value) for name, value in row.items()} for row in rows])


def stream_trainer(folder: Path, method: Method, **given: Any) -> RegularizedTrainer:
    options = {"max_steps": 8, "data_collator": collate, "train_dataset": shuffled_stream()}
    return trainer_of(folder, method, model=zoo.build("bert"), **options | given)


def test_a_stream_trains_as_its_rows_in_that_order(tmp_path: Path) -> None:
    """Masks are keyed by the place of a row in the stream."""
    rows: list[dict[str, Any]] = []
    for epoch in (0, 1):
        stream = shuffled_stream()
        stream.set_epoch(epoch)
        rows += [{name: value for name, value in row.items() if name != "text"} for row in stream]
    assert rows[:16] != rows[16:]
    trainers = [
        stream_trainer(tmp_path / "rows", ALWAYS, train_dataset=rows, train_sampling_strategy="sequential"),
        stream_trainer(tmp_path / "stream", ALWAYS),
    ]
    for trainer in trainers:
        trainer.train()
    zoo.assert_same(*map(weights, trainers))


def test_a_stream_is_resumed_where_it_was(tmp_path: Path) -> None:
    """In the epoch that it was in, which decides whether cross-tuning acts, and at the batch that was next, twice."""
    whole = stream_trainer(tmp_path / "whole", CROSS)
    whole.train()
    saved = {"save_strategy": "steps", "save_steps": 1}
    for step in (5, 6):
        with pytest.raises(KeyboardInterrupt):
            stream_trainer(tmp_path / "cut", CROSS, callbacks=[Stop(step)], **saved).train(resume_from_checkpoint=True)
    resumed = stream_trainer(tmp_path / "cut", CROSS, **saved)
    resumed.train(resume_from_checkpoint=True)
    zoo.assert_same(weights(resumed), weights(whole))
