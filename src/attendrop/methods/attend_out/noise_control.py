"""Control of ``learner="effects"``: what the learner makes of rewards that do not depend on its actions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attendrop.methods.attend_out.layer_effects import LayerEffects

# Number of control learners.
RUNS = 200
# Coverage of the intervals.
LEVEL = 0.95


@dataclass(frozen=True)
class Period:
    """What a period contributes to the learner.

    Attributes:
        actions: Whether each layer was dropped, 0 or 1.
        reward: Mean reward.
        weight: Length, as a fraction of a full period.
    """

    actions: tuple[float, ...]
    reward: float
    weight: float


@dataclass(frozen=True)
class NoiseBand:
    """What control learners reach.

    Attributes:
        probabilities: Bounds of a layer's probability in each period and after the last, ``(periods + 1, 2)``.
        evidence: Bounds of the evidence that no layer of a run leaves, ``(2,)``.
    """

    probabilities: Tensor
    evidence: Tensor


def noise_band(periods: list[Period], start: float, seed: int) -> NoiseBand:
    """Run learners on a run's own rewards without effects, and return intervals of 95 % of what they reach.

    Each has the start and the number and weights of periods of the run, samples its own actions from its own
    probabilities, and samples each reward from those of the run's periods: of those in which a layer was dropped if it
    dropped one itself, else of the others, both less their mean. A change beyond the intervals is not to be expected
    from noise.

    Args:
        periods: The run's periods.
        start: Probability without evidence.
        seed: Seed of the controls.
    """
    generator = torch.Generator().manual_seed(seed)
    layers = len(periods[0].actions)
    controls = LayerEffects(layers, (RUNS,))
    pools = [_noise(periods, dropped=dropped) for dropped in (False, True)]
    tails = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
    probabilities = controls.probabilities(start)
    bounds = [probabilities.quantile(tails)]
    for period in periods:
        actions = torch.rand(RUNS, layers, generator=generator, dtype=torch.float64) < probabilities
        without, having = (pool[torch.randint(len(pool), (RUNS,), generator=generator)] for pool in pools)
        controls.observe(actions, torch.where(actions.any(-1), having, without), period.weight)
        probabilities = controls.probabilities(start)
        bounds.append(probabilities.quantile(tails))
    evidence = controls.evidence()
    family = torch.stack([evidence.amin(-1).quantile(tails[0]), evidence.amax(-1).quantile(tails[1])])
    return NoiseBand(torch.stack(bounds), family)


def _noise(periods: list[Period], *, dropped: bool) -> Tensor:
    """Collect the rewards, less their mean, of the periods with or without a dropped layer; of all if there is none."""
    chosen = [period for period in periods if any(period.actions) == dropped] or periods
    rewards = torch.tensor([period.reward for period in chosen], dtype=torch.float64)
    return rewards - rewards.mean()
