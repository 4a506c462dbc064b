"""A second copy of the model, trained on the same batches with an optimizer of the same type."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from attendrop.attention.plan import Plan
from attendrop.attribution.finite_gradients import all_finite
from attendrop.extend import AttendropError, ComputeLoss, SampleKey, StepContext, TrainingContext, forked_rng
from attendrop.support.models import skips_step, to_device, trained_tensors

Pair = tuple[nn.Parameter, nn.Parameter]


class SecondModel:
    """Copy of the trained model with its own optimizer, which :meth:`step` calls before the first model's steps.

    Frozen parameters are shared with the first model, unless the copy is on another device: with an adapter, only the
    adapter and the head exist twice. To freeze or unfreeze one later is refused. The other methods of a composition act
    on the copy, too.

    The gradients of each micro-batch have the same weight as the first model's: the factor by which the training loop
    multiplies the first model's loss (accumulation), read from the gradient that reaches this loss. The learning rate
    and all other settings are the first model's at that step; gradients are clipped by their own norm.

    The copy is on ``device``: a name, ``"next"``, or empty for the first model's. ``pairs`` are the parameters of the
    first model, each with that of the copy.
    """

    def __init__(self, training: TrainingContext, device: str) -> None:
        assert training.optimizer is not None
        self.training = training
        self.first = training.model
        own = {"forward": None} | vars(self.first)
        forward = own.get("_original_forward", own["forward"])  # accelerate wraps that one
        if forward is not None and getattr(forward, "__func__", None) is not type(self.first).forward:
            raise AttendropError(
                f"The forward pass of {type(self.first).__name__} was replaced, as by trl's trainers, and a copy of "
                "the model, which AttendOut trains as well, would run without it; use another method."
            )
        self.first_optimizer = training.optimizer
        here = next(self.first.parameters()).device
        there = _device(device, training) if device else here
        elsewhere = there != here
        frozen = [parameter for parameter in self.first.parameters() if not parameter.requires_grad]
        self.model: nn.Module = plain_copy(self.first, shared=() if elsewhere else frozen)
        self.model.to(there)
        self.device = next(self.model.parameters()).device
        self.pairs: list[Pair] = list(zip(self.first.parameters(), self.model.parameters(), strict=True))
        self.optimizer = _twin(self.first_optimizer, self.pairs)
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._frozen = {id(parameter) for parameter in frozen}
        self._found: list[Tensor | None] = []
        self._loss_scale = 1.0
        self._before_step = training.act_on_second_model(self.model)

    def backward(self, context: StepContext, compute_loss: ComputeLoss, plan: Plan | None = None) -> None:
        """Compute the gradients of one micro-batch, with the first model's random numbers; see :meth:`follow`."""
        if not torch.is_grad_enabled():
            raise AttendropError(
                "The loss also trains a second model, and gradients are off: switch them on to train, or call "
                "model.eval() to evaluate."
            )
        changed = [name for name, p in self.first.named_parameters() if p.requires_grad == (id(p) in self._frozen)]
        if changed:
            raise AttendropError(
                f"{changed[0]!r} was frozen or unfrozen after AttendOut had copied the model, and the copy trains the "
                "same parameters; choose what is frozen before training."
            )
        for theirs, ours in zip(self.first.modules(), self.model.modules(), strict=True):
            ours.training = theirs.training
        with forked_rng(self.first):
            if self.device != next(self.first.parameters()).device:
                seed_device(self.device, context.key)
            loss, _ = compute_loss(to_device(context.batch, self.device), plan, self.model)
            self._loss_scale = context.loss_scale
            self._found = list(torch.autograd.grad(loss * self._loss_scale, self._trained, allow_unused=True))

    def follow(self, loss: Tensor) -> None:
        """Accumulate the gradients of the micro-batch with the weight that the loop gives to the first model's loss."""
        found, self._found = self._found, []
        if loss.requires_grad:
            loss.register_hook(lambda weight: self._add(found, weight))  # type: ignore[no-untyped-call]

    def discard(self) -> None:
        """Discard all gradients, including those of a step that the first model skipped under float16."""
        for parameter in self._trained:
            parameter.grad = None

    def merge(self, *, first_survives: bool) -> None:
        """Copy weights and optimizer state of the model that survives to the other one."""
        if first_survives:
            _copy_tensors(trained_tensors(self.first), trained_tensors(self.model))
            _copy_state(self.first_optimizer, self.optimizer, self.pairs)
        else:
            _copy_tensors(trained_tensors(self.model), trained_tensors(self.first))
            _copy_state(self.optimizer, self.first_optimizer, [(theirs, ours) for ours, theirs in self.pairs])

    def state_dict(self) -> dict[str, Any]:
        """Return what is trained, and the optimizer state."""
        trained = {name: tensor.detach() for name, tensor in trained_tensors(self.model).items()}
        return {"model": trained, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`."""
        _copy_tensors(state["model"], trained_tensors(self.model))
        self.optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        """Free the own optimizer's state."""
        self.optimizer.state.clear()
        self.discard()

    @torch.no_grad()
    def _add(self, found: list[Tensor | None], weight: Tensor) -> None:
        """Accumulate the gradients of a micro-batch, given the gradient that reached the first model's loss.

        That gradient is the loop's factor times the loss scale; the micro-batch's gradients include the scale, too.
        """
        if not found:
            raise AttendropError(
                "The loss was differentiated twice, and the gradients of the second model are freed after the first "
                "time; differentiate it once."
            )
        factor = weight.to(self.device) / self._loss_scale**2
        for parameter in reversed(self._trained):
            gradient = found.pop()  # frees it, although the hook lives as long as the loss
            if gradient is not None:
                gradient = gradient * factor.to(gradient.dtype)
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def step(self) -> None:
        """Take a step, unless the first model skips its own; called just before that."""
        if skips_step(self.first_optimizer):
            return self.discard()
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        if not gradients:
            return
        processes = self.training.processes
        if processes.world_size > 1:
            for gradient in gradients:
                gradient.copy_(processes.total(gradient) / processes.world_size)
        if self._loss_scale == 1 or all_finite(gradients):
            if self.training.max_grad_norm is not None:
                clip_grad_norm_(self._trained, self.training.max_grad_norm)
            for ours, theirs in zip(self.optimizer.param_groups, self.first_optimizer.param_groups, strict=True):
                ours.update({name: value for name, value in theirs.items() if name != "params"})
            self._before_step()
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
    """Copy the state of the first parameter of each pair to the second; what is on its device goes to the other's."""
    for theirs, ours in pairs:
        target.state.pop(ours, None)
        for name, value in source.state.get(theirs, {}).items():
            if isinstance(value, Tensor):
                device = ours.device if value.device == theirs.device else value.device
                target.state[ours][name] = value.detach().to(device, copy=True)
            else:
                target.state[ours][name] = copy.deepcopy(value)


def seed_device(device: torch.device, key: SampleKey) -> None:
    """Seed the dropout on a device that only the copy uses: its random state is not in checkpoints."""
    seed = key.seeds("defender", key.rows)[0] % 2**63
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _device(name: str, training: TrainingContext) -> torch.device:
    """Return the device of the copy; raise AttendropError if there is no such device."""
    number = training.processes.world_size + training.processes.rank
    device = torch.device("cuda", number) if name == "next" else torch.device(name)
    if device.type != "cpu":
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        count = torch.accelerator.device_count() if found is not None and found.type == device.type else 0
        if (device.index or 0) >= count:
            raise AttendropError(
                f"defender_device={name!r}: there is no device {device}; this machine has {count} of type "
                f"{device.type}. Leave the option empty to train both models on the same device."
            )
    return device


def plain_copy(model: nn.Module, shared: Iterable[nn.Parameter] = ()) -> Any:
    """Copy a model except for ``shared`` parameters, without accelerate's wrapper of ``forward`` of the original."""
    copied = copy.deepcopy(model, {id(parameter): parameter for parameter in shared})
    for name in ("forward", "_original_forward"):
        copied.__dict__.pop(name, None)
    return copied
