"""Learner ``"effects"``: layers dropped for whole periods, with probabilities learnt from rewards."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import Batch, ConstantAttention, StepContext, TrainingContext
from attendrop.methods.attend_out.attacker import Count, FirstBatch, Micro
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.players import Players

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


logger = logging.getLogger(__name__)


class EffectPlayers(Players):
    """The defender, and a drop probability for each layer, updated by :class:`LayerEffects`.

    There is one action per layer and period: whether the layer's attention is constant in all passes of the period.
    There is no generator network.

    Args:
        method: The options.
        training: The attacker and its optimizer.
        first: The first batch.

    Attributes:
        effects: Estimated effects of dropping each layer on the reward.
        history: Completed periods.
        probabilities: Probability of each layer to be dropped in the current period.
    """

    def __init__(self, method: AttendOutOptions, training: TrainingContext, first: FirstBatch) -> None:
        super().__init__(method, training)
        self.method = method
        self.attention_layers = method.selected_layers(first.attention_layers)
        self.effects = LayerEffects(len(self.attention_layers))
        self.history: list[Period] = []
        self.probabilities = self._by_layer(self.effects.probabilities(method.init_drop_prob))
        self._seed = first.seed

    def actions(self) -> dict[str, bool]:
        """Return whether each layer is dropped in the current period, the same in all processes."""
        chance = random.Random(f"{self._seed}/{len(self.history)}/layers")
        return {key: chance.random() < p for key, p in self.probabilities.items()}

    def attack(self, context: StepContext, micro: Micro, count: Count) -> ConstantAttention:
        actions = self.actions()
        device = next(context.model.parameters()).device
        for key, p in self.probabilities.items():
            count(key, torch.full((), p, device=device), None)
            context.report(key, torch.tensor(int(actions[key])), torch.tensor(1))
        return ConstantAttention(key for key, dropped in actions.items() if dropped)

    def learn(
        self, period: Sequence[Sequence[Micro]], rewards: Tensor, total: Callable[[Tensor], Tensor]
    ) -> dict[str, float]:
        """Credit the mean reward to all actions; return estimates and standard errors to log."""
        actions = tuple(float(dropped) for dropped in self.actions().values())
        self._observe(Period(actions, rewards.mean().item(), len(period) / self.method.dropout_step))
        effects, errors = (self._by_layer(values) for values in self.effects.estimate())
        return {f"effect/{key}": effect for key, effect in effects.items()} | {
            f"effect_error/{key}": error for key, error in errors.items() if error < math.inf
        }

    def final_report(self, model: torch.nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report what was learnt of each layer, and whether noise would have taught the same, for ``metrics.json``.

        ``noise_interval`` and ``noise_band`` are probabilities that a layer has with 95 % if rewards are noise, at the
        end and in each period. A change ``told_from_noise`` is one that no layer shows in 95 % of such runs.
        """
        if not self.history:
            return {}
        from scipy.stats import t

        start = self.method.init_drop_prob
        band = noise_band(self.history, start, self._seed)
        low, high = band.evidence.tolist()
        width = t.ppf((1 + LEVEL) / 2, self.effects.freedom.item())
        probabilities, evidence = self.probabilities, self._by_layer(self.effects.evidence())
        effects, errors = (self._by_layer(values) for values in self.effects.estimate())
        layers = {
            key: {
                "start": start,
                "probability": p,
                "change": p - start,
                "noise_interval": band.probabilities[-1].tolist(),
                "told_from_noise": not low <= evidence[key] <= high,
                "deviate": evidence[key],
                **_estimate(effects[key], errors[key], width),
            }
            for key, p in probabilities.items()
        }
        logger.info("What AttendOut learnt: %s.", learnt(layers))
        return {"layer_effects": layers, "noise_band": band.probabilities[:-1].tolist()}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        learnt = metrics.get("layer_effects", {})
        self.probabilities |= {key: float(found["probability"]) for key, found in learnt.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"defender": self.defender.state_dict(), "history": [astuple(period) for period in self.history]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.defender.load_state_dict(state["defender"])
        for period in state["history"]:
            self._observe(Period(*period))

    def _observe(self, period: Period) -> None:
        actions = torch.tensor(period.actions, dtype=torch.float64)
        self.effects.observe(actions, torch.tensor(period.reward, dtype=torch.float64), period.weight)
        self.history.append(period)
        self.probabilities = self._by_layer(self.effects.probabilities(self.method.init_drop_prob))

    def _by_layer(self, values: Tensor) -> dict[str, float]:
        return dict(zip([layer.key for layer in self.attention_layers], values.tolist(), strict=True))


def _estimate(effect: float, error: float, width: float) -> dict[str, Any]:
    """Format an effect with its interval, which is ``width`` standard errors wide on each side."""
    if error == math.inf:
        return {"effect": None, "standard_error": None, "effect_interval": None}
    interval = [effect - width * error, effect + width * error]
    return {"effect": effect, "standard_error": error, "effect_interval": interval}


def learnt(effects: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which drop probabilities changed by more than noise would explain."""
    told = {key: found for key, found in effects.items() if found["told_from_noise"]}
    if not told:
        moved = max(abs(found["change"]) for found in effects.values())
        start = next(iter(effects.values()))["start"]
        return (
            f"drop probabilities moved by at most {moved:.2f} from {start:.2f}; none of {len(effects)} layers can be "
            f"told from noise (attention-layerdrop with p={start:g} drops as much, without learning, at less than half "
            "the cost)"
        )
    changes = [f"{key}: {found['start']:.2f} -> {found['probability']:.2f}" for key, found in told.items()]
    others = f"; the other {len(effects) - len(told)} cannot" if len(told) < len(effects) else ""
    return f"{', '.join(changes)}, told from noise{others}"
