"""Records of each training row: the dropout candidates of one pass, to be used when the row is trained on again."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.valid_keys import any_last
from attendrop.attribution.recording import by_weights, training_gradient_edit
from attendrop.errors import AttendropError
from attendrop.methods.core.context import Processes, StepContext
from attendrop.model_support.batches import ROW_INDEX, number_of_rows
from attendrop.randomness.candidates import pack, unpack

logger = logging.getLogger(__name__)
# For each sequence: the first query and the number of queries, the first key and the number of keys, without padding.
Spans = Sequence[tuple[int, int, int, int]]
# Returns the mask of the candidates of a layer, given its call and its attribution.
Choose = Callable[[AttentionCall, Tensor], Tensor]
_Packed = tuple[Tensor, tuple[int, ...]]
# Maximum fraction of the free memory that records take.
_OF_FREE_MEMORY = 0.25
_WITHOUT_SYSCONF = 4 << 30
# Bytes of the objects that hold a mask, in addition to its bits.
_OF_OBJECTS = 250
# Number of rows that each process sends at a time. They pass through the GPU, where each takes 18 MiB for 12 layers of
# 12 heads at 128 tokens.
_ROWS_AT_A_TIME = 64


@dataclass(frozen=True)
class Candidates:
    """Candidates of one layer: the packed mask with its shape, and the rows with signal, see :class:`Region`."""

    bits: Tensor
    shape: tuple[int, ...]
    signal: Tensor

    @property
    def mask(self) -> Tensor:
        """The mask."""
        return unpack(self.bits, self.shape)


@dataclass(frozen=True, slots=True)
class RowMask:
    """Bits of the mask of one row in one layer, ``(heads, queries, keys)`` without padding."""

    bits: bytes
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> RowMask:
        """Pack a boolean mask."""
        return cls(np.packbits(mask).tobytes(), mask.shape)

    @property
    def size(self) -> int:
        """Size in memory in bytes, including the overhead of objects."""
        return len(self.bits) + _OF_OBJECTS

    @property
    def mask(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The boolean mask."""
        bits = np.unpackbits(np.frombuffer(self.bits, np.uint8), count=math.prod(self.shape))
        return bits.view(np.bool_).reshape(self.shape)


class RowRecords:
    """Masks by the index of a row in the training data, and by layer, on the host.

    In each layer a row takes ``heads * queries * keys / 8`` bytes, for its own length, and 250 more. Beyond ``limit``
    bytes, by default a quarter of the memory that is free now, the oldest records are discarded.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = _free_memory() * _OF_FREE_MEMORY if limit is None else limit
        self.bytes = 0
        self.forgotten = 0
        self._rows: dict[int, dict[str, RowMask]] = {}
        self._since_exchange: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def clear(self) -> None:
        """Forget all rows."""
        self._rows, self._since_exchange, self.bytes = {}, {}, 0

    def get(self, row: int, layer: str) -> RowMask | None:
        """Return the mask of a row in a layer; None if there is none."""
        return self._rows.get(row, {}).get(layer)

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        """Replace what is recorded of a row in some layers; it is the newest row then."""
        kept = self._rows[row] = self._rows.pop(row, {})
        self.bytes += sum(mask.size for mask in masks.values())
        self.bytes -= sum(kept[layer].size for layer in masks if layer in kept)
        kept.update(masks)
        self._since_exchange[row] = None
        while self.bytes > self.limit and self._rows:
            oldest = next(iter(self._rows))
            self.bytes -= sum(mask.size for mask in self._rows.pop(oldest).values())
            self._since_exchange.pop(oldest, None)
            if not self.forgotten:
                logger.warning(
                    "The records of training rows exceed their limit of %.0f MiB: the oldest are discarded, and "
                    "nothing is dropped from those rows; raise record_limit.",
                    self.limit / 2**20,
                )
            self.forgotten += 1

    def take_new(self) -> list[tuple[int, dict[str, RowMask]]]:
        """Return the rows that were recorded since the last call, oldest first."""
        new = [(row, self._rows[row]) for row in self._rows if row in self._since_exchange]
        self._since_exchange = {}
        return new

    def merge(self, recorded: Iterable[Iterable[tuple[int, dict[str, RowMask]]]]) -> None:
        """Add the records of all processes, in the same order in each, so that all evict the same rows."""
        for row, masks in chain.from_iterable(recorded):
            self.put(row, masks)
        self._since_exchange = {}

    def state_dict(self) -> dict[str, Any]:
        """Return all records as tensors and plain values."""
        layers = list(dict.fromkeys(layer for masks in self._rows.values() for layer in masks))
        entries = [(row, layer, mask) for row, masks in self._rows.items() for layer, mask in masks.items()]
        bits = np.frombuffer(bytearray().join(mask.bits for _, _, mask in entries), np.uint8)
        index = [(row, layers.index(layer), *mask.shape, row in self._since_exchange) for row, layer, mask in entries]
        counts = {"forgotten": self.forgotten, "limit": self.limit}
        return {"layers": layers, "bits": torch.from_numpy(bits), "index": index, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        bits, place = state["bits"].numpy().tobytes(), 0
        self.clear()
        for row, layer, heads, queries, keys, new in state["index"]:
            size = -(-heads * queries * keys // 8)
            mask = RowMask(bits[place : place + size], (heads, queries, keys))
            self._rows.setdefault(row, {})[state["layers"][layer]] = mask
            if new:
                self._since_exchange[row] = None
            place, self.bytes = place + size, self.bytes + mask.size
        self.forgotten, self.limit = state["forgotten"], state["limit"]


def _free_memory() -> int:
    """Return the free memory of this machine in bytes, per training process on it."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return free // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    except (AttributeError, ValueError, OSError):  # elsewhere than on Linux
        return _WITHOUT_SYSCONF


