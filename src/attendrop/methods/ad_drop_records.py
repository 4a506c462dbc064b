"""Records of each training row: the dropout candidates of one pass, to be used when the row is trained on again."""

# The time line of a step, which every state here follows. A `Recorder` owns all of it; what it hands out knows nothing
# of it: a `RowPass` reads the masks of its rows, a hook of the backward pass appends to the recorder's list.
#
#   begin_pass   if the step is new, `flush` what the last one gathered; if the epoch is new, `exchange` with processes
#   forward      `RowPass.candidates` reads, layer by layer, what earlier steps recorded of the rows
#   backward     the hooks of a `RecordingPlan` append a gradient of each layer; of several small layers, the
#                candidates are then chosen at once (`choose`), which frees the gradients
#   after_step   `choose` the candidates by the gradients that are left; they stay on their device
#   next step    `flush`: to the host (`put`). Only now a record is visible, to all passes of that step alike

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, Plan
from attendrop.attribution.finite_gradients import upcast
from attendrop.attribution.recording import SeenLayer, by_weights, stacked, stacks, training_gradient_edit
from attendrop.errors import AttendropError
from attendrop.methods.core.context import Processes, StepContext
from attendrop.methods.core.plans import DroppedScores
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
# What a checkpoint holds beside the masks.
_COUNTS = ("forgotten", "limit", "epoch", "without_signal")


class RowMask(NamedTuple):
    """Mask of one row in one layer, ``(heads, queries, keys)`` without padding."""

    bits: _Array  # (heads, queries, bytes), the lowest bit of a byte first: placed in a batch without being unpacked
    keys: int

    @property
    def size(self) -> int:
        """Size in memory in bytes, including the overhead of objects."""
        return self.bits.nbytes + _OBJECT_OVERHEAD_BYTES


