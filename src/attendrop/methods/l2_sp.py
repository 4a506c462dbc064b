"""L2-SP: weights that are pulled back to where training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.extend import (
    AttendropError,
    Batch,
    Method,
    MethodInfo,
    MethodState,
    TrainingContext,
    option,
    positive,
    wide,
)
from attendrop.methods.common.parameters import pretrained_parameters


@dataclass(frozen=True)
class L2SP(Method):
    """Penalty on the distance of the weights from the pre-trained ones.

    The penalty is ``alpha / 2 ||w - w0||^2 + beta / 2 ||v||^2``, where ``w`` are the pre-trained parameters, ``w0``
    their values at the start of training, and ``v`` the parameters of the head, which are not pre-trained. Its
    gradient, ``alpha (w - w0)`` and ``beta v``, is added to that of the loss just before the optimizer step. One pass
    per step.

    Example:
        >>> with regularize(model, L2SP(alpha=0.1), optimizer=optimizer) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()  # adds the gradient of the penalty first
        ...     optimizer.zero_grad()
        ...     reg.step()

    Args:
        alpha: Weight of the distance from the start, above 0.
        beta: Weight of the norm of the head, 0 or more.

    Raises:
        AttendropError: An option is out of its range; the optimizer is unknown; or, in training, a gradient is sparse.

    Source: Li, Grandvalet, Davoine (2018), https://arxiv.org/abs/1802.01483, Eq. 2 and 3. They train convolutional
    networks with SGD, search ``alpha`` between 0.001 and 1, and fix ``beta`` at 0.01. Deviations: the gradient is added
    after gradient clipping, so that clipping does not weaken the penalty; the logged loss does not include it. With
    Adam, the optimizer scales the gradient of the penalty along with that of the loss. A parameter without a gradient
    in a step stays as it is.
    """

    info = MethodInfo(
        "l2-sp",
        "pulls the weights back to their pre-trained values",
        "Li, Grandvalet, Davoine (2018), Explicit Inductive Bias for Transfer Learning with Convolutional Networks",
        acts_on=("gradients",),
        state="the pre-trained weights",
        edits_gradients=True,
        uses_attention=False,
    )

    alpha: float = option(0.1, positive(), search=(0.001, 0.01, 1.0))
    beta: float = option(0.01, positive(zero=True))

    def start(self, training: TrainingContext) -> MethodState:
        return _Pulled(self, training)


class _Pulled(MethodState):
    """State with the pre-trained weights, by name."""

    method: L2SP

    def __init__(self, method: L2SP, training: TrainingContext) -> None:
        super().__init__(method)
        self.model = training.model
        weights = {name: weight for name, weight in training.model.named_parameters() if weight.requires_grad}
        pretrained = [name for name in pretrained_parameters(training.model) if name in weights]
        self.start = {name: weights[name].detach().clone() for name in pretrained}

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, weight in parameters.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise AttendropError(
                    "L2-SP does not support sparse gradients; create the embeddings with sparse=False."
                )
            if name in self.start:
                start = self.start[name].to(weight.device)
                weight.grad.add_(weight - start, alpha=self.method.alpha)
            else:
                weight.grad.add_(weight, alpha=self.method.beta)

    def state_dict(self) -> dict[str, Any]:
        return {"start": dict(self.start)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["start"]
        self.start = {name: value.to(self.start[name].device) for name, value in found.items()}

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report how far training has moved the pre-trained weights."""
        weights = dict(self.model.named_parameters())
        moved = [wide(weights[name].detach() - start).square().sum() for name, start in self.start.items()]
        return {"l2_sp": {"distance": float(torch.stack(moved).sum().sqrt()) if moved else 0.0}}
