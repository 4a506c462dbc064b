"""Labelled rows that methods read beside the training batches, how they are divided, and the order of training rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset

from attendrop.errors import AttendropError
from attendrop.methods.core.context import LabelledData, Processes
from attendrop.support.models import ROW_INDEX, Batch, number_of_rows, to_device


class LabelledRows:
    """Batches that ``collate`` makes of the rows of a data set with random access, on a device."""

    def __init__(self, rows: Any, collate: Callable[[list[Any]], Any], device: torch.device) -> None:
        if not len(rows):
            raise AttendropError("The data has no rows.")
        self.rows = rows
        self.collate = collate
        self.device = device

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def sample(self, seed: int, count: int, size: int) -> list[Batch]:
        """Sample ``count`` batches of ``size`` different rows each (all, if there are fewer)."""
        generator, rows = random.Random(seed), range(len(self.rows))
        return [self._batch(generator.sample(rows, min(size, len(rows)))) for _ in range(count)]

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """Iterate once over all rows in batches of ``size``, of which each rank gets its part."""
        for start in range(processes.rank * size, len(self.rows), size * processes.world_size):
            yield self._batch(range(start, min(start + size, len(self.rows))))

    def _batch(self, numbers: Iterable[int]) -> Batch:
        return to_device(self.collate([self.rows[i] for i in numbers]), self.device)


class LabelledBatches:
    """Labelled rows that are given as batches, of sizes that are used as they are."""

    def __init__(self, batches: Sequence[Batch], device: torch.device) -> None:
        if not batches:
            raise AttendropError("The data has no batches.")
        self.batches = batches
        self.device = device

    def __len__(self) -> int:
        """Return the number of rows in all batches."""
        return sum(number_of_rows(batch) for batch in self.batches)

    def sample(self, seed: int, count: int, size: int) -> list[Batch]:
        """Sample ``count`` batches; ``size`` has no effect."""
        chance = random.Random(seed)
        return [to_device(self.batches[chance.randrange(len(self.batches))], self.device) for _ in range(count)]

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """Iterate once over all batches, of which each rank gets its part; ``size`` has no effect."""
        for batch in self.batches[processes.rank :: processes.world_size]:
            yield to_device(batch, self.device)


def labelled_data(name: str, value: Any, device: torch.device) -> LabelledData | None:
    """Make labelled data of a ``DataLoader`` over a data set with random access, or of a list of batches."""
    if value is None or isinstance(value, LabelledData):
        return value
    if isinstance(value, DataLoader):
        if is_stream(value.dataset):
            raise AttendropError(f"{name} is a loader over a stream; pass one over a data set with random access.")
        return LabelledRows(value.dataset, value.collate_fn, device)
    if isinstance(value, Sequence) and all(isinstance(batch, Mapping) for batch in value):
        return LabelledBatches(value, device)
    raise AttendropError(f"{name} must be a DataLoader or a list of batches with labels, not {type(value).__name__}.")


def is_stream(rows: Any) -> bool:
    """Return whether a data set is a stream, without random access; False for None."""
    if rows is None:
        return False
    return isinstance(rows, IterableDataset) or not (hasattr(rows, "__getitem__") and hasattr(rows, "__len__"))


def set_aside(rows: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Divide a data set at random into rows to train on, and ``fraction`` of it, at least one row, for rewards."""
    if is_stream(rows):
        raise AttendropError("Rows for rewards cannot be set aside from a stream; pass reward_dataset, or use 'eval'.")
    if len(rows) < 2:
        raise AttendropError(f"{len(rows)} training row cannot be divided; pass reward_dataset, or use 'eval'.")
    held = set(random.Random(seed).sample(range(len(rows)), max(1, int(len(rows) * fraction + 1e-6))))
    parts = ([i for i in range(len(rows)) if i not in held], sorted(held))
    if hasattr(rows, "select"):
        return rows.select(parts[0]), rows.select(parts[1])
    return Subset(rows, parts[0]), Subset(rows, parts[1])


@dataclass(frozen=True)
class ColumnCollator:
    """Wrapper of a collator that makes tensors, padded with -1, of further columns with a number for each token.

    Rows without such columns, and rows that are not mappings, are left to the wrapped collator. It can be pickled if
    the wrapped collator can.
    """

    collate: Callable[[list[Any]], Any]  # the wrapped one, which gets rows without these columns
    columns: Sequence[str]
    with_index: bool = False  # whether rows have their index in the training data, in ROW_INDEX

    def __getattr__(self, name: str) -> Any:
        # A trainer may read attributes of its own type of collator. Unpickling looks attributes up before ``collate``
        # is set.
        if name.startswith("__") or name == "collate":
            raise AttributeError(name)
        return getattr(self.collate, name)

    def __call__(self, rows: list[Any]) -> Any:
        """Make a batch of rows."""
        first = rows[0] if isinstance(rows[0], Mapping) else {}
        present = [name for name in self.columns if name in first]
        own = {*present, ROW_INDEX} if self.with_index else set(present)
        if not own:
            return self.collate(rows)
        batch = dict(self.collate([{key: value for key, value in row.items() if key not in own} for row in rows]))
        for name in present:
            values = [torch.as_tensor(row[name]) for row in rows]
            width = max(len(value) for value in values)
            padded = [functional.pad(value, (0, width - len(value)), value=-1) for value in values]
            batch[name] = torch.stack(padded)
        if self.with_index:
            batch[ROW_INDEX] = torch.tensor([row[ROW_INDEX] for row in rows])
        return batch


class IndexedRows:
    """Rows of a data set with random access, each with its index in the column ``ROW_INDEX``."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        if not isinstance(row, Mapping):
            raise AttendropError(f"Rows are mappings of the model's inputs, and not a {type(row).__name__}.")
        return {**row, ROW_INDEX: index}


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
        order: list[int] = torch.randperm(self.size, generator=generator).tolist()
        if self.lengths is None:
            yield from order
            return
        lengths, ordered = self.lengths, list[int]()
        size = self.batch_size * self._BATCHES_IN_GROUP
        whole = self.size // self.batch_size * self.batch_size
        for start in range(0, whole, size):
            group = order[start : min(start + size, whole)]
            ordered += sorted(group, key=lambda row: lengths[row], reverse=True)
        batches = [ordered[start : start + self.batch_size] for start in range(0, whole, self.batch_size)]
        shuffled = torch.randperm(len(batches), generator=generator).tolist()
        yield from (row for number in shuffled for row in batches[number])
        yield from order[whole:]


def row_lengths(dataset: Any, original: Any, column: str) -> list[int]:
    """Find the length of each row in tokens, in ``column``, or by counting ``input_ids``; AttendropError without both.

    Unused columns may have been removed from ``dataset``; ``original`` has the same rows with all columns.
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