class RowPass:
    """One training pass over some rows: what was recorded of them before, and where they are in its calls.

    Args:
        recorded: The masks by layer, by row.
        rows: Index of each row in the training data.
        units: ``"attention"`` or ``"hidden"``.
        tokens: The first token that is not padding, and the number of tokens from there to the last, of each sequence
            that attention sees; None if only a call can tell.
        length: Number of tokens of the sequences, with padding.
    """

    def __init__(
        self,
        recorded: Mapping[int, Mapping[str, RowMask]],
        rows: Sequence[int],
        units: str,
        tokens: Sequence[tuple[int, int]] | None = None,
        length: int = 0,
    ) -> None:
        self.recorded = recorded
        self.rows = rows
        self.hidden = units == "hidden"
        self._tokens, self._length = tokens, length
        self._spans: dict[tuple[str, int, int, int], Spans] = {}  # by kind, and by shape without heads

    def candidates(self, call: AttentionCall) -> DroppedScores | None:
        """Return the recorded candidates of a call, with the rows that have any; None if no row has.

        All keys of a row may be candidates if it was longer when it was recorded.
        """
        batch = call.shape[0] // len(call.layers)
        parts = range(batch // len(self.rows))
        of_rows = [self.recorded.get(row, {}) for row in self.rows]
        masks = [own.get(_name(layer.key, part)) for layer in call.layers for own in of_rows for part in parts]
        shape = next(((mask.bits.shape[0], mask.keys) for mask in masks if mask is not None), None)
        if shape is None:
            return None
        (heads, keys), spans = shape, list(self.spans(call)) * len(call.layers)
        width = keys if self.hidden else call.shape[3]
        # From pinned memory the host need not wait for the copy.
        pinned = call.device.type == "cuda"
        bits = torch.zeros((len(masks), heads, call.shape[2], _bytes(width)), dtype=torch.uint8, pin_memory=pinned)
        whole_rows = False
        for of_row, mask, (query, queries, _, keys_of_row) in zip(bits.numpy(), masks, spans, strict=True):
            if mask is not None:
                own = mask.bits
                if not self.hidden and keys_of_row < mask.keys:  # the row is cut in this batch
                    own, whole_rows = own[..., : _bytes(keys_of_row)].copy(), True
                    own[..., keys_of_row // 8 :] &= (1 << keys_of_row % 8) - 1
                rows = min(queries, own.shape[1])
                of_row[:, query : query + rows, : own.shape[2]] = own[:, :rows]
        bits = bits.to(call.device, non_blocking=True)
        signal, by = bits.amax(-1, keepdim=True).bool(), [0 if self.hidden else key for _, _, key, _ in spans[:batch]]
        found = unpack(bits.view(-1), (len(call.layers), batch, *bits.shape[1:3], 8 * bits.shape[3]))
        return DroppedScores(_moved(found, by)[..., :width].flatten(0, 1), signal, whole_rows)

    def origins(self, call: AttentionCall) -> Tensor | None:
        """Return ``call.origins()``, by what the host knows of the rows; None if all are zero."""
        if call.shape[2] != call.shape[3] and call.layer.kind != "cross":
            return call.origins()
        found = [(query, key) for query, _, key, _ in self.spans(call)]
        return torch.tensor(found * len(call.layers)) if any(map(any, found)) else None

    def spans(self, call: AttentionCall) -> Spans:
        """Find where each sequence is in a call of a layer, or of several; read once for all layers of a kind."""
        batch, (_, _, queries, keys) = call.shape[0] // len(call.layers), call.shape
        place = (call.layer.kind, batch, queries, keys)
        if place not in self._spans:
            own = call.layer.kind != "cross" and queries == keys
            if call.valid is None:
                tokens: Sequence[tuple[int, int]] = [(0, keys)] * batch
            elif self._tokens is not None and own and (batch, keys) == (len(self._tokens), self._length):
                tokens = self._tokens
            else:
                tokens = _tokens(call.valid[:batch].any(1).any(1).expand(batch, -1).cpu().numpy())
            self._spans[place] = [(*((first, count) if own else (0, queries)), first, count) for first, count in tokens]
        return self._spans[place]


def _tokens(seen: _Array) -> list[tuple[int, int]]:
    """Find the first token that is seen, and the number of tokens to the last, of each sequence."""
    first = seen.argmax(-1)
    return list(zip(first.tolist(), (seen.shape[1] - seen[:, ::-1].argmax(-1) - first).tolist(), strict=True))


class RecordingPlan(Plan):
    """Plan that changes nothing, and has the candidates of some layers recorded when the pass is differentiated.

    Of copies of a row, the first is recorded. Where gradients are not finite, as in a step that a float16 scaler skips,
    the previous record is kept.
    """

    def __init__(self, recorder: Recorder, row_pass: RowPass, layers: Sequence[AttentionLayer], choose: Choose) -> None:
        super().__init__()
        self.layer_keys = {layer.key for layer in layers}
        self._recorder, self._pass, self._choose = recorder, row_pass, choose
        self._edits: dict[str, AttentionEdit] = {}

    def edit(self, call: AttentionCall) -> AttentionEdit:
        if call.layer.key not in self._edits:
            self._pass.spans(call)  # here the host waits for the device for less long than in the backward pass
            add = partial(self._recorder.add, self._pass, call, self._choose)
            self._edits[call.layer.key] = training_gradient_edit(call, add)
        return self._edits[call.layer.key]


class _Chosen(NamedTuple):
    """Candidates of some layers of a pass, on their device until the step ends."""

    rows: Sequence[int]
    layers: Sequence[str]
    bits: Tensor  # (layers, batch, heads, queries, bytes), from the first key of a sequence that is not padding
    spans: Spans
    sums: Tensor  # of the gradients, (layers,), finite where all of these are


class Recorder:
    """Owner of the records of rows, on the host, and of what the passes of a step have added to them.

    Rows move from process to process, so each keeps the records of all: they exchange them at the start of an epoch.
    Beyond ``limit`` bytes, by default a quarter of the memory that is free now, the oldest are discarded.

    Attributes:
        rows: Masks by layer, by row, the oldest row first; to be changed by :meth:`put` only.
        new: The rows that were recorded since processes last exchanged theirs.
        bytes: Memory of all masks.
        forgotten: Number of discarded rows.
        without_signal: Fraction of the rows of the last step without a candidate in any layer, for example because
            their gradients are zero in float16; None if nothing was recorded.
    """

    def __init__(self, limit: int | None, processes: Processes) -> None:
        try:  # per training process on this machine
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        except (AttributeError, ValueError, OSError):  # elsewhere than on Linux
            free = _UNKNOWN_MEMORY
        self.limit = free * _MEMORY_FRACTION if limit is None else limit
        self.processes = processes
        self.epoch: int | None = None
        self.forgotten = 0
        self.clear()

    def clear(self) -> None:
        """Forget all records, those of the present step too."""
        self.rows: dict[int, dict[str, RowMask]] = {}
        self.new: set[int] = set()
        self.bytes = 0
        self.without_signal: float | None = None
        self._gradients: dict[tuple[RowPass, Choose], list[SeenLayer]] = {}
        self._chosen: list[_Chosen] = []
        self._kept = 0  # number of entries in _chosen from earlier micro-batches
        self._step: tuple[int, int] | None = None  # of the last pass, and the micro-batch; None since the last flush

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

    def begin_pass(self, context: StepContext, units: str) -> RowPass:
        """Begin a training pass over ``context.batch``; raise AttendropError if its rows are not known."""
        if ROW_INDEX not in context.batch:
            raise AttendropError(
                "Recorded attributions need to know the rows of a batch: compute the loss by reg.loss(batch, "
                "rows=indices), with the index of each row in the training data."
            )
        index: Tensor = context.batch[ROW_INDEX]
        if number_of_rows(context.batch) != len(index):
            raise AttendropError(
                f"The data collator made {number_of_rows(context.batch)} rows of {len(index)}, so recorded "
                "attributions cannot be assigned to rows; have it keep the number of rows, or use "
                "attribution='gradient'."
            )
        if self.processes.world_size > 1 and context.epoch is None:
            raise AttendropError("Processes exchange records at the start of an epoch: call set_epoch(epoch) for each.")
        step = (context.key.step, context.key.first)
        # The host waits for the device once: for the rows, their real tokens, and what the last step chose.
        two_stacks = getattr(getattr(context.model, "config", None), "is_encoder_decoder", False)
        mask = None if two_stacks else context.inputs.get("attention_mask")
        mask = mask.flatten(0, -2) if isinstance(mask, Tensor) and mask.ndim in (2, 3) else None
        wanted = [index.long().view(torch.uint8)]
        if mask is not None:
            wanted = [wanted[0].to(mask.device, non_blocking=True), (mask != 0).view(torch.uint8).flatten()]
        if self._step is not None and (step[0] != self._step[0] or context.epoch != self.epoch):
            read = self.flush(wanted)
        else:
            read = [each.cpu().numpy() for each in wanted]
        rows = read[0].view(np.int64).tolist()
        if step == self._step:  # of a method's several passes, the one differentiated last is recorded
            self._gradients, self._chosen = {}, self._chosen[: self._kept]
        else:
            self.choose()
            self._step, self._kept = step, len(self._chosen)
        if context.epoch != self.epoch:
            self.epoch = context.epoch
            self.exchange()
        if mask is None:
            return RowPass(self.rows, rows, units)
        return RowPass(self.rows, rows, units, _tokens(read[1].reshape(mask.shape)), mask.shape[1])

    def add(self, row_pass: RowPass, call: AttentionCall, choose: Choose, gradient: Tensor, value: Tensor) -> None:
        """Add the gradient of the heads' outputs of a layer, and its values."""
        self._gradients.setdefault((row_pass, choose), []).append(SeenLayer(call, gradient, value))
        added = (each.call.shape for of_pass in self._gradients.values() for each in of_pass)
        if sum(map(math.prod, added)) > at_once(call.device):
            self.choose()

    def choose(self) -> None:
        """Choose the candidates by the gradients that were added. They stay on their device."""
        added, self._gradients = self._gradients, {}
        for of, choose, group in ((*by, group) for by, seen in added.items() for group in stacks(seen)):
            layers, (call, gradient, value) = len(group), stacked(group)
            spans, gradient = of.spans(call), upcast(gradient)
            with torch.no_grad():
                # The sum is not finite if any number is not.
                sums, attribution = gradient.reshape(layers, -1).sum(1), -gradient
                if of.hidden:
                    mask = choose(call, attribution)
                    spans = [(query, queries, 0, mask.shape[3]) for query, queries, _, _ in spans]
                else:
                    mask = choose(call, by_weights(attribution, value))
                if mask.shape[3] % 8:
                    mask = functional.pad(mask, (0, -mask.shape[3] % 8))
                mask = _moved(mask.reshape(layers, -1, *mask.shape[1:]), [-key for _, _, key, _ in spans])
            bits = pack(mask)[0].view(*mask.shape[:-1], -1)
            self._chosen.append(_Chosen(of.rows, [layer.key for layer in call.layers], bits, spans, sums))

    def flush(self, wanted: Sequence[Tensor] = ()) -> list[_Array]:
        """Move what the passes of a step added to the records. Until then, all passes use those of earlier steps.

        The next step does so when it begins: at the end of a step, the host would wait for the device. It reads some
        bytes that are ``wanted`` in the same copy, and returns them.
        """
        self.choose()
        chosen, self._chosen, self._kept, self._step = self._chosen, [], 0, None
        parts = [each.bits.view(-1) for each in chosen] + [each.sums.view(torch.uint8) for each in chosen]
        parts += [each.to(parts[0].device) if parts else each for each in wanted]
        if not parts:
            return []
        bounds = np.cumsum([len(part) for part in parts])
        read = np.split(torch.cat(parts).cpu().numpy(), bounds[:-1])
        found: dict[int, dict[str, RowMask]] = {}
        for each, flat, sums in zip(chosen, read, read[len(chosen) :], strict=False):
            bits, seen = flat.reshape(each.bits.shape), set[tuple[int, int]]()
            finite = np.isfinite(sums.view(np.float64 if each.sums.dtype == torch.float64 else np.float32))
            sequences = len(each.spans) // len(each.rows)
            for number, (query, queries, _, keys) in enumerate(each.spans):
                row, part = each.rows[number // sequences], number % sequences
                if (row, part) in seen:
                    continue
                seen.add((row, part))
                own = bits[:, number, :, query : query + queries, : _bytes(keys)].copy()
                for layer, mask, valid in zip(each.layers, own, finite, strict=True):
                    if valid:
                        found.setdefault(row, {})[_name(layer, part)] = RowMask(mask, keys)
        for row, of_layers in found.items():
            self.put(row, of_layers)
        empty = sum(not any(mask.bits.any() for mask in of_layers.values()) for of_layers in found.values())
        self.without_signal = empty / len(found) if found else None
        return read[2 * len(chosen) :]

    def exchange(self) -> None:
        """Give all processes what each has recorded since the last exchange, some rows at a time."""
        if self.processes.world_size == 1:
            return
        new = [(row, masks) for row, masks in self.rows.items() if row in self.new]
        rounds = max(self.processes.gather(-(-len(new) // _ROWS_AT_A_TIME)))
        recorded: list[list[tuple[int, dict[str, RowMask]]]] = [[] for _ in range(self.processes.world_size)]
        for start in range(0, rounds * _ROWS_AT_A_TIME, _ROWS_AT_A_TIME):
            for rows, part in zip(recorded, self.processes.gather(new[start : start + _ROWS_AT_A_TIME]), strict=True):
                rows += part
        for rows in recorded:  # in the same order in each process, so that all evict the same rows
            for row, masks in rows:
                self.put(row, masks)
        self.new = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the records of this process, as tensors and plain values."""
        self.flush()
        layers = list(dict.fromkeys(layer for masks in self.rows.values() for layer in masks))
        entries = [(row, layer, mask) for row, masks in self.rows.items() for layer, mask in masks.items()]
        bits = np.concatenate([np.empty(0, np.uint8), *(mask.bits.ravel() for _, _, mask in entries)])
        places = [
            (row, layers.index(layer), *mask.bits.shape[:2], mask.keys, row in self.new) for row, layer, mask in entries
        ]
        index = torch.tensor(places, dtype=torch.long).view(-1, 6)
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {"layers": layers, "bits": torch.from_numpy(bits), "index": index, **counts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; what the last step added is not of these records."""
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
        vars(self).update({name: state[name] for name in _COUNTS})


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
