"""SAM: sharpness-aware minimisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attendrop.attention.isolation import forked_rng
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of, wide
from attendrop.methods.common.parameter_override import ParameterOverride
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import DECIDES_PASSES, REPLACES_PARAMETERS
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import option, positive


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

    name: ClassVar[str] = "sam"
    summary: ClassVar[str] = "minimises the loss at weights that are perturbed to raise it"
    paper: ClassVar[str] = "Foret et al. (2021), Sharpness-Aware Minimization for Efficiently Improving Generalization"
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("parameters",), forward="2", backward="2")
    traits: ClassVar[Mapping[str, str]] = {DECIDES_PASSES: "", REPLACES_PARAMETERS: ""}
    uses_attention: ClassVar[bool] = False

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
        names, weights = list(self.weights), list(self.weights.values())

        def ascent(factor: float) -> dict[str, Tensor]:
            return gradients_of(loss * factor, names, weights, keep_graph=True)

        gradients = finite_gradients(ascent, model)
        norms = torch.stack([gradient.norm() for gradient in gradients.values()])
        scale = self.method.rho / norms.norm().clamp(min=torch.finfo(norms.dtype).tiny)
        return {
            self.weights[name]: (scale * gradient).to(self.weights[name].dtype) for name, gradient in gradients.items()
        }

    def _perturbed(self, name: str, parameter: nn.Parameter) -> Tensor:
        return parameter + self.perturbation[parameter] if parameter in self.perturbation else parameter
