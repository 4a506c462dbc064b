"""Methods that act on parameters and gradients: Mixout, Child-Tuning and super tickets."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attendrop.attention.blocks import base_layer, input_dim, refuse_quantized
from attendrop.attribution.gradient import GatePlan
from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    REPLACES_PARAMETERS,
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
    WeightMixing,
    choice,
    count,
    evaluating,
    floor_fraction,
    forked_rng,
    in_full_precision,
    option,
    positive,
    pretrained_parameters,
    sample_parameter_mask,
    unit_interval,
)
from attendrop.methods.core.parameters import below_the_head, projection_weights
from attendrop.randomness.keyed_random import sample_row_mask
from attendrop.support.models import to_device
from attendrop.wording import counted

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter


# Maximum number of elements of a parameter that is sampled jointly with others.
_SMALL = 1 << 14
logger = logging.getLogger(__name__)


class _MixoutState(WeightMixing):
    def __init__(self, method: Mixout, training: TrainingContext) -> None:
        super().__init__(method, training, by_neuron=method.unit == "neuron")
        model = training.model
        self.targets = {name: model.get_parameter(name).detach().clone() for name in projection_weights(model)}
        if not self.targets:
            raise AttendropError(
                f"{type(model).__name__} has no trainable linear layers below its head, so there is nothing "
                "to mix; unfreeze some."
            )

    def batch(self, context: StepContext) -> Batch:
        if new := [name for name in projection_weights(self.model) if name not in self.targets]:
            # Frozen until now, so they still have their initial values.
            self.targets = {**self.targets, **{name: self.model.get_parameter(name).detach().clone() for name in new}}
            self.close()
            self.names = None
        return super().batch(context)

    def state_dict(self) -> dict[str, Any]:
        return {"pretrained": dict(self.targets)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["pretrained"]
        self.targets = {name: value.to(self.model.get_parameter(name).device) for name, value in found.items()}


@dataclass(frozen=True)
class Mixout(Method):
    """Random replacement of weights by their pre-trained values.

    In each optimizer step the weights ``W`` of an input neuron of a linear layer are replaced by their pre-trained
    values ``U`` with probability ``p``, and by ``(W - p U) / (1 - p)`` otherwise, so that their expectation is ``W``.

    Args:
        p: Probability of replacement, in (0, 1).
        unit: Unit of replacement: all weights of an input ``"neuron"``, or a single ``"element"``.

    Raises:
        AttendropError: At the start of training, no linear layer below the head is trainable.

    Source: Lee, Cho, Kang (2020), https://arxiv.org/abs/1909.11299, section 3; 0.7 is among the values of their GLUE
    runs (0.7 to 0.9). The pre-trained values are the weights at the start of training. As in their code, weights of
    linear layers are mixed, but no biases, embeddings or normalisation. Deviations: the gradient is that of the formula
    (their code omits the division by ``1 - p``); the model's own dropout stays enabled, while they replace it; one mask
    is used for a whole optimizer step; the head, which has no pre-trained values, is excluded. Weights that are
    unfrozen later are mixed from then on. With a LoRA adapter, its two matrices are mixed with their initial values,
    instead of the frozen weights.
    """

    info = MethodInfo(
        "mixout",
        "replaces weights at random by their pre-trained values",
        "Lee, Cho, Kang (2020), Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models",
        link="https://arxiv.org/abs/1909.11299",
        evidence=(
            (
                {"p": 0.9},
                "with MiniLM, no significant difference from plain fine-tuning on Banking77 with five rows per class, "
                "nor on 256 rows of CoLA, MRPC and STS-B; -0.044 on generated messages with new phrases, -0.220 on "
                "entities (the project's docs/does-it-help.md).",
            ),
        ),
        compared=True,
        acts_on=("parameters",),
        state="the pre-trained weights",
        traits={REPLACES_PARAMETERS: ""},
        uses_attention=False,
    )
    state_class = _MixoutState

    p: float = option(0.7, unit_interval(), search=(0.3, 0.5, 0.9))
    unit: str = option("neuron", choice("neuron", "element"))


class _Free(MethodState):
    """State of variant F: samples a child network for each step."""

    method: ChildTuning

    def __init__(self, method: ChildTuning, training: TrainingContext) -> None:
        super().__init__(method)
        # Weights that are used for lookups only, so that few rows have a gradient; not that of an output projection.
        looked_up = {module.weight for module in training.model.modules() if isinstance(module, nn.Embedding)}
        looked_up -= {module.weight for module in training.model.modules() if isinstance(module, nn.Linear)}
        self.by_row = {name for name, parameter in training.model.named_parameters() if parameter in looked_up}
        self._seed_and_step = (0, 0)

    def batch(self, context: StepContext) -> Batch:
        self._seed_and_step = (context.key.seed, context.key.step)
        return context.batch

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        p = self.method.p
        small = {name: parameter for name, parameter in parameters.items() if parameter.numel() <= _SMALL}
        if small:
            sizes, device = [parameter.numel() for parameter in small.values()], next(iter(small.values())).device
            jointly = sample_parameter_mask(p, *self._seed_and_step, "child-tuning", (sum(sizes),), device)
            found = {name: parameter.grad for name, parameter in small.items() if parameter.grad is not None}
            for dtype in {gradient.dtype for gradient in found.values()}:
                parts = dict(zip(small, torch.split(jointly.to(dtype).mul_(1 / p), sizes), strict=True))
                own = {name: each for name, each in found.items() if each.dtype == dtype and not each.is_sparse}
                if own:  # one kernel for many of them
                    torch._foreach_mul_([*own.values()], [parts[name].view_as(each) for name, each in own.items()])
        for name, parameter in parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise AttendropError(
                    "Child-Tuning does not support sparse gradients; create the embeddings with sparse=False."
                )
            place = (*self._seed_and_step, f"child-tuning/{name}")
            if name in self.by_row and name not in small:  # most rows are zero and stay zero
                rows = (gradient.amax(1) != 0).logical_or_(gradient.amin(1) != 0).nonzero().flatten()
                kept = sample_row_mask(p, *place, rows, gradient.shape[1])
                gradient[rows] *= kept.to(gradient.dtype).mul_(1 / p)
            elif name not in small:
                kept = sample_parameter_mask(p, *place, gradient.shape, gradient.device)
                gradient.mul_(kept.to(gradient).mul_(1 / p))


class _Driven(MethodState):
    """State of variant D: finds the child network at the start of training."""

    method: ChildTuning

    def __init__(self, method: ChildTuning, training: TrainingContext) -> None:
        super().__init__(method)
        if training.train_data is None:
            raise AttendropError(
                "Child-Tuning-D measures the Fisher information on the training rows: pass train_data, or use "
                "variant='F'."
            )
        self.training = training
        self.masks: dict[str, Tensor] = {}

    def batch(self, context: StepContext) -> Batch:
        if information := fisher_information(self.training, self.method, self.masks):
            zero = [name for name, values in information.items() if not values.any()]
            if zero:
                logger.warning(
                    "Child-Tuning-D measures no Fisher information in %d of %d parameters at the start (%s), as in a "
                    "new adapter: they may stay as they are. variant='F' trains all.",
                    len(zero), len(information), zero[0],
                )  # fmt: skip
            # The largest elements of all, at least one, and ties with the smallest of them.
            flat = torch.cat([values.flatten() for values in information.values()])
            kept = max(1, math.floor(self.method.p * flat.numel() + 1e-6))
            threshold = flat.kthvalue(flat.numel() - kept + 1).values
            self.masks |= {name: values >= threshold for name, values in information.items()}
        return context.batch

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, mask in self.masks.items():
            gradient = parameters[name].grad
            if gradient is not None:
                gradient.mul_(mask.to(gradient))

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.masks}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        device = next(self.training.model.parameters()).device
        self.masks = {name: mask.to(device) for name, mask in state.get("masks", {}).items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"fisher_mask": self.masks} if self.masks else {}


@dataclass(frozen=True)
class ChildTuning(Method):
    """Updates of a child network, a part of the parameters, in each step.

    Just before the optimizer step, gradients outside the child network are set to zero. ``variant="F"`` (task free): in
    each step each element is in the child network with probability ``p``, and its gradient is divided by ``p``.
    ``variant="D"`` (task driven): the child network is fixed at the start of training. It is the fraction ``p`` of the
    layers' parameters with the highest Fisher information on the training rows, the mean of the squared gradients of
    the loss of single rows. Of parameters that are unfrozen later, it is this fraction of those, measured then.

    Args:
        variant: ``"F"`` or ``"D"``.
        p: Fraction of the parameters in the child network, in (0, 1).
        fisher_batch_size: Batch size for the Fisher information of D. 1 is the paper's formula; the authors' code uses
            larger batches, which is faster but squares the mean of their gradients.
        fisher_max_norm: Norm to which D clips the gradient of each parameter before squaring. 0, the paper's formula:
            no clipping. The authors' code clips to the norm used in training, usually 1.

    Raises:
        AttendropError: With D, the training rows are unknown.

    Source: Xu et al. (2021), https://arxiv.org/abs/2109.05687, section 2; they tune ``p`` in 0.2 to 0.4 (F) and 0.1 to
    0.3 (D). As in their code, the mask is applied after gradient clipping, D trains embeddings and head fully, and D
    does not rescale gradients. Deviation: the Fisher information is measured in evaluation mode, theirs with dropout.
    The mask is saved with the run, as ``fisher_mask.safetensors``. With an adapter, its parameters are the layers'. One
    of the two matrices of a new LoRA adapter has no gradient at the start: D leaves it as it is, and logs a warning.
    """

    info = MethodInfo(
        "child-tuning",
        "updates only a part of the parameters in each step",
        "Xu et al. (2021), Raise a Child in Large Language Model: Towards Effective and Generalizable Fine-tuning",
        link="https://arxiv.org/abs/2109.05687",
        acts_on=("gradients",),
        state="D: a mask of the layers' parameters",
        uses_attention=False,
    )
    state_class = _Free

    variant: str = option("F", choice("F", "D"), search=("F", "D"))
    p: float = option(0.3, unit_interval(), search=(0.2, 0.5, 0.8))
    fisher_batch_size: int = option(1, count())
    fisher_max_norm: float = option(0.0, positive(zero=True))

    def start(self, training: TrainingContext) -> MethodState:
        return self.state_class(self, training) if self.variant == "F" else _Driven(self, training)


def fisher_information(
    training: TrainingContext, method: ChildTuning, known: Collection[str] = ()
) -> dict[str, Tensor]:
    """Compute the mean squared gradient of the loss of training batches, for each trained layer parameter not known."""
    assert training.train_data is not None
    model = training.model
    lists = tuple(f"{name}." for name, module in below_the_head(model) if isinstance(module, nn.ModuleList))
    names = {name for name, _ in model.named_parameters() if name.startswith(lists)}
    names = names or {*pretrained_parameters(model)}  # of layers that are not in a list, all but the head's
    chosen = {name: p for name, p in model.named_parameters() if name in names - {*known} and p.requires_grad}
    if not (chosen or known):
        raise AttendropError(f"{type(model).__name__} has no trainable layers for a child network; unfreeze some.")
    if not chosen:
        return {}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in chosen.items()}
    count = 0
    with evaluating(model), forked_rng(model):
        for batch in training.train_data.iter_batches(method.fisher_batch_size, training.processes):
            with torch.enable_grad(), in_full_precision(model):  # float16 would lose the small ones
                loss, _ = training.evaluate(model, batch)
                gradients = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
            for name, gradient in zip(chosen, gradients, strict=True):
                if gradient is not None:
                    gradient = gradient.float()
                    if method.fisher_max_norm:
                        gradient *= (method.fisher_max_norm / (gradient.norm() + 1e-6)).clamp(max=1)
                    sums[name].addcmul_(gradient, gradient)
            count += 1
    total = training.processes.total
    batches = float(total(torch.tensor(float(count))))
    return {name: total(value) / batches for name, value in sums.items()}


# What is pruned: the beginning of the keys of its importances, and its name in messages.
_KINDS = {"heads": "heads", "feed_forward": "feed-forwards"}


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
        self.pruned: dict[str, list[int]] | None = None  # as long as it searches
        self.searching = True
        self.zeros: dict[str, tuple[int, list[int]]] = {}  # a dimension of a parameter, and the indices in it
        self.loss_scale = 1.0
        self._adapter: ModelAdapter | None = None
        self._gates: list[GatePlan] = []
        self._checked = False

    def plan(self, context: StepContext) -> Plan | None:
        if self.pruned is not None:
            return None
        if self._adapter is None:
            self._adapter, name = context.adapter, type(context.model).__name__
            modules = [module for block in context.adapter.blocks for module in block.output_projections.values()]
            projected = {key for block in context.adapter.blocks for key in block.output_projections}
            if projected != {layer.key for layer in context.adapter.attention_layers}:
                raise AttendropError(f"{name} has attention without an output projection to prune; use another model.")
            if self.method.feed_forward:
                feed_forwards = [block.feed_forward for block in context.adapter.blocks if block.attention_layers]
                if None in feed_forwards:
                    raise AttendropError(
                        f"{name} has blocks without a feed-forward for all tokens (they may have experts), so none can "
                        "be pruned; set feed_forward=False."
                    )
                modules += [module for module in feed_forwards if module is not None]
            if len(set(modules)) < len(modules):
                raise AttendropError(
                    f"{name} shares its layers, so heads of one cannot be pruned alone; use another model."
                )
            for module in modules:
                refuse_quantized(base_layer(module))
        self.loss_scale = context.loss_scale
        method, keys = self.method, None if self.method.heads else ()
        by_token = method.absolute == "token"
        plan = GatePlan(context.key.rows, keys, method.feed_forward, by_token)
        self._gates.append(plan)
        return plan

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.pruned is not None or self._adapter is None:
            return {}
        # Add the gradients of this step's gates, over its micro-batches and all processes.
        found: dict[str, Tensor] = {}
        for gates in self._gates:
            for key, gate in gates.gates.items():  # summed over rows, and tokens; zero without a gradient
                gradient = torch.zeros_like(gate) if gate.grad is None else gate.grad
                found[key] = gradient.abs().flatten(0, -2).sum(0) + found.get(key, 0)
        self._gates = []
        if found:
            processes = self.training.processes
            total = processes.total(torch.cat(list(found.values()))) / (self.loss_scale * processes.world_size)
            total = torch.where(total.isfinite().all(), total, 0.0)  # skip steps that overflow under float16
            for key, value in zip(found, torch.split(total, [len(value) for value in found.values()]), strict=True):
                self.importance[key] = value + self.importance.get(key, 0)
        forwards = sum(block.feed_forward is not None for block in self._adapter.blocks)
        known = len(self._adapter.attention_layers) * self.method.heads + forwards * self.method.feed_forward
        if not self._checked and len(self.importance) >= known:  # LayerDrop may have skipped some layers until now
            self._checked, fraction = True, self.method.fraction
            chosen = lowest(self.importance, fraction)
            if not any(chosen.values()):
                raise AttendropError(
                    f"fraction={fraction} of {_count(self.importance, 'heads')} heads, of which one stays in each "
                    f"layer, and of {_count(self.importance, 'feed_forward')} feed-forwards is none; raise it."
                )
            for kind, words in _KINDS.items():
                units, pruned = _count(self.importance, kind), _count(chosen, kind)
                if units and (not pruned or pruned < int(fraction * units + 1e-6)):
                    logger.warning(
                        "Of %d %s %d are pruned, for fraction=%s, which is rounded down; one head stays in each layer.",
                        units, words, pruned, fraction,
                    )  # fmt: skip
        if steps_taken < self.search_steps:
            return {}
        self.start.rewind()
        self.pruned, self.searching = lowest(self.importance, self.method.fraction), False
        names = {parameter: name for name, parameter in self._adapter.model.named_parameters()}
        for block in self._adapter.blocks:
            for key, module in block.output_projections.items():
                if numbers := self.pruned.get(f"heads/{key}"):
                    weight, dim = module.get_parameter("weight"), input_dim(module)
                    width = weight.shape[dim] // len(self.importance[f"heads/{key}"])
                    self.zeros[names[weight]] = dim, [n * width + unit for n in numbers for unit in range(width)]
            if self.pruned.get(f"feed_forward/{block.key}") and block.feed_forward is not None:
                whole = block.feed_forward.parameters()
                self.zeros |= {names[parameter]: (0, list(range(len(parameter)))) for parameter in whole}
        parameters = dict(self.training.model.named_parameters())
        with torch.no_grad():
            for name, (dim, indices) in self.zeros.items():
                weight = parameters[name]
                moments = self.start.optimizer.state.get(weight, {}).values()  # of an optimizer used before
                for each in (weight, *moments):
                    if isinstance(each, Tensor) and each.shape == weight.shape:
                        each.index_fill_(dim, torch.tensor(indices, device=each.device), 0)
        return {f"pruned/{kind}": float(_count(self.pruned, kind)) for kind in _KINDS}

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, (dim, indices) in self.zeros.items():
            gradient = parameters[name].grad
            if gradient is not None:
                gradient.index_fill_(dim, torch.tensor(indices, device=gradient.device), 0)

    def state_dict(self) -> dict[str, Any]:
        state = {"start": self.start.state_dict(), "importance": self.importance}
        return state | {"pruned": self.pruned, "zeros": self.zeros}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.start.load_state_dict(state["start"])
        self.importance = to_device(state["importance"], next(self.training.model.parameters()).device)
        self.pruned, self.zeros, self.searching = state["pruned"], state["zeros"], state["pruned"] is None

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
        most = int(floor_fraction(torch.tensor(_count(importance, kind)), fraction))
        for _, key, number in ranked[:most]:
            found[key] = sorted([*found[key], number])
    return found
