"""EDropout: heads dropped by the state of lowest energy of an evolving population."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    DECIDES_PASSES,
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
    count,
    forked_rng,
    option,
    uniform,
    unit_interval,
)
from attendrop.methods.common.random_mask import scaled_heads


@dataclass(frozen=True)
class EDropout(Method):
    """Dropout of the attention heads that the best of a population of states drops.

    A state tells for each head of the model whether it is dropped; its energy is the loss of a batch with these heads
    dropped. In each step, each of ``population`` states ``s`` has a challenger: three other states ``a``, ``b``, ``c``
    are chosen, each element of ``a`` in which ``b`` and ``c`` differ is changed with probability ``mutation``, and each
    element of ``s`` is replaced by that of the result with probability ``crossover``. All states and challengers run on
    the batch, without gradients, and a challenger of lower energy replaces its state. The training pass uses the state
    that had the lowest energy in the step before. The outputs of the kept heads of a layer are multiplied by
    ``heads / kept heads``; a layer without kept heads contributes nothing. ``1 + 2 population`` forward passes and one
    backward pass per step.

    Example:
        >>> with regularize(model, EDropout(population=4)) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     reg.step()  # selects the states

    Args:
        p: Probability that a head is dropped in a state at the start, in (0, 1).
        population: Number of states, 4 or more.
        mutation: Probability of a change where two states differ, in (0, 1].
        crossover: Probability that an element comes from the mutated state, in (0, 1].
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range.

    Source: Salehinejad and Valaee (2022), https://arxiv.org/abs/2006.04270: the energy-based dropout that the AttendOut
    papers cite, not Roder et al.'s E-Dropout (2020) of restricted Boltzmann machines, whose energy has no counterpart
    in attention weights. There, filters and units of convolutional networks are dropped; here, attention heads. 0.9 for
    mutation and crossover are the values of the authors' code. They use 0.5 and 8 states; the lower defaults are ours,
    since heads are few and passes cost time. Their energy is the margin between the label's class and the best other
    one; here it is the loss, which all tasks have. The energies of a batch decide the state of the next step, not of
    the same, so that results do not depend on the split into micro-batches. Their network is pruned at the end; here
    the trained model keeps all its heads, and the kept ones are scaled up in training.
    """

    info = MethodInfo(
        "edropout",
        "drops the heads that the best of an evolving population of states drops",
        "Salehinejad, Valaee (2022), EDropout: Energy-Based Dropout and Pruning of Deep Neural Networks",
        acts_on=("heads",),
        forward="1 + 2 population",
        state="the states",
        units="heads",
        traits={DECIDES_PASSES: ""},
        rules=(
            Rule("edropout", SECOND_MODEL, "The states belong to one model, but two are trained."),
            Rule(
                "edropout",
                EXCHANGES_WEIGHTS,
                "The model's weights are replaced during training, but the states are not.",
            ),
        ),
    )

    p: float = option(0.2, unit_interval(), search=(0.1, 0.4))
    population: int = option(4, count(4))
    mutation: float = option(0.9, unit_interval(one=True))
    crossover: float = option(0.9, unit_interval(one=True))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _Population(self, training)


class _Population(MethodState):
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
        if layer not in self.states:
            self.states[layer] = self._first_states(key, layer, heads)
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
            return plan.without_heads(call, drop, scale) if reports else scaled_heads(drop, scale)

        return RandomMaskPlan(self.method, context, make)

    def _first_states(self, key: SampleKey, layer: str, heads: int) -> Tensor:
        """Sample the states at the start, ``(population, heads)``; after :meth:`restore` all are what was learnt."""
        method = self.method
        if layer in self.learnt:
            dropped = [head in self.learnt[layer] for head in range(heads)]
            return torch.tensor(dropped).repeat(method.population, 1)
        return _uniform(key, f"{layer}/start", method.population, heads) < method.p

    def _challengers(self, key: SampleKey, layer: str) -> Tensor:
        """Mutate and cross the states, ``(population, heads)``."""
        method, states = self.method, self.states[layer]
        number, heads = states.shape
        # The same three others in all layers, in an order of their own for each state.
        ranks = _uniform(key, "others", number, number).fill_diagonal_(2.0)
        first, second, third = states[ranks.argsort(stable=True)[:, :3]].unbind(1)
        changes = (second != third) & (_uniform(key, f"{layer}/mutation", number, heads) < method.mutation)
        crossed = _uniform(key, f"{layer}/crossover", number, heads) < method.crossover
        return torch.where(crossed, first ^ changes, states)


def _uniform(key: SampleKey, name: str, rows: int, columns: int) -> Tensor:
    """Sample numbers from (0, 1), the same in all micro-batches and processes, ``(rows, columns)``, on the CPU."""
    whole = SampleKey(key.seed, key.step, 0, 1, key.salt)
    origins = torch.zeros(1, 2, dtype=torch.long)
    return uniform(whole, name, (1, 1, rows, columns), origins, torch.device("cpu")).view(rows, columns)
