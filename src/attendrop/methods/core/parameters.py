"""Parameters of a model: replaced or mixed in a pass, restored to the start of training, selected by their role."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.blocks import input_dim, is_projection
from attendrop.attention.hooks import ModuleHooks
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.randomness.device_path import on_cpu
from attendrop.randomness.keyed_random import sample_parameter_mask, sample_small_masks
from attendrop.support.models import Batch, trained_tensors, transformers_model


class ParameterOverride:
    """Override of parameters by a function of them while their module, or the whole model, runs in training mode.

    Parameters stay registered under their names, for checkpoints, the optimizer and DDP. Gradients reach them through
    the function.

    Args:
        model: The model.
        names: Names of the parameters.
        function: Maps a parameter's name and the parameter to its replacement. Activation checkpointing calls it again
            in the backward pass: it must then return the same.
        throughout: Whether to override them while the whole model runs, for modules that read parameters of others
            (DeBERTa). The function must then be one that saves nothing for the backward pass, such as a sum.
    """

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        function: Callable[[str, nn.Parameter], Tensor],
        *,
        throughout: bool = False,
    ) -> None:
        self._hooks = ModuleHooks()
        self._function = function
        self._running: nn.Module | None = None  # the module that runs with parameters overridden at present
        self._places = places = [(model.get_submodule(name.rpartition(".")[0]), name) for name in names]
        # A pass that ended within a module, as by a KeyboardInterrupt, left parameters overridden: no hook was called.
        self._hooks.before(model, lambda *_: self._restore())
        for module in dict.fromkeys(module for module, _ in places):
            self._override_in(module, [place for place in places if place[0] is module])
        if throughout:
            blocks = (module for module in model.modules() if hasattr(module, "gradient_checkpointing"))
            for module in dict.fromkeys([model, *blocks]):
                below = {*module.modules()}
                self._override_in(module, [place for place in places if place[0] in below])

    def close(self) -> None:
        """Remove the hooks. Idempotent."""
        self._hooks.close()
        self._restore()

    def _restore(self) -> None:
        if self._running is not None:
            self._running = None
            for module, name in self._places:
                module.__dict__.pop(name.rpartition(".")[2], None)

    def _override_in(self, whole: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
        """Override the parameters at ``places``, each a module and the parameter's name, while ``whole`` runs."""

        def enter(_: nn.Module, args: Any) -> None:
            if self._running is None:
                self._running = whole
                for module, name in places:
                    own = name.rpartition(".")[2]
                    parameter = module._parameters[own]
                    if module.training and parameter is not None:
                        # Attribute lookup finds instance attributes before parameters.
                        module.__dict__[own] = self._function(name, parameter)

        def leave(_: nn.Module, args: Any, output: Any) -> None:
            if self._running is whole:
                self._restore()

        self._hooks.before(whole, enter)
        self._hooks.after(whole, leave, always_call=True)


class WeightMixing(MethodState):
    """State of a method that replaces random elements of weights by fixed values, with unchanged expectation.

    An element of ``W`` becomes its value in the target ``T`` with probability ``p``, the method's option, and ``(W - p
    T) / (1 - p)`` otherwise; all weights of an input neuron together if ``by_neuron``. One sample is used for all
    passes, micro-batches and processes of an optimizer step.
    """

    def __init__(self, method: Any, training: TrainingContext, *, by_neuron: bool = False) -> None:
        super().__init__(method)
        self.model = training.model
        self.p: float = method.p
        self.by_neuron = by_neuron
        self.names: list[str] | None = None
        self.targets: Mapping[str, Tensor] = {}
        self._swapped: list[ParameterOverride] = []
        self._models = [training.model]
        self._seed_and_step = (0, 0)
        self._masks: dict[tuple[str, torch.device], Tensor] = {}

    def choose(self, context: StepContext) -> list[str]:
        """Return the names of the weights to act on."""
        raise NotImplementedError

    def batch(self, context: StepContext) -> Batch:
        if self.names is None:
            self.names = self.choose(context)
            self._swapped = [ParameterOverride(model, self.names, self._mixed) for model in self._models]
        now = (context.key.seed, context.key.step)
        if now != self._seed_and_step:
            self._masks.clear()
        self._seed_and_step = now
        return context.batch

    def act_on_second_model(self, model: nn.Module) -> None:
        self._models.append(model)
        if self.names is not None:
            self._swapped.append(ParameterOverride(model, self.names, self._mixed))

    def after_step(self, steps_taken: int) -> dict[str, float]:
        self._masks.clear()
        return {}

    def close(self) -> None:
        for swapped in self._swapped:
            swapped.close()
        self._swapped.clear()
        self._masks.clear()

    def _mixed(self, name: str, weight: nn.Parameter) -> Tensor:
        target, key = self.targets.get(name), (name, weight.device)
        if self.by_neuron and not on_cpu(weight.device):
            if key not in self._masks:
                self._sample_neurons(weight)
            kept = self._masks[key]
            # One kernel each for the pass and its gradient.
            return kept * weight if target is None else torch.lerp(target.to(weight), weight, kept)
        if key not in self._masks:
            # Another network may run before this step's pass; it uses the masks of its own step.
            place, shape = f"{self.method.name}/{name}", self._mask_shape(name)
            self._masks[key] = sample_parameter_mask(self.p, *self._seed_and_step, place, shape, weight.device)
        return _Mix.apply(weight, self._masks[key], target, self.p)  # type: ignore[no-any-return, no-untyped-call]

    def _sample_neurons(self, weight: Tensor) -> None:
        """Sample which neurons of all weights are kept, and the factor of those, in a few kernels."""
        names = self.names or []
        shapes = [self._mask_shape(name) for name in names]
        keys = [f"{self.method.name}/{name}" for name in names]
        mask = sample_small_masks(self.p, *self._seed_and_step, keys, [math.prod(shape) for shape in shapes])
        kept = mask.to(weight.device, non_blocking=True).logical_not().to(weight.dtype).mul_(1 / (1 - self.p))
        parts = torch.split(kept, [math.prod(shape) for shape in shapes])
        for name, shape, part in zip(names, shapes, parts, strict=True):
            self._masks[name, weight.device] = part.view(*shape)

    def _mask_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight's mask, which is broadcast over it."""
        shape = self.model.get_parameter(name).shape
        if not self.by_neuron:
            return shape
        module = self.model.get_submodule(name.rpartition(".")[0])
        return (shape[0], 1) if input_dim(module) == 0 else (1, shape[1])


