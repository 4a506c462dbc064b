"""Candidates of dropout by training row: recorded in one training pass, used in a later one."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Of the memory that is free, records take at most so much.
_OF_FREE_MEMORY = 0.25
_WITHOUT_SYSCONF = 4 << 30
logger = logging.getLogger(__name__)
# What a mask takes beside its bits: the objects that hold it.
_OF_OBJECTS = 250


@dataclass(frozen=True, slots=True)
class RowMask:
    """Mask of one row in one layer, of the row's own length.

    Attributes:
        bits: Its bits, eight in a byte.
        shape: ``(heads, queries, keys)``, without padding.
    """

    bits: bytes
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> RowMask:
        """Pack a boolean mask."""
        heads, queries, keys = mask.shape
        return cls(np.packbits(mask).tobytes(), (heads, queries, keys))

    @property
    def size(self) -> int:
        """Bytes of memory that it takes, with the objects that hold it."""
        return len(self.bits) + _OF_OBJECTS

    @property
    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The boolean mask."""
        return (
            np.unpackbits(np.frombuffer(self.bits, np.uint8), count=int(np.prod(self.shape)))
            .view(np.bool_)
            .reshape(self.shape)
        )


class RowRecords:
    """Masks by the index of a row in the training data, and by layer, on the host.

    A row takes ``sum over layers of heads * queries * keys / 8`` bytes, of its own length: 288 KiB in 12 layers of 12
    heads at 128 tokens; and 250 bytes for each layer. Where all would take more than ``limit``, the rows that were
    recorded longest ago are forgotten.

    Args:
        limit: Bytes, of masks and of the objects that hold them; None: a quarter of the memory that is free now.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = _free_memory() * _OF_FREE_MEMORY if limit is None else limit
        self.bytes = 0
        self.forgotten = 0
        self._rows: OrderedDict[int, dict[str, RowMask]] = OrderedDict()
        self._since_exchange: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def get(self, row: int, layer: str) -> RowMask | None:
        """Return the mask of a row in a layer; None if there is none."""
        return self._rows.get(row, {}).get(layer)

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        """Replace what is recorded of a row in some layers; it is the newest row then."""
        kept = self._rows.setdefault(row, {})
        self.bytes += sum(mask.size for mask in masks.values())
        self.bytes -= sum(kept[layer].size for layer in masks if layer in kept)
        kept.update(masks)
        self._rows.move_to_end(row)
        self._since_exchange[row] = None
        while self.bytes > self.limit and self._rows:
            oldest, masks = self._rows.popitem(last=False)
            self.bytes -= sum(mask.size for mask in masks.values())
            self._since_exchange.pop(oldest, None)
            if not self.forgotten:
                logger.warning(
                    "The records of training rows take more than their limit of %.0f MiB: those recorded longest ago "
                    "are forgotten, and nothing is dropped from such rows; raise record_limit.",
                    self.limit / 2**20,
                )
            self.forgotten += 1

    def take_new(self) -> list[tuple[int, dict[str, RowMask]]]:
        """Return the rows that were recorded since the last call, oldest first."""
        new = [(row, self._rows[row]) for row in self._rows if row in self._since_exchange]
        self._since_exchange = {}
        return new

    def merge(self, recorded: Iterable[Iterable[tuple[int, dict[str, RowMask]]]]) -> None:
        """Put what all processes recorded, this one's included, in one order, so that all forget the same rows."""
        for row, masks in [each for of_process in recorded for each in of_process]:
            self.put(row, masks)
        self._since_exchange = {}

    def state_dict(self) -> dict[str, Any]:
        """Return all records as tensors and plain values."""
        layers = list(dict.fromkeys(layer for masks in self._rows.values() for layer in masks))
        entries = [(row, layer, mask) for row, masks in self._rows.items() for layer, mask in masks.items()]
        bits = np.frombuffer(bytearray(b"".join(mask.bits for _, _, mask in entries)), np.uint8)
        index = [(row, layers.index(layer), *mask.shape, row in self._since_exchange) for row, layer, mask in entries]
        counts = {"forgotten": self.forgotten, "limit": self.limit}
        return {"layers": layers, "bits": torch.from_numpy(bits), "index": index, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        bits, place = state["bits"].numpy().tobytes(), 0
        self._rows, self._since_exchange, self.bytes = OrderedDict(), {}, 0
        for row, layer, heads, queries, keys, new in state["index"]:
            size = -(-heads * queries * keys // 8)
            mask = RowMask(bits[place : place + size], (heads, queries, keys))
            self._rows.setdefault(row, {})[state["layers"][layer]] = mask
            if new:
                self._since_exchange[row] = None
            place, self.bytes = place + size, self.bytes + mask.size
        self.forgotten, self.limit = state["forgotten"], state["limit"]


def _free_memory() -> int:
    """Bytes of memory that are free on this machine, for each of the processes that train on it."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except (AttributeError, ValueError, OSError):  # elsewhere than on Linux
        return _WITHOUT_SYSCONF
