"""Learner ``"effects"``: estimates and tests, beside plain fine-tuning, which layers are better dropped."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attendrop.extend import (
    AttendropError,
    AttentionLayer,
    Batch,
    ComputeLoss,
    ConstantAttention,
    MethodState,
    ModelAdapter,
    StepContext,
    TrainingContext,
)
from attendrop.methods.attend_out.options import AttendOutOptions
from attendrop.methods.attend_out.scoring import check, rewards_of, scores, shared
from attendrop.methods.attend_out.second_model import SecondModel
from attendrop.methods.layers import AttentionLayerDrop
from attendrop.model_support.batches import ROW_INDEX, refuse_graph, to_device
from attendrop.model_support.devices import before_step

logger = logging.getLogger(__name__)

# Probability of dropping, in a later period, a layer whose dropping was found to help; the same as in exploration.
FOUND = 0.5
# The same for each step of a training run that drops these layers from the start: with 0.5 the model still learns from
# them what it should not (docs/attendout.md, the planted problem).
KNOWN = 0.9
# Level of the randomisation test: chance that any layer is significant where no layer has an effect.
LEVEL = 0.05
# Number of designs drawn for the test: the standard error of its level is 0.003.
REDRAWS = 4999
# Number of signs that are redrawn at once: all those of a long training would take gigabytes.
_SIGNS = 2**16


class Period(NamedTuple):
    """A finished period of exploration."""

    dropped: tuple[bool, ...]  # whether each layer was
    reward: float  # the mean


class LayerEffect(NamedTuple):
    """Estimated effect on the reward of dropping a layer for a period; the defaults hold before there are two pairs."""

    effect: float = 0.0
    standard_error: float = math.inf
    p: float = 1.0  # corrected for the number of layers

    @property
    def told_from_noise(self) -> bool:
        """Whether the effect is significant in the randomisation test."""
        return self.p <= LEVEL


def drawn(seed: int, period: int, num_layers: int) -> tuple[bool, ...]:
    """Draw the layers that are dropped in a period.

    Periods come in pairs: in the first, each layer is dropped with probability 1/2; in the second, all other layers
    are. Each pair thus compares every layer dropped and kept, the noisiest layer is dropped in one period of each pair,
    and any drift of the rewards during training cancels. Periods are counted from 0.
    """
    chance = random.Random(f"{seed}/{period // 2}/layers")
    first = [chance.random() < 0.5 for _ in range(num_layers)]
    return tuple(dropped != bool(period % 2) for dropped in first)


def layer_effects(periods: Sequence[Period], seed: int) -> list[LayerEffect]:
    """Estimate the effect of each layer, and test it.

    The estimate is the mean over pairs of the reward with the layer dropped minus that with it kept. It is unbiased: a
    fair coin decides which of the two comes first, independently of rewards, other layers and other pairs. The p value
    is the fraction of newly drawn designs that, with the same rewards, give any layer an effect at least as large. (A
    ratio to the standard error would give the same: all layers share the sum of squares of the contrasts.)

    The test is exact if rewards do not depend on which layers are dropped, whatever else they depend on. It is also
    exact if some layers, or their number, add noise, because the noise of a pair is the same whichever of its periods
    drops a layer.

    Args:
        periods: Finished periods, in order; one without a partner is left out.
        seed: Seed of the designs.

    Source: ours; randomisation tests: Fisher (1935), with the maximum over layers of Westfall and Young (1993).
    """
    pairs = len(periods) // 2
    num_layers = len(periods[0].dropped) if periods else 0
    if pairs < 2:
        return [LayerEffect()] * num_layers
    rewards = torch.tensor([period.reward for period in periods[: 2 * pairs]], dtype=torch.float64)
    contrasts = rewards[0::2] - rewards[1::2]
    signs = torch.tensor([period.dropped for period in periods[: 2 * pairs : 2]], dtype=torch.float64) * 2 - 1
    generator = torch.Generator().manual_seed(seed)
    at_once = max(1, _SIGNS // signs.numel())
    redrawn = (
        torch.randint(2, (min(at_once, REDRAWS - done), *signs.shape), generator=generator, dtype=torch.float64) * 2 - 1
        for done in range(0, REDRAWS, at_once)
    )
    sums = contrasts @ signs
    largest = torch.cat([(contrasts @ some).abs().amax(-1) for some in redrawn])
    p = (1 + (largest.unsqueeze(-1) >= sums.abs() * (1 - 1e-9)).sum(0)) / (1 + REDRAWS)
    errors = (signs * contrasts.unsqueeze(-1)).std(0) / pairs**0.5
    columns = (sums / pairs, errors, p)
    return [LayerEffect(*found) for found in zip(*(column.tolist() for column in columns), strict=True)]


class EffectsState(MethodState):
    """Exploration, and then training with what it found.

    The trained model is the defender: while layers are explored, it is trained exactly as in plain fine-tuning, bit for
    bit. The attacker is a new copy of it for each period that drops the layers of the period; only its score is used.
    Then the layers whose dropping helps, significant in the randomisation test, are dropped in half of the periods; if
    there are none, the rest of the training is plain fine-tuning, too.
    """

    method: AttendOutOptions

    def __init__(self, method: AttendOutOptions, training: TrainingContext) -> None:
        super().__init__(method)
        check(method, training)
        self.training = training
        self.periods: list[Period] = []
        self.found: dict[str, LayerEffect] | None = None
        self.number = self.steps = 0  # the number of periods before this one, and its steps so far
        self.rows: set[int] = set()
        self.attacker: SecondModel | None = None
        self.adapter: ModelAdapter | None = None
        self.attention_layers: list[AttentionLayer] = []
        self._told_of_rows = False
        assert training.optimizer is not None
        self._hook = before_step(training.optimizer, self._step)

    @property
    def exploring(self) -> bool:
        """Whether the current period explores. Without a known number of steps all do."""
        total = self.training.total_steps
        pairs = math.inf if total is None else int(self.method.explore * total / (2 * self.method.dropout_step) + 1e-6)
        return self.found is None and self.number < 2 * pairs

    def dropped(self) -> list[str]:
        """Return the layers that are dropped in the current period, the same in all processes, by key."""
        keys = [layer.key for layer in self.attention_layers]
        if self.exploring:
            chosen = drawn(self.training.seed, self.number, len(keys))
            return [key for key, out in zip(keys, chosen, strict=True) if out]
        chance = random.Random(f"{self.training.seed}/{self.number}/found")
        drawn_now = {key: chance.random() < FOUND for key in keys}
        return [key for key in keys if drawn_now[key] and helps((self.found or {}).get(key))]

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        refuse_graph(context.batch)
        self.attention_layers = self.method.selected_layers(context.adapter.attention_layers)
        dropped = self.dropped()
        for layer in self.attention_layers:
            context.report(layer.key, torch.tensor(int(layer.key in dropped)), torch.tensor(1))
        if self.exploring and self.training.reward_data is None and ROW_INDEX not in context.batch:
            raise AttendropError(
                "AttendOut scores on training rows that a period does not train on, and must know those of a batch: "
                "compute the loss by reg.loss(batch, rows=indices), or give reward_data."
            )
        if not self.exploring:
            return compute_loss(context.batch, ConstantAttention(dropped) if dropped else None)
        attacker = self._attacker()
        assert self.adapter is not None
        self.adapter.trace(to_device(context.inputs, attacker.device))
        attacker.backward(context, compute_loss, self.adapter.bind(ConstantAttention(dropped)) if dropped else None)
        loss, outputs = compute_loss(context.batch, None)
        attacker.follow(loss)
        self.rows.update(context.batch[ROW_INDEX].tolist() if ROW_INDEX in context.batch else ())
        return loss, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if not self.attention_layers:
            return {}
        self.steps += 1
        if self.attacker is not None:
            self.attacker.discard()
        if self.steps < self.method.dropout_step:
            return {}
        metrics = self._learn() if self.exploring else {}
        self.number, self.steps, self.rows = self.number + 1, 0, set()
        if self.found is None and not self.exploring:  # closing frees the memory of the attacker
            self.found = self._effects()
            self.close()
        return metrics

    def train_again(self) -> AttentionLayerDrop | None:
        """Drop the layers that help from the first step on: the explored model has already fitted its rows."""
        effects = self._effects()
        found = [layer for layer in self.attention_layers if helps(effects.get(layer.key))]
        if not found:
            return None
        return AttentionLayerDrop(p=KNOWN, layers=f"{found[0].kind}:{','.join(str(layer.index) for layer in found)}")

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the effect of each layer, and its significance in the randomisation test, for ``metrics.json``."""
        if not self.periods:
            return {}
        effects = self._effects()
        layers = {
            key: {"told_from_noise": found.told_from_noise, **_reported(found, len(self.periods) // 2)}
            for key, found in effects.items()
        }
        logger.info("What AttendOut learnt: %s.", learnt(layers))
        return {"layer_effects": layers}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        layers = metrics.get("layer_effects", {})
        self.found = {key: LayerEffect(known["effect"] or 0.0, p=known["p"]) for key, known in layers.items()}

    def state_dict(self) -> dict[str, Any]:
        return {
            "periods": [tuple(period) for period in self.periods],
            "found": None if self.found is None else {key: tuple(known) for key, known in self.found.items()},
            "seed": self.training.seed,
            "number": self.number,
            "steps": self.steps,
            "layers": [vars(layer) for layer in self.attention_layers],
            "attacker": None if self.attacker is None else self.attacker.state_dict(),
        }

    def rank_state_dict(self) -> dict[str, Any]:
        return {"rows": sorted(self.rows)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.periods = [Period(tuple(dropped), reward) for dropped, reward in state["periods"]]
        found = state["found"]
        self.found = None if found is None else {key: LayerEffect(*known) for key, known in found.items()}
        self.number, self.steps = state["number"], state["steps"]
        self.training = replace(self.training, seed=state["seed"])  # both periods of a pair come from one draw
        self.attention_layers = [AttentionLayer(**layer) for layer in state["layers"]]  # there may be no further step
        self.rows = set(rank_state["rows"])
        if state["attacker"] is not None:
            self._attacker().load_state_dict(state["attacker"])

    def close(self) -> None:
        self._hook.remove()
        if self.adapter is not None:
            self.adapter.detach()
        if self.attacker is not None:
            self.attacker.close()
        self.adapter = self.attacker = None

    def _step(self) -> None:
        if self.attacker is not None:
            self.attacker.step()

    def _attacker(self) -> SecondModel:
        if self.attacker is None:
            self.attacker = SecondModel(self.training, self.method.defender_device)
            self.adapter = ModelAdapter(self.attacker.model)
            self.adapter.attach()
        return self.attacker

    def _learn(self) -> dict[str, float]:
        """End a period of exploration: score both models, and begin again with a copy of the defender."""
        assert self.attacker is not None
        networks = (self.training.model, self.attacker.model)
        defender, attacker = scores(self.method, self.training, networks, shared(self._sampled(), self.training))
        reward = rewards_of(self.method, attacker, defender).mean().item()
        keys = self.dropped()
        self.periods.append(Period(tuple(layer.key in keys for layer in self.attention_layers), reward))
        self.attacker.take_from_first()
        return {"reward": reward}

    def _sampled(self) -> Sequence[Batch]:
        """Sample rows to score on: reward rows, or training rows that the period did not train on."""
        seed = random.Random(f"{self.training.seed}/{self.number}").getrandbits(62)
        count, size = self.method.dropout_step, self.method.reward_batch_size
        by_length = self.method.score == "loss"  # the mean of a metric over batches depends on how rows are divided
        if self.training.reward_data is not None:
            return self.training.reward_data.sample(seed, count, size, by_length=by_length)
        assert self.training.train_data is not None
        trained = set().union(*self.training.processes.gather(sorted(self.rows)))
        others = len(self.training.train_data) - len(trained)
        if others < size and not self._told_of_rows:
            logger.warning(
                "A period of %d steps trains on all but %d rows: rewards are on rows that were just trained on. A "
                "smaller dropout_step, or reward_data='split', avoids that.",
                count,
                others,
            )
            self._told_of_rows = True
        return self.training.train_data.sample(seed, count, size, () if others < size else trained, by_length=by_length)

    def _effects(self) -> dict[str, LayerEffect]:
        """Return the effect of each layer, by key; nothing before the first period has ended."""
        effects = layer_effects(self.periods, self.training.seed)
        return {layer.key: effect for layer, effect in zip(self.attention_layers, effects, strict=False)}


def helps(effect: LayerEffect | None) -> bool:
    """Return whether dropping a layer was found to help."""
    return effect is not None and effect.told_from_noise and effect.effect > 0


def _reported(found: LayerEffect, pairs: int) -> dict[str, Any]:
    """Format an effect with its 95 % interval (Student)."""
    from scipy.stats import t

    if found.standard_error == math.inf:
        return dict.fromkeys(("effect", "standard_error", "effect_interval")) | {"p": found.p}
    width = float(t.ppf(1 - LEVEL / 2, pairs - 1)) * found.standard_error
    interval = [found.effect - width, found.effect + width]
    return {"effect": found.effect, "standard_error": found.standard_error, "effect_interval": interval, "p": found.p}


def learnt(effects: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe which layers are significant in the randomisation test."""
    told = {key: found for key, found in effects.items() if found["told_from_noise"]}
    if not told:
        return f"none of {len(effects)} layers can be told from noise, so the model was trained by plain fine-tuning"
    texts = [
        f"dropping {key} {'helps' if known['effect'] > 0 else 'harms'} ({known['effect']:+.3g}, p = {known['p']:.2g})"
        for key, known in told.items()
    ]
    others = f"; the other {len(effects) - len(told)} cannot" if len(told) < len(effects) else ""
    return f"{', '.join(texts)}: told from noise{others}"
