"""Players of ``learner="effects"``: layers dropped for whole periods, with probabilities learnt from rewards."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.plan import ConstantAttention
from attendrop.batches import Batch
from attendrop.methods.attend_out.attacker import Count, Micro
from attendrop.methods.attend_out.generator_players import make_defender
from attendrop.methods.attend_out.layer_effects import LayerEffects
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.core.context import StepContext, TrainingContext


class EffectPlayers:
    """The defender, and a drop probability for each layer, updated by :class:`LayerEffects`.

    There is one action per layer and period: whether the layer's attention is constant in all passes of the period.
    There is no generator network.

    Args:
        method: The options.
        training: The attacker and its optimizer.
        context: The first micro-batch.

    Attributes:
        attention_layers: The layers to drop.
        effects: Estimated effects of dropping each layer on the reward.
        periods: Number of completed periods.
    """

    def __init__(self, method: AttendOutOptions, training: TrainingContext, context: StepContext) -> None:
        self.method = method
        self.attention_layers = method.selected_layers(context.adapter.attention_layers)
        self.defender = make_defender(method, training)
        self.effects = LayerEffects(len(self.attention_layers))
        self.periods = 0
        self._seed = context.key.seed

    @property
    def probabilities(self) -> dict[str, float]:
        """Return the probability of each layer to be dropped in a period."""
        found = self.effects.probabilities(self.method.init_drop_prob)
        return dict(zip([layer.key for layer in self.attention_layers], found, strict=True))

    def actions(self) -> dict[str, bool]:
        """Return whether each layer is dropped in the current period, the same in all processes."""
        chance = random.Random(f"{self._seed}/{self.periods}/layers")
        return {key: chance.random() < p for key, p in self.probabilities.items()}

    def attack(self, context: StepContext, micro: Micro, count: Count) -> ConstantAttention:
        """Return the plan of the attacker's pass."""
        actions = self.actions()
        for key, p in self.probabilities.items():
            count(key, torch.tensor(p, device=next(context.model.parameters()).device), None)
            context.report(key, torch.tensor(int(actions[key])), torch.tensor(1))
        return ConstantAttention(key for key, dropped in actions.items() if dropped)

    def learn(
        self, period: Sequence[Sequence[Micro]], rewards: Tensor, total: Callable[[Tensor], Tensor]
    ) -> dict[str, float]:
        """Update the effects with a period; returns estimates and standard errors to log.

        Args:
            period: Micro-batches of each step.
            rewards: Reward of each step, ``(steps,)``; their mean is credited to all actions.
            total: Unused: rewards and actions are the same in all processes.
        """
        actions = [float(dropped) for dropped in self.actions().values()]
        self.effects.observe(actions, rewards.mean().item(), len(period) / self.method.dropout_step)
        self.periods += 1
        effects, errors = (values.tolist() for values in self.effects.estimate())
        keys = [layer.key for layer in self.attention_layers]
        return {f"effect/{key}": effect for key, effect in zip(keys, effects, strict=True)} | {
            f"effect_error/{key}": error for key, error in zip(keys, errors, strict=True) if error < float("inf")
        }

    def final_report(self, model: torch.nn.Module, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the effect, standard error and probability of each layer, for ``metrics.json``."""
        effects, errors = (values.tolist() for values in self.effects.estimate())
        found = zip(self.probabilities.items(), effects, errors, self.effects.evidence(), strict=True)
        return {
            "layer_effects": {
                key: {
                    "start": self.method.init_drop_prob,
                    "probability": p,
                    "effect": effect,
                    "standard_error": error if error < float("inf") else None,
                    "deviate": deviate,
                }
                for (key, p), effect, error, deviate in found
            }
        }

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return no tensors: no network is trained beside the model."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for checkpoints."""
        return {"defender": self.defender.state_dict(), "effects": self.effects.state_dict(), "periods": self.periods}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        self.defender.load_state_dict(state["defender"])
        self.effects.load_state_dict(state["effects"])
        self.periods = state["periods"]
