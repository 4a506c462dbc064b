"""Super tickets: pruning of unimportant heads and feed-forwards, and fine-tuning from the initial weights."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attendrop.attention.blocks import base_layer, inputs_of_heads, refuse_quantized
from attendrop.attribution.gradient import GatePlan
from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    SWITCH,
    AttendropError,
    Batch,
    InitialState,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    Rule,
    StepContext,
    TrainingContext,
    choice,
    floor_fraction,
    option,
    unit_interval,
)
from attendrop.support.models import to_device
from attendrop.wording import counted

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter

logger = logging.getLogger(__name__)
# What is pruned: the beginning of the keys of its importances, and its name in messages.
_KINDS = {"heads": "heads", "feed_forward": "feed-forwards"}
# A dimension of a parameter, and the indices in it; None for the whole parameter.
Place = tuple[int, list[int]] | None


class _SuperT(MethodState):
    """State that measures importances, then prunes, then keeps pruned weights at zero."""

    method: SuperT

    def __init__(self, method: SuperT, training: TrainingContext) -> None:
        super().__init__(method)
        self.training = training
        self.start = InitialState(method, training)
        self.search_steps = int(floor_fraction(torch.tensor(self.start.steps), method.search))
        if self.search_steps < 1:
            raise AttendropError(
                f"search={method.search} of {counted(self.start.steps, 'step')} is less than one. Train "
                "longer, or raise search."
            )
        self.importance: dict[str, Tensor] = {}
        self.pruned: dict[str, list[int]] | None = None
        self.zeros: dict[str, Place] = {}
        self.loss_scale = 1.0
        self._adapter: ModelAdapter | None = None
        self._gates: list[GatePlan] = []
        self._checked = False

    def plan(self, context: StepContext) -> Plan | None:
        if self.pruned is not None:
            return None
        if self._adapter is None:
            self._check_prunable(context.adapter)
            self._adapter = context.adapter
        self.loss_scale = context.loss_scale
        method, by_token = self.method, self.method.absolute == "token"
        plan = GatePlan(context.key.rows, heads=method.heads, feed_forward=method.feed_forward, by_token=by_token)
        self._gates.append(plan)
        return plan

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.pruned is not None or self._adapter is None:
            return {}
        # Add the gradients of this step's gates, over its micro-batches and all processes.
        found: dict[str, Tensor] = {}
        for gates in self._gates:
            found = {key: value + found.get(key, 0) for key, value in gates.sensitivity().items()}
        self._gates = []
        if found:
            processes = self.training.processes
            total = processes.total(torch.cat(list(found.values()))) / (self.loss_scale * processes.world_size)
            total = torch.where(total.isfinite().all(), total, 0.0)  # skip steps that overflow under float16
            for key, value in zip(found, torch.split(total, [len(value) for value in found.values()]), strict=True):
                self.importance[key] = value + self.importance.get(key, 0)
        if not self._checked:
            self._check_fraction(self._adapter)
        return self._begin_anew(self._adapter) if steps_taken >= self.search_steps else {}

    def searching(self) -> bool:
        return self.pruned is None

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, place in self.zeros.items():
            gradient = parameters[name].grad
            if gradient is not None:
                zero(gradient, place)

    def state_dict(self) -> dict[str, Any]:
        state = {"start": self.start.state_dict(), "importance": self.importance}
        return state | {"pruned": self.pruned, "zeros": self.zeros}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.start.load_state_dict(state["start"])
        self.importance = to_device(state["importance"], next(self.training.model.parameters()).device)
        self.pruned, self.zeros = state["pruned"], state["zeros"]

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the pruned units and the importances, averaged over rows."""
        if self.pruned is None:
            return {}
        found: dict[str, Any] = {"heads": {}, "feed_forward": [], "importance": {"heads": {}, "feed_forward": {}}}
        for key, numbers in self.pruned.items():
            kind, _, place = key.partition("/")
            values = (self.importance[key] / self.search_steps).tolist()
            found["importance"][kind][place] = values if kind == "heads" else values[0]
            if kind == "heads":
                found[kind][place] = numbers
            elif numbers:
                found[kind].append(place)
        return {"supert": found}

    def _check_prunable(self, adapter: ModelAdapter) -> None:
        """Raise AttendropError if a layer has no output projection of its own, or a quantized one."""
        modules = [module for block in adapter.blocks for module in block.output_projections.values()]
        modules += [block.feed_forward for block in adapter.blocks if block.feed_forward is not None]
        name = type(adapter.model).__name__
        if len(set(modules)) < len(modules):
            raise AttendropError(
                f"{name} shares its layers, so heads of one cannot be pruned alone; use another model."
            )
        projected = {key for block in adapter.blocks for key in block.output_projections}
        if projected != {layer.key for layer in adapter.attention_layers}:
            raise AttendropError(f"{name} has attention without an output projection to prune; use another model.")
        for module in modules:
            refuse_quantized(base_layer(module))

    def _check_fraction(self, adapter: ModelAdapter) -> None:
        """Raise AttendropError if nothing would be pruned, once all layers have run (LayerDrop may skip some)."""
        forwards = sum(block.feed_forward is not None for block in adapter.blocks)
        known = len(adapter.attention_layers) * self.method.heads + forwards * self.method.feed_forward
        if len(self.importance) < known:
            return
        self._checked = True
        fraction, chosen = self.method.fraction, lowest(self.importance, self.method.fraction)
        if not any(chosen.values()):
            raise AttendropError(
                f"fraction={fraction} of {_count(self.importance, 'heads')} heads, of which one stays in each layer, "
                f"and of {_count(self.importance, 'feed_forward')} feed-forwards is none; raise it."
            )
        for kind, words in _KINDS.items():
            total, pruned = _count(self.importance, kind), _count(chosen, kind)
            if total and not pruned:
                logger.warning(
                    "fraction=%s of %d %s is none: all of them stay. Raise it to prune some.", fraction, total, words
                )
            elif pruned < wanted(self.importance, kind, fraction):
                logger.warning(
                    "Of %d heads %d are pruned, for fraction=%s: one stays in each layer.", total, pruned, fraction
                )

    def _begin_anew(self, adapter: ModelAdapter) -> dict[str, float]:
        """Reset the weights and prune."""
        self.start.rewind()
        self.pruned = lowest(self.importance, self.method.fraction)
        names = {parameter: name for name, parameter in adapter.model.named_parameters()}
        for block in adapter.blocks:
            for key, module in block.output_projections.items():
                if numbers := self.pruned.get(f"heads/{key}"):
                    weight, heads = module.get_parameter("weight"), len(self.importance[f"heads/{key}"])
                    self.zeros[names[weight]] = inputs_of_heads(module, numbers, heads)
            if self.pruned.get(f"feed_forward/{block.key}") and block.feed_forward is not None:
                self.zeros |= {names[parameter]: None for parameter in block.feed_forward.parameters()}
        parameters = dict(self.training.model.named_parameters())
        with torch.no_grad():
            for name, place in self.zeros.items():
                weight = parameters[name]
                zero(weight, place)
                for moment in self.start.optimizer.state.get(weight, {}).values():  # of an optimizer used before
                    if isinstance(moment, Tensor) and moment.shape == weight.shape:
                        zero(moment, place)
        return {f"pruned/{kind}": float(_count(self.pruned, kind)) for kind in _KINDS}


