"""Attention dropout with learnt probabilities or variances, by layer, or from what is attended to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import logsigmoid

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    SECOND_MODEL,
    SKIPS_BLOCKS,
    AttendropError,
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
    ValueProjection,
    count,
    evaluating,
    find_value_projection,
    forked_rng,
    normal,
    option,
    positive,
    row_losses,
    row_shares,
    unit_interval,
    upcast,
)


class OwnParameters(MethodState):
    """State with parameters that the gradient of the training loss reaches, and their Adam optimizer.

    Both come with :meth:`create`. ``loss_scale`` is the factor by which gradients are multiplied under float16.
    """

    method: Any

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method)
        self.training = training
        self.parameters: dict[str, nn.Parameter] = {}
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss_scale = 1.0

    def create(self, initial: Mapping[str, Tensor]) -> None:
        """Create the parameters, with these values, and their optimizer."""
        device = next(self.training.model.parameters()).device
        self.parameters = {name: nn.Parameter(value.to(device, copy=True)) for name, value in initial.items()}
        self.optimizer = torch.optim.Adam(self.parameters.values(), lr=self.method.learning_rate)

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
    """State with one learnt number per selected attention layer; what logs and reports show begins with ``initial``.

    Raises AttendropError if the number of training rows is unknown.
    """

    note = "probability"  # name of the numbers in logs
    reported: Any = torch.sigmoid  # from the numbers to what logs and reports show
    learnt_from: Any = torch.logit  # its inverse

    def __init__(self, method: Any, training: TrainingContext, initial: float) -> None:
        super().__init__(method, training)
        self.initial = self.learnt_from(torch.tensor(initial, dtype=torch.float64))
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

    def begin(self, context: StepContext) -> dict[str, Tensor]:
        """Return the learnt numbers by the key of their layer; the first call creates them."""
        if self.optimizer is None:
            self.keys = [layer.key for layer in self.method.selected_layers(context.adapter.attention_layers)]
            self.create({"values": self.initial.repeat(len(self.keys)).float()})
        self.loss_scale = context.loss_scale
        for key, value in zip(self.keys, self.reported(self.values.detach()), strict=True):
            context.note(f"{self.note}/{key}", value)
        return dict(zip(self.keys, self.values, strict=True))

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
            self.keys = list(learnt)
            values = torch.tensor(list(learnt.values()), dtype=torch.float64)
            self.create({"values": self.learnt_from(values).float()})


class LearntProbabilities(ValuePerLayer):
    """State with the log-odds of a drop probability per layer, and the penalty of ConcreteDropout."""

    def __init__(self, method: Any, training: TrainingContext) -> None:
        super().__init__(method, training, method.p)
        self._projections: dict[str, ValueProjection] = {}

    def begin(self, context: StepContext) -> dict[str, Tensor]:
        found, adapter = super().begin(context), context.adapter
        if not self._projections:
            names = {module: name.rpartition(".")[2] for name, module in adapter.model.named_modules()}
            inputs = {key: modules for block in adapter.blocks for key, modules in block.input_projections.items()}
            for layer in self.method.selected_layers(adapter.attention_layers):
                projection = find_value_projection((names[module], module) for module in inputs.get(layer.key, []))
                if projection is None:
                    raise AttendropError(
                        f"The value projection of {layer.name} cannot be found; choose other layers, or another method."
                    )
                self._projections[layer.key] = projection
        return found

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        total = torch.zeros((), device=self.values.device)
        for key, logit in zip(self.keys, self.values, strict=True):
            norm = upcast(self._projections[key].weight()).square().sum() / (2 * torch.sigmoid(-logit))
            entropy = -(torch.sigmoid(logit) * logsigmoid(logit) + torch.sigmoid(-logit) * logsigmoid(-logit))
            total = total + self.method.length_scale**2 * norm - self.method.entropy_weight * entropy
        return total / self.num_train_rows


def own_parameter_rules(name: str, *, penalised: bool = False) -> tuple[Rule, ...]:
    """Return the rules of a method whose own parameters belong to the weights of one model, perhaps by a penalty."""
    reasons = {
        SECOND_MODEL: "The probabilities belong to one model, but two are trained.",
        EXCHANGES_WEIGHTS: "The model's weights are replaced during training, but the learnt probabilities are not.",
    }
    if penalised:
        reasons[SKIPS_BLOCKS] = (
            "The penalty uses the weights of every block, including skipped ones, whose dropout is not applied and "
            "whose gradients DDP cannot reduce."
        )
    return tuple(Rule(name, other, reason) for other, reason in reasons.items())


class AntitheticPlan(RandomMaskPlan):
    """Plan that drops attention weights by ``u < p`` or, in the antithetic pass, by ``1 - u < p`` (Yin and Zhou, 2019).

    Kept weights are divided by ``1 - p``, through which a gradient reaches the log-odds of ``p``. ``learnt`` are those
    of the layers with these ``keys``, or what a subclass computes them from in :meth:`log_odds`.

    Attributes:
        scores: ``1 - 2 v`` summed over the valid keys of a query, ``(batch, heads, query)``, by the key of the layer,
            where ``v`` is ``u`` or ``1 - u``. Times the loss of the sequence, it is an unbiased estimate of the
            gradient of the expected loss with respect to the log-odds at the query; 0 at padding.
        queries: Queries that are not padding, ``(batch, query)``, by the key of the layer.
    """

    def __init__(
        self, method: Any, context: StepContext, keys: Collection[str], learnt: Mapping[str, Tensor], antithetic: bool
    ) -> None:
        super().__init__(method, context, keys=keys)
        self.learnt, self.antithetic = learnt, antithetic
        self.scores: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}

    def log_odds(self, key: str) -> Tensor:
        """Return the log-odds of dropping in a layer, ``(batch, heads, query or 1)`` or a scalar."""
        return self.learnt[key]

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
    mask, labels, targets = (batch.get(name) for name in ("attention_mask", "labels", "decoder_attention_mask"))
    if mask is not None and mask.ndim == 3 and mask.shape[:2].numel() == size:  # (rows, choices, tokens)
        real = real & mask.bool().any(-1).view(-1, 1, 1, 1)
    if call.layer.kind != "encoder" and targets is None:
        # Models shift the labels to get the inputs of a decoder or, without token labels, the encoder's inputs (BART as
        # a classifier). Positions of a decoder change nothing before them, so only those after the last are padding.
        marked = None if mask is None or mask.ndim != 2 or "decoder_input_ids" in batch else mask.bool()
        if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
            marked = labels != -100
        targets = None if marked is None else marked.flip(-1).cumsum(-1).flip(-1) > 0
    if call.layer.kind != "encoder" and targets is not None and targets.shape == (size, length):
        real = real & targets.bool()[:, None, :, None]
    return real


class _ConcreteState(LearntProbabilities):
    method: ConcreteDropout

    def plan(self, context: StepContext) -> Plan:
        logits = self.begin(context)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            uniform, logit = plan.uniform(call), logits[call.layer.key]

            def relaxed(weights: Tensor) -> Tensor:
                exact = uniform.to(torch.promote_types(weights.dtype, torch.float32))
                kept = torch.sigmoid(-(logit + torch.logit(exact)) / self.method.temperature)  # 1 - z
                return weights * (kept / torch.sigmoid(-logit)).to(weights.dtype)

            return AttentionEdit(weights=relaxed)

        return RandomMaskPlan(self.method, context, make, logits.keys())


@dataclass(frozen=True)
class ConcreteDropout(Method):
    """Dropout of attention weights with a learnt probability per layer.

    A weight is multiplied by ``(1 - z) / (1 - p)`` with ``z = sigmoid((log p - log(1 - p) + log u - log(1 - u)) / t)``
    and ``u`` uniform in (0, 1): ``z`` is a relaxed sample close to 0 or 1, through which gradients reach ``p``. The
    penalty ``(l^2 / (2 (1 - p)) ||W||^2 - K H(p)) / N``, summed over layers, with the entropy ``H``, is added to the
    loss. The probabilities have their own Adam optimizer, and are not parameters of the model; ``reg.step()`` of a
    custom loop updates them.

    Args:
        p: Initial probability, in (0, 1).
        learning_rate: Learning rate of the log-odds of the probabilities, above 0.
        length_scale: Length scale ``l`` of the prior of the weights, above 0.
        entropy_weight: Weight ``K`` of the entropy, above 0, which pulls all probabilities towards 1/2 equally.
        num_train_rows: Number of training rows ``N``. 0: that of the training rows, which must then be known.
        temperature: Temperature ``t`` of the relaxation, above 0.

    Raises:
        AttendropError: The number of training rows is unknown; or, in training, a layer's value projection cannot be
            found.

    Source: Gal, Hron, Kendall (2017), https://arxiv.org/abs/1705.07832, sections 2 and 3, including ``t`` = 0.1, the
    initial probability of 0.1 and, from their code, ``l`` = 1e-4. There the input features of a layer are dropped, each
    with a row of ``W``, and ``K`` is their number. An attention weight has no row of ``W``, so ``K`` and ``W`` are our
    choice: ``K`` is 1, so that the prior of a probability counts as one row of data; ``W`` is the weight of the layer's
    value projection, including that of a LoRA adapter. A joint projection of queries, keys and values is supported if
    they have this order and the same width (GPT-2, ModernBERT). Their ``W`` is ours over ``1 - p``, since kept weights
    are scaled up. The learning rate is ours, because fine-tuning takes few steps. The model's own dropout stays
    enabled. In 60 steps on 160 rows of RTE, probabilities moved from 0.1 to between 0.10 and 0.15; differences between
    layers come from the gradient of the loss, even with shuffled labels, because the prior pulls all layers equally.
    """

    info = MethodInfo(
        "concrete-dropout",
        "learns the probability with which each layer drops attention weights",
        "Gal, Hron, Kendall (2017), Concrete Dropout",
        link="https://arxiv.org/abs/1705.07832",
        acts_on=("weights", "loss"),
        state="a probability for each layer, and its optimizer",
        rules=own_parameter_rules("concrete-dropout", penalised=True),
        reads_weights=True,
        needs_loss_scale=True,
    )
    state_class = _ConcreteState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    temperature: float = option(0.1, positive())
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _BernoulliState(LearntProbabilities):
    method: LearnableBernoulli

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        log_odds = self.begin(context)
        make_plan = partial(AntitheticPlan, self.method, context, log_odds.keys(), log_odds)
        loss, outputs, _ = with_antithetic_pass(context, compute_loss, make_plan)
        return loss + self.penalty(context, outputs), outputs


@dataclass(frozen=True)
class LearnableBernoulli(Method):
    """Dropout of attention weights with a probability per layer, learnt by the ARM estimator.

    A weight is dropped if ``u < p``, with ``u`` uniform in (0, 1), and divided by ``1 - p`` otherwise. The gradient of
    the log-odds of ``p`` comes from an additional pass with ``1 - u`` in place of ``u``: it is the sum over sequences
    and positions, without padding, of ``(f - f') (1/2 - u)``, where ``f`` and ``f'`` are the losses of the sequence in
    both passes; the gradient through ``1 / (1 - p)`` is added. Penalty and optimizer are those of
    :class:`attendrop_methods.ConcreteDropout`. Two forward passes and one backward pass per step.

    Args:
        p, learning_rate, length_scale, entropy_weight, num_train_rows: As those of ConcreteDropout.

    Raises:
        AttendropError: The number of training rows is unknown; or, in training, a layer's value projection cannot be
            found, or there are no labels.

    Source: Boluki et al. (2020), https://arxiv.org/abs/2002.05155, sections 2 and 3, with the estimator of Yin and Zhou
    (2019), https://arxiv.org/abs/1807.11143. There, hidden units and feature maps are dropped; here, attention weights,
    with one probability for each layer. All defaults are ours. ``f`` is the plain loss of a row, without label
    smoothing or class weights. The estimate is unbiased but noisy: thousands of sampled positions share one loss per
    sequence. The model's own dropout stays enabled, with the same sample in both passes.
    """

    info = MethodInfo(
        "learnable-bernoulli",
        "learns each layer's attention dropout probability from pairs of opposite samples",
        "Boluki et al. (2020), Learnable Bernoulli Dropout for Bayesian Deep Learning",
        link="https://arxiv.org/abs/2002.05155",
        acts_on=("weights", "loss"),
        forward="2",
        state="a probability for each layer, and its optimizer",
        rules=own_parameter_rules("learnable-bernoulli", penalised=True),
        reads_weights=True,
        needs_loss_scale=True,
    )
    state_class = _BernoulliState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _VariationalState(ValuePerLayer):
    """State with the logarithms of the variances."""

    method: VariationalDropout
    note = "variance"
    reported, learnt_from = torch.exp, torch.log

    def __init__(self, method: VariationalDropout, training: TrainingContext) -> None:
        super().__init__(method, training, method.alpha)

    def plan(self, context: StepContext) -> Plan:
        logs = self.begin(context)

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            key = call.layer.key
            sampled = normal(context.key, key, call.shape, plan.origins(call), call.device)
            return AttentionEdit(
                weights=lambda weights: weights * (1 + (logs[key] / 2).exp() * sampled).to(weights.dtype)
            )

        return RandomMaskPlan(self.method, context, make, logs.keys())

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        return self.method.kl_weight * divergence(self.values).sum() / self.num_train_rows

    def after_step(self, steps_taken: int) -> dict[str, float]:
        metrics = super().after_step(steps_taken)
        if self.keys:
            self.values.data.clamp_(max=0.0)
        return metrics


@dataclass(frozen=True)
class VariationalDropout(Method):
    """Gaussian noise on attention weights with a learnt variance per layer.

    A weight is multiplied by a sample of ``N(1, alpha)``. ``alpha`` is learnt by gradient descent, through the sample
    ``1 + sqrt(alpha) e`` with ``e`` from ``N(0, 1)``, and limited to 1. The penalty ``K D(alpha) / N``, summed over
    layers, is added to the loss, where ``D = -(log(alpha) / 2 + c1 alpha + c2 alpha^2 + c3 alpha^3)`` approximates the
    Kullback-Leibler divergence from the log-uniform prior, up to a constant. The variances have their own Adam
    optimizer, as the probabilities of :class:`attendrop_methods.ConcreteDropout` do.

    Args:
        alpha: Initial variance, in (0, 1]. Dropout with probability ``p`` has the variance ``p / (1 - p)``.
        learning_rate: Learning rate of the logarithms of the variances, above 0.
        kl_weight: Weight ``K`` of the divergence, above 0.
        num_train_rows: Number of training rows ``N``. 0: that of the training rows, which must then be known.

    Raises:
        AttendropError: The number of training rows is unknown.

    Source: Kingma, Salimans, Welling (2015), https://arxiv.org/abs/1506.02557, section 3 (independent noise of the
    inputs of a linear layer, as in Gaussian dropout) and Eq. 14, including the limit of 1. There, the inputs are hidden
    units, and ``K`` is the number of weights of the layer; here they are the attention weights, and ``K`` is 1, so that
    the prior of a variance counts as one row of data. Samples are of single weights, without the local
    reparametrisation of the sum. Rows are not normalised again, and weights may become negative. The defaults are ours:
    0.11 is the variance of dropout with 0.1. The model's own dropout stays enabled.
    """

    info = MethodInfo(
        "variational-dropout",
        "multiplies attention weights by Gaussian noise, and learns its variance in each layer",
        "Kingma, Salimans, Welling (2015), Variational Dropout and the Local Reparameterization Trick",
        link="https://arxiv.org/abs/1506.02557",
        acts_on=("weights", "loss"),
        state="a variance for each layer, and its optimizer",
        rules=own_parameter_rules("variational-dropout"),
        needs_loss_scale=True,
    )
    state_class = _VariationalState

    alpha: float = option(0.11, unit_interval(one=True), search=(0.05, 0.25))
    learning_rate: float = option(0.01, positive())
    kl_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    layers: str | int | Sequence[int] = option("all", LAYERS)


def divergence(log_alpha: Tensor) -> Tensor:
    """Compute Eq. 14, negated and without its constant, from the logarithm of a variance of at most 1."""
    alpha = log_alpha.exp()
    first, second, third = 1.16145124, -1.50204118, 0.58629921  # fitted by the authors for variances up to 1
    return -(log_alpha / 2 + first * alpha + second * alpha**2 + third * alpha**3)


class _NetworksState(OwnParameters):
    """State with the networks and the priors of the layers."""

    method: ContextualDropout

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        method = self.method
        keys = {layer.key for layer in method.selected_layers(context.adapter.attention_layers)}
        if self.optimizer is None:
            self._create(context, keys)
        self.loss_scale = context.loss_scale
        make_plan = partial(_NetworksPlan, method, context, keys, self.parameters)
        loss, outputs, plan = with_antithetic_pass(context, compute_loss, make_plan)
        shares = row_shares(context.model, outputs, context.batch)
        for key, queries in plan.queries.items():
            log_odds, prior = plan.log_odds(key), self.parameters[f"{key}/prior"]
            weights = query_weights(queries, shares)
            context.note(f"probability/{key}", (weights * log_odds.detach().sigmoid().mean(1)).sum())
            divergence = (weights * bernoulli_divergence(log_odds, prior).sum(1)).sum()
            loss = loss + method.prior_weight * divergence.to(loss.dtype)
        return loss, outputs

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        learnt = {name: parameter.detach() for name, parameter in self.parameters.items()}
        return {self.method.source: learnt} if learnt else {}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        source = self.method.source
        if source not in tensors:
            raise AttendropError(f"The run kept no {source}.safetensors, so what it drops is not known.")
        self.create(tensors[source])

    def _create(self, context: StepContext, keys: set[str]) -> None:
        """Create the networks, of the sizes that a pass in evaluation mode, in which no layer is skipped, shows."""
        sizes: dict[str, tuple[int, int]] = {}

        def read(_: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            def seen(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                sizes[call.layer.key] = (value.shape[1], value.shape[1] * value.shape[3])
                return query, key, value

            return AttentionEdit(inputs=seen)

        with torch.no_grad(), forked_rng(context.model), evaluating(context.model):
            context.adapter.forward(context.inputs, RandomMaskPlan(self.method, context, read, keys))
        hidden, logit = self.method.hidden, torch.logit(torch.tensor(self.method.p))
        initial: dict[str, Tensor] = {}
        for key, (heads, width) in sizes.items():
            generator = torch.Generator().manual_seed(SampleKey(context.key.seed, 0, 0, 1).seeds(key, 1)[0] >> 1)
            initial[f"{key}/first"] = torch.randn(hidden, width, generator=generator) / width**0.5
            initial[f"{key}/first bias"] = torch.zeros(hidden)
            initial[f"{key}/second"] = torch.zeros(heads, hidden)
            initial[f"{key}/second bias"] = logit.repeat(heads)
            initial[f"{key}/prior"] = logit
        self.create(initial)


@dataclass(frozen=True)
class ContextualDropout(Method):
    """Dropout of attention weights with a probability for each head and query, derived from the values it may read.

    In each layer a network of two linear layers, ``W2 leaky_relu(W1 c + b1) + b2``, computes the log-odds of each
    head's probability from ``c``, the normalised mean of the layer's values over the keys that a query may attend to.
    This is one mean for the whole sequence, except in causal attention, where no mean depends on later tokens. A weight
    is dropped if ``u < p``, with ``u`` uniform in (0, 1), and divided by ``1 - p`` otherwise. The networks are trained
    by the ARM estimator, from an additional pass with ``1 - u`` in place of ``u``, see
    :class:`attendrop_methods.LearnableBernoulli`. The penalty is ``prior_weight`` times the mean over the queries of a
    row, without padding, of ``KL(Bernoulli(p) || Bernoulli(p0))``, summed over heads and layers, where the prior ``p0``
    is learnt for each layer; rows are weighted as in the loss. Two forward passes and one backward pass per step;
    ``reg.step()`` of a custom loop updates the networks.

    Args:
        p: Probability of all heads and queries at the start, in (0, 1).
        hidden: Number of hidden units of a network, 1 or more.
        learning_rate: Learning rate of the networks and priors, above 0.
        prior_weight: Weight of the divergence from the prior, 0 or more.

    Raises:
        AttendropError: In training, there are no labels.

    Source: Fan et al. (2021), https://arxiv.org/abs/2103.04181, section 2: contextual Bernoulli dropout with a
    learnable prior; their Gaussian form is not included. Here the networks read the values of a layer, without passing
    gradients on to the model, and one probability serves all keys of a query, where theirs compute several. The weights
    of the last linear layer start at zero, and its bias at the log-odds of ``p``. All defaults are ours. The estimator
    compares plain losses of rows, without label smoothing or class weights. The model's own dropout stays enabled, with
    the same sample in both passes.
    """

    info = MethodInfo(
        "contextual-dropout",
        "learns networks that derive the drop probabilities of heads from what they may attend to",
        "Fan et al. (2021), Contextual Dropout: An Efficient Sample-Dependent Dropout Module",
        link="https://arxiv.org/abs/2103.04181",
        acts_on=("weights", "loss"),
        forward="2",
        state="a small network for each layer, and their optimizer",
        rules=own_parameter_rules("contextual-dropout"),
        needs_loss_scale=True,
    )
    state_class = _NetworksState

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    hidden: int = option(16, count())
    learning_rate: float = option(0.001, positive())
    prior_weight: float = option(0.01, positive(zero=True))
    layers: str | int | Sequence[int] = option("all", LAYERS)


class _NetworksPlan(AntitheticPlan):
    """Plan that drops with the probabilities that the networks compute, given their parameters by name."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.contexts: dict[str, Tensor] = {}

    def make(self, call: AttentionCall) -> AttentionEdit:
        def read(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            """Keep the normalised mean of the values over the valid keys of each query, or of all, if all are."""
            values = upcast(value.detach()).transpose(1, 2).flatten(2)
            valid = torch.ones(1, 1, call.shape[3], device=call.device) if call.valid is None else call.valid.any(1)
            with torch.autocast(value.device.type, enabled=False):
                mean = valid.to(values.dtype) @ values / valid.sum(-1, keepdim=True).clamp(min=1)
            mean = mean.float()
            self.contexts[call.layer.key] = functional.layer_norm(mean, mean.shape[-1:])  # (batch, query or 1, width)
            return query, key, value

        return replace(super().make(call), inputs=read)

    def log_odds(self, key: str) -> Tensor:
        first, bias, second, second_bias = (
            self.learnt[f"{key}/{name}"] for name in ("first", "first bias", "second", "second bias")
        )
        context = self.contexts[key]
        with torch.autocast(context.device.type, enabled=False):  # both within the model and after its pass
            hidden = functional.leaky_relu(functional.linear(context, first, bias))
            return functional.linear(hidden, second, second_bias).transpose(1, 2)


def query_weights(queries: Tensor, shares: Tensor) -> Tensor:
    """Divide the ``shares`` of rows in the loss, ``(rows,)``, among their queries that are not padding.

    Both are ``(batch, query)``; the sequences of a row (its choices) are adjacent.
    """
    weights = queries / queries.sum(-1, keepdim=True).clamp(min=1)
    real = queries.any(-1).view(len(shares), -1)
    return weights * (shares[:, None] * real / real.sum(-1, keepdim=True).clamp(min=1)).view(-1, 1)


def bernoulli_divergence(log_odds: Tensor, prior: Tensor) -> Tensor:
    """Compute ``KL(P || Q)`` of two Bernoulli variables with the given log-odds."""
    kept, dropped = functional.logsigmoid(-log_odds), functional.logsigmoid(log_odds)
    return dropped.exp() * (dropped - functional.logsigmoid(prior)) + kept.exp() * (
        kept - functional.logsigmoid(-prior)
    )
