"""SMART: predictions that do not change with adversarial perturbations of the word embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attendrop.attention.isolation import forked_rng
from attendrop.attribution.finite_gradients import finite_gradients, gradients_of
from attendrop.methods.common.divergence import mean_divergence
from attendrop.methods.common.word_embeddings import Perturbation, word_noise
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.compatibility import DECIDES_PASSES
from attendrop.methods.core.context import ComputeLoss, StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import count, option, positive


@dataclass(frozen=True)
class SMART(Method):
    """Smoothness-inducing adversarial regularisation.

    The batch runs unchanged, and again with a perturbation ``delta`` of the word embeddings. The loss is that of the
    first pass, plus ``weight`` times the mean of ``D = KL(P || Q) + KL(Q || P)``, where ``P`` and ``Q`` are the
    predictions of both passes. ``delta`` is to maximise ``D``: it starts from normal noise, and in each of ``steps``
    additional passes becomes ``delta + step_size g / max |g|``, limited to ``[-epsilon, epsilon]`` in each element,
    where ``g`` is the gradient of ``D`` in the sequence. In regression, ``D`` is the squared difference; in multi-label
    classification, the sum over the labels' Bernoulli distributions; at token level, the mean is over labelled tokens.
    ``2 + steps`` forward and backward passes per step, of which ``steps`` backward passes do not compute gradients of
    parameters.

    Example:
        >>> with regularize(model, SMART(weight=1.0)) as reg:
        ...     reg.loss(batch).backward()

    Args:
        weight: Weight of the divergence (the paper's lambda), above 0.
        epsilon: Limit of each element of the perturbation, above 0.
        step_size: Step size of the ascent (the paper's eta), above 0. With the default, which is greater than
            ``epsilon``, one step takes most elements to the limit.
        noise: Standard deviation of the noise at the start (the paper's sigma), above 0.
        steps: Number of ascent steps, 1 or more.

    Raises:
        AttendropError: An option is out of its range; or, in training, the model embeds no words (images) or returns no
            logits.

    Source: Jiang et al. (2020), https://aclanthology.org/2020.acl-main.197, sections 3.1 and Algorithm 1. ``epsilon``,
    ``step_size``, ``noise`` and ``steps`` are theirs; they choose the weight among 1, 3 and 5. The gradient is divided
    by its maximum over a sequence, as the paper's norm, not over each token, as in the code of MT-DNN. Deviations: the
    Bregman proximal point optimisation of section 3.2, their second part, is not included. The passes with a
    perturbation have the same dropout sample, the unchanged pass another; in a model with dropout much of the
    divergence is that of the samples. Of encoder-decoder models, the encoder's embeddings are perturbed.
    """

    name: ClassVar[str] = "smart"
    summary: ClassVar[str] = "makes predictions agree with those from adversarially perturbed word embeddings"
    paper: ClassVar[str] = (
        "Jiang et al. (2020), SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through "
        "Principled Regularized Optimization"
    )
    info: ClassVar[MethodInfo] = MethodInfo(
        acts_on=("embeddings", "loss"),
        forward="2 + steps",
        backward="2 + steps (without parameters)",
        tasks="text; regression: squared difference",
    )
    traits: ClassVar[Mapping[str, str]] = {DECIDES_PASSES: ""}

    weight: float = option(1.0, positive(), search=(0.3, 3.0, 5.0))
    epsilon: float = option(1e-5, positive(), search=(1e-3, 1e-2))
    step_size: float = option(1e-3, positive())
    noise: float = option(1e-5, positive())
    steps: int = option(1, count())

    def start(self, training: TrainingContext) -> MethodState:
        return _State(self)


class _State(MethodState):
    method: SMART

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        clean = Perturbation(context)
        loss, outputs = compute_loss(context.batch, clean)

        def divergence_with(delta: Tensor) -> Tensor:
            with forked_rng(context.model):
                _, perturbed = compute_loss(context.batch, Perturbation(context, delta))
            return mean_divergence(context.model, outputs, perturbed, context.batch)

        assert clean.embedded is not None and clean.valid is not None
        delta = self.method.noise * word_noise("normal", context.key, "words", clean.valid, clean.embedded.shape[-1])
        for _ in range(self.method.steps):
            delta = self._ascended(context, delta.requires_grad_(), divergence_with(delta))
        divergence = divergence_with(delta)
        context.note("divergence", divergence)
        return loss + self.method.weight * divergence, outputs

    def _ascended(self, context: StepContext, delta: Tensor, divergence: Tensor) -> Tensor:
        """Take one step along the gradient of the divergence, ``(batch, n, width)``, within the limits."""

        def gradients(factor: float) -> dict[str, Tensor]:
            return gradients_of(divergence * factor, ["words"], [delta], keep_graph=True)

        gradient = finite_gradients(gradients, context.model)["words"]
        largest = gradient.abs().amax((1, 2), keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
        moved = delta.detach() + self.method.step_size * gradient / largest
        return moved.clamp(-self.method.epsilon, self.method.epsilon)
