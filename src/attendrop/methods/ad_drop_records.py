"""Records of each training row: the dropout candidates of one pass, to be used when the row is trained on again."""

# The time line of a step, which every state here follows. A `Recorder` owns all of it; what it hands out knows nothing
# of it: a `RowPass` reads the records of its rows, a hook of the backward pass appends to the recorder's list.
#
#   begin_pass   if the step is new, `flush` what the last one gathered; if the epoch is new, `exchange` with processes
#   forward      `RowPass.candidates` reads, layer by layer, what earlier steps recorded of the rows
#   backward     the hooks of `recording` append a gradient of each layer; of several small layers on a GPU, the
#                candidates are then chosen at once (`choose`), which frees the gradients
#   after_step   `choose` the candidates by the gradients that are left; they stay on their device
#   next step    `flush`: to the host, into `RowRecords`. Only now a record is visible, to all passes of that step alike

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit
from attendrop.attribution.recording import by_weights, training_gradient_edit
from attendrop.errors import AttendropError
from attendrop.methods.core.context import Processes, StepContext
from attendrop.randomness.candidates import at_once, pack, unpack
from attendrop.support.models import ROW_INDEX, number_of_rows

logger = logging.getLogger(__name__)
# For each sequence: the first query and the number of queries, the first key and the number of keys, without padding.
Spans = Sequence[tuple[int, int, int, int]]
# Returns the mask of the candidates of a layer, given its call and its attribution.
Choose = Callable[[AttentionCall, Tensor], Tensor]
_Array = np.ndarray[Any, np.dtype[Any]]
# Maximum fraction of the free memory that records take, and the free memory where it is not known.
_MEMORY_FRACTION = 0.25
_UNKNOWN_MEMORY = 4 << 30
# Bytes of the objects that hold a mask, in addition to its bits.
_OBJECT_OVERHEAD_BYTES = 350
# Number of rows that each process sends at a time. They pass through the GPU, where each takes 18 MiB for 12 layers of
# 12 heads at 128 tokens.
_ROWS_AT_A_TIME = 64


class Candidates(NamedTuple):
    """Candidates of one layer: a function that reads their mask, and the rows with signal, see :class:`Region`."""

    mask: Callable[[], Tensor]
    signal: Tensor


