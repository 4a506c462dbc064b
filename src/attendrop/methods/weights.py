"""Methods that act on parameters: Mixout in each pass, and Child-Tuning on their gradients."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.extend import (
    REPLACES_PARAMETERS,
    AttendropError,
    Batch,
    Method,
    MethodInfo,
    MethodState,
    StepContext,
    TrainingContext,
    WeightMixing,
    choice,
    count,
    evaluating,
    forked_rng,
    option,
    positive,
    sample_parameter_mask,
    unit_interval,
)
from attendrop.methods.common.parameters import embedding_weights, layer_parameters, projection_weights
from attendrop.randomness.keyed_random import sample_row_mask

# Maximum number of elements of a parameter that is sampled jointly with others.
_SMALL = 1 << 14
logger = logging.getLogger(__name__)


class _MixoutState(WeightMixing):
    """State with the pre-trained weights."""

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

    def choose(self, context: StepContext) -> list[str]:
        return list(self.targets)

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
        self.by_row = embedding_weights(training.model)
        self._seed_and_step = (0, 0)

    def batch(self, context: StepContext) -> Batch:
        self._seed_and_step = (context.key.seed, context.key.step)
        return context.batch

    @torch.no_grad()
    def edit_gradients(self, parameters: Mapping[str, nn.Parameter]) -> None:
        p = self.method.p
        small = {name: parameter for name, parameter in parameters.items() if parameter.numel() <= _SMALL}
        together: dict[str, Tensor] = {}
        if small:
            sizes, device = [parameter.numel() for parameter in small.values()], next(iter(small.values())).device
            jointly = sample_parameter_mask(p, *self._seed_and_step, "child-tuning", (sum(sizes),), device)
            together = dict(zip(small, torch.split(jointly, sizes), strict=True))
        for name, parameter in parameters.items():
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise AttendropError(
                    "Child-Tuning does not support sparse gradients; create the embeddings with sparse=False."
                )
            place = (*self._seed_and_step, f"child-tuning/{name}")
            if name in together:
                kept = together[name].view_as(parameter)
            elif name in self.by_row:  # most rows are zero and stay zero
                rows = (gradient.amax(1) != 0).logical_or_(gradient.amin(1) != 0).nonzero().flatten()
                kept = sample_row_mask(p, *place, rows, gradient.shape[1])
                gradient[rows] *= kept.to(gradient.dtype).mul_(1 / p)
                continue
            else:
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
    """Compute the mean over training batches of the squared gradient of the loss, for each layer parameter not known.

    Parameters that are frozen are left out.
    """
    assert training.train_data is not None
    model = training.model
    names = set(layer_parameters(model)).difference(known)
    chosen = {name: p for name, p in model.named_parameters() if name in names and p.requires_grad}
    if not (chosen or known):
        raise AttendropError(f"{type(model).__name__} has no trainable layers for a child network; unfreeze some.")
    if not chosen:
        return {}
    sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in chosen.items()}
    count = 0
    with evaluating(model), forked_rng(model):
        for batch in training.train_data.iter_batches(method.fisher_batch_size, training.processes):
            with torch.enable_grad():
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
