"""Concrete Dropout: attention dropout with a drop probability per layer, learnt by gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from attendrop.attention.adapter import ModelAdapter
from attendrop.attention.call import AttentionCall
from attendrop.attention.edits import AttentionEdit
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import Plan
from attendrop.attention.projections import ValueProjection, find_value_projection
from attendrop.attribution.finite_gradients import wide
from attendrop.batches import Batch
from attendrop.errors import AttendropError
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import EXCHANGES_WEIGHTS, SECOND_MODEL, SKIPS_BLOCKS, Rule
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import LAYERS, count, option, positive, unit_interval


@dataclass(frozen=True)
class ConcreteDropout(Method):
    """Dropout of attention weights with a learnt probability per layer.

    A weight is multiplied by ``(1 - z) / (1 - p)`` with ``z = sigmoid((log p - log(1 - p) + log u - log(1 - u)) / t)``
    and ``u`` uniform in (0, 1). ``z`` is a relaxed sample close to 0 or 1, through which gradients reach ``p``. The
    penalty ``(l^2 / (2 (1 - p)) ||W||^2 - K H(p)) / N``, summed over layers, is added to the loss, where ``H`` is the
    entropy of a Bernoulli variable. The probabilities have their own Adam optimizer, and are not parameters of the
    model.

    Example:
        >>> with regularize(model, ConcreteDropout(), train_data=loader) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        ...     reg.step()  # updates the probabilities

    Args:
        p: Initial probability, in (0, 1).
        learning_rate: Learning rate of the log-odds of the probabilities, above 0.
        length_scale: Length scale ``l`` of the prior of the weights, above 0.
        entropy_weight: Weight ``K`` of the entropy, above 0. The entropy pulls all probabilities towards 1/2 equally;
            the data must outweigh it for layers to differ.
        num_train_rows: Number of training rows ``N``. 0: determined from the training rows, which must then be known.
        temperature: Temperature ``t`` of the relaxation, above 0.
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: An option is out of its range; the number of training rows is unknown; or, in training, a
            layer's value projection cannot be found.

    Source: Gal, Hron, Kendall (2017), https://arxiv.org/abs/1705.07832, sections 2 and 3, including ``t`` = 0.1, the
    initial probability of 0.1 and, from their code, ``l`` = 1e-4. There the input features of a layer are dropped, each
    with a row of ``W``, and ``K`` is their number. An attention weight does not correspond to a row of ``W``, so ``K``
    and ``W`` are our choice: ``K`` is 1, such that the prior of a probability counts as one row of data; ``W`` is the
    weight of the layer's value projection. With the number of features as ``K`` (384 in MiniLM), the prior's gradient
    on 2,490 rows, -0.03 and equal in all layers, would be a hundred times that of the data. A joint projection of
    queries, keys and values is supported if they have this order and the same width (GPT-2, ModernBERT). Their ``W`` is
    ours over ``1 - p``, since kept weights are scaled up. Of a projection with a LoRA adapter, ``W`` is their sum. The
    learning rate is ours, because fine-tuning takes few steps. The model's own dropout stays enabled; set it to 0 to
    use this one only.

    Learnt probabilities on 160 rows of RTE (MiniLM, AdamW at 2e-4, 60 steps of 16), initially 0.1:

    =========================================  ====  ================  ==========================
    gradients of the probabilities             seed  learning_rate     lowest to highest layer
    =========================================  ====  ================  ==========================
    of data and prior                          0     0.01, default     0.116 (the last) to 0.139
    of data and prior                          1     0.01, default     0.106 (the last) to 0.146
    of data and prior                          2     0.01, default     0.101 (the last) to 0.149
    of data and prior                          0     0.02              0.116 (the last) to 0.216
    of data and prior                          1     0.02              0.099 (the last) to 0.185
    of data with shuffled labels, and prior    0     0.01, default     0.099 (the last) to 0.140
    of the prior alone                         0     0.01, default     0.170 to 0.170
    of data and prior, ``entropy_weight=384``  0     0.02              0.272 to 0.273
    =========================================  ====  ================  ==========================

    Differences between layers result from the gradient of the loss, also with shuffled labels.
    """

    name: ClassVar[str] = "concrete-dropout"
    summary: ClassVar[str] = "learns with which probability each layer drops attention weights"
    paper: ClassVar[str] = "Gal, Hron, Kendall (2017), Concrete Dropout"
    bibtex: ClassVar[str] = """@inproceedings{gal2017concrete,
  title     = {Concrete Dropout},
  author    = {Gal, Yarin and Hron, Jiri and Kendall, Alex},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {30},
  year      = {2017},
  url       = {https://arxiv.org/abs/1705.07832}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("weights", "loss"), state="a probability for each layer, and its optimizer"
    )
    adds_penalty: ClassVar[bool] = True
    needs_loss_scale: ClassVar[bool] = True

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("concrete-dropout", SECOND_MODEL, "The probabilities belong to one model, but two are trained."),
        Rule(
            "concrete-dropout",
            EXCHANGES_WEIGHTS,
            "The model's weights are replaced during training, but the learnt probabilities are not.",
        ),
        Rule(
            "concrete-dropout",
            SKIPS_BLOCKS,
            "The penalty uses the weights of every block, including skipped ones, whose dropout is not applied and "
            "whose gradients DDP cannot reduce.",
        ),
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2))
    learning_rate: float = option(0.01, positive())
    length_scale: float = option(1e-4, positive())
    entropy_weight: float = option(1.0, positive())
    num_train_rows: int = option(0, count(0))
    temperature: float = option(0.1, positive())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _Learning(self, training)


