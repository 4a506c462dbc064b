"""Effects of dropping layers on the reward: estimates with uncertainty, and probabilities that follow from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Effects are expected to be about so many times the noise of a period's reward. The estimate depends on it little.
_PRIOR_SCALE = 2.0
# A period counts half as much when so many others have followed: what pays changes while a model trains.
_HALF_LIFE = 40.0
# Standard errors at which an effect begins to move a probability noticeably.
_THRESHOLD = 2.0
# Probabilities stay within these, so that every layer goes on being tried both ways.
_RANGE = (0.05, 0.95)
# More standard errors than these say no more.
_LARGEST = 8.0


class LayerEffects:
    """Bayesian linear regression of a period's reward on which layers were dropped in it.

    ``reward = c + sum over layers of b_l * a_l + noise``, with ``a_l`` in {0, 1}. The intercept ``c`` is free, so that
    an offset of all rewards changes nothing; the effects ``b`` have a normal prior in units of the noise, whose size is
    estimated. Earlier periods count less (half after 40).

    Args:
        num_layers: How many layers there are.

    Source: ours.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self.weight = 0.0
        # Weighted sums over periods of (1, a_1, ..., a_L, r), times themselves.
        self.moments = torch.zeros(num_layers + 2, num_layers + 2, dtype=torch.float64)

    def observe(self, actions: Sequence[float], reward: float, weight: float = 1.0) -> None:
        """Add a period.

        Args:
            actions: Of each layer, whether it was dropped.
            reward: Of the period.
            weight: Its length, as a fraction of a whole period.
        """
        row = torch.tensor([1.0, *actions, reward], dtype=torch.float64)
        decay = 0.5 ** (weight / _HALF_LIFE)
        self.moments = decay * self.moments + weight * torch.outer(row, row)
        self.weight = decay * self.weight + weight

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Estimate the effects and their standard errors, ``(layers,)`` each; infinite before the third period."""
        n = self.weight
        if n <= 2:
            return torch.zeros(self.num_layers).double(), torch.full((self.num_layers,), math.inf).double()
        mean = self.moments[0, 1:] / n
        centred = self.moments[1:, 1:] - n * torch.outer(mean, mean)
        precision = centred[:-1, :-1] + torch.eye(self.num_layers) / _PRIOR_SCALE**2
        effects = torch.linalg.solve(precision, centred[:-1, -1])
        residual = (centred[-1, -1] - effects @ centred[:-1, -1]).clamp(min=0)
        variance = residual / (n - 1) * torch.linalg.inv(precision).diagonal()
        return effects, variance.sqrt()

    def evidence(self) -> list[float]:
        """Compute how many standard errors each effect is from zero, as a normal deviate of at most 8."""
        effects, errors = self.estimate()
        return [_deviate(*pair, self.weight - 1) for pair in zip(effects.tolist(), errors.tolist(), strict=True)]

    def probabilities(self, start: float) -> list[float]:
        """Move the probability of dropping each layer from ``start`` by as much as the evidence says.

        ``logit(p) = logit(start) + z^3 / (z^2 + 2^2)``, with ``z`` of :meth:`evidence`: less than two standard errors
        move it little.

        Args:
            start: The probability without evidence, in (0, 1).
        """
        low, high = _RANGE
        moved = [math.log(start / (1 - start)) + z**3 / (z**2 + _THRESHOLD**2) for z in self.evidence()]
        return [min(max(1 / (1 + math.exp(-logit)), min(low, start)), max(high, start)) for logit in moved]

    def state_dict(self) -> dict[str, Any]:
        """All that has to be in a checkpoint."""
        return {"weight": self.weight, "moments": self.moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        self.weight, self.moments = state["weight"], state["moments"]


def _deviate(effect: float, error: float, freedom: float) -> float:
    """The normal deviate that is as rare as Student's t of an effect (Wallace's approximation, 1959)."""
    if effect == 0 or error == math.inf:
        return 0.0
    if error == 0:
        return math.copysign(_LARGEST, effect)
    t = effect / error
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(min(z, _LARGEST), t)
