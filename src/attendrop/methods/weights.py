"""Methods that change the weights of a pass or pull them back: mixout, DropConnect, SAM, L2-SP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.projections import factors
from attendrop.extend import (
    DECIDES_PASSES,
    LAYERS,
    REPLACES_PARAMETERS,
    AttendropError,
    Batch,
    ComputeLoss,
    Method,
    MethodInfo,
    MethodState,
    StepContext,
    TrainingContext,
    WeightMixing,
    choice,
    forked_rng,
    loss_gradients,
    option,
    positive,
    unit_interval,
    wide,
)
from attendrop.methods.common.parameters import ParameterOverride, pretrained_parameters, projection_weights


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

    p: float = option(0.7, unit_interval(), search=(0.3, 0.5, 0.9))
    unit: str = option("neuron", choice("neuron", "element"))

    def start(self, training: TrainingContext) -> MethodState:
        return _MixoutState(self, training)


class _MixoutState(WeightMixing):
    """State with the pre-trained weights."""

    def __init__(self, method: Mixout, training: TrainingContext) -> None:
        super().__init__(method, training, method.p, by_neuron=method.unit == "neuron")
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

    def choose(self, context: StepContext) -> list[str]:
        return list(self.targets)

    def state_dict(self) -> dict[str, Any]:
        return {"pretrained": dict(self.targets)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["pretrained"]
        self.targets = {name: value.to(self.model.get_parameter(name).device) for name, value in found.items()}


@dataclass(frozen=True)
class DropConnect(Method):
    """Dropout of single weights of the attention projections.

    In each optimizer step each element of the query, key, value and output projection weights is zero with probability
    ``p``, and divided by ``1 - p`` otherwise.

    Args:
        p: Probability that an element is zero, in (0, 1).
        layers: ``"all"``, ``"first"``, numbers, or a kind: see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: In training, no projections can be found, or their weights are quantized.

    Source: Wan et al. (2013), Regularization of Neural Networks using DropConnect, section 3, with weights ``M * W``.
    Deviations: kept weights are scaled up in training, and evaluation uses the unchanged weights, while the paper
    samples from a Gaussian fitted to the mask's moments; one mask is used for a whole optimizer step, not one per
    example; ``p`` is 0.1, the paper's 0.5 is for networks trained from scratch. In a projection with a LoRA adapter,
    ``W + s B A``, each of the three matrices has its own mask.
    """

    info = MethodInfo(
        "dropconnect",
        "sets weights of the attention's projections to zero at random",
        "Wan et al. (2013), Regularization of Neural Networks using DropConnect",
        acts_on=("parameters",),
        traits={REPLACES_PARAMETERS: ""},
    )

    p: float = option(0.1, unit_interval(), search=(0.05, 0.2, 0.3))
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _DropConnectState(self, training, self.p)


class _DropConnectState(WeightMixing):
    """State that mixes the weights with zero."""

    def choose(self, context: StepContext) -> list[str]:
        keys = {layer.key for layer in self.method.selected_layers(context.adapter.attention_layers)}
        modules = set()
        for block in context.adapter.blocks:
            for key in keys & block.output_projections.keys():
                modules |= {*block.input_projections[key], block.output_projections[key]}
        weights = {weight for module in modules for weight in factors(module)}
        names = [name for name, parameter in self.model.named_parameters() if parameter in weights]
        if not names:
            raise AttendropError(
                f"No attention projections found in {type(self.model).__name__}; choose another method."
            )
        return names


@dataclass(frozen=True)
class SAM(Method):
    """Sharpness-aware minimisation.

    The gradient ``g`` of the loss at the weights ``w`` determines the perturbation ``e = rho g / ||g||``, with the norm
    over all trainable parameters. The loss is that at ``w + e``, with the same dropout sample; its gradient there
    updates ``w``. Two forward and two backward passes per step. Each micro-batch of each process has its own
    perturbation (m-SAM), so results depend on the split into micro-batches.

    Args:
        rho: Norm of the perturbation, above 0.

    Raises:
        AttendropError: In training, the gradient is not finite.

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
        return _SAMState(self, training)


