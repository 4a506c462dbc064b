"""D-Net: a second copy of the model, trained on the same batches by an optimizer of the same kind."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attendrop.errors import AttendropError
from attendrop.methods.attend_out.generator import plain_copy
from attendrop.methods.core.context import Processes

Pair = tuple[nn.Parameter, nn.Parameter]


class Defender:
    """The copy and its optimizer, which takes a step whenever that of the attacker takes one.

    The gradients of each micro-batch are weighted as the attacker's are: by what the training loop multiplies the
    attacker's loss by (accumulation), which is learnt from the gradient that reaches this loss. Learning rate and all
    other settings are the attacker's at that step; gradients are clipped by their own norm.

    Args:
        attacker: The model that trains, without wrappers.
        optimizer: Its optimizer.
        max_grad_norm: The norm to clip to; None does not clip.
        processes: Those that train together; gradients are averaged over them.
        device: Where the copy lives; None: where the attacker does.

    Attributes:
        before_step: Called just before each step of its optimizer, with gradients ready.
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
        self.model: nn.Module = plain_copy(attacker)
        if device is not None:
            self.model.to(device)
        self.pairs: list[Pair] = list(zip(attacker.parameters(), self.model.parameters(), strict=True))
        self.optimizer = _twin(optimizer, self.pairs)
        self.max_grad_norm = max_grad_norm
        self.processes = processes or Processes()
        self.before_step: Callable[[], None] = lambda: None
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._found: list[Tensor | None] = []
        self._loss_scale = 1.0
        self._hook = optimizer.register_step_pre_hook(lambda *_: self._step())

    @property
    def device(self) -> torch.device:
        """Where the copy lives."""
        return next(self.model.parameters()).device

    def backward(self, loss: Tensor, loss_scale: float) -> None:
        """Compute the gradients of one micro-batch; they count once their weight is known, see :meth:`follow`."""
        self._loss_scale = loss_scale
        self._found = list(torch.autograd.grad(loss * loss_scale, self._trained, allow_unused=True))

    def follow(self, loss: Tensor) -> None:
        """Weight the gradients of the micro-batch as the loop will weight this loss of the attacker."""
        found, self._found = self._found, []
        if loss.requires_grad:
            loss.register_hook(lambda weight: self._add(found, weight))  # type: ignore[no-untyped-call]

    def discard(self) -> None:
        """Let go of gradients, also those of a step that float16 made the attacker skip."""
        for parameter in self._trained:
            parameter.grad = None

    def take_from_attacker(self) -> None:
        """Become what the attacker is, optimizer state included."""
        _copy_weights(self.attacker, self.model)
        _copy_state(self.attacker_optimizer, self.optimizer, self.pairs)

    def give_to_attacker(self) -> None:
        """Make the attacker what this is, optimizer state included."""
        _copy_weights(self.model, self.attacker)
        _copy_state(self.optimizer, self.attacker_optimizer, [(theirs, ours) for ours, theirs in self.pairs])

    def state_dict(self) -> dict[str, Any]:
        """Weights, buffers and optimizer state."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """No longer follow the attacker's optimizer; lets go of the optimizer's state."""
        self._hook.remove()
        self.optimizer.state.clear()
        self.discard()

    @torch.no_grad()
    def _add(self, found: list[Tensor | None], weight: Tensor) -> None:
        """Add up the gradients of a micro-batch, given the gradient that reached the attacker's loss.

        That is the loop's own factor times the loss scale; the gradients carry the scale, too.
        """
        factor = weight.to(self.device) / self._loss_scale**2
        for parameter in reversed(self._trained):
            gradient = found.pop()  # which lets go of it, though the hook lives as long as the loss
            if gradient is not None:
                gradient = gradient * factor.to(gradient.dtype)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def _step(self) -> None:
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if not gradients:
            return
        if self.processes.world_size > 1:
            for gradient in gradients:
                gradient.copy_(self.processes.total(gradient) / self.processes.world_size)
        finite = self._loss_scale == 1 or all(bool(gradient.isfinite().all()) for gradient in gradients)
        if finite:
            if self.max_grad_norm is not None:
                clip_grad_norm_(self._trained, self.max_grad_norm)
            for ours, theirs in zip(self.optimizer.param_groups, self.attacker_optimizer.param_groups, strict=True):
                ours.update({name: value for name, value in theirs.items() if name != "params"})
            self.before_step()
            self.optimizer.step()
        self.discard()


def _twin(optimizer: Optimizer, pairs: Sequence[Pair]) -> Optimizer:
    """Make an optimizer of the same kind for the second parameter of each pair; copies the state so far."""
    counterpart: dict[Any, nn.Parameter] = {theirs: ours for theirs, ours in pairs}
    lost = [p for group in optimizer.param_groups for p in group["params"] if p not in counterpart]
    if lost:
        raise AttendropError(
            f"The optimizer trains a parameter of shape {tuple(lost[0].shape)} that is not the model's; give the model "
            "itself to regularize, and its own optimizer."
        )
    twin = copy.copy(optimizer)  # torch copies settings and groups, but neither hooks nor what a scheduler wrapped
    twin.param_groups = [
        {**group, "params": [counterpart[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    twin.state = defaultdict(dict)
    for name, value in vars(optimizer).items():  # what a kind of optimizer keeps beside
        if name not in vars(twin) and name != "step":
            setattr(twin, name, value)
    _copy_state(optimizer, twin, pairs)
    return twin


@torch.no_grad()
def _copy_weights(source: nn.Module, target: nn.Module) -> None:
    for tensors in (nn.Module.parameters, nn.Module.buffers):
        for ours, theirs in zip(tensors(target), tensors(source), strict=True):
            ours.copy_(theirs)


def _copy_state(source: Optimizer, target: Optimizer, pairs: Sequence[Pair]) -> None:
    for theirs, ours in pairs:
        state = source.state.get(theirs)
        if state is None:
            target.state.pop(ours, None)
        else:
            target.state[ours] = {name: _copied(value, theirs, ours) for name, value in state.items()}


def _copied(value: Any, source: Tensor, target: Tensor) -> Any:
    """A copy of one value of an optimizer's state, where ``target`` is if it was where ``source`` is."""
    if not isinstance(value, Tensor):
        return copy.deepcopy(value)
    return value.detach().to(target.device if value.device == source.device else value.device, copy=True)
