"""Pure tensor functions on attention masks: candidate regions, and random draws that do not depend on padding.

Shapes: attribution and masks are ``(batch, heads, query, key)``; ``valid`` is boolean and broadcastable to that, True
where a key may be attended to, None for everywhere. All masks returned are True where something is dropped.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attendrop.scoring import Call

# Draws are 16-bit numbers: a probability is kept to within 2**-17.
_LEVELS = 1 << 16
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def share(count: Tensor, fraction: float) -> Tensor:
    """``floor(count * fraction + 1e-6)`` in float64: 10 times (1 - 0.9) is 1, not 0."""
    return torch.floor(count.double() * fraction + 1e-6).long()


@dataclass(frozen=True)
class Region:
    """The candidate positions of one site.

    Attributes:
        mask: ``(batch, heads, query, key)``, True at candidates.
        signal: ``(batch, heads, query, 1)``, True for rows whose attributions are not all equal. Only such rows can
            have candidates.
    """

    mask: Tensor
    signal: Tensor


def candidate_region(attribution: Tensor, valid: Tensor | None, p: float, direction: str = "high") -> Region:
    """Find the positions of highest (or lowest) attribution in each row.

    Eq. 6 of Yang et al. (2022), row by row over the valid keys. ``"high"``: with ``t = max(1, floor(n_valid (1-p)))``,
    the positions whose attribution is at least the ``t``-th smallest, counted from 0; where that takes in the whole
    row, only those above it. ``"low"`` (their prior experiment, Fig. 2): the positions below the
    ``floor(n_valid p)``-th smallest.

    Args:
        attribution: ``(batch, heads, query, key)``; compared in float32, or float64 if it is that.
        valid: Valid keys.
        p: Share of a row that is to be candidates, in (0, 1).
        direction: ``"high"`` or ``"low"``.
    """
    if attribution.dtype != torch.float64:
        attribution = attribution.float()
    length = attribution.shape[-1]
    if valid is None:
        ordered = _sort(attribution)
        n_valid = torch.full((1, 1, 1, 1), length, device=attribution.device)
    else:
        # Adding takes a CPU a fraction of the time of filling in.
        ordered = _sort(attribution + torch.where(valid, 0.0, torch.inf))
        n_valid = valid.sum(-1, keepdim=True)
    lowest = ordered[..., :1]
    last = (n_valid - 1).clamp(min=0)
    signal = lowest < _take(ordered, last)
    if direction == "low":
        threshold = _take(ordered, torch.minimum(share(n_valid, p), last))
    else:
        threshold = _take(ordered, torch.minimum(share(n_valid, 1 - p).clamp(min=1), last))
        # "At least the next larger number" is "above".
        above = torch.nextafter(threshold, torch.full_like(threshold, torch.inf))
        threshold = torch.where(lowest >= threshold, above, threshold)
    # Nothing compares with NaN: no candidates.
    threshold = threshold.masked_fill(~signal, torch.nan)
    mask = attribution < threshold if direction == "low" else attribution >= threshold
    return Region(mask if valid is None else mask & valid, signal)


def _sort(values: Tensor) -> Tensor:
    """Sort the last dimension. On a CPU numpy's vectorised sort takes a tenth of torch's time."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.detach().contiguous().numpy(), axis=-1))
    return values.sort(-1).values


def _take(ordered: Tensor, index: Tensor) -> Tensor:
    """Pick one element of each row; ``index`` broadcasts over heads and rows."""
    return ordered.gather(-1, index.expand(*ordered.shape[:-1], 1))