@dataclass(frozen=True, slots=True)
class RowMask:
    """Mask of one row in one layer, ``(heads, queries, keys)`` without padding.

    Its bits are ``(heads, queries, bytes)``, the lowest bit of a byte first, so that masks are placed into those of a
    batch without unpacking them.
    """

    bits: _Array
    keys: int

    @property
    def size(self) -> int:
        """Size in memory in bytes, including the overhead of objects."""
        return self.bits.nbytes + _OBJECT_OVERHEAD_BYTES

    def of_keys(self, keys: int) -> _Array:
        """The bits of the first keys; of all if there are fewer."""
        if keys >= self.keys:
            return self.bits
        bits = self.bits[..., : _bytes(keys)].copy()
        bits[..., keys // 8 :] &= (1 << keys % 8) - 1
        return bits


class RowRecords:
    """Masks by the index of a row in the training data, and by layer, on the host.

    In each layer a row takes ``heads * queries * ceil(keys / 8)`` bytes, for its own length, and 350 more. Beyond
    ``limit`` bytes, by default a quarter of the memory that is free now, the oldest records are discarded.

    Attributes:
        rows: Masks by layer, by row, the oldest row first; to be changed by :meth:`put` only.
        new: The rows that were recorded since processes last exchanged theirs.
        bytes: Memory of all masks.
        forgotten: Number of discarded rows.
    """

    def __init__(self, limit: int | None = None) -> None:
        try:  # per training process on this machine
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        except (AttributeError, ValueError, OSError):  # elsewhere than on Linux
            free = _UNKNOWN_MEMORY
        self.limit = free * _MEMORY_FRACTION if limit is None else limit
        self.forgotten = 0
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.rows: dict[int, dict[str, RowMask]] = {}
        self.new: set[int] = set()
        self.bytes = 0

    def put(self, row: int, masks: Mapping[str, RowMask]) -> None:
        """Replace what is recorded of a row in some layers; it is the newest row then."""
        kept = self.rows[row] = self.rows.pop(row, {})
        self.bytes += sum(mask.size for mask in masks.values())
        self.bytes -= sum(kept[layer].size for layer in masks if layer in kept)
        kept.update(masks)
        self.new.add(row)
        while self.bytes > self.limit and self.rows:
            oldest = next(iter(self.rows))
            self.bytes -= sum(mask.size for mask in self.rows.pop(oldest).values())
            self.new.discard(oldest)
            if not self.forgotten:
                logger.warning(
                    "The records of training rows exceed their limit of %.0f MiB: the oldest are discarded, and "
                    "nothing is dropped from those rows; raise record_limit.",
                    self.limit / 2**20,
                )
            self.forgotten += 1

    def state_dict(self) -> dict[str, Any]:
        """Return all records as tensors and plain values."""
        layers = list(dict.fromkeys(layer for masks in self.rows.values() for layer in masks))
        entries = [(row, layer, mask) for row, masks in self.rows.items() for layer, mask in masks.items()]
        bits = np.concatenate([np.empty(0, np.uint8), *(mask.bits.ravel() for _, _, mask in entries)])
        places = [
            (row, layers.index(layer), *mask.bits.shape[:2], mask.keys, row in self.new) for row, layer, mask in entries
        ]
        index = torch.tensor(places, dtype=torch.long).view(-1, 6)
        counts = {"forgotten": self.forgotten, "limit": self.limit}
        return {"layers": layers, "bits": torch.from_numpy(bits), "index": index, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        bits, place = state["bits"].numpy(), 0
        self.clear()
        for row, layer, heads, queries, keys, new in state["index"].tolist():
            size = heads * queries * _bytes(keys)
            # A copy of its own, so that the memory is free once it is replaced.
            mask = RowMask(bits[place : place + size].reshape(heads, queries, -1).copy(), keys)
            self.rows.setdefault(row, {})[state["layers"][layer]] = mask
            if new:
                self.new.add(row)
            place, self.bytes = place + size, self.bytes + mask.size
        self.forgotten, self.limit = state["forgotten"], state["limit"]


class RowPass:
    """One training pass over some rows: what was recorded of them before, and where they are in its calls."""

    def __init__(self, records: RowRecords, rows: Sequence[int], units: str, layers: Sequence[AttentionLayer]) -> None:
        self.records = records
        self.rows = rows
        self.hidden = units == "hidden"
        self._layers = layers
        self._candidates: dict[tuple[str, tuple[int, ...]], Candidates | None] = {}  # by layer and shape of the call
        self._spans: dict[str, tuple[tuple[Any, ...], Spans]] = {}

    def candidates(self, call: AttentionCall) -> Candidates | None:
        """Return the recorded candidates of a layer, ``(batch, heads, query, key)``; None if no row has any."""
        if (call.layer.key, call.shape) not in self._candidates:
            found: dict[str, Candidates | None] = {call.layer.key: None, **self._recorded(call)}
            self._candidates |= {(layer, call.shape): own for layer, own in found.items()}
        return self._candidates[call.layer.key, call.shape]

    def _recorded(self, call: AttentionCall) -> dict[str, Candidates]:
        """Put the masks of the rows where the rows are in a call, for all layers that are like the call's."""
        sequences, of_layers = call.shape[0] // len(self.rows), dict[str, list[RowMask | None]]()
        for layer in self._layers:
            if layer.kind == call.layer.kind and (layer.key, call.shape) not in self._candidates:
                names = [_name(layer.key, part) for part in range(sequences)]
                of_layers[layer.key] = [self.records.rows.get(row, {}).get(name) for row in self.rows for name in names]
        shapes = {
            key: next(((mask.bits.shape, mask.keys) for mask in masks if mask is not None), None)
            for key, masks in of_layers.items()
        }
        shape = shapes.get(call.layer.key)
        if shape is None:
            return {}
        ((heads, _, _), keys), like = shape, [key for key, own in shapes.items() if own == shape]
        width, spans = keys if self.hidden else call.shape[3], self.spans(call)
        # From pinned memory the host need not wait for the copy.
        bits = torch.zeros(
            (len(like), call.shape[0], heads, call.shape[2], _bytes(width)),
            dtype=torch.uint8,
            pin_memory=call.device.type == "cuda",
        )
        for of_layer, key in zip(bits.numpy(), like, strict=True):
            for of_row, mask, (query, queries, _, keys_of_row) in zip(of_layer, of_layers[key], spans, strict=True):
                if mask is not None:
                    own = mask.bits if self.hidden else mask.of_keys(keys_of_row)
                    rows = min(queries, own.shape[1])
                    of_row[:, query : query + rows, : own.shape[2]] = own[:, :rows]
        bits = bits.to(call.device, non_blocking=True)
        signal, by = bits.amax(-1, keepdim=True).bool(), [0 if self.hidden else key for _, _, key, _ in spans]
        if 8 * bits.numel() <= at_once(call.device):
            masks = _unpacked(bits, by, width)
            reads: list[Callable[[], Tensor]] = [partial(masks.__getitem__, i) for i in range(len(like))]
        else:
            reads = [partial(_unpacked, each, by, width) for each in bits]
        return {key: Candidates(read, own) for key, read, own in zip(like, reads, signal, strict=True)}

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


class _Gradient(NamedTuple):
    """What the backward pass hands over of a layer: see :func:`training_gradient_edit`."""

    of: RowPass
    call: AttentionCall
    choose: Choose
    gradient: Tensor
    value: Tensor


class _Chosen(NamedTuple):
    """Candidates of some layers of a pass, on their device until the step ends.

    Attributes:
        bits: ``(layers, batch, heads, queries, bytes)``; the first key of a sequence that is not padding comes first.
        finite: Where the gradients are finite, ``(layers,)``.
    """

    rows: Sequence[int]
    layers: Sequence[str]
    bits: Tensor
    spans: Spans
    finite: Tensor


class Recorder:
    """Owner of the records of rows, and of what the passes of a step have added to them.

    Rows move from process to process, so each process keeps the records of all rows: at the start of an epoch they
    exchange what they recorded in the previous one.

    Attributes:
        without_signal: Fraction of the rows of the last step that have no candidate in any layer, for example because
            their gradients are zero in float16; None if nothing was recorded.
    """

    def __init__(self, limit: int | None, processes: Processes) -> None:
        self.records = RowRecords(limit)
        self.processes = processes
        self.epoch: int | None = None
        self.clear()

    def clear(self) -> None:
        """Forget all records, those of the present step too."""
        self.records.clear()
        self.without_signal: float | None = None
        self._gradients: list[_Gradient] = []
        self._chosen: list[_Chosen] = []
        self._kept = 0  # number of entries in _chosen from earlier micro-batches
        self._step: tuple[int, int] | None = None  # of the last pass, and the micro-batch; None since the last flush

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
        if self.processes.world_size > 1 and context.epoch is None:
            raise AttendropError("Processes exchange records at the start of an epoch: call set_epoch(epoch) for each.")
        step = (context.key.step, context.key.first)
        if self._step is not None and (step[0] != self._step[0] or context.epoch != self.epoch):
            self.flush()
        if step == self._step:  # of a method's several passes, the one differentiated last is recorded
            self._gradients, self._chosen = [], self._chosen[: self._kept]
        else:
            self.choose()
            self._step, self._kept = step, len(self._chosen)
        if context.epoch != self.epoch:
            self.epoch = context.epoch
            self.exchange()
        return RowPass(self.records, rows, units, context.adapter.attention_layers)

    def recording(self, row_pass: RowPass, call: AttentionCall, choose: Choose) -> AttentionEdit:
        """Return the edit that records the candidates of a layer when the pass is differentiated.

        A GPU chooses the candidates of several small layers at once. If rows are repeated (copies are adjacent), the
        first copy is recorded. Where gradients are not finite, as in a step that a float16 scaler skips, the previous
        record is kept.
        """
        row_pass.spans(call)  # here the host waits for the device for less long than in the backward pass

        def add(gradient: Tensor, value: Tensor) -> None:
            self._gradients.append(_Gradient(row_pass, call, choose, gradient, value))
            if sum(math.prod(each.call.shape) for each in self._gradients) > at_once(call.device):
                self.choose()

        return training_gradient_edit(call, add)

    def choose(self) -> None:
        """Choose the candidates by the gradients that were added. They stay on their device."""
        like: dict[Any, list[_Gradient]] = {}
        for each in self._gradients:
            shapes = each.call.shape, each.gradient.shape
            like.setdefault((id(each.of), each.call.layer.kind, id(each.call.valid), shapes), []).append(each)
        self._gradients = []
        for group in like.values():  # layers of one pass and kind, with shape and valid keys in common
            of, call, choose, gradient, value = group[0]
            spans, layers = of.spans(call), len(group)
            if layers > 1:
                gradient = torch.cat([each.gradient for each in group])
                value = torch.cat([each.value for each in group])
                batch = call.shape[0]
                valid = None if call.valid is None else call.valid.expand(batch, -1, -1, -1).repeat(layers, 1, 1, 1)
                call = replace(call, shape=(layers * batch, *call.shape[1:]), valid=valid)
            with torch.no_grad():
                # The sum is not finite if any number is not.
                finite, attribution = gradient.reshape(layers, -1).sum(1).isfinite(), -gradient
                if of.hidden:
                    mask = choose(call, attribution)
                    spans = [(query, queries, 0, mask.shape[3]) for query, queries, _, _ in spans]
                else:
                    mask = choose(call, by_weights(call, attribution, value))
                mask = functional.pad(mask, (0, -mask.shape[3] % 8))
                mask = _moved(mask.reshape(layers, -1, *mask.shape[1:]), [-key for _, _, key, _ in spans])
            bits = pack(mask)[0].view(*mask.shape[:-1], -1)
            self._chosen.append(_Chosen(of.rows, [each.call.layer.key for each in group], bits, spans, finite))

    def flush(self) -> None:
        """Move what the passes of a step added to the records. Until then, all passes use those of earlier steps.

        The next step does so when it begins: at the end of a step, the host would wait for the device.
        """
        if self._step is None:
            return
        self.choose()
        chosen, self._chosen, self._kept, self._step = self._chosen, [], 0, None
        # One copy from the device: the bits, and for each layer whether its gradients are finite.
        parts = [part for each in chosen for part in (each.bits.view(-1), each.finite.byte())]
        on_host = iter(torch.split(torch.cat(parts).cpu(), [len(part) for part in parts]) if parts else ())
        found: dict[int, dict[str, RowMask]] = {}
        for each, flat, finite in zip(chosen, on_host, on_host, strict=True):
            bits, seen = flat.view(each.bits.shape).numpy(), set[tuple[int, int]]()
            sequences = len(each.spans) // len(each.rows)
            for number, (query, queries, _, keys) in enumerate(each.spans):
                row, part = each.rows[number // sequences], number % sequences
                if (row, part) in seen:
                    continue
                seen.add((row, part))
                own = bits[:, number, :, query : query + queries, : _bytes(keys)].copy()
                for layer, mask, valid in zip(each.layers, own, finite.tolist(), strict=True):
                    if valid:
                        found.setdefault(row, {})[_name(layer, part)] = RowMask(mask, keys)
        for row, of_layers in found.items():
            self.records.put(row, of_layers)
        empty = sum(not any(mask.bits.any() for mask in of_layers.values()) for of_layers in found.values())
        self.without_signal = empty / len(found) if found else None

    def exchange(self) -> None:
        """Give all processes what each has recorded since the last exchange, some rows at a time."""
        if self.processes.world_size == 1:
            return
        new = [(row, masks) for row, masks in self.records.rows.items() if row in self.records.new]
        rounds = max(self.processes.gather(-(-len(new) // _ROWS_AT_A_TIME)))
        recorded: list[list[tuple[int, dict[str, RowMask]]]] = [[] for _ in range(self.processes.world_size)]
        for start in range(0, rounds * _ROWS_AT_A_TIME, _ROWS_AT_A_TIME):
            for rows, part in zip(recorded, self.processes.gather(new[start : start + _ROWS_AT_A_TIME]), strict=True):
                rows += part
        for rows in recorded:  # in the same order in each process, so that all evict the same rows
            for row, masks in rows:
                self.records.put(row, masks)
        self.records.new = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the records of this process, as tensors and plain values."""
        self.flush()
        return {"records": self.records.state_dict(), "epoch": self.epoch, "without_signal": self.without_signal}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; what the last step added is not of these records."""
        self.clear()
        self.records.load_state_dict(state["records"])
        self.epoch, self.without_signal = state["epoch"], state["without_signal"]


def _bytes(keys: int) -> int:
    return -(-keys // 8)


def _name(layer: str, part: int) -> str:
    """Name the mask of a sequence: a row has one in each layer, or one for each of its choices."""
    return f"{layer}#{part}" if part else layer


def _moved(masks: Tensor, by: Sequence[int]) -> Tensor:
    """Move the keys of each sequence, ``(..., batch, heads, query, key)``, to the right, or to the left if below 0."""
    if not any(by):
        return masks
    found, width = torch.zeros_like(masks), masks.shape[-1]
    for place, number in enumerate(by):
        to, of = slice(max(0, number), width + min(0, number)), slice(max(0, -number), width - max(0, number))
        found[..., place, :, :, to] = masks[..., place, :, :, of]
    return found


def _unpacked(bits: Tensor, by: Sequence[int], keys: int) -> Tensor:
    """Unpack masks, ``(..., batch, heads, query, bytes)``, and move their keys."""
    masks = unpack(bits.reshape(-1), (*bits.shape[:-1], 8 * bits.shape[-1]))
    return _moved(masks, by)[..., :keys]
