"""Bayesian estimates of the effects of dropping layers on the reward, and the resulting drop probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Prior scale of the effects, in units of the noise of a period's reward. The estimates are not sensitive to it.
_PRIOR_SCALE = 2.0
# Half-life in periods of an observation's weight: effects change during training.
_HALF_LIFE = 40.0
# Number of standard errors at which an effect begins to move a probability noticeably.
_THRESHOLD = 2.0
# Bounds of the probabilities, so that both actions of every layer keep being explored.
_RANGE = (0.05, 0.95)
# Maximum number of standard errors taken into account.
_LARGEST = 8.0


class LayerEffects:
    """Bayesian linear regression of a period's reward on the layers dropped in it.

    ``reward = c + sum over layers of b_l * a_l + noise``, with ``a_l`` in {0, 1}. The intercept ``c`` is free, so that
    an offset of all rewards has no effect; the effects ``b`` have a normal prior in units of the noise, whose scale is
    estimated. The weights of earlier periods decay, with a half-life of 40 periods.

    Args:
        num_layers: Number of layers.

    Source: ours.
    """

    def __init__(self, num_layers: int) -> None:
        self.num_layers = num_layers
        self.weight = 0.0
        # Weighted sum over periods of the outer products of (1, a_1, ..., a_L, r) with themselves.
        self.moments = torch.zeros(num_layers + 2, num_layers + 2, dtype=torch.float64)

    def observe(self, actions: Sequence[float], reward: float, weight: float = 1.0) -> None:
        """Add a period.

        Args:
            actions: Whether each layer was dropped.
            reward: Reward of the period.
            weight: Length of the period, as a fraction of a full one.
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
        """Compute the distance of each effect from zero in standard errors, as a normal deviate of at most 8."""
        effects, errors = self.estimate()
        return [_deviate(*pair, self.weight - 1) for pair in zip(effects.tolist(), errors.tolist(), strict=True)]

    def probabilities(self, start: float) -> list[float]:
        """Compute the drop probability of each layer from ``start`` and the evidence.

        ``logit(p) = logit(start) + z^3 / (z^2 + 2^2)``, with ``z`` from :meth:`evidence`: less than two standard errors
        have little effect.

        Args:
            start: Probability without evidence, in (0, 1).
        """
        low, high = _RANGE
        moved = [math.log(start / (1 - start)) + z**3 / (z**2 + _THRESHOLD**2) for z in self.evidence()]
        return [min(max(1 / (1 + math.exp(-logit)), min(low, start)), max(high, start)) for logit in moved]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"weight": self.weight, "moments": self.moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self.weight, self.moments = state["weight"], state["moments"]


def _deviate(effect: float, error: float, freedom: float) -> float:
    """Convert Student's t of an effect to the equally rare normal deviate (Wallace's approximation, 1959)."""
    if effect == 0 or error == math.inf:
        return 0.0
    if error == 0:
        return math.copysign(_LARGEST, effect)
    t = effect / error
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return math.copysign(min(z, _LARGEST), t)
