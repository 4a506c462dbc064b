"""Parameters of a method, trained beside the model by a separate optimizer, and gradients of drop probabilities."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    SECOND_MODEL,
    SKIPS_BLOCKS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    ComputeLoss,
    Method,
    MethodState,
    RandomMaskPlan,
    Rule,
    StepContext,
    TrainingContext,
    ValueProjection,
    find_value_projection,
    forked_rng,
    row_losses,
    upcast,
)

if TYPE_CHECKING:
    from attendrop.extend import ModelAdapter


class OwnParameters(MethodState):
    """State with parameters that the gradient of the training loss reaches, and their Adam optimizer.

    Attributes:
        parameters: The parameters, by name; empty until :meth:`create`.
        optimizer: Their optimizer; None until :meth:`create`.
        loss_scale: Factor by which their gradients are multiplied under float16.
    """

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method)
        self.training = training
        self.learning_rate: float = method.learning_rate
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss_scale = 1.0

    def create(self, initial: Mapping[str, Tensor]) -> None:
        """Create the parameters, with these values, and their optimizer."""
        device = next(self.training.model.parameters()).device
        self.parameters = {name: nn.Parameter(value.to(device, copy=True)) for name, value in initial.items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=self.learning_rate)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        found = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        if self.optimizer is None or not found:
            return {}
        processes = self.training.processes
        flat = torch.cat([gradient.flatten() for gradient in found])
        flat = processes.total(flat) / (processes.world_size * self.loss_scale)
        if flat.isfinite().all():  # skip steps that overflow under float16
            for gradient, own in zip(found, torch.split(flat, [each.numel() for each in found]), strict=True):
                gradient.copy_(own.view_as(gradient))
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {}

    def state_dict(self) -> dict[str, Any]:
        if self.optimizer is None:
            return {}
        parameters = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {"parameters": parameters, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if state:
            self.create(state["parameters"])
            assert self.optimizer is not None
            self.optimizer.load_state_dict(state["optimizer"])


class ValuePerLayer(OwnParameters):
    """State with one learnt number per selected attention layer, created at the first pass.

    Among the method's options are ``num_train_rows`` and ``learning_rate``; ``initial`` is the value at the start.

    Attributes:
        note: Name of the numbers in the log.
        num_train_rows: Number of training rows, by which the term of a prior is divided.
        keys: Keys of the layers.

    Raises:
        AttendropError: The number of training rows is unknown.
    """

    note = "probability"

    def __init__(self, method: Any, training: TrainingContext, initial: Tensor) -> None:
        super().__init__(method, training)
        self.initial = initial
        data: Any = training.train_data
        self.num_train_rows = method.num_train_rows or (len(data) if hasattr(data, "__len__") else 0)
        if not self.num_train_rows:
            raise AttendropError(
                f"Method '{method.name}' needs the number of training rows for the weight of its prior: pass "
                "train_data, or set num_train_rows."
            )
        self.keys: list[str] = []

    @property
    def values(self) -> nn.Parameter:
        """The learnt numbers, ``(layers,)``."""
        return self.parameters["values"]

    def by_layer(self) -> dict[str, Tensor]:
        """Return the learnt numbers by the key of their layer."""
        return dict(zip(self.keys, self.values, strict=True)) if self.keys else {}

    def reported(self, values: Tensor) -> Tensor:
        """Convert the learnt numbers to what logs and reports show."""
        raise NotImplementedError

    def learnt_from(self, reported: Tensor) -> Tensor:
        """Convert reported numbers back."""
        raise NotImplementedError

    def begin(self, context: StepContext) -> Sequence[AttentionLayer]:
        """Return the selected layers; the first call creates their numbers."""
        attention_layers = self.method.selected_layers(context.adapter.attention_layers)
        if self.optimizer is None:
            self._create([layer.key for layer in attention_layers], self.initial.repeat(len(attention_layers)))
        self.loss_scale = context.loss_scale
        for key, value in zip(self.keys, self.reported(self.values.detach()), strict=True):
            context.note(f"{self.note}/{key}", value)
        return attention_layers

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "layers": self.keys} if self.keys else {}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        super().load_state_dict(state, rank_state)
        self.keys = list(state.get("layers", []))

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report what was learnt for each layer."""
        learnt = self.reported(self.values.detach()).tolist() if self.keys else []
        return {self.method.source: dict(zip(self.keys, learnt, strict=True))}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        learnt: Mapping[str, float] = metrics.get(self.method.source, {})
        if learnt:
            self._create(list(learnt), self.learnt_from(torch.tensor(list(learnt.values()), dtype=torch.float64)))

    def _create(self, keys: list[str], values: Tensor) -> None:
        self.keys = keys
        self.create({"values": values.float()})


