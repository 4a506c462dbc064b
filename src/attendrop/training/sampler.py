"""Sampler of the training rows, whose order is a function of the seed and the epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler

from attendrop.errors import AttendropError


class EpochSampler(Sampler[int]):
    """Shuffles ``size`` rows by the seed and the number of the ``epoch`` alone.

    With the length of each row in tokens, it groups rows of similar length in a global batch of ``batch_size``: rows
    are shuffled, sorted within groups of eight batches, and the batches are shuffled. A partial batch stays last.
    """

    _BATCHES_IN_GROUP = 8

    def __init__(self, size: int, seed: int, batch_size: int, lengths: Sequence[int] | None = None) -> None:
        self.size = size
        self.seed = seed
        self.batch_size = batch_size
        self.lengths = lengths
        self.epoch = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.size, generator=generator).tolist()
        yield from order if self.lengths is None else self._grouped(order, self.lengths, generator)

    def _grouped(self, order: list[int], lengths: Sequence[int], generator: torch.Generator) -> list[int]:
        size = self.batch_size * self._BATCHES_IN_GROUP
        whole = self.size // self.batch_size * self.batch_size
        ordered: list[int] = []
        for start in range(0, whole, size):
            group = order[start : min(start + size, whole)]
            ordered += sorted(group, key=lambda row: lengths[row], reverse=True)
        batches = [ordered[start : start + self.batch_size] for start in range(0, whole, self.batch_size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        return [row for number in shuffled for row in batches[number]] + order[whole:]


def row_lengths(dataset: Any, original: Any, column: str) -> list[int]:
    """Find the length of each row in tokens, in ``column``, or by counting ``input_ids``; AttendropError without both.

    Unused columns may have been removed from ``dataset``, and ``original`` has the same rows with all.
    """
    for source in (dataset, original):
        if column in (getattr(source, "column_names", None) or ()) and len(source) == len(dataset):
            return [int(length) for length in source[column]]
    try:
        if "input_ids" in (getattr(dataset, "column_names", None) or ()):
            return [len(ids) for ids in dataset[:]["input_ids"]]
        return [len(dataset[i]["input_ids"]) for i in range(len(dataset))]
    except (KeyError, TypeError):
        raise AttendropError(
            f"train_sampling_strategy='group_by_length' needs a column '{column}' or 'input_ids' in the data."
        ) from None
