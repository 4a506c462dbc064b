"""Draws of attention dropout that two passes have in common."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from attendrop.randomness.candidates import pack, unpack


class DropoutDraws:
    """Dropout whose random numbers are drawn once for passes that begin in the same random state.

    On a CPU one thread draws them, which takes longer than softmax. A draw is kept, in bits, with the random states
    before and after it; where a later pass comes to the same state, it takes that draw and goes on from the state
    after it. So outputs and random states are those of ``functional.dropout``, bit for bit. Elsewhere than on a CPU
    nothing is kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, torch.Size, float], tuple[tuple[Tensor, tuple[int, ...]], Tensor]] = {}

    def dropout(self, weights: Tensor, p: float) -> Tensor:
        """Compute ``functional.dropout(weights, p)``."""
        if weights.device.type != "cpu" or not 0 < p < 1:
            return functional.dropout(weights, p)
        key = torch.get_rng_state().numpy().tobytes(), weights.shape, p
        if key in self._kept:
            bits, after = self._kept[key]
            kept = unpack(*bits)
            torch.set_rng_state(after)
        else:
            kept = torch.empty(weights.shape, dtype=torch.bool).bernoulli_(1 - p)
            self._kept[key] = pack(kept), torch.get_rng_state()
        return weights * kept.to(weights.dtype).div_(1 - p)
