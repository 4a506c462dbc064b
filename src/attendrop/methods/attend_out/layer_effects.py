"""Bayesian estimates of the effects of dropping layers on the reward, and the resulting drop probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    an offset of all rewards has no effect; the effects ``b`` have a normal prior in units of the noise. The weights of
    earlier periods decay, with a half-life of 40 periods. The noise is estimated from the periods in which a layer was
    dropped: in the others, attacker and defender are the same, and their rewards are zero without noise.

    Args:
        num_layers: Number of layers.
        batch: Leading dimensions of independent regressions.

    Source: ours.
    """

    def __init__(self, num_layers: int, batch: Sequence[int] = ()) -> None:
        # Weighted sums over periods of the outer products of (1, a_1, ..., a_L, r) with themselves.
        self.moments = torch.zeros(*batch, num_layers + 2, num_layers + 2, dtype=torch.float64)
        self.dropped_moments = self.moments.clone()  # periods in which a layer was dropped

    @property
    def freedom(self) -> Tensor:
        """Degrees of freedom of the noise, ``(...)``, at least 1."""
        return (self.dropped_moments[..., 0, 0] - 1).clamp(min=1)

    def observe(self, actions: Tensor, reward: Tensor, weight: float = 1.0) -> None:
        """Add a period.

        Args:
            actions: Whether each layer was dropped, ``(..., layers)``.
            reward: Reward of the period, ``(...)``.
            weight: Length of the period, as a fraction of a full one.
        """
        reward = reward.unsqueeze(-1)
        row = torch.cat([torch.ones_like(reward), actions.to(reward), reward], -1)
        products = weight * row.unsqueeze(-1) * row.unsqueeze(-2)
        decay = 0.5 ** (weight / _HALF_LIFE)
        self.moments = decay * self.moments + products
        self.dropped_moments = decay * self.dropped_moments + products * actions.any(-1)[..., None, None]

    def estimate(self) -> tuple[Tensor, Tensor]:
        """Estimate the effects and their standard errors, ``(..., layers)`` each.

        They are 0 and infinite before the third period with a dropped layer.
        """
        n = self.moments[..., 0, 0, None]
        mean = self.moments[..., 0, 1:] / n.clamp(min=1)
        centred = self.moments[..., 1:, 1:] - n.unsqueeze(-1) * mean.unsqueeze(-1) * mean.unsqueeze(-2)
        inverse = torch.linalg.inv(centred[..., :-1, :-1] + torch.eye(mean.shape[-1] - 1) / _PRIOR_SCALE**2)
        effects = (inverse @ centred[..., :-1, -1:]).squeeze(-1)
        intercept = mean[..., -1:] - (effects * mean[..., :-1]).sum(-1, keepdim=True)
        # The squared residuals are a quadratic form of the moments; the prior adds its penalty.
        residual = torch.cat([-intercept, -effects, torch.ones_like(intercept)], -1)
        squares = torch.einsum("...i,...ij,...j->...", residual, self.dropped_moments, residual).clamp(min=0)
        noise = (squares + effects.square().sum(-1) / _PRIOR_SCALE**2) / self.freedom
        errors = (noise.unsqueeze(-1) * inverse.diagonal(dim1=-2, dim2=-1)).sqrt()
        known = self.dropped_moments[..., 0, 0, None] > 2
        return torch.where(known, effects, 0), torch.where(known, errors, math.inf)

    def evidence(self) -> Tensor:
        """Compute the distance of each effect from zero in standard errors, as normal deviates of at most 8.

        Student's t is converted to the equally rare normal deviate by Wallace's approximation (1959).
        """
        effects, errors = self.estimate()
        freedom = self.freedom.unsqueeze(-1)
        t = torch.where(effects == 0, 0, effects / errors)
        z = (freedom * torch.log1p(t * t / freedom)).sqrt() * (8 * freedom + 1) / (8 * freedom + 3)
        return z.clamp(max=_LARGEST).copysign(t)

    def probabilities(self, start: float) -> Tensor:
        """Compute the drop probability of each layer, ``(..., layers)``, from ``start`` and the evidence.

        ``logit(p) = logit(start) + z^3 / (z^2 + 2^2)``, with ``z`` from :meth:`evidence`: less than two standard errors
        have little effect.

        Args:
            start: Probability without evidence, in (0, 1).
        """
        z = self.evidence()
        logits = math.log(start / (1 - start)) + z**3 / (z**2 + _THRESHOLD**2)
        low, high = _RANGE
        return logits.sigmoid().clamp(min(low, start), max(high, start))
