"""Dropout of attention heads by number, importance or energy, and of hidden units of their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    SECOND_MODEL,
    AttentionCall,
    AttentionEdit,
    Batch,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    Rule,
    SampleKey,
    StepContext,
    TrainingContext,
    choice,
    count,
    floor_fraction,
    forked_rng,
    head_importance,
    option,
    uniform,
    unit_interval,
)


@dataclass(frozen=True)
class HeadMask(Method):
    """Masking of a fixed fraction of the attention heads.

    Of the ``H`` heads of a layer, ``floor(fraction * H)`` are masked, at least one and at most ``H - 1``, independently
    for each sequence: their outputs are zero before the output projection. Nothing is rescaled.

    Args:
        fraction: Fraction of a layer's heads to mask, in (0, 1).
        select_by: ``"random"``: random heads. ``"importance"``: the most important heads, by ``|dL/dxi|``, where ``xi``
            = 1 is a gate that multiplies the output of a head, and ``L`` the model's own loss on the sequence (one more
            forward and backward pass, without parameter gradients).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: With ``"importance"``, a batch has no labels.

    Source: Sun et al. (2020), https://arxiv.org/abs/2009.09672, who mask a fixed number of heads; the importance is
    that of Michel et al. (2019), https://arxiv.org/abs/1905.10650, without its mean over samples. The default of 1/8 is
    one of the eight heads in a layer of the base Transformer. Selecting heads by layer and sequence is ours.
    """

    info = MethodInfo(
        "headmask",
        "masks a fixed number of attention heads, random or important ones",
        "Sun et al. (2020), Alleviating the Inequality of Attention Heads for Neural Machine Translation",
        link="https://arxiv.org/abs/2009.09672",
        acts_on=("heads",),
        forward="1 (by importance: 2)",
        backward="1 (by importance: 1 + activations)",
        units="heads",
    )

    fraction: float = option(0.125, unit_interval(), search=(0.25, 0.5))
    select_by: str = option("random", choice("random", "importance"))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def count(self, heads: int) -> int:
        """Return the number of masked heads, given the number of heads."""
        return min(heads - 1, max(1, int(floor_fraction(torch.tensor(heads), self.fraction))))

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        importance: dict[str, Tensor] = {}
        if self.select_by == "importance":
            importance = head_importance(context.adapter, context.batch, attention_layers, context.run_loss)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            found = importance.get(call.layer.key)
            values = plan.uniform_heads(call) if found is None else found[..., None, None]
            ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            return plan.without_heads(call, ranks < self.count(call.shape[1]))

        return RandomMaskPlan(self, context, make, {layer.key for layer in attention_layers})


# -lambda * alpha with the constants of the SELU: the limit of its value for large negative inputs.
SATURATED = -1.0507009873554805 * 1.6732632423543772


@dataclass(frozen=True)
class AlphaDropout(Method):
    """Alpha Dropout of the hidden units of the heads' outputs, before the output projection.

    Each unit of each token is set to ``alpha' = -1.7581`` with probability ``p``; then all units ``x`` become ``a x +
    b`` with ``a = (q + alpha'^2 q (1 - q))^(-1/2)``, ``b = -a (1 - q) alpha'`` and ``q = 1 - p``. This preserves mean 0
    and variance 1.

    Args:
        p: Probability that a unit is dropped, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Klambauer et al. (2017), https://arxiv.org/abs/1706.02515, section "New Dropout Technique", where 0.05 and
    0.1 are recommended, after SELUs; its use on attention follows a comparison in the AttendOut paper. The outputs of
    heads are not normalised, so that other means and variances are not exactly preserved. The model's own dropout stays
    enabled.
    """

    info = MethodInfo(
        "alpha-dropout",
        "sets hidden units of heads to the value at which SELUs saturate",
        "Klambauer et al. (2017), Self-Normalizing Neural Networks",
        link="https://arxiv.org/abs/1706.02515",
        acts_on=("heads",),
        units="hidden units",
        order=-1,  # before methods that drop heads: their outputs must be zero, not b
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        scale, shift = affine(self.p)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            sample = partial(plan.sample_hidden, self.p, call)
            return plan.without_units(
                call, sample, lambda hidden, drop: hidden.masked_fill(drop, SATURATED) * scale + shift
            )

        return RandomMaskPlan(self, context, make)


def affine(p: float) -> tuple[float, float]:
    """Return ``a`` and ``b``, which preserve mean 0 and variance 1 for drop probability ``p``."""
    q = 1 - p
    scale = (q + SATURATED**2 * q * (1 - q)) ** -0.5
    return scale, -scale * (1 - q) * SATURATED


class _EDropoutState(MethodState):
    """State with the population: dropped heads, ``(population, heads)``, by the key of the layer."""

    method: EDropout

    def __init__(self, method: EDropout, training: TrainingContext) -> None:
        super().__init__(method)
        self.training = training
        self.states: dict[str, Tensor] = {}
        self.challengers: dict[str, Tensor] = {}
        self.best = 0
        self.learnt: Mapping[str, list[int]] = {}
        self.energies: Tensor | None = None

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        found = []
        for number in range(2 * self.method.population):
            with forked_rng(context.model), torch.no_grad():
                found.append(compute_loss(context.batch, self._plan(context, number, reports=False))[0])
        share = 1 / torch.as_tensor(context.micro_batches).to(found[0].device)
        energies = torch.stack(found).detach().double() * share
        self.energies = energies if self.energies is None else self.energies + energies
        context.note("energy", found[self.best])
        return compute_loss(context.batch, self._plan(context, self.best, reports=True))

    def dropped(self, key: SampleKey, layer: str, heads: int, number: int) -> Tensor:
        """Return the heads of a layer that a state drops, ``(heads,)``; numbers from ``population`` on: challengers."""
        if layer in self.learnt and layer not in self.states:
            known = torch.tensor([head in self.learnt[layer] for head in range(heads)])
            self.states[layer] = known.repeat(self.method.population, 1)
        elif layer not in self.states:
            self.states[layer] = _uniform(key, f"{layer}/start", self.method.population, heads) < self.method.p
        if layer not in self.challengers:
            self.challengers[layer] = self._challengers(key, layer)
        return torch.cat([self.states[layer], self.challengers[layer]])[number]

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.energies is None:
            return {}
        energies = self.training.processes.total(self.energies).nan_to_num(torch.inf)
        old, new = energies.chunk(2)
        better = (new < old).cpu()
        for layer, challengers in self.challengers.items():
            self.states[layer] = torch.where(better[:, None], challengers, self.states[layer])
        self.best = int(torch.minimum(old, new).argmin())
        self.challengers, self.energies = {}, None
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"states": dict(self.states), "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.states, self.best = dict(state["states"]), state["best"]

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the heads that the last state drops, by layer."""
        return {
            "edropout": {layer: states[self.best].nonzero().flatten().tolist() for layer, states in self.states.items()}
        }

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.learnt = metrics.get("edropout", {})

    def _plan(self, context: StepContext, number: int, *, reports: bool) -> Plan:
        """Return the plan that drops the heads of one state, and counts them if it ``reports``."""

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            batch, heads = call.shape[:2]
            drop = self.dropped(context.key, call.layer.key, heads, number)
            scale = heads / max(int((~drop).sum()), 1)
            drop = drop.to(call.device).view(1, heads, 1, 1).expand(batch, heads, 1, 1)
            if reports:
                return plan.without_heads(call, drop, scale)
            factor = (~drop * scale).transpose(1, 2)
            return AttentionEdit(output=lambda output: output * factor.to(output.dtype))

        return RandomMaskPlan(self.method, context, make)

    def _challengers(self, key: SampleKey, layer: str) -> Tensor:
        """Mutate and cross the states, ``(population, heads)``."""
        method, states = self.method, self.states[layer]
        number, heads = states.shape
        # The same three others in all layers, in a separate random order for each state.
        ranks = _uniform(key, "others", number, number).fill_diagonal_(2.0)
        first, second, third = states[ranks.argsort(stable=True)[:, :3]].unbind(1)
        changes = (second != third) & (_uniform(key, f"{layer}/mutation", number, heads) < method.mutation)
        crossed = _uniform(key, f"{layer}/crossover", number, heads) < method.crossover
        return torch.where(crossed, first ^ changes, states)


@dataclass(frozen=True)
class EDropout(Method):
    """Dropout of the attention heads that the best of a population of states drops.

    A state marks each head of the model as dropped or kept; its energy is the loss of a batch with these heads dropped.
    In each step, each of ``population`` states ``s`` has a challenger: of three other states ``a``, ``b``, ``c``, each
    element of ``a`` in which ``b`` and ``c`` differ is changed with probability ``mutation``, and each element of ``s``
    is replaced by that of the result with probability ``crossover``. States and challengers all run on the batch,
    without gradients, and a challenger with lower energy replaces its state. The training pass uses the state that had
    the lowest energy in the step before; kept heads are scaled up as in :class:`attendrop.DropHead`. ``1 + 2
    population`` forward passes and one backward pass per step; ``reg.step()`` of a custom loop selects the states.

    Args:
        p: Probability that a head is dropped in a state at the start, in (0, 1).
        population: Number of states, 4 or more.
        mutation: Probability of a change where two states differ, in (0, 1].
        crossover: Probability that an element comes from the mutated state, in (0, 1].
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Source: Salehinejad and Valaee (2022), https://arxiv.org/abs/2006.04270: the energy-based dropout that the AttendOut
    papers cite, not the E-Dropout of Roder et al. (2020) for restricted Boltzmann machines. The paper drops, and
    finally prunes, filters and units of convolutional networks; here, attention heads are dropped, in training only.
    0.9 for mutation and crossover are the values of the authors' code, which uses ``p`` = 0.5 and 8 states. Their
    energy is the margin between the label's class and the best other one; here it is the loss, which all tasks have.
    The energies of a batch decide the state of the next step, so results do not depend on the split into micro-batches.
    """

    info = MethodInfo(
        "edropout",
        "drops the heads chosen by the best of an evolving population of states",
        "Salehinejad, Valaee (2022), EDropout: Energy-Based Dropout and Pruning of Deep Neural Networks",
        link="https://arxiv.org/abs/2006.04270",
        acts_on=("heads",),
        forward="1 + 2 population",
        state="the states",
        units="heads",
        rules=(
            Rule("edropout", SECOND_MODEL, "The states belong to one model, but two are trained."),
            Rule(
                "edropout",
                EXCHANGES_WEIGHTS,
                "The model's weights are replaced during training, but the states are not.",
            ),
        ),
    )
    state_class = _EDropoutState

    p: float = option(0.2, unit_interval(), search=(0.1, 0.4))
    population: int = option(4, count(4))
    mutation: float = option(0.9, unit_interval(one=True))
    crossover: float = option(0.9, unit_interval(one=True))
    layers: str | int | Sequence[int] = option("all", LAYERS)


def _uniform(key: SampleKey, name: str, rows: int, columns: int) -> Tensor:
    """Sample numbers from (0, 1), the same in all micro-batches and processes, ``(rows, columns)``, on the CPU."""
    whole = SampleKey(key.seed, key.step, 0, 1, key.salt)
    origins = torch.zeros(1, 2, dtype=torch.long)
    return uniform(whole, name, (1, 1, rows, columns), origins, torch.device("cpu")).view(rows, columns)
