"""Random numbers keyed by seed, step, layer and position, so that padding and batching do not change them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendrop.randomness.device_path import on_cpu

# Samples are 16-bit numbers: a probability is exact to within 2**-17.
_LEVELS = 1 << 16
Shape = tuple[int, int, int, int]  # (batch, heads, rows, columns)
_GOLDEN, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class SampleKey:
    """Key of the random samples of one forward pass, completed by a name for each sample.

    Attributes:
        seed: Seed of the run.
        step: Optimizer steps taken so far.
        first: Index of the pass's first sequence in the global batch (over micro-batches and processes).
        rows: Number of input rows of the pass. If attention sees a multiple of it, each row has that many sequences,
            such as the choices of a question.
        salt: Separates the samples of one method from those of another.
        copies: Number of adjacent copies of each row in the pass, if a method repeats rows.
    """

    seed: int
    step: int
    first: int
    rows: int
    salt: str = ""
    copies: int = 1

    def seeds(self, name: str, batch: int) -> list[int]:
        """Make a 64-bit seed for each of the ``batch`` sequences that an attention layer sees.

        The seed of a sequence does not depend on the number of sequences of its row, since rows with fewer choices are
        padded.
        """
        before, after = f"{self.seed}/{self.step}/", f"/{self.salt}{name}"
        return [_hash(f"{before}{number}{after}") for number in self._numbers(batch)]

    def _numbers(self, batch: int) -> Iterator[str]:
        """Name each sequence by its row number, and further sequences of a row also by their own number."""
        first, of_row = self.first * self.copies, max(1, batch // (self.rows * self.copies))
        for row, sequence in (divmod(i, of_row) for i in range(batch)):
            yield f"{first + row}.{sequence}" if sequence else f"{first + row}"

    def uniform(self, name: str) -> float:
        """Sample one number from [0, 1) for the whole global batch: the same in every micro-batch and process."""
        return (_hash(f"{self.seed}/{self.step}/{self.salt}{name}") >> 11) / 2**53


def _hash(text: str) -> int:
    """Hash a text to 64 bits."""
    text = text.replace("_orig_mod.", "")  # in the names of what torch.compile wraps within a model
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def sample_mask(
    p: float | Sequence[float] | Tensor,
    key: SampleKey,
    names: str | Sequence[str],
    shape: Shape,
    origins: Tensor | None,
    device: torch.device,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> Tensor:
    """Sample a boolean mask whose elements are True with probability ``p``, independently.

    Element ``(i, h, j, k)`` is a hash of the seed, the step, the number of sequence ``i`` in the global batch,
    its name, ``h``, and of row and column counted from the sequence's origin. So it does not depend on padding, on how
    the global batch is split, or on the device.

    Args:
        p: Probability, in [0, 1], kept to within 2**-17; or one for each name; or a tensor that expands to ``shape``.
        key: Key of the samples.
        names: Name of the samples, such as the key of an attention layer; or several names of as many sequences each,
            one after the other, which together take few kernels.
        shape: ``(batch, heads, rows, columns)``.
        origins: ``(batch, 2)``, the first row and column of each sequence that are not padding; values before these are
            undefined. None: all are 0, which takes fewer kernels.
        device: Where to put the mask.
        sizes: Rows and columns of each sequence of a name from there on that are wanted, if few are; others are
            undefined. None: all.
    """
    bound: int | Tensor  # below it is the lower fraction p of the range of lanes
    if isinstance(p, Tensor):
        bound = ((p.float() * _LEVELS).round() - _LEVELS // 2).expand(shape)
    else:
        each = [round(one * _LEVELS) - _LEVELS // 2 for one in (p if isinstance(p, Sequence) else [p])]
        bound = each[0]
        if len(set(each)) > 1:
            bound = torch.tensor(each).repeat_interleave(shape[0] // len(each)).to(device, non_blocking=True)
            bound = bound.int().view(-1, 1, 1, 1).expand(shape)
        elif abs(bound) == _LEVELS // 2:
            return torch.full(shape, bound > 0, device=device)
    seeds = _seeds(key, names, shape[0])
    if not on_cpu(device):
        return _lanes(seeds, shape, origins, device) < bound
    mask = torch.zeros(shape, dtype=torch.bool)
    for place, lanes in _lanes_on_cpu(seeds, shape, origins, sizes):
        np.less(lanes, bound if isinstance(bound, int) else bound.numpy()[place], out=mask.numpy()[place])
    return mask


def _seeds(key: SampleKey, names: str | Sequence[str], batch: int) -> list[int]:
    """Make the seeds of sequences of one name, or of several."""
    names = [names] if isinstance(names, str) else names
    return [seed for name in names for seed in key.seeds(name, batch // len(names))]


def uniform(
    key: SampleKey, names: str | Sequence[str], shape: Shape, origins: Tensor | None, device: torch.device
) -> Tensor:
    """Sample uniform numbers from (0, 1), keyed as in :func:`sample_mask`; float32, in steps of 2**-16."""
    seeds = _seeds(key, names, shape[0])
    if on_cpu(device):
        found = torch.full(shape, 0.5, dtype=torch.float32)
        for place, lanes in _lanes_on_cpu(seeds, shape, origins):
            found.numpy()[place] = (lanes.astype(np.float32) + (_LEVELS // 2 + 0.5)) / _LEVELS
        return found
    return (_lanes(seeds, shape, origins, device).float() + (_LEVELS // 2 + 0.5)) / _LEVELS


def normal(key: SampleKey, name: str, shape: Shape, origins: Tensor | None, device: torch.device) -> Tensor:
    """Sample standard normal numbers, independently, keyed as :func:`sample_mask`; float32, within 4.4 of 0."""
    sampled: Tensor = torch.special.ndtri(uniform(key, name, shape, origins, device))
    return sampled


# Elements of a parameter that are sampled together: few enough for the CPU cache, enough for numpy to be efficient.
_CHUNK = 1 << 16


def sample_parameter_mask(
    p: float, seed: int, step: int, name: str, shape: Sequence[int], device: torch.device
) -> Tensor:
    """Sample a boolean mask of a parameter, elements True with probability ``p``.

    One mask serves a whole optimizer step, and all processes: it depends on seed, step and name only. ``p`` is kept to
    within 2**-17.
    """
    if math.prod(shape) <= _CHUNK and not on_cpu(device):  # numpy takes less time than launching the kernels
        mask = sample_small_masks(p, seed, step, [name], [math.prod(shape)])
        return mask.view(*shape).to(device, non_blocking=True)
    chunks, rest = divmod(math.prod(shape), _CHUNK)
    sampled = []
    for first, count, size in ((0, chunks, _CHUNK), (chunks, 1, rest)):
        if count and size:
            key = SampleKey(seed, step, first, count)
            origins = torch.zeros(count, 2, dtype=torch.long, device=device)
            sampled.append(sample_mask(p, key, name, (count, 1, 1, size), origins, device).flatten())
    return torch.cat(sampled).view(*shape) if sampled else torch.zeros(*shape, dtype=torch.bool, device=device)


def sample_small_masks(p: float, seed: int, step: int, names: Sequence[str], sizes: Sequence[int]) -> Tensor:
    """Sample the masks of parameters of these sizes as :func:`sample_parameter_mask`, on the host."""
    found, bound = [], round(p * _LEVELS) - _LEVELS // 2
    for name, size in zip(names, sizes, strict=True):
        for number, start in enumerate(range(0, size, _CHUNK)):
            seeds, shape = SampleKey(seed, step, number, 1).seeds(name, 1), (1, 1, 1, min(_CHUNK, size - start))
            found += [lanes.reshape(-1) < bound for _, lanes in _lanes_on_cpu(seeds, shape, None)]
    return torch.from_numpy(np.concatenate(found))


def sample_row_mask(p: float, seed: int, step: int, name: str, rows: Tensor, columns: int) -> Tensor:
    """Sample a boolean mask of the ``rows`` of a matrix with these indices, ``(rows, columns)``, each independently.

    Indices are less than 2**31; ``p`` is kept to within 2**-17.
    """
    key = _hash(f"{seed}/{step}/{name}")
    bound = round(p * _LEVELS) - _LEVELS // 2
    if on_cpu(rows.device):
        word = np.arange(-(-columns // 4), dtype=np.uint64)
        counters = (rows.numpy().astype(np.uint64)[:, None] << np.uint64(32)) + word
        lanes = _splitmix64_int16(counters * np.uint64(_GOLDEN) + np.uint64(key))[:, :columns]
        return torch.from_numpy(lanes < bound)
    words = torch.arange(-(-columns // 4), device=rows.device)
    bits = ((rows[:, None] << 32) + words) * _signed(_GOLDEN) + _signed(key)
    return _lanes_of_counters(bits)[:, :columns] < bound


# A sample is one of four signed 16-bit lanes of splitmix64 (Steele et al., 2014): lane k % 4 of the hash of a counter
# made of row, head and k // 4. The two functions below give the same lanes.


def _lanes_on_cpu(
    seeds: list[int], shape: Shape, origins: Tensor | None, sizes: Sequence[tuple[int, int]] | None = None
) -> Iterator[tuple[tuple[slice, slice, slice, slice], Any]]:
    """Yield the lanes of some sequences, and their position; see :func:`sample_mask`.

    Numpy, with as many sequences at a time as fit the cache, is ten times faster than torch.
    """
    batch, heads, rows, columns = shape
    head = np.arange(heads, dtype=np.uint64)[:, None, None]
    row = np.arange(rows, dtype=np.uint64)[:, None]
    word = np.arange(-(-columns // 4), dtype=np.uint64)
    counters = ((row * np.uint64(heads) + head << np.uint64(32)) + word) * np.uint64(_GOLDEN)
    every = np.array(seeds, dtype=np.uint64)[:, None, None, None]
    origins = None if origins is None or not origins.any() else origins
    starts = [(0, 0)] * batch if origins is None else origins.tolist()
    if sizes is not None:  # a sequence of all names at a time
        parts = [slice(place, None, len(sizes)) for place in range(len(sizes))]
    else:
        at_a_time = 1 if origins is not None else max(1, _CHUNK // 4 // max(1, counters.size))
        parts = [slice(first, first + at_a_time) for first in range(0, batch, at_a_time)]
    for place, some in enumerate(parts):
        top, start = starts[some.start]
        height, width = (rows - top, columns - start) if sizes is None else sizes[place]
        lanes = _splitmix64_int16(counters[:, :height, : -(-width // 4)] + every[some])
        yield (some, slice(None), slice(top, top + height), slice(start, start + width)), lanes[..., :width]


def _splitmix64_int16(bits: Any) -> Any:
    """Hash counters, in place: four lanes in the last dimension for each."""
    shifted = np.empty_like(bits)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits ^= np.right_shift(bits, np.uint64(shift), out=shifted)
        bits *= np.uint64(factor)
    bits ^= np.right_shift(bits, np.uint64(31), out=shifted)
    return bits.astype("<u8", copy=False).view("<i2")


def _lanes(seeds: list[int], shape: Shape, origins: Tensor | None, device: torch.device) -> Tensor:
    """Compute the lanes of all sequences at once, with a hash for every four columns."""
    _, heads, rows, columns = shape
    words = -(-columns // 4)
    # Not blocking: with a blocking copy the host would wait for the device.
    seed = torch.tensor([_signed(seed) for seed in seeds]).to(device, non_blocking=True).view(-1, 1, 1, 1)
    counters = _counters(heads, rows, words, device)
    if origins is None:
        return _lanes_of_counters(counters + seed)[..., :columns]
    origins = origins.to(device)
    top, start = origins[:, 0].view(-1, 1, 1, 1), origins[:, 1].view(-1, 1, 1, 1)
    lanes = _lanes_of_counters(counters + (seed - top * _signed((heads << 32) * _GOLDEN % 2**64)))
    column = (_range(columns, device) - start).clamp(min=0)
    return lanes.gather(-1, column.expand(shape))


@lru_cache(maxsize=16)
def _range(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device)


@lru_cache(maxsize=16)
def _counters(heads: int, rows: int, words: int, device: torch.device) -> Tensor:
    """Make the counters of a sequence that begins at 0, ``(1, heads, rows, words)``, times the step of splitmix64."""
    head = torch.arange(heads, device=device).view(1, -1, 1, 1)
    row = torch.arange(rows, device=device).view(1, 1, -1, 1)
    return ((row * heads + head << 32) + torch.arange(words, device=device)) * _signed(_GOLDEN)


def _lanes_of_counters(bits: Tensor) -> Tensor:
    """Hash counters (times the step of splitmix64, plus a seed) in place: four lanes in the last dimension for each."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        # The shift of a signed number copies its sign; these bits are cleared.
        bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << 64 - shift) - 1))
        if factor != 1:
            bits.mul_(_signed(factor))
    return bits.view(torch.int16)


def _signed(number: int) -> int:
    """Reinterpret an unsigned 64-bit number as a signed one."""
    return number - 2**64 if number >= 2**63 else number