@dataclass(frozen=True)
class SuperT(Method):
    """Pruning of the least important attention heads and feed-forwards, and fine-tuning from the initial weights.

    During the first ``search`` fraction of the planned steps the model trains normally, and importances ``I = E
    |dL / dg|`` are accumulated, for a gate ``g = 1`` on the output of each head and feed-forward. Then ``reg.step()``
    resets weights and optimizer to their initial state, and prunes the lowest-ranked units: the output projection's
    weights of a pruned head, and the last projection of a pruned feed-forward, are set to zero and stay zero.

    Args:
        fraction: Fraction of the heads, and of the feed-forwards, to prune (rounded down), in (0, 1). The most
            important head of a layer is kept. With 0.1, no feed-forward of a model with fewer than ten layers is
            pruned, and a warning is logged.
        search: Fraction of the planned steps before the restart, in (0, 1).
        heads: Whether to prune heads.
        feed_forward: Whether to prune feed-forwards.
        absolute: Level at which the absolute value is taken: ``"token"``, the gradient of one gate per token;
            ``"row"``, that of one gate per row, as in the paper's formula.

    Raises:
        AttendropError: The model has an adapter of PEFT; the optimizer or the number of steps is unknown, or there are
            too few steps; or, in training, the model shares its layers (ALBERT), or nothing would be pruned.

    Source: Liang et al. (2021), https://aclanthology.org/2021.acl-long.510. As in their code, the absolute value is
    taken per token; heads are ranked after dividing the importances of a layer by their norm, and feed-forwards are
    ranked separately; the same fraction of both is pruned; at least one head per layer is kept; and 0.1 is the lowest
    value in their scripts. Deviations: search and training are one run (``search=0.3`` is ours), so that importances
    are those of the search steps, with dropout, and the learning rate schedule continues. Gradient clipping still
    includes the gradients of pruned units. Evaluations during the search count neither for the best checkpoint nor for
    early stopping.
    """

    info = MethodInfo(
        "supert",
        "prunes the least important heads and feed-forwards, and trains the rest from the start",
        "Liang et al. (2021), Super Tickets in Pre-Trained Language Models",
        link="https://aclanthology.org/2021.acl-long.510",
        acts_on=("heads", "layers", "gradients"),
        state="the weights of the start",
        tasks="all; not models that share layers (ALBERT)",
        order=1,  # gates act on the final outputs of the heads
        traits={EXCHANGES_WEIGHTS: ""},
        rules=(Rule("supert", "mixout", "mixout restores pre-trained values, including those of pruned weights."),),
        edits_pretrained_weights=True,
        needs_loss_scale=True,
    )
    state_class = _SuperT

    fraction: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.4))
    search: float = option(0.3, unit_interval())
    heads: bool = option(True, SWITCH)
    feed_forward: bool = option(True, SWITCH)
    absolute: str = option("token", choice("token", "row"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.heads or self.feed_forward):
            raise AttendropError("heads=False and feed_forward=False leave nothing to prune; set one of them.")


def _count(chosen: Mapping[str, Sized], kind: str) -> int:
    return sum(len(values) for key, values in chosen.items() if key.startswith(kind))


def lowest(importance: Mapping[str, Tensor], fraction: float) -> dict[str, list[int]]:
    """Select the units to prune: head numbers by layer, and ``[0]`` for a feed-forward to prune.

    Importances are ``(heads,)`` by ``heads/LAYER``, and ``(1,)`` by ``feed_forward/BLOCK``.
    """
    found: dict[str, list[int]] = {key: [] for key in importance}
    for kind in _KINDS:
        ranked: list[tuple[float, str, int]] = []
        for key, values in importance.items():
            if not key.startswith(kind):
                continue
            values, kept = values.double().cpu(), None
            if kind == "heads":
                kept, values = int(values.argmax()), values / values.norm().clamp(min=1e-20)
            ranked += [(value, key, number) for number, value in enumerate(values.tolist()) if number != kept]
        ranked.sort(key=lambda item: item[0])
        for _, key, number in ranked[: wanted(importance, kind, fraction)]:
            found[key] = sorted([*found[key], number])
    return found


def wanted(importance: Mapping[str, Tensor], kind: str, fraction: float) -> int:
    """Return the number of heads, or feed-forwards, that make up a fraction of all."""
    return int(floor_fraction(torch.tensor(_count(importance, kind)), fraction))


def zero(tensor: Tensor, place: Place) -> None:
    """Set the elements at a place to zero."""
    if place is None:
        tensor.zero_()
    else:
        tensor.index_fill_(place[0], torch.tensor(place[1], device=tensor.device), 0)
