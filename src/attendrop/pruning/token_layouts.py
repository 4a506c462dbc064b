"""Layouts of the tokens of a batch: with padding, or the real ones one after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

# Number of tokens per chunk of the feed-forward part on a CPU: its activations then fit in the cache and reuse memory.
_CHUNK = 512


class PaddedLayout:
    """Layout of tokens with padding, ``(batch, length, hidden)``.

    Args:
        hidden_states: ``(batch, length, hidden)``, for shape, dtype and device.
        mask: ``(batch, length)``, True on real tokens; None: everywhere.
        keep_first: Whether each sequence's first column is needed, even if it is padding.
    """

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        self.batch, self.length = hidden_states.shape[:2]
        self.mask = None if mask is None else mask.bool()
        weights = hidden_states.new_ones(self.batch, self.length) if self.mask is None else self.mask
        exact = torch.promote_types(hidden_states.dtype, torch.float32)
        weights = weights / weights.sum(1, keepdim=True, dtype=exact).clamp(min=1)
        self._mean_weights = weights.to(hidden_states.dtype)  # weight of a token in the mean over its sequence

    def pack(self, x: Tensor) -> Tensor:
        """Convert ``(batch, length, hidden)`` to this layout."""
        return x

    def unpack(self, x: Tensor) -> Tensor:
        """Convert this layout to ``(batch, length, hidden)``."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """Compute the mean over the real tokens of each sequence, ``(batch, hidden)``."""
        return (self._mean_weights[:, None] @ x)[:, 0]

    def covered_by(self, window: int | None) -> bool:
        """Return whether every token sees all others from at most ``window`` columns away; None: from anywhere."""
        return window is None

    def window_mean(self, x: Tensor, window: int) -> Tensor:
        """Compute for each token the mean over the real tokens at most ``window`` columns away, in this layout."""
        padded = self.unpack(x)
        valid = padded.new_ones(padded.shape[:2]) if self.mask is None else self.mask.to(x.dtype)
        total, count = (
            functional.avg_pool1d(each.transpose(1, 2), 2 * window + 1, stride=1, padding=window).transpose(1, 2)
            for each in (padded * valid[..., None], valid[..., None])
        )
        return self.pack(total / count.clamp(min=0.5 / (2 * window + 1)))

    def first(self, x: Tensor) -> Tensor:
        """Select the first token of each sequence, ``(batch, hidden)``."""
        return x[:, 0]

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        """Give each token of ``chunk`` the vector of its sequence; ``vectors`` is ``(batch, hidden)``."""
        return vectors[:, None]

    def in_chunks(self, x: Tensor, function: Callable[[slice], Tensor]) -> Tensor:
        """Compute a layer's output from its input ``x``, which may be overwritten, chunk by chunk."""
        return function(slice(None))


class PackedLayout(PaddedLayout):
    """Layout of the real tokens one after another, ``(tokens, hidden)``."""

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        super().__init__(hidden_states, mask, keep_first=keep_first)
        device = hidden_states.device
        kept = torch.ones(self.batch, self.length, dtype=torch.bool, device=device) if mask is None else self.mask
        assert kept is not None
        if keep_first and mask is not None:
            kept = kept.clone()
            kept[:, 0] = True  # read by the head, even if it is padding on the left
        self._places = kept.flatten().nonzero()[:, 0]  # the only synchronization with a GPU
        self._tokens = len(self._places)
        self._full = self._tokens == self.batch * self.length
        counts = kept.sum(1)
        self._starts = counts.cumsum(0) - counts
        self._sequence = self._places // self.length
        self._mean_weights = self._mean_weights.flatten()[self._places]
        self._indices = torch.arange(self._tokens, device=device)
        self._chunk = _CHUNK if device.type == "cpu" else self._tokens
        if self._full and not keep_first:
            self.mask = None

    def pack(self, x: Tensor) -> Tensor:
        x = x.flatten(0, 1)
        return x.clone() if self._full else x[self._places]

    def unpack(self, x: Tensor) -> Tensor:
        if not self._full:
            padded = x.new_zeros(self.batch * self.length, x.shape[-1])
            x = padded.index_copy_(0, self._places, x)
        return x.view(self.batch, self.length, x.shape[-1])

    def mean(self, x: Tensor) -> Tensor:
        # This is the fastest sum over segments of different lengths; half precision is accumulated in single.
        weights = self._mean_weights
        return functional.embedding_bag(self._indices, x, self._starts, mode="sum", per_sample_weights=weights)

    def covered_by(self, window: int | None) -> bool:
        return window is None or self.length <= window + 1

    def first(self, x: Tensor) -> Tensor:
        return x[self._starts]

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        return vectors[self._sequence[chunk]]

    def in_chunks(self, x: Tensor, function: Callable[[slice], Tensor]) -> Tensor:
        if self._tokens <= self._chunk:
            return function(slice(None))
        for start in range(0, self._tokens, self._chunk):
            chunk = slice(start, start + self._chunk)
            x[chunk] = function(chunk)
        return x


class GatheredLayout(PaddedLayout):
    """Layout of the real tokens one after another, in operations that ONNX has and that depend on no size."""

    def __init__(self, hidden_states: Tensor, mask: Tensor | None, *, keep_first: bool) -> None:
        super().__init__(hidden_states, mask, keep_first=keep_first)
        columns = torch.arange(self.length, device=hidden_states.device)
        kept = columns[None].expand(self.batch, -1) < self.length if self.mask is None else self.mask
        if keep_first:
            kept = kept | (columns == 0)
        self._sequence, column = kept.nonzero().unbind(1)
        self._places = self._sequence * self.length + column
        self._slots = (kept.flatten().long().cumsum(0) - 1).clamp(min=0)  # padding gets the place of a token before it
        sequences = torch.arange(self.batch, device=hidden_states.device)
        member = self._sequence == sequences[:, None]
        weights = self._mean_weights.flatten().index_select(0, self._places)
        self._mean_weights = member.to(hidden_states.dtype) * weights

    def pack(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, self._places)

    def unpack(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._slots).view(self.batch, self.length, x.shape[-1])

    def mean(self, x: Tensor) -> Tensor:
        return self._mean_weights @ x

    def first(self, x: Tensor) -> Tensor:
        return x.index_select(0, self._slots.view(self.batch, self.length)[:, 0])

    def spread(self, vectors: Tensor, chunk: slice) -> Tensor:
        return vectors.index_select(0, self._sequence)
