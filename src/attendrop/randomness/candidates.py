"""Candidate regions of attention dropout, and packing of masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attendrop.randomness.device_path import on_cpu

# Elements of attributions that are ranked at a time: 16 MiB in float32; 128 MiB on a GPU, to launch fewer kernels.
_AT_A_TIME, _AT_A_TIME_ON_GPU = 1 << 22, 1 << 25

# Elements of masks of several layers that are handled together: if they are few, dispatching operations takes the time.
# On a CPU they should fit into its cache.
_AT_ONCE, _AT_ONCE_ON_CPU = 1 << 24, 1 << 20


_OF_BYTES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def at_once(device: torch.device) -> int:
    """Return the number of elements of several layers up to which they are handled together."""
    return _AT_ONCE_ON_CPU if on_cpu(device) else _AT_ONCE


def any_last(mask: Tensor) -> Tensor:
    """Compute ``mask.any(-1, keepdim=True)`` of a boolean mask; by the maximum of bytes a CPU is many times faster."""
    if not on_cpu(mask.device):
        return mask.any(-1, keepdim=True)
    mask = mask.contiguous()
    widest = math.gcd(8, mask.shape[-1], mask.storage_offset())  # bytes that are compared as one number
    return mask.view(_OF_BYTES[widest]).amax(-1, keepdim=True).bool()


def floor_fraction(count: Tensor, fraction: float) -> Tensor:
    """Compute ``floor(count * fraction + 1e-6)`` in float64: 10 times (1 - 0.9) is 1, not 0."""
    return torch.floor(count.double() * fraction + 1e-6).long()


@lru_cache(maxsize=64)
def _thresholds(length: int, fraction: float, least: int, device: torch.device) -> Tensor:
    """Tabulate, for each number of valid keys up to ``length``, the place of the threshold in a sorted row."""
    numbers = torch.arange(length + 1)
    return torch.minimum(floor_fraction(numbers, fraction).clamp(min=least), (numbers - 1).clamp(min=0)).to(device)


@lru_cache(maxsize=8)
def _bit_values(device: torch.device) -> Tensor:
    return torch.tensor([1 << place for place in range(8)], dtype=torch.uint8, device=device)


@lru_cache(maxsize=8)
def _infinity(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(torch.inf, dtype=dtype, device=device)


class Region(NamedTuple):
    """Candidate positions of one attention layer, or of several.

    Attributes:
        mask: ``(batch, heads, query, key)``, True at candidates.
        unequal: True for rows whose attributions are not all equal; None: those with candidates.
    """

    mask: Tensor
    unequal: Tensor | None = None

    @property
    def signal(self) -> Tensor:
        """The rows whose attributions are not all equal, ``(batch, heads, query, 1)``; others have no candidates."""
        return any_last(self.mask) if self.unequal is None else self.unequal


def candidate_region(attribution: Tensor, valid: Tensor | None, p: float, direction: str = "high") -> Region:
    """Find the positions of highest (or lowest, or strongest) attribution in each row.

    Eq. 6 of Yang et al. (2022), row by row over the valid keys. ``"high"``: with ``t = max(1, floor(n_valid (1-p)))``,
    the positions whose attribution is at least the ``t``-th smallest, counted from 0; if that is the whole row, only
    those above it. ``"low"`` (their prior experiment, Fig. 2): the positions below the ``floor(n_valid p)``-th
    smallest. ``"magnitude"`` (ours): as ``"high"``, by absolute value.

    Args:
        attribution: ``(batch, heads, query, key)``; compared in float32, or float64 if it is that.
        valid: Valid keys.
        p: Fraction of candidates in a row, in (0, 1).
        direction: ``"high"``, ``"low"`` or ``"magnitude"``.
    """
    # Some sequences at a time: sorting takes several times the memory of what is sorted.
    at_a_time = _AT_A_TIME if on_cpu(attribution.device) else _AT_A_TIME_ON_GPU
    sequences = max(1, at_a_time // max(1, attribution[:1].numel()))
    masks = None if valid is None else valid.expand(len(attribution), *valid.shape[1:])
    parts = [
        _region(attribution[i : i + sequences], None if masks is None else masks[i : i + sequences], p, direction)
        for i in range(0, len(attribution), sequences)
    ]
    if len(parts) == 1:
        return parts[0]
    unequal = [part.unequal for part in parts if part.unequal is not None]
    return Region(torch.cat([part.mask for part in parts]), torch.cat(unequal) if unequal else None)


def _region(attribution: Tensor, valid: Tensor | None, p: float, direction: str) -> Region:
    if attribution.dtype != torch.float64:
        attribution = attribution.float()
    if direction == "magnitude":
        attribution = attribution.abs()
    length, low, device = attribution.shape[-1], direction == "low", attribution.device
    fraction, least_place = (p, 0) if low else (1 - p, 1)
    if valid is None:
        place = min(max(least_place, math.floor(length * fraction + 1e-6)), length - 1)  # as in `_thresholds`
        if on_cpu(device) and not low:  # as below, by numpy alone, for short rows
            values = attribution.detach().numpy()
            in_order = np.sort(values, axis=-1)
            above = np.maximum(in_order[..., place, None], np.nextafter(in_order[..., :1], np.inf))
            return Region(torch.from_numpy(values >= above))
        ordered = _sorted(attribution.clone() if on_cpu(device) else attribution)
        threshold, highest = ordered[..., place, None], ordered[..., -1:]
    else:
        if on_cpu(device):  # where adding is much faster
            ordered = _sorted(attribution + torch.where(valid, 0.0, torch.inf))
        else:
            ordered = _sorted(attribution.masked_fill(~valid, torch.inf))
        n_valid = valid.sum(-1, keepdim=True)
        threshold = _take(ordered, _thresholds(length, fraction, least_place, device)[n_valid])
        highest = _take(ordered, (n_valid - 1).clamp(min=0)) if low else ordered
    # A row without signal is all as its lowest. Comparisons with NaN are False: no candidates.
    lowest = ordered[..., :1]
    if low:
        mask = attribution < threshold
    else:  # above the lowest, should that be the threshold
        least = torch.maximum(threshold, lowest.nextafter(_infinity(lowest.dtype, lowest.device)))
        if on_cpu(device):  # half of torch's time
            mask = torch.from_numpy(np.greater_equal(attribution.detach().numpy(), least.detach().numpy()))
        else:
            mask = attribution >= least
    unequal = lowest < highest if low else None  # perhaps too few keys for any
    return Region(mask if valid is None else mask & valid, unequal)


def _sorted(values: Tensor) -> Tensor:
    """Sort the last dimension, on a CPU in place. There numpy's vectorised sort takes a tenth of torch's time."""
    if not on_cpu(values.device):
        return values.sort(-1).values
    values = values.detach().contiguous()
    values.numpy().sort(axis=-1)
    return values


def _take(ordered: Tensor, index: Tensor) -> Tensor:
    """Pick one element of each row; ``index`` broadcasts over heads and rows."""
    return ordered.gather(-1, index.expand(*ordered.shape[:-1], 1))


def pack(mask: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Store a boolean mask in an eighth of its memory: its bits, eight in a byte, and its shape."""
    if on_cpu(mask.device):
        return torch.from_numpy(np.packbits(mask.contiguous().view(-1).numpy(), bitorder="little")), (*mask.shape,)
    bits = mask.reshape(-1)
    if mask.numel() % 8:
        bits = functional.pad(bits, (0, -mask.numel() % 8))
    bits = bits.view(-1, 8)
    return (bits * _bit_values(mask.device)).sum(-1, dtype=torch.uint8), (*mask.shape,)


def unpack(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """Restore a mask that :func:`pack` stored."""
    if on_cpu(bits.device):
        found = np.unpackbits(bits.numpy(), count=math.prod(shape), bitorder="little")
        return torch.from_numpy(found.view(np.bool_)).view(*shape)
    mask = (bits[:, None] & _bit_values(bits.device)).bool()
    return mask.view(-1)[: math.prod(shape)].view(*shape)


def kept(mask: Tensor) -> Callable[[], Tensor]:
    """Keep a mask for later: in bits, except for a small one."""
    return (lambda: mask) if mask.numel() <= at_once(mask.device) // 4 else partial(unpack, *pack(mask))
