"""SAM: sharpness-aware minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.extend import (
    DECIDES_PASSES,
    REPLACES_PARAMETERS,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    ParameterOverride,
    StepContext,
    TrainingContext,
    forked_rng,
    loss_gradients,
    option,
    positive,
    wide,
)


@dataclass(frozen=True)
class SAM(Method):
    """Sharpness-aware minimisation.

    The gradient ``g`` of the loss at the weights ``w`` determines the perturbation ``e = rho g / ||g||``, with the norm
    over all trainable parameters. The loss is that at ``w + e``, with the same dropout sample; its gradient there
    updates ``w``. Two forward and two backward passes per step.

    ``g`` is the gradient of one micro-batch, in each process. With gradient accumulation or DDP, each micro-batch has
    its own perturbation (m-SAM), so results depend on the split into micro-batches.

    Example:
        >>> with regularize(model, SAM(rho=0.05)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        rho: Norm of the perturbation, above 0.

    Raises:
        AttendropError: ``rho`` is out of its range; or, in training, the gradient is not finite.

    Source: Foret et al. (2021), https://arxiv.org/abs/2010.01412, Eq. 2 and 3, with their default of 0.05; they, too,
    perturb by the gradient of the part of the batch on one accelerator, and leave out the second-order term. The logged
    loss is that at the perturbed weights; ``sharpness`` in the log is its difference from the loss at ``w``.
    """

    info = MethodInfo(
        "sam",
        "minimises the loss at weights that are perturbed to raise it",
        "Foret et al. (2021), Sharpness-Aware Minimization for Efficiently Improving Generalization",
        acts_on=("parameters",),
        forward="2",
        backward="2",
        traits={DECIDES_PASSES: "", REPLACES_PARAMETERS: ""},
        uses_attention=False,
    )

    rho: float = option(0.05, positive(), search=(0.01, 0.02, 0.1))

    def start(self, training: TrainingContext) -> MethodState:
        return _State(self, training)


class _State(MethodState):
    """State that adds a perturbation to the parameters of the second pass, also where it is recomputed."""

    method: SAM

    def __init__(self, method: SAM, training: TrainingContext) -> None:
        super().__init__(method)
        self.perturbation: dict[nn.Parameter, Tensor] = {}
        self.weights = {name: weight for name, weight in training.model.named_parameters() if weight.requires_grad}
        names = [name for name, weight in training.model.named_parameters(remove_duplicate=False)]
        self._override = ParameterOverride(training.model, names, self._perturbed, throughout=True)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        self.perturbation = {}
        with forked_rng(context.model):
            loss, _ = compute_loss(context.batch)
        self.perturbation = self._ascent(context.model, wide(loss))
        perturbed, outputs = compute_loss(context.batch)
        context.note("sharpness", perturbed.detach() - loss.detach())
        return perturbed, outputs

    def after_step(self, steps_taken: int) -> dict[str, float]:
        self.perturbation = {}
        return {}

    def close(self) -> None:
        self._override.close()
        self.perturbation = {}

    def _ascent(self, model: nn.Module, loss: Tensor) -> dict[nn.Parameter, Tensor]:
        """Compute the perturbation of each parameter."""
        gradients = loss_gradients(loss, self.weights, model)
        norms = torch.stack([gradient.norm() for gradient in gradients.values()])
        scale = self.method.rho / norms.norm().clamp(min=torch.finfo(norms.dtype).tiny)
        return {self.weights[name]: (scale * g).to(self.weights[name].dtype) for name, g in gradients.items()}

    def _perturbed(self, name: str, parameter: nn.Parameter) -> Tensor:
        return parameter + self.perturbation[parameter] if parameter in self.perturbation else parameter