@dataclass(frozen=True)
class DrawKey:
    """What fixes the random draws of one forward pass, besides the site.

    Attributes:
        seed: Seed of the run.
        step: Optimizer steps taken so far.
        first: Number of this pass's first sequence in the global batch (over micro-batches and processes).
        rows: Sequences that the model was given in this pass. If attention sees a multiple of it (several choices per
            question), each sequence stands for that many.
        salt: Sets the draws of one method apart from those of another.
    """

    seed: int
    step: int
    first: int
    rows: int
    salt: str = ""

    def seeds(self, name: str, batch: int) -> list[int]:
        """One 64-bit seed for each of the ``batch`` sequences that a site sees."""
        first = self.first * (batch // self.rows)
        texts = (f"{self.seed}/{self.step}/{first + i}/{self.salt}{name}" for i in range(batch))
        return [_hash(text) for text in texts]

    def chance(self, name: str) -> float:
        """A number drawn from [0, 1), one for the whole global batch: in every micro-batch and process the same."""
        return (_hash(f"{self.seed}/{self.step}/{self.salt}{name}") >> 11) / 2**53


def _hash(text: str) -> int:
    """64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def draw(
    p: float | Tensor, key: DrawKey, name: str, shape: tuple[int, int, int, int], origins: Tensor, device: torch.device
) -> Tensor:
    """Draw a boolean mask whose elements are True with probability ``p``, independently.

    Element ``(i, h, j, k)`` is a hash of the seed, the step, the number of sequence ``i`` in the global batch,
    ``name``, ``h``, and of row and column counted from the sequence's origin. So it does not depend on how far the
    batch is padded, on how the global batch was cut, nor on the device. (A random generator would not do: its numbers
    depend on how many are asked for.)

    Args:
        p: Probability, in [0, 1], kept to within 2**-17; or a tensor that expands to ``shape``, one for each element.
        key: What fixes the draws.
        name: What they are for, such as a site's key.
        shape: ``(batch, heads, rows, columns)``.
        origins: ``(batch, 2)``, the first row and column of each sequence that are not padding.
        device: Where to put the mask.

    Returns:
        The mask. What it holds before the origins has no meaning.
    """
    return _below(p, key.seeds(name, shape[0]), shape, origins.to(device))


def _below(p: float | Tensor, seeds: list[int], shape: tuple[int, int, int, int], origins: Tensor) -> Tensor:
    """Where the lanes of a hash are in the lower ``p`` of their range."""
    bound: int | Tensor
    if isinstance(p, Tensor):
        bound = ((p.float() * _LEVELS).round() - _LEVELS // 2).int().expand(shape)
    else:
        bound = round(p * _LEVELS) - _LEVELS // 2
        if abs(bound) == _LEVELS // 2:
            return torch.full(shape, bound > 0, device=origins.device)
    if origins.device.type != "cpu":
        return _lanes(seeds, shape, origins) < bound
    mask = torch.zeros(shape, dtype=torch.bool)
    for i, place, lanes in _lanes_on_cpu(seeds, shape, origins):
        mask.numpy()[i][place] = lanes < (bound if isinstance(bound, int) else bound[i].numpy()[place])
    return mask


def uniform(key: DrawKey, name: str, shape: tuple[int, int, int, int], origins: Tensor, device: torch.device) -> Tensor:
    """Draw numbers from (0, 1), uniformly and independently, as :func:`draw` draws; float32, in steps of 2**-16."""
    seeds = key.seeds(name, shape[0])
    if device.type == "cpu":
        found = torch.full(shape, 0.5)
        for i, place, lanes in _lanes_on_cpu(seeds, shape, origins):
            found.numpy()[i][place] = (lanes.astype(np.float32) + (_LEVELS // 2 + 0.5)) / _LEVELS
        return found
    return (_lanes(seeds, shape, origins).float() + (_LEVELS // 2 + 0.5)) / _LEVELS


# Elements of a parameter that are drawn together: few enough to stay in a processor's cache, and enough for numpy.
_CHUNK = 1 << 16


def draw_matrix(p: float, seed: int, step: int, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
    """Draw a boolean mask of a parameter, elements True with probability ``p``.

    One draw serves a whole optimizer step, and all processes: it depends on nothing but seed, step and name.

    Args:
        p: Probability, kept to within 2**-17.
        seed: Seed of the run.
        step: Optimizer steps taken so far.
        name: Of the parameter.
        shape: Of the parameter.
        device: Where to put the mask.
    """
    chunks, rest = divmod(math.prod(shape), _CHUNK)
    drawn = []
    for first, count, size in ((0, chunks, _CHUNK), (chunks, 1, rest)):
        if count and size:
            key = DrawKey(seed, step, first, count)
            origins = torch.zeros(count, 2, dtype=torch.long, device=device)
            drawn.append(draw(p, key, name, (count, 1, 1, size), origins, device).flatten())
    return torch.cat(drawn).view(*shape) if drawn else torch.zeros(*shape, dtype=torch.bool, device=device)


def draw_rows(p: float, seed: int, step: int, name: str, rows: Tensor, columns: int) -> Tensor:
    """Draw a boolean mask of some rows of a matrix, ``(rows, columns)``; a row's draws do not depend on the others.

    Args:
        p: Probability, kept to within 2**-17.
        seed: Seed of the run.
        step: Optimizer steps taken so far.
        name: Of the matrix.
        rows: The numbers of the rows, less than 2**31.
        columns: How many columns the matrix has.
    """
    key = _hash(f"{seed}/{step}/{name}")
    bound = round(p * _LEVELS) - _LEVELS // 2
    if rows.device.type == "cpu":
        word = np.arange(-(-columns // 4), dtype=np.uint64)
        counters = (rows.numpy().astype(np.uint64)[:, None] << np.uint64(32)) + word
        lanes = _lanes_of_words(counters * np.uint64(_GOLDEN) + np.uint64(key))[:, :columns]
        return torch.from_numpy(lanes < bound)
    column = torch.arange(columns, device=rows.device)
    return _lane((rows[:, None] << 32) + (column >> 2), _signed(key), column) < bound


# A draw is one of four signed 16-bit lanes of splitmix64 (Steele et al., 2014): lane k % 4 of the hash of a counter
# made of row, head and k // 4. The two functions below give the same lanes.


def _lanes_on_cpu(
    seeds: list[int], shape: tuple[int, int, int, int], origins: Tensor
) -> Iterator[tuple[int, tuple[slice, slice, slice], Any]]:
    """The lanes of one sequence after the other, and where they belong in it.

    In numpy, a sequence at a time, which stays in the cache: ten times faster than torch.
    """
    _, heads, rows, columns = shape
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    row = np.arange(rows, dtype=np.uint64)[:, None]
    word = np.arange(-(-columns // 4), dtype=np.uint64)
    counters = ((row * np.uint64(heads) + head << np.uint64(32)) + word) * np.uint64(_GOLDEN)
    for i, (seed, (top, start)) in enumerate(zip(seeds, origins.tolist(), strict=True)):
        lanes = _lanes_of_words(counters[:, : rows - top, : -(-(columns - start) // 4)] + np.uint64(seed))
        yield i, (slice(None), slice(top, None), slice(start, None)), lanes[..., : columns - start]


def _lanes_of_words(bits: Any) -> Any:
    """Hash counters, in place: four lanes in the last dimension for each."""
    shifted = np.empty_like(bits)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits ^= np.right_shift(bits, np.uint64(shift), out=shifted)
        bits *= np.uint64(factor)
    bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    return bits.astype("<u8", copy=False).view("<i2")


def _lanes(seeds: list[int], shape: tuple[int, int, int, int], origins: Tensor) -> Tensor:
    """The lanes of all sequences in the same few operations, on the device of ``origins``."""
    _, heads, rows, columns = shape
    device = origins.device
    top, start = origins[:, 0].view(-1, 1, 1, 1), origins[:, 1].view(-1, 1, 1, 1)
    head = torch.arange(heads, device=device).view(1, -1, 1, 1)
    row = torch.arange(rows, device=device).view(1, 1, -1, 1) - top
    column = torch.arange(columns, device=device) - start
    seed = torch.tensor([_signed(seed) for seed in seeds], device=device).view(-1, 1, 1, 1)
    return _lane((row * heads + head << 32) + (column >> 2), seed, column)


def _lane(counter: Tensor, seed: Tensor | int, column: Tensor) -> Tensor:
    """Hash counters, each as often as there are columns of it; the lane that belongs to the column."""
    bits = counter * _signed(_GOLDEN) + seed
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        # The shift of a signed number copies its sign; these bits are cleared.
        bits = (bits ^ (bits >> shift & (1 << 64 - shift) - 1)) * _signed(factor)
    return bits << (3 - (column & 3)) * 16 >> 48


def _signed(number: int) -> int:
    """The signed 64-bit number with the bits of an unsigned one."""
    return number - 2**64 if number >= 2**63 else number


def pack(mask: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Store a boolean mask in an eighth of its memory: its bits, eight in a byte, and its shape."""
    bits = functional.pad(mask.reshape(-1).byte(), (0, -mask.numel() % 8)).view(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(-1, dtype=torch.uint8), (*mask.shape,)


def unpack(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """Restore a mask that :func:`pack` stored."""
    mask = bits[:, None] >> torch.arange(8, dtype=torch.uint8, device=bits.device) & 1
    return mask.view(-1)[: math.prod(shape)].view(*shape).bool()


def origins_of(call: Call) -> Tensor:
    """``(batch, 2)``: the first query and the first key of each sequence that are not padding.

    In self-attention both are the first key that any query may attend to; in cross-attention the first query is 0.
    """
    batch = call.shape[0]
    if call.valid is None:
        return torch.zeros(batch, 2, dtype=torch.long, device=call.device)
    first = call.valid.any(1).any(1).expand(batch, -1).int().argmax(-1)
    return torch.stack([torch.zeros_like(first) if call.site.kind == "cross" else first, first], -1)


def real_rows(call: Call) -> Tensor | None:
    """Which query positions hold tokens, ``(batch, 1, query, 1)``; None if all do or the mask does not tell.

    A position of self-attention is padding if nothing may attend to it.
    """
    if call.valid is None or call.site.kind == "cross" or call.shape[2] != call.shape[3]:
        return None
    return call.valid.any(-2, keepdim=True).transpose(-1, -2)
