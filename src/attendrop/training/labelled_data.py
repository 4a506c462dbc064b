"""Labelled rows that methods look at beside the batches that train: where they come from, how items are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Subset

from attendrop.batches import Batch, number_of_rows, to_device
from attendrop.errors import AttendropError
from attendrop.methods.context import LabelledData, Processes


class LabelledRows:
    """Items made of the rows of a data set.

    Args:
        rows: Examples, with random access.
        collate: Makes a batch of some examples.
        device: Where batches go.
    """

    def __init__(self, rows: Any, collate: Callable[[list[Any]], Any], device: torch.device) -> None:
        if not len(rows):
            raise AttendropError("The data has no rows.")
        self.rows = rows
        self.collate = collate
        self.device = device

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    def sample(self, seed: int, count: int, size: int) -> list[Batch]:
        """Draw ``count`` items of ``size`` different rows (all rows, if there are fewer)."""
        drawer = random.Random(seed)
        size = min(size, len(self.rows))
        chosen = [drawer.sample(range(len(self.rows)), size) for _ in range(count)]
        return [self._batch(item) for item in chosen]

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """All rows once, ``size`` at a time; of these batches the part of this process."""
        for start in range(processes.rank * size, len(self.rows), size * processes.world_size):
            yield self._batch(range(start, min(start + size, len(self.rows))))

    def _batch(self, numbers: Iterable[int]) -> Batch:
        return to_device(self.collate([self.rows[i] for i in numbers]), self.device)


class LabelledBatches:
    """Items that are batches made before; how many samples one has is decided by them.

    Args:
        batches: The batches.
        device: Where batches go.
    """

    def __init__(self, batches: Sequence[Batch], device: torch.device) -> None:
        if not batches:
            raise AttendropError("The data has no batches.")
        self.batches = batches
        self.device = device

    def __len__(self) -> int:
        """How many rows all batches have."""
        return sum(number_of_rows(batch) for batch in self.batches)

    def sample(self, seed: int, count: int, size: int) -> list[Batch]:
        """Draw ``count`` batches; ``size`` has no effect."""
        drawer = random.Random(seed)
        return [to_device(self.batches[drawer.randrange(len(self.batches))], self.device) for _ in range(count)]

    def iter_batches(self, size: int, processes: Processes) -> Iterator[Batch]:
        """All batches once, of these the part of this process; ``size`` has no effect."""
        for batch in self.batches[processes.rank :: processes.world_size]:
            yield to_device(batch, self.device)


def labelled_data(name: str, given: Any, device: torch.device) -> LabelledData | None:
    """Make labelled data of what a user gives: a DataLoader over a data set with random access, or a list of batches.

    Args:
        name: Of the argument, for messages.
        given: What the user gave; None stays None.
        device: Where batches go.
    """
    if given is None or hasattr(given, "sample"):
        return given  # type: ignore[no-any-return]
    if isinstance(given, DataLoader):
        if not (hasattr(given.dataset, "__getitem__") and hasattr(given.dataset, "__len__")):
            raise AttendropError(f"{name} is a loader over a stream; items are drawn at random, which needs rows.")
        return LabelledRows(given.dataset, given.collate_fn, device)
    if isinstance(given, Sequence) and all(isinstance(batch, Mapping) for batch in given):
        return LabelledBatches(given, device)
    raise AttendropError(f"{name} must be a DataLoader or a list of batches with labels, not {type(given).__name__}.")


def set_aside(rows: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Divide a data set at random: what is left to train on, and ``fraction`` of it, at least one row, for rewards.

    Raises:
        AttendropError: The data has no length, or too few rows.
    """
    if not hasattr(rows, "__len__") or not hasattr(rows, "__getitem__"):
        raise AttendropError("Rows for rewards cannot be set aside from a stream; pass reward_dataset, or use 'eval'.")
    if len(rows) < 2:
        raise AttendropError(f"{len(rows)} training row cannot be divided; pass reward_dataset, or use 'eval'.")
    held = set(random.Random(seed).sample(range(len(rows)), max(1, int(len(rows) * fraction + 1e-6))))
    parts = ([i for i in range(len(rows)) if i not in held], sorted(held))
    if hasattr(rows, "select"):
        return rows.select(parts[0]), rows.select(parts[1])
    return Subset(rows, parts[0]), Subset(rows, parts[1])


def with_columns(collate: Callable[[list[Any]], Any], columns: Sequence[str]) -> Callable[[list[Any]], Any]:
    """A collator that also makes tensors of columns with numbers for each token, padded with -1."""
    if not columns:
        return collate

    def collated(rows: list[Any]) -> Any:
        present = [name for name in columns if name in rows[0]]
        batch = dict(collate([{key: value for key, value in row.items() if key not in present} for row in rows]))
        for name in present:
            values = [torch.as_tensor(row[name]) for row in rows]
            width = max(len(value) for value in values)
            padded = [functional.pad(v, (0, width - len(v)) * v.ndim, value=-1) for v in values]
            batch[name] = torch.stack(padded)
        return batch

    return collated