class LearntProbabilities(ValuePerLayer):
    """State with the log-odds of a drop probability per layer, and the penalty of their prior.

    The penalty is that of :class:`attendrop_methods.ConcreteDropout`. Among the method's options are ``p``,
    ``length_scale``, ``entropy_weight`` and ``num_train_rows``.
    """

    method: Any

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method, training, torch.logit(torch.tensor(method.p, dtype=torch.float64)))
        self._projections: dict[str, ValueProjection] = {}

    def reported(self, values: Tensor) -> Tensor:
        return values.sigmoid()

    def learnt_from(self, reported: Tensor) -> Tensor:
        return torch.logit(reported)

    def begin(self, context: StepContext) -> Sequence[AttentionLayer]:
        attention_layers = super().begin(context)
        if not self._projections:
            self._projections = value_projections(context.adapter, attention_layers)
        return attention_layers

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        total = torch.zeros((), device=self.values.device)
        for key, logit in self.by_layer().items():
            weight = self._projections[key].weight()
            norm = upcast(weight).square().sum() / (2 * torch.sigmoid(-logit))
            total = total + self.method.length_scale**2 * norm - self.method.entropy_weight * entropy(logit)
        return total / self.num_train_rows


def own_parameter_rules(name: str) -> tuple[Rule, ...]:
    """Return the rules of a method whose own parameters belong to the weights of one model."""
    return (
        Rule(name, SECOND_MODEL, "The probabilities belong to one model, but two are trained."),
        Rule(
            name,
            EXCHANGES_WEIGHTS,
            "The model's weights are replaced during training, but the learnt probabilities are not.",
        ),
    )


def probability_rules(name: str) -> tuple[Rule, ...]:
    """Return the rules of a method with learnt probabilities and the penalty of their prior."""
    return (
        *own_parameter_rules(name),
        Rule(
            name,
            SKIPS_BLOCKS,
            "The penalty uses the weights of every block, including skipped ones, whose dropout is not applied and "
            "whose gradients DDP cannot reduce.",
        ),
    )


def entropy(logit: Tensor) -> Tensor:
    """Compute the entropy, in nats, of a Bernoulli variable with the given log-odds."""
    return -(torch.sigmoid(logit) * logsigmoid(logit) + torch.sigmoid(-logit) * logsigmoid(-logit))


def value_projections(adapter: ModelAdapter, attention_layers: Sequence[AttentionLayer]) -> dict[str, ValueProjection]:
    """Find the value projection of each attention layer, by the layer's key."""
    names = {module: name.rpartition(".")[2] for name, module in adapter.model.named_modules()}
    inputs = {key: modules for block in adapter.blocks for key, modules in block.input_projections.items()}
    found: dict[str, ValueProjection] = {}
    for layer in attention_layers:
        projection = find_value_projection((names[module], module) for module in inputs.get(layer.key, []))
        if projection is None:
            raise AttendropError(
                f"The value projection of {layer.name} cannot be found; choose other layers, or another method."
            )
        found[layer.key] = projection
    return found


