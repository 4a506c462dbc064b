"""D-Net: a second copy of the model, trained on the same batches with an optimizer of the same type."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attendrop.attribution.finite_gradients import all_finite
from attendrop.extend import AttendropError
from attendrop.fused_optimizers import skips_step
from attendrop.methods.attend_out.generator import plain_copy
from attendrop.methods.core.context import Processes
from attendrop.trained_tensors import trained_tensors

Pair = tuple[nn.Parameter, nn.Parameter]


class Defender:
    """Copy of the attacker with its own optimizer, which steps whenever the attacker's optimizer steps.

    Frozen parameters are shared with the attacker, unless the copy is on another device: of a model with an adapter,
    only the adapter and the head exist twice.

    The gradients of each micro-batch have the same weight as the attacker's: the factor by which the training loop
    multiplies the attacker's loss (accumulation), read from the gradient that reaches this loss. The learning rate and
    all other settings are the attacker's at that step; gradients are clipped by their own norm.

    Args:
        attacker: The trained model, without wrappers.
        optimizer: Optimizer of the attacker.
        max_grad_norm: Norm to which gradients are clipped; None for no clipping.
        processes: Distributed process group, over which gradients are averaged.
        device: Device of the copy; None for the attacker's device.

    Attributes:
        before_step: Called just before each step of the copy's optimizer, with gradients ready.
    """

    def __init__(
        self,
        attacker: nn.Module,
        optimizer: Optimizer,
        *,
        max_grad_norm: float | None = None,
        processes: Processes | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        self.attacker = attacker
        self.attacker_optimizer = optimizer
        here = next(attacker.parameters()).device
        elsewhere = device is not None and torch.device(device) != here
        frozen = [parameter for parameter in attacker.parameters() if not parameter.requires_grad]
        self.model: nn.Module = plain_copy(attacker, shared=() if elsewhere else frozen)
        if elsewhere:
            self.model.to(device)
        self._modules = list(zip(attacker.modules(), self.model.modules(), strict=True))
        self.pairs: list[Pair] = list(zip(attacker.parameters(), self.model.parameters(), strict=True))
        self.optimizer = _twin(optimizer, self.pairs)
        self.max_grad_norm = max_grad_norm
        self.processes = processes or Processes()
        self.before_step: Callable[[], None] = lambda: None
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._found: list[Tensor | None] = []
        self._loss_scale = 1.0
        self._hook = optimizer.register_step_pre_hook(lambda attacker_optimizer, *_: self._step(attacker_optimizer))

    @property
    def device(self) -> torch.device:
        """Device of the copy."""
        return next(self.model.parameters()).device

    def follow_mode(self) -> None:
        """Put each module into the mode, training or evaluation, of the attacker's module."""
        for theirs, ours in self._modules:
            ours.training = theirs.training

    def backward(self, loss: Tensor, loss_scale: float) -> None:
        """Compute the gradients of one micro-batch; :meth:`follow` accumulates them."""
        self._loss_scale = loss_scale
        self._found = list(torch.autograd.grad(loss * loss_scale, self._trained, allow_unused=True))

    def follow(self, loss: Tensor) -> None:
        """Accumulate the gradients of the micro-batch with the weight that the loop gives to the attacker's loss."""
        found, self._found = self._found, []
        if loss.requires_grad:
            loss.register_hook(lambda weight: self._add(found, weight))  # type: ignore[no-untyped-call]

    def discard(self) -> None:
        """Discard all gradients, including those of a step that the attacker skipped under float16."""
        for parameter in self._trained:
            parameter.grad = None

    def take_from_attacker(self) -> None:
        """Copy weights and optimizer state from the attacker."""
        _copy_tensors(trained_tensors(self.attacker), trained_tensors(self.model))
        _copy_state(self.attacker_optimizer, self.optimizer, self.pairs)

    def give_to_attacker(self) -> None:
        """Copy weights and optimizer state to the attacker."""
        _copy_tensors(trained_tensors(self.model), trained_tensors(self.attacker))
        _copy_state(self.optimizer, self.attacker_optimizer, [(theirs, ours) for ours, theirs in self.pairs])

    def state_dict(self) -> dict[str, Any]:
        """Return what is trained, and the optimizer state."""
        trained = {name: tensor.detach() for name, tensor in trained_tensors(self.model).items()}
        return {"model": trained, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        _copy_tensors(state["model"], trained_tensors(self.model))
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Remove the hook on the attacker's optimizer, and free the own optimizer's state."""
        self._hook.remove()
        self.optimizer.state.clear()
        self.discard()

    @torch.no_grad()
    def _add(self, found: list[Tensor | None], weight: Tensor) -> None:
        """Accumulate the gradients of a micro-batch, given the gradient that reached the attacker's loss.

        That gradient is the loop's factor times the loss scale; the micro-batch's gradients include the scale, too.
        """
        factor = weight.to(self.device) / self._loss_scale**2
        for parameter in reversed(self._trained):
            gradient = found.pop()  # frees it, although the hook lives as long as the loss
            if gradient is not None:
                gradient = gradient * factor.to(gradient.dtype)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _step(self, attacker_optimizer: Optimizer) -> None:
        if skips_step(attacker_optimizer):
            return self.discard()
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if not gradients:
            return
        if self.processes.world_size > 1:
            for gradient in gradients:
                gradient.copy_(self.processes.total(gradient) / self.processes.world_size)
        finite = self._loss_scale == 1 or all_finite(gradients)
        if finite:
            if self.max_grad_norm is not None:
                clip_grad_norm_(self._trained, self.max_grad_norm)
            for ours, theirs in zip(self.optimizer.param_groups, self.attacker_optimizer.param_groups, strict=True):
                ours.update({name: value for name, value in theirs.items() if name != "params"})
            self.before_step()
            self.optimizer.step()
        self.discard()


def _twin(optimizer: Optimizer, pairs: Sequence[Pair]) -> Optimizer:
    """Create an optimizer of the same type for the second parameter of each pair, with a copy of the state."""
    counterpart: dict[Any, nn.Parameter] = {theirs: ours for theirs, ours in pairs}
    lost = [p for group in optimizer.param_groups for p in group["params"] if p not in counterpart]
    if lost:
        raise AttendropError(
            f"The optimizer has a parameter of shape {tuple(lost[0].shape)} that is not in the model; pass the model "
            "and its own optimizer to regularize."
        )
    twin = copy.copy(optimizer)  # torch copies settings and groups, but no hooks and no wrappers of a scheduler
    twin.param_groups = [
        {**group, "params": [counterpart[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    twin.state = defaultdict(dict)
    for name, value in vars(optimizer).items():  # further attributes of an optimizer class
        if name not in vars(twin) and name != "step":
            setattr(twin, name, value)
    _copy_state(optimizer, twin, pairs)
    return twin


@torch.no_grad()
def _copy_tensors(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _copy_state(source: Optimizer, target: Optimizer, pairs: Sequence[Pair]) -> None:
    for theirs, ours in pairs:
        state = source.state.get(theirs)
        if state is None:
            target.state.pop(ours, None)
        else:
            target.state[ours] = {name: _copied(value, theirs, ours) for name, value in state.items()}


def _copied(value: Any, source: Tensor, target: Tensor) -> Any:
    """Copy a value of an optimizer's state, to the device of ``target`` if it is on the device of ``source``."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return value.detach().to(target.device if value.device == source.device else value.device, copy=True)