class _SAMState(MethodState):
    """State that adds a perturbation to the parameters of the second pass, also where it is recomputed."""

    method: SAM

    def __init__(self, method: SAM, training: TrainingContext) -> None:
        super().__init__(method)
        self.perturbation: dict[nn.Parameter, Tensor] = {}
        names = [name for name, weight in training.model.named_parameters(remove_duplicate=False)]
        self._override = ParameterOverride(training.model, names, self._perturbed, throughout=True)

    def loss(self, context: StepContext, compute_loss: ComputeLoss) -> tuple[Tensor, Any]:
        self.perturbation = {}
        with forked_rng(context.model):
            loss, _ = compute_loss(context.batch)
        held = [self._ascent(context.model, wide(loss))]
        self.perturbation = held[0]
        perturbed, outputs = compute_loss(context.batch)
        self.perturbation = {}

        def restore(_: Tensor) -> None:
            if held:  # for layers that run again in this backward pass, which may be that of several losses
                self.perturbation = held.pop()

        if perturbed.requires_grad:
            perturbed.register_hook(restore)  # type: ignore[no-untyped-call]
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
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        gradients = loss_gradients(loss, weights, model)
        norms = torch.stack([gradient.norm() for gradient in gradients.values()])
        scale = self.method.rho / norms.norm().clamp(min=torch.finfo(norms.dtype).tiny)
        return {weights[name]: (scale * g).to(weights[name].dtype) for name, g in gradients.items()}

    def _perturbed(self, name: str, parameter: nn.Parameter) -> Tensor:
        return parameter + self.perturbation[parameter] if parameter in self.perturbation else parameter


@dataclass(frozen=True)
class L2SP(Method):
    """Penalty on the distance of the weights from the pre-trained ones.

    The penalty is ``alpha / 2 ||w - w0||^2 + beta / 2 ||v||^2``, where ``w`` are the pre-trained parameters, ``w0``
    their values at the start of training, and ``v`` the parameters of the head. Its gradient, ``alpha (w - w0)`` and
    ``beta v``, is added to that of the loss just before the optimizer step.

    Args:
        alpha: Weight of the distance from the start, above 0.
        beta: Weight of the norm of the head, 0 or more.

    Raises:
        AttendropError: The optimizer is unknown; or, in training, a gradient is sparse.

    Source: Li, Grandvalet, Davoine (2018), https://arxiv.org/abs/1802.01483, Eq. 2 and 3. They train with SGD, search
    ``alpha`` between 0.001 and 1, and fix ``beta`` at 0.01. Deviations: the gradient is added after gradient clipping;
    the logged loss does not include the penalty. Adam scales the gradient of the penalty along with that of the loss. A
    parameter without a gradient in a step stays as it is.
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
        return _L2SPState(self, training)


class _L2SPState(MethodState):
    """State with the pre-trained weights, by name."""

    method: L2SP

    def __init__(self, method: L2SP, training: TrainingContext) -> None:
        super().__init__(method)
        self.model = training.model
        weights = {name: self.model.get_parameter(name) for name in pretrained_parameters(self.model)}
        self.pretrained = weights.keys()
        self.start = {name: weight.detach().clone() for name, weight in weights.items() if weight.requires_grad}

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        for name, weight in parameters.items():
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise AttendropError(
                    "L2-SP does not support sparse gradients; create the embeddings with sparse=False."
                )
            if name in self.pretrained:
                if name not in self.start:  # frozen until now, so it still has its initial value
                    self.start[name] = weight.detach().clone()
                weight.grad.add_(weight - self.start[name].to(weight.device), alpha=self.method.alpha)
            else:
                weight.grad.add_(weight, alpha=self.method.beta)

    def state_dict(self) -> dict[str, Any]:
        return {"start": dict(self.start)}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        found: Mapping[str, Tensor] = state["start"]
        self.start = {name: value.to(self.model.get_parameter(name).device) for name, value in found.items()}

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report how far training has moved the pre-trained weights."""
        start = self.start.items()
        moved = [wide(self.model.get_parameter(name).detach() - value).square().sum() for name, value in start]
        return {"l2_sp": {"distance": float(torch.stack(moved).sum().sqrt()) if moved else 0.0}}
