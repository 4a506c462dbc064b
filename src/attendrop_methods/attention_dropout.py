"""Dropout of attention: of scores and weights, of heads, and of hidden units of their outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    REPLACES_DROPOUT,
    SECOND_MODEL,
    AttentionCall,
    AttentionEdit,
    Batch,
    ComputeLoss,
    DroppedScores,
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
    loss_gradients,
    option,
    positive,
    sample_mask,
    uncompiled,
    uniform,
    unit_interval,
    upcast,
)


@dataclass(frozen=True)
class DropBlock(Method):
    """Dropout of contiguous blocks of attention scores.

    In each row, a block of ``b`` keys starts at each position where it fits with probability ``gamma = p / b * n / (n -
    b + 1)``, where ``n`` is the number of valid keys in the row and ``b`` is the minimum of ``block_size`` and ``n``.
    Blocks may overlap.

    Args:
        p: Approximate fraction of dropped positions, in (0, 1): exactly ``gamma * b * (n - b + 1) / n``, minus the
            overlap of blocks.
        block_size: Number of keys in a block.
        block_rows: Number of queries in a block. Taller blocks are cut off at the first and last query, so that the
            dropped fraction is the same there as elsewhere.

    Source: Ghiasi, Lin, Le (2018), https://arxiv.org/abs/1810.12890, Eq. 1 and Algorithm 1, for feature maps of
    convolutional networks; here the scores of a head take the place of a map. Deviations: blocks are spans of a row by
    default, not squares; softmax replaces their rescaling; ``p`` is constant, while they increase it linearly from 0;
    the defaults are ours (their 0.1 is for 7 x 7 positions).
    """

    info = MethodInfo(
        "dropblock",
        "drops contiguous spans of attention scores",
        "Ghiasi, Lin, Le (2018), DropBlock: A Regularization Method for Convolutional Networks",
        link="https://arxiv.org/abs/1810.12890",
        acts_on=("scores",),
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    block_size: int = option(4, count())
    block_rows: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, drops=self._drop)

    def _drop(self, plan: RandomMaskPlan, call: AttentionCall) -> DroppedScores:
        chances = begin_chances(call, self.p / self.block_rows, self.block_size)
        if self.block_rows == 1:
            return DroppedScores(spread(plan.sample(chances, call), self.block_size))
        batch, heads, queries, keys = call.shape
        shape = (batch, heads, queries + self.block_rows - 1, keys)
        names = [layer.key for layer in call.layers]
        sampled = uniform(plan.context.key, names, shape, plan.origins(call), call.device)
        starts = sampled[:, :, :queries] < chances
        for above in range(1, self.block_rows):  # each row has the blocks that start in it, and in the rows above
            starts |= sampled[:, :, above : above + queries] < chances
        return DroppedScores(spread(starts, self.block_size))


@dataclass(frozen=True)
class DropAttention(Method):
    """Dropout of attention weights with normalised rescaling, in place of the model's own attention dropout.

    Some attention weights of each head are set to zero, and each row is divided by its sum, through which no gradient
    flows. A row that is left without any weight attends equally to its valid keys.

    Args:
        p: Approximate fraction of dropped weights, in (0, 1), see :class:`attendrop_methods.DropBlock`.
        unit: ``"column"``, a key for all queries, or ``"element"``, a single weight.
        window: Number of neighbouring columns, or elements of a row, that are dropped together, 1 or more.

    Source: Lin et al. (2019), https://arxiv.org/abs/1907.11065, section 3: DropAttention(c) and DropAttention(e), and
    the normalised rescaling. The defaults are ours. A window starts at each position with the probability of DropBlock.
    The paper does not say what happens to a row dropped as a whole. A column is dropped in one head of one sequence.
    """

    info = MethodInfo(
        "dropattention",
        "drops elements or columns of the attention weights, and normalises the rest",
        "Lin et al. (2019), DropAttention: A Regularization Method for Fully-Connected Self-Attention Networks",
        link="https://arxiv.org/abs/1907.11065",
        acts_on=("weights",),
        traits={REPLACES_DROPOUT: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    unit: str = option("column", choice("column", "element"), search=("column", "element"))
    window: int = option(1, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def plan(self, context: StepContext) -> Plan:
        return RandomMaskPlan(self, context, self._renormalise)

    def _drop_mask(self, plan: RandomMaskPlan, call: AttentionCall) -> Tensor:
        shape, origins, batch = call.shape, plan.origins(call), call.shape[0]
        if self.unit == "column":
            valid = None if call.valid is None else call.valid.any(-2, keepdim=True)
            call = replace(call, valid=valid)
            shape = (batch, shape[1], 1, shape[3])
            origins = None if origins is None else origins * torch.tensor([0, 1], device=call.device)
        chances = begin_chances(call, self.p, self.window)
        return spread(sample_mask(chances, plan.context.key, call.layer.key, shape, origins, call.device), self.window)

    def _renormalise(self, plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        valid = torch.ones(1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
        kept = valid & ~self._drop_mask(plan, call)
        plan.report(call, ~kept)
        number = valid.expand(call.shape).sum(-1, keepdim=True).clamp(min=1)

        def renormalised(weights: Tensor) -> Tensor:
            largest = torch.finfo(weights.dtype).max
            rest = upcast(weights).masked_fill(~kept, 0)
            if rest.requires_grad:  # a gradient divided by a small sum may overflow; that of the scores is small again
                rest.register_hook(lambda gradient: gradient.clamp(-largest, largest))  # type: ignore[no-untyped-call]
            total = rest.detach().sum(-1, keepdim=True)
            lost = total == 0
            equal = valid.to(rest.dtype) / number
            return torch.where(lost, equal, rest / total.masked_fill(lost, 1)).to(weights.dtype)

        return AttentionEdit(weights=renormalised, dropout=0.0)


def begin_chances(call: AttentionCall, p: float, size: int) -> Tensor:
    """Compute the probability that a block starts at a position, broadcastable to ``call.shape``; 0 if none fits.

    Blocks of ``size`` keys, or all valid ones if there are fewer, are to cover the fraction ``p`` of the positions.
    """
    keys = call.shape[3]
    valid = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
    count = valid.sum(-1, keepdim=True)
    length = count.clamp(min=1, max=size)
    gamma = p / length * count / (count - length + 1).clamp(min=1)
    # Counting valid keys only, a block fits if at least ``length`` keys remain.
    fits = valid & (valid.cumsum(-1) <= count - length + 1)
    return gamma * fits


def spread(seeds: Tensor, size: int) -> Tensor:
    """Extend each True to the ``size - 1`` positions to its right."""
    width = 1
    while width < min(size, seeds.shape[-1]):
        step = min(width, size - width)
        wider = seeds.clone()
        wider[..., step:] |= seeds[..., :-step]
        seeds, width = wider, width + step
    return seeds


@dataclass(frozen=True)
class AdversarialDropout(Method):
    """Dropout of attention weights, and dropout that is changed to raise the loss.

    The batch runs with dropout of attention weights, in place of the model's own: each is kept with probability ``1 -
    p`` and divided by it. The gradient of the loss with respect to the mask of zeros and ones shows which changes raise
    the loss: dropping a weight whose gradient is negative, keeping a dropped one whose gradient is positive. In each
    layer and sequence, those with the largest gradients are changed, at most the fraction ``delta`` of the positions
    that the loss depends on (if a model classifies by the first token, only that token's row in the last layer). The
    batch runs again with the changed mask. The loss is that of the first pass plus ``weight`` times that of the second.
    Two forward and three backward passes per step, one of them without parameter gradients.

    Args:
        p: Probability that a weight is dropped at random, in (0, 1).
        delta: Maximum fraction to change of the valid positions of a layer and sequence that the loss depends on, in
            (0, 1).
        weight: Weight of the loss with the changed mask (the paper's lambda), above 0.

    Source: Park et al. (2018), https://arxiv.org/abs/1707.03631, the supervised form (SAdD) and its greedy algorithm.
    There, the hidden units of one layer are dropped; here, the attention weights of all layers are, and all masks are
    changed by the gradients of one pass. All defaults are ours. Kept weights of the changed mask are divided by ``1 -
    p``, too; the authors' code divides by the fraction that is kept.
    """

    info = MethodInfo(
        "adversarial-dropout",
        "drops attention weights, also to raise the loss",
        "Park et al. (2018), Adversarial Dropout for Supervised and Semi-Supervised Learning",
        link="https://arxiv.org/abs/1707.03631",
        acts_on=("weights", "loss"),
        forward="2",
        backward="3, one without parameters",
        traits={REPLACES_DROPOUT: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    delta: float = option(0.05, unit_interval(), search=(0.02, 0.1))
    weight: float = option(1.0, positive(), search=(0.3,))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        masks: dict[str, Tensor] = {}
        valid: dict[str, Tensor] = {}

        def sampled(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            key, drop, rows = call.layer.key, plan.sample(self.p, call), call.valid_queries()
            plan.report(call, drop)
            every = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device) if call.valid is None else call.valid
            masks[key], valid[key] = (~drop).float().requires_grad_(), every if rows is None else every & rows
            return masked(masks[key], self.p)

        with uncompiled():
            loss, outputs = compute_loss(context.batch, RandomMaskPlan(self, context, sampled))
        changed: dict[str, Tensor] = {}
        for key, gradient in loss_gradients(upcast(loss), masks, context.model).items():
            # Rows without a gradient are those that no later layer or head reads, and padding of a decoder's targets.
            read = valid[key] & (gradient != 0).any(-1, keepdim=True)
            changed[key] = flipped(masks[key], gradient, read, self.delta)
        plan = RandomMaskPlan(self, context, lambda _, call: masked(changed[call.layer.key], self.p), changed)
        with forked_rng(context.model):
            adversarial, _ = compute_loss(context.batch, plan)
        context.note("raised", adversarial.detach() - loss.detach())
        return loss + self.weight * adversarial, outputs


def masked(mask: Tensor, p: float) -> AttentionEdit:
    """Return the edit that multiplies attention weights by a mask, divided by ``1 - p``."""
    return AttentionEdit(weights=lambda weights: weights * (mask / (1 - p)).to(weights.dtype), dropout=0.0)


def flipped(mask: Tensor, gradient: Tensor, valid: Tensor, delta: float) -> Tensor:
    """Change the elements of a mask that raise the loss most: of ``n`` valid ones at most ``delta n``, rounded down.

    The mask of zeros and ones and the loss's gradient with respect to it are ``(batch, heads, query, key)``.
    """
    valid = valid.expand(mask.shape)
    gains = torch.where(mask.detach() > 0, -gradient, gradient).masked_fill(~valid, 0).clamp(min=0).flatten(1)
    length = floor_fraction(valid.flatten(1).sum(-1, keepdim=True), delta)
    order = gains.argsort(dim=-1, stable=True, descending=True)
    first = torch.arange(gains.shape[1], device=gains.device) < length
    chosen = torch.zeros_like(first.expand(gains.shape)).scatter(-1, order, first.expand(gains.shape)) & (gains > 0)
    return torch.where(chosen.view(mask.shape), 1 - mask.detach(), mask.detach())


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

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.selected_layers(context.adapter.attention_layers)
        importance: dict[str, Tensor] = {}
        if self.select_by == "importance":
            importance = head_importance(context.adapter, context.batch, attention_layers, context.run_loss)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            found, heads = importance.get(call.layer.key), call.shape[1]
            values = plan.uniform_heads(call) if found is None else found[..., None, None]
            ranks = values.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
            most = int(floor_fraction(torch.tensor(heads), self.fraction))
            return plan.without_heads(call, ranks < min(heads - 1, max(1, most)))

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
        q = 1 - self.p
        scale: float = (q + SATURATED**2 * q * (1 - q)) ** -0.5
        shift = -scale * (1 - q) * SATURATED

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            def act(hidden: Tensor, drop: Tensor) -> Tensor:
                return hidden.masked_fill(drop, SATURATED) * scale + shift

            return plan.without_units(call, partial(plan.sample_hidden, self.p, call), act)

        return RandomMaskPlan(self, context, make)


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
        states, method = self.states[layer], self.method
        if layer not in self.challengers:  # mutate and cross the states
            # The same three others in all layers, in a separate random order for each state.
            ranks = _uniform(key, "others", len(states), len(states)).fill_diagonal_(2.0)
            first, second, third = states[ranks.argsort(stable=True)[:, :3]].unbind(1)
            changes = (second != third) & (_uniform(key, f"{layer}/mutation", *states.shape) < method.mutation)
            crossed = _uniform(key, f"{layer}/crossover", *states.shape) < method.crossover
            self.challengers[layer] = torch.where(crossed, first ^ changes, states)
        return torch.cat([states, self.challengers[layer]])[number]

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
