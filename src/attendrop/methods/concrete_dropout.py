"""Concrete Dropout: attention dropout with a drop probability per layer, learnt by gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attendrop.extend import (
    LAYERS,
    AttentionCall,
    AttentionEdit,
    LearntProbabilities,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    StepContext,
    TrainingContext,
    count,
    option,
    positive,
    unit_interval,
)
from attendrop.methods.common.own_parameters import probability_rules


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

    info = MethodInfo(
        "concrete-dropout",
        "learns with which probability each layer drops attention weights",
        "Gal, Hron, Kendall (2017), Concrete Dropout",
        acts_on=("weights", "loss"),
        state="a probability for each layer, and its optimizer",
        rules=probability_rules("concrete-dropout"),
        adds_penalty=True,
        reads_weights=True,
        needs_loss_scale=True,
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


class _Learning(LearntProbabilities):
    """State with the log-odds of the probabilities."""

    method: ConcreteDropout

    def plan(self, context: StepContext) -> Plan:
        self.begin(context)
        logits = self.by_layer()

        def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
            uniform, logit = plan.uniform(call), logits[call.layer.key]

            def relaxed(weights: Tensor) -> Tensor:
                exact = uniform.to(torch.promote_types(weights.dtype, torch.float32))
                kept = torch.sigmoid(-(logit + torch.logit(exact)) / self.method.temperature)  # 1 - z
                return weights * (kept / torch.sigmoid(-logit)).to(weights.dtype)

            return AttentionEdit(weights=relaxed)

        return RandomMaskPlan(self.method, context, make, logits.keys())
