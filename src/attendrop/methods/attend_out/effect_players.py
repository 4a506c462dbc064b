"""Players of ``learner="effects"``: layers dropped for whole periods, with probabilities learnt from rewards."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.plan import ConstantAttention
from attendrop.batches import Batch
from attendrop.methods.attend_out.attacker import Count, Micro
from attendrop.methods.attend_out.first_batch import FirstBatch
from attendrop.methods.attend_out.layer_effects import LayerEffects
from attendrop.methods.attend_out.noise_control import LEVEL, Period, noise_band
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.players import Players
from attendrop.methods.attend_out.report import learnt
from attendrop.methods.core.context import StepContext, TrainingContext

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