class AntitheticPlan(RandomMaskPlan):
    """Plan that drops attention weights by ``u < p`` or, in the antithetic pass, by ``1 - u < p`` (Yin and Zhou, 2019).

    Kept weights are divided by ``1 - p``, through which a gradient reaches the log-odds of ``p``. ``keys`` are the keys
    of the layers to act on, or map them to their log-odds; a subclass may compute these in :meth:`log_odds`.

    Attributes:
        scores: ``1 - 2 v`` summed over the valid keys of a query, ``(batch, heads, query)``, by the key of the layer,
            where ``v`` is ``u`` or ``1 - u``. Times the loss of the sequence, it is an unbiased estimate of the
            gradient of the expected loss with respect to the log-odds at the query; 0 at padding.
        queries: Queries that are not padding, ``(batch, query)``, by the key of the layer.
    """

    def __init__(
        self, method: Method, context: StepContext, keys: Collection[str] | Mapping[str, Tensor], *, antithetic: bool
    ) -> None:
        super().__init__(method, context, keys=keys)
        self.antithetic = antithetic
        self.scores: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}

    def log_odds(self, key: str) -> Tensor:
        """Return the log-odds of dropping in a layer, ``(batch, heads, query or 1)`` or a scalar."""
        assert isinstance(self.layer_keys, Mapping)
        found: Tensor = self.layer_keys[key]
        return found

    def make(self, call: AttentionCall) -> AttentionEdit:
        key, sampled = call.layer.key, self.uniform(call)
        if self.antithetic:
            sampled = 1 - sampled
        real = real_queries(call, self.context.batch)
        self.queries[key] = real[:, 0, :, 0]
        counted = real if call.valid is None else real & call.valid
        self.scores[key] = ((1 - 2 * sampled) * counted).sum(3)
        reported = False

        def dropped(weights: Tensor) -> Tensor:
            nonlocal reported
            log_odds = self.log_odds(key)
            log_odds = log_odds[..., None] if log_odds.ndim else log_odds
            drop = sampled < torch.sigmoid(log_odds.detach())
            if not (reported or self.antithetic):
                self.report(call, drop, real)
                reported = True
            return (weights / torch.sigmoid(-log_odds).to(weights.dtype)).masked_fill(drop, 0)

        return AttentionEdit(weights=dropped)


def with_antithetic_pass(
    context: StepContext, compute_loss: ComputeLoss, make_plan: Callable[[bool], AntitheticPlan]
) -> tuple[Tensor, Any, AntitheticPlan]:
    """Run a batch with a plan's dropout, and attach the gradient of the log-odds to its loss.

    The antithetic pass comes first, without gradients, and with the same sample of the model's own dropout.
    ``make_plan`` makes its plan (True), and that of the training pass (False). Returns the loss, the outputs of the
    model, and the plan of the training pass.
    """
    other = make_plan(True)
    with forked_rng(context.model), torch.no_grad():
        _, outputs = compute_loss(context.batch, other)
        losses = [row_losses(context.model, outputs, context.batch)]
    plan = make_plan(False)
    loss, outputs = compute_loss(context.batch, plan)
    losses.append(row_losses(context.model, outputs, context.batch).detach())
    estimate = torch.zeros((), device=loss.device)
    for each, found in zip((other, plan), losses, strict=True):
        for key, score in each.scores.items():
            of_sequence = found.repeat_interleave(len(score) // len(found))  # several choices are one row
            estimate = estimate + (score * of_sequence[:, None, None] * each.log_odds(key)).sum() / 2
    return loss + (estimate - estimate.detach()).to(loss.dtype), outputs, plan


def real_queries(call: AttentionCall, batch: Batch) -> Tensor:
    """Find the queries that are not padding, ``(batch, 1, query, 1)``.

    The mask of a layer shows neither padded targets of an encoder-decoder model nor padded choices; the batch does.
    """
    size, _, length, _ = call.shape
    rows = call.valid_queries()
    real = torch.ones(size, 1, length, 1, dtype=torch.bool, device=call.device)
    if rows is not None:
        real = real & rows.any(1, keepdim=True)
    mask: Tensor | None = batch.get("attention_mask")
    if mask is not None and mask.ndim == 3 and mask.shape[:2].numel() == size:  # (rows, choices, tokens)
        real = real & mask.bool().any(-1).view(-1, 1, 1, 1)
    targets = None if call.layer.kind == "encoder" else real_targets(batch)
    if targets is not None and targets.shape == (size, length):
        real = real & targets[:, None, :, None]
    return real


def real_targets(batch: Batch) -> Tensor | None:
    """Find the inputs of a decoder that are not padding, ``(batch, n)``; None if this cannot be seen from the batch.

    Models shift the labels to get these inputs or, without token labels, the encoder's inputs (BART as a classifier).
    """
    mask: Tensor | None = batch.get("decoder_attention_mask")
    if mask is not None:
        return mask.bool()
    labels: Tensor | None = batch.get("labels")
    if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
        return up_to_last(labels != -100)
    mask = batch.get("attention_mask")
    return None if mask is None or mask.ndim != 2 or "decoder_input_ids" in batch else up_to_last(mask.bool())


def up_to_last(marked: Tensor) -> Tensor:
    """Mark the positions up to the last marked one in each row; later ones of a decoder change nothing before them."""
    return marked.flip(-1).cumsum(-1).flip(-1) > 0