class _Mix(torch.autograd.Function):
    """Compute ``where(mask, T, (W - p T) / (1 - p))``; ``T`` is zero if None."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, mask: Tensor, target: Tensor | None, p: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.p = p
        kept = mask.logical_not().to(weight.dtype).mul_(1 / (1 - p))
        if target is None:
            return kept * weight
        target = target.to(weight)
        return torch.addcmul(target, weight - target, kept)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None, None]:
        (mask,) = ctx.saved_tensors
        kept = mask.logical_not().to(gradients[0].dtype).mul_(1 / (1 - ctx.p))
        return kept * gradients[0], None, None, None


class InitialState:
    """Copy of the initial weights of a model that training changes, on the CPU, and of the state of its optimizer.

    Raises:
        AttendropError: The optimizer or the number of planned steps is unknown.
    """

    def __init__(self, method: Method, training: TrainingContext) -> None:
        if training.optimizer is None or training.total_steps is None:
            missing = "optimizer" if training.optimizer is None else "total_steps"
            raise AttendropError(
                f"Method '{method.name}' restarts training from the initial weights: pass {missing}, "
                f"regularize(..., {missing}={missing})."
            )
        self.model = training.model
        self.on_rewind = training.on_rewind
        self.optimizer: torch.optim.Optimizer = training.optimizer
        self.steps: int = training.total_steps
        self.weights: dict[str, Tensor] = {
            name: value.detach().to("cpu", copy=True) for name, value in trained_tensors(self.model).items()
        }
        self.optimizer_state: dict[int, Any] = copy.deepcopy(self.optimizer.state_dict()["state"])

    @torch.no_grad()
    def rewind(self) -> None:
        """Restore the initial weights and optimizer state, once; AttendropError if others are trainable by now."""
        tensors = trained_tensors(self.model)
        if changed := tensors.keys() ^ self.weights.keys():
            name = min(changed)
            raise AttendropError(
                f"'{name}' was {'unfrozen' if name in tensors else 'frozen'} since training began, which cannot start "
                "again from such weights; freeze and unfreeze before training, or after it has started again."
            )
        for name, value in tensors.items():
            value.copy_(self.weights[name])
        self.optimizer.state.clear()
        if self.optimizer_state:
            groups = self.optimizer.state_dict()["param_groups"]
            self.optimizer.load_state_dict({"state": self.optimizer_state, "param_groups": groups})
        self.weights, self.optimizer_state = {}, {}  # which are no longer needed
        for forget in self.on_rewind:
            forget()

    def state_dict(self) -> dict[str, Any]:
        """Return the initial weights and optimizer state."""
        return {"weights": dict(self.weights), "optimizer": self.optimizer_state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the copies of an interrupted run."""
        self.weights, self.optimizer_state = dict(state["weights"]), dict(state["optimizer"])


def projection_weights(model: nn.Module) -> list[str]:
    """Return the names of the trainable weights of linear layers, except for the head, which is not pre-trained."""
    known = {name for name, _ in model.named_parameters()}  # a shared parameter has one name
    found = []
    for name, module in below_the_head(model):
        weight = module._parameters.get("weight")
        if is_projection(module) and weight is not None and weight.requires_grad and f"{name}.weight" in known:
            found.append(f"{name}.weight")
    return found


def pretrained_parameters(model: nn.Module) -> list[str]:
    """Return the names of all parameters except those of the head, which is not pre-trained."""
    own = transformers_model(model)
    found = set(getattr(own, "base_model", own).parameters(recurse=False))
    found.update(parameter for _, module in below_the_head(model) for parameter in module.parameters(recurse=False))
    return [name for name, parameter in model.named_parameters() if parameter in found]


def below_the_head(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the modules of the pre-trained part, with their names in the whole model."""
    from transformers import PreTrainedModel

    own = transformers_model(model)
    base = getattr(own, "base_model", own)
    prefix = next((f"{name}." if name else "" for name, module in model.named_modules() if module is base), "")
    output: Any = own.get_output_embeddings() if isinstance(own, PreTrainedModel) else None  # type: ignore[no-untyped-call]
    for name, module in base.named_modules():
        if name and module is not output:
            yield f"{prefix}{name}", module
