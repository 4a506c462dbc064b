"""Child-Tuning: gradient masks that restrict updates to a part of the parameters."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
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
    StepContext,
    TrainingContext,
    choice,
    count,
    evaluating,
    forked_rng,
    option,
    positive,
    sample_parameter_mask,
    unit_interval,
)
from attendrop.methods.common.parameters import embedding_weights, layer_parameters
from attendrop.randomness.keyed_random import sample_row_mask

# Maximum number of elements of a parameter that is sampled jointly with others.
_SMALL = 1 << 14
logger = logging.getLogger(__name__)


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
        edits_gradients=True,
        uses_attention=False,
    )

    variant: str = option("F", choice("F", "D"), search=("F", "D"))
    p: float = option(0.3, unit_interval(), search=(0.2, 0.5, 0.8))
    fisher_batch_size: int = option(1, count())
    fisher_max_norm: float = option(0.0, positive(zero=True))

    def start(self, training: TrainingContext) -> MethodState:
        return _Free(self, training) if self.variant == "F" else _Driven(self, training)


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
        small = [name for name, parameter in parameters.items() if parameter.numel() <= _SMALL]
        together = dict(zip(small, self._sample_jointly([parameters[name] for name in small]), strict=True))
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
                kept = together[name]
            elif name in self.by_row:  # most rows are zero and stay zero
                rows = (gradient.amax(1) != 0).logical_or_(gradient.amin(1) != 0).nonzero().flatten()
                kept = sample_row_mask(p, *place, rows, gradient.shape[1])
                gradient[rows] *= kept.to(gradient.dtype).mul_(1 / p)
                continue
            else:
                kept = sample_parameter_mask(p, *place, gradient.shape, gradient.device)
            gradient.mul_(kept.to(gradient).mul_(1 / p))

    def _sample_jointly(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Sample the masks of small parameters in one call."""
        if not parameters:
            return []
        sizes = [parameter.numel() for parameter in parameters]
        kept = sample_parameter_mask(
            self.method.p, *self._seed_and_step, "child-tuning", (sum(sizes),), parameters[0].device
        )
        return [mask.view_as(parameter) for mask, parameter in zip(torch.split(kept, sizes), parameters, strict=True)]


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
            self.masks |= largest(information, self.method.p)
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


def largest(values: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """Return masks of the largest ``fraction`` of all elements, at least one, and of ties with the smallest of them."""
    flat = torch.cat([value.flatten() for value in values.values()])
    kept = max(1, math.floor(fraction * flat.numel() + 1e-6))
    threshold = flat.kthvalue(flat.numel() - kept + 1).values
    return {name: value >= threshold for name, value in values.items()}