class _Learning(MethodState):
    """State with the log-odds of the probabilities and their optimizer, both created at the first pass."""

    method: ConcreteDropout

    def __init__(self, method: ConcreteDropout, training: TrainingContext) -> None:
        super().__init__(method)
        self.training = training
        data: Any = training.train_data
        self.num_train_rows = method.num_train_rows or (len(data) if hasattr(data, "__len__") else 0)
        if not self.num_train_rows:
            raise AttendropError(
                "Concrete Dropout needs the number of training rows for the weight of its prior: pass train_data, or "
                "set num_train_rows."
            )
        self.keys: list[str] = []
        self.logits = nn.Parameter(torch.empty(0))
        self.optimizer: torch.optim.Optimizer | None = None
        self.loss_scale = 1.0
        self._projections: dict[str, ValueProjection] = {}

    def plan(self, context: StepContext) -> Plan:
        attention_layers = self.method.selected_layers(context.adapter.attention_layers)
        if self.optimizer is None:
            logit = torch.logit(torch.tensor(self.method.p, dtype=torch.float64)).float()
            self._begin([layer.key for layer in attention_layers], logit.repeat(len(attention_layers)))
        if not self._projections:
            self._projections = value_projections(context.adapter, attention_layers)
        self.loss_scale = context.loss_scale
        for key, p in zip(self.keys, self.logits.detach().sigmoid(), strict=True):
            context.note(f"probability/{key}", p)
        return _Relaxed(self.method, context, dict(zip(self.keys, self.logits, strict=True)))

    def penalty(self, context: StepContext, outputs: Any) -> Tensor:
        total = torch.zeros((), device=self.logits.device)
        for key, logit in zip(self.keys, self.logits, strict=True):
            weight = self._projections[key].weight()
            norm = wide(weight).square().sum() / (2 * torch.sigmoid(-logit))
            total = total + self.method.length_scale**2 * norm - self.method.entropy_weight * entropy(logit)
        return total / self.num_train_rows

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if self.optimizer is None or self.logits.grad is None:
            return {}
        processes = self.training.processes
        gradient = processes.total(self.logits.grad) / (processes.world_size * self.loss_scale)
        self.logits.grad.copy_(gradient)
        if gradient.isfinite().all():  # skip steps that overflow under float16
            self.optimizer.step()
        self.optimizer.zero_grad()
        return {}

    def state_dict(self) -> dict[str, Any]:
        if self.optimizer is None:
            return {}
        return {"layers": self.keys, "logits": self.logits.detach(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        if state:
            self._begin(state["layers"], state["logits"]).load_state_dict(state["optimizer"])

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the learnt probability of each layer."""
        return {"concrete_dropout": dict(zip(self.keys, self.logits.detach().sigmoid().tolist(), strict=True))}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        learnt: Mapping[str, float] = metrics.get("concrete_dropout", {})
        if learnt:
            self._begin(list(learnt), torch.logit(torch.tensor(list(learnt.values()), dtype=torch.float64)).float())

    def _begin(self, keys: Sequence[str], logits: Tensor) -> torch.optim.Optimizer:
        self.keys = list(keys)
        self.logits = nn.Parameter(logits.to(next(self.training.model.parameters()).device, copy=True))
        self.optimizer = torch.optim.Adam([self.logits], lr=self.method.learning_rate)
        return self.optimizer


class _Relaxed(RandomMaskPlan):
    """Plan that multiplies the weights of each layer by relaxed Bernoulli samples.

    Args:
        method: The method, with the temperature of the relaxation.
        context: The micro-batch.
        logits: Log-odds by layer key.
    """

    method: ConcreteDropout

    def __init__(self, method: ConcreteDropout, context: StepContext, logits: dict[str, Tensor]) -> None:
        super().__init__(method, context, logits.keys())
        self.logits = logits

    def make(self, call: AttentionCall) -> AttentionEdit:
        uniform, logit = self.uniform(call), self.logits[call.layer.key]

        def relaxed(weights: Tensor) -> Tensor:
            exact = uniform.to(torch.promote_types(weights.dtype, torch.float32))
            kept = torch.sigmoid(-(logit + torch.logit(exact)) / self.method.temperature)  # 1 - z
            return weights * (kept / torch.sigmoid(-logit)).to(weights.dtype)

        return AttentionEdit(weights=relaxed)


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
