"""Child-Tuning: gradients of a part of the parameters only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attendrop.attention.isolation import evaluating, forked_rng
from attendrop.batches import Batch
from attendrop.errors import AttendropError
from attendrop.keyed_random import sample_parameter_mask, sample_row_mask
from attendrop.methods.common.parameter_override import embedding_weights, layer_parameters
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.methods.core.info import MethodInfo
from attendrop.methods.core.options import choice, count, option, positive, unit_interval

# Elements of a parameter up to which it is drawn together with others.
_SMALL = 1 << 14
VARIANTS = ("F", "D")


@dataclass(frozen=True)
class ChildTuning(Method):
    """Updates a child network, a part of the parameters, in each step.

    Just before the optimizer's step, gradients outside of the child network are set to zero. ``variant="F"`` (task
    free): in each step each element is in the child network with probability ``p``, and its gradient is divided by
    ``p``. ``variant="D"`` (task driven): the child network is fixed when training begins, and holds the fraction ``p``
    of the layers' parameters that have the greatest Fisher information on the training rows, the mean of the squared
    gradients of the loss of single rows.

    Example:
        >>> with regularize(model, ChildTuning(p=0.3), optimizer=optimizer) as reg:
        ...     reg.loss(batch).backward()
        ...     optimizer.step()  # gradients are masked within
        ...     optimizer.zero_grad()
        ...     reg.step()

    Args:
        variant: ``"F"`` or ``"D"``.
        p: Fraction of the parameters in the child network, in (0, 1).
        fisher_batch_size: Of D: rows whose gradients are taken together. 1 is the paper's formula; more are faster, and
            square the gradient of a mean, as the authors' code does.
        fisher_max_norm: Of D: the gradient of each parameter is clipped to this norm before it is squared, so that no
            layer is favoured for the size of its gradients. 0, the paper's formula: not clipped. The authors' code
            clips to the norm that the training clips to, mostly 1.

    Raises:
        AttendropError: An option is out of its range; or, with D, the training rows are not known.

    Source: Xu et al. (2021), https://arxiv.org/abs/2109.05687, section 2; they search ``p`` in 0.2 to 0.4 (F) and 0.1
    to 0.3 (D). As in their code, the mask acts on gradients after clipping, D leaves embeddings and head out of its
    mask (they are trained whole), and D's kept gradients are not scaled. Ours: the Fisher information is measured in
    evaluation mode, theirs with dropout. The mask is kept with the run, as ``fisher_mask.safetensors``.
    """

    name: ClassVar[str] = "child-tuning"
    summary: ClassVar[str] = "updates only a part of the parameters in each step"
    paper: ClassVar[str] = (
        "Xu et al. (2021), Raise a Child in Large Language Model: Towards Effective and Generalizable Fine-tuning"
    )
    bibtex: ClassVar[str] = """@inproceedings{xu2021childtuning,
  title     = {Raise a Child in Large Language Model: Towards Effective and Generalizable Fine-tuning},
  author    = {Xu, Runxin and Luo, Fuli and Zhang, Zhiyuan and Tan, Chuanqi and Chang, Baobao and Huang, Songfang and
               Huang, Fei},
  booktitle = {Empirical Methods in Natural Language Processing},
  year      = {2021},
  url       = {https://arxiv.org/abs/2109.05687}
}"""
    info: ClassVar[MethodInfo] = MethodInfo(acts_on=("gradients",), state="D: a mask of the layers' parameters")
    edits_gradients: ClassVar[bool] = True
    uses_attention: ClassVar[bool] = False

    variant: str = option("F", choice(*VARIANTS))
    p: float = option(0.3, unit_interval())
    fisher_batch_size: int = option(1, count())
    fisher_max_norm: float = option(0.0, positive(zero=True))

    def start(self, training: TrainingContext) -> MethodState:
        return _Free(self, training) if self.variant == "F" else _Driven(self, training)


class _Free(MethodState):
    """Draws a child network for each step."""

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
                raise AttendropError("Child-Tuning does not act on sparse gradients; make the embeddings dense.")
            place = (*self._seed_and_step, f"child-tuning/{name}")
            if name in self.by_row and name not in together:  # most rows are zero, and stay so
                rows = (gradient.amax(1) != 0).logical_or_(gradient.amin(1) != 0).nonzero().flatten()
                kept = sample_row_mask(p, *place, rows, gradient.shape[1])
                gradient[rows] *= kept.to(gradient.dtype).mul_(1 / p)
            else:
                sampled = name in together
                kept = together[name] if sampled else sample_parameter_mask(p, *place, gradient.shape, gradient.device)
                gradient.mul_(kept.to(gradient).mul_(1 / p))

    def _sample_jointly(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Masks of parameters that are too small for a draw each."""
        if not parameters:
            return []
        sizes = [parameter.numel() for parameter in parameters]
        kept = sample_parameter_mask(
            self.method.p, *self._seed_and_step, "child-tuning", (sum(sizes),), parameters[0].device
        )
        return [mask.view_as(parameter) for mask, parameter in zip(torch.split(kept, sizes), parameters, strict=True)]


class _Driven(MethodState):
    """Finds the child network when training begins."""

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
        if not self.masks:
            self.masks = largest(fisher_information(self.training, self.method), self.method.p)
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


def fisher_information(training: TrainingContext, method: ChildTuning) -> dict[str, Tensor]:
    """The mean over batches of the training rows of the squared gradient of their loss, of each layer parameter.

    Args:
        training: The model and the rows. Each process takes its part of them.
        method: How many rows a batch has, and what gradients are clipped to.
    """
    assert training.train_data is not None
    model = training.model
    names = set(layer_parameters(model))
    chosen = {name: p for name, p in model.named_parameters() if name in names and p.requires_grad}
    if not chosen:
        raise AttendropError(f"{type(model).__name__} has no layers that train, so there is no child network to find.")
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
    """Masks, True at the ``fraction`` of all elements that are the greatest, and at those that equal the least of them.

    The number is rounded down, as in :func:`attendrop.candidates.floor_fraction`, and at least 1.
    """
    flat = torch.cat([value.flatten() for value in values.values()])
    kept = max(1, math.floor(fraction * flat.numel() + 1e-6))
    threshold = flat.kthvalue(flat.numel() - kept + 1).values
    return {name: value >= threshold for name, value in values.items()}