class Recorder:
    """Records of rows, and what the passes of a step have added to them.

    Rows move from process to process, so each process keeps the records of all rows: at the start of an epoch they
    exchange what they recorded in the previous one.
    """

    def __init__(self, limit: int | None, processes: Processes) -> None:
        self.records = RowRecords(limit)
        self.processes = processes
        self.epoch: int | None = None
        self._step: tuple[int, int] | None = None
        self._kept = 0  # number of entries in _new from earlier micro-batches
        self._new: list[tuple[Sequence[int], str, _Packed, Spans, Tensor]] = []

    def clear(self) -> None:
        """Forget all records, those of the present step too."""
        self.records.clear()
        self._new, self._kept = [], 0

    def begin_pass(self, context: StepContext, units: str) -> RowPass:
        """Begin a training pass over ``context.batch``; raise AttendropError if its rows are not known."""
        if ROW_INDEX not in context.batch:
            raise AttendropError(
                "Recorded attributions need to know the rows of a batch: compute the loss by reg.loss(batch, "
                "rows=indices), with the index of each row in the training data."
            )
        rows: list[int] = context.batch[ROW_INDEX].tolist()
        if number_of_rows(context.batch) != len(rows):
            raise AttendropError(
                f"The data collator made {number_of_rows(context.batch)} rows of {len(rows)}, so recorded attributions "
                "cannot be assigned to rows; have it keep the number of rows, or use attribution='gradient'."
            )
        step = (context.key.step, context.key.first)
        if self._step is not None and (step[0] != self._step[0] or context.epoch != self.epoch):
            self.flush()
        if step == self._step:  # of a method's several passes, the one differentiated last is recorded
            self._new = self._new[: self._kept]
        else:
            self._step, self._kept = step, len(self._new)
        if self.processes.world_size > 1 and context.epoch is None:
            raise AttendropError("Processes exchange records at the start of an epoch: call set_epoch(epoch) for each.")
        if context.epoch != self.epoch:
            self.epoch = context.epoch
            self.exchange()
        return RowPass(self, rows, units)

    def add(self, rows: Sequence[int], layer: str, mask: Tensor, spans: Spans, finite: Tensor) -> None:
        """Add the candidates of a layer, ``(batch, heads, query, key)``; they stay on their device until the step ends.

        If rows are repeated (copies are adjacent), the first copy is recorded. Where gradients are not ``finite``, as
        in a step that a float16 scaler skips, the previous record is kept.
        """
        self._new.append((rows, layer, pack(mask), spans, finite))

    def flush(self) -> float | None:
        """Move what the passes of a step added to the records. Until then, all passes use those of earlier steps.

        Returns the fraction of the recorded rows that have no candidate in any layer, for example because their
        gradients are zero in float16; None if nothing was recorded.
        """
        found: dict[int, dict[str, RowMask]] = {}
        for (rows, layer, (_, shape), spans, _), bits in zip(self._new, self._on_host(), strict=True):
            if bits is None:
                continue
            masks = unpack(bits, shape).numpy()
            of_pass: dict[tuple[int, str], RowMask] = {}
            places = _places(rows, layer, len(masks))
            for place, mask, (query, queries, key, keys) in zip(places, masks, spans, strict=True):
                if place not in of_pass:
                    of_pass[place] = RowMask.of(mask[:, query : query + queries, key : key + keys])
            for (row, name), own in of_pass.items():
                found.setdefault(row, {})[name] = own
        self._new, self._kept = [], 0
        for row, of_layers in found.items():
            self.records.put(row, of_layers)
        empty = sum(not any(any(mask.bits) for mask in of_layers.values()) for of_layers in found.values())
        return empty / len(found) if found else None

    def _on_host(self) -> list[Tensor | None]:
        """Fetch the bits that were added in one copy; None for those of gradients that are not finite."""
        if not self._new:
            return []
        bits = [added[2][0] for added in self._new]
        finite = torch.stack([added[4] for added in self._new]).tolist()
        on_host = torch.split(torch.cat(bits).cpu(), [len(each) for each in bits])
        return [each if valid else None for each, valid in zip(on_host, finite, strict=True)]

    def exchange(self) -> None:
        """Give all processes what each has recorded since the last exchange, some rows at a time."""
        if self.processes.world_size == 1:
            return
        new = self.records.take_new()
        rounds = max(self.processes.gather(-(-len(new) // _ROWS_AT_A_TIME)))
        recorded: list[list[tuple[int, dict[str, RowMask]]]] = [[] for _ in range(self.processes.world_size)]
        for start in range(0, rounds * _ROWS_AT_A_TIME, _ROWS_AT_A_TIME):
            for rows, part in zip(recorded, self.processes.gather(new[start : start + _ROWS_AT_A_TIME]), strict=True):
                rows += part
        self.records.merge(recorded)

    def state_dict(self) -> dict[str, Any]:
        """Return the records of this process, as tensors and plain values."""
        self.flush()
        return {"records": self.records.state_dict(), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self.records.load_state_dict(state["records"])
        self.epoch = state["epoch"]


def _places(rows: Sequence[int], layer: str, sequences: int) -> list[tuple[int, str]]:
    """Return the row of each sequence of a call, and the name of its mask: a row has one for each choice."""
    each = sequences // len(rows)
    return [(row, layer if each == 1 else f"{layer}#{part}") for row in rows for part in range(each)]


class RowPass:
    """One training pass: the candidates recorded for its rows before, and the recording of new ones."""

    def __init__(self, recorder: Recorder, rows: Sequence[int], units: str) -> None:
        self.recorder = recorder
        self.rows = rows
        self.hidden = units == "hidden"
        self._candidates: dict[str, Candidates | None] = {}
        self._spans: dict[str, tuple[tuple[Any, ...], Spans]] = {}

    @property
    def known(self) -> float:
        """Fraction of the rows that have a record."""
        return sum(row in self.recorder.records for row in self.rows) / max(1, len(self.rows))

    def candidates(self, call: AttentionCall) -> Candidates | None:
        """Return the recorded candidates of a layer, ``(batch, heads, query, key)``; None if no row has any."""
        layer = call.layer.key
        if layer not in self._candidates:
            masks = [self.recorder.records.get(*place) for place in _places(self.rows, layer, call.shape[0])]
            self._candidates[layer] = self._placed(call, masks) if any(masks) else None
        return self._candidates[layer]

    def _placed(self, call: AttentionCall, masks: Sequence[RowMask | None]) -> Candidates:
        """Put the masks of the rows where the rows are in a call."""
        heads, _, width = next(mask.shape for mask in masks if mask is not None)
        width = width if self.hidden else call.shape[3]
        region = np.zeros((len(masks), heads, call.shape[2], width), dtype=np.bool_)
        for own, mask, (query, queries, key, keys) in zip(region, masks, self.spans(call), strict=True):
            if mask is None:
                continue
            start, columns = (0, width) if self.hidden else (key, min(keys, mask.shape[2]))
            rows = min(queries, mask.shape[1])
            own[:, query : query + rows, start : start + columns] = mask.mask[:, :rows, :columns]
        found = torch.from_numpy(region)
        bits, shape = pack(found)
        return Candidates(bits.to(call.device), shape, any_last(found).to(call.device))

    def recording(self, call: AttentionCall, choose: Choose) -> AttentionEdit:
        """Return the edit that records the candidates of a layer when the pass is differentiated."""

        def receive(gradient: Tensor, value: Tensor) -> None:
            # The sum is not finite if any number is not.
            finite, attribution = gradient.sum().isfinite(), -gradient
            spans: Spans = self.spans(call)
            if self.hidden:
                mask = choose(call, attribution)
                spans = [(query, queries, 0, mask.shape[3]) for query, queries, _, _ in spans]
            else:
                mask = choose(call, by_weights(call, attribution, value))
            self.recorder.add(self.rows, call.layer.key, mask, spans, finite)

        return training_gradient_edit(call, receive)

    def spans(self, call: AttentionCall) -> Spans:
        """Find where each sequence is in a call, read once for all layers of a kind, which share their mask."""
        known, spans = self._spans.get(call.layer.kind, ((), ()))
        if known and known[0] is call.valid and known[1] == call.shape:
            return spans
        batch, _, queries, keys = call.shape
        if call.valid is None:
            spans = [(0, queries, 0, keys)] * batch
        else:
            seen = call.valid.any(1).any(1).expand(batch, -1).int()
            first, count = seen.argmax(-1), keys - seen.flip(-1).argmax(-1) - seen.argmax(-1)
            of_keys = torch.stack([first, count], -1).tolist()
            own = call.layer.kind != "cross" and queries == keys
            spans = [(*(found if own else (0, queries)), *found) for found in map(tuple, of_keys)]
        self._spans[call.layer.kind] = ((call.valid, call.shape), spans)
        return spans
