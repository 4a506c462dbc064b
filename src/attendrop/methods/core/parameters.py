"""Parameters of a model: replaced or mixed in a pass, restored to the start of training, selected by their role."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attendrop.attention.blocks import input_dim, is_projection
from attendrop.attention.hooks import ModuleHooks, recomputed_within
from attendrop.errors import AttendropError
from attendrop.methods.core.base import Method, MethodState
from attendrop.methods.core.context import StepContext, TrainingContext
from attendrop.randomness.device_path import on_cpu
from attendrop.randomness.keyed_random import sample_parameter_mask, sample_small_masks
from attendrop.support.models import Batch, trained_tensors, transformers_model


class ParameterOverride:
    """Override of parameters by a function of them while the block that they belong to runs in training mode.

    Parameters stay registered under their names, for checkpoints, the optimizer and DDP. Gradients reach them through
    the function.

    Args:
        model: The model.
        names: Names of the parameters.
        function: Maps parameters by name, those of a block, to their replacements. Activation checkpointing calls it
            again in the backward pass: it must then return the same.
        throughout: Whether to override them while the whole model runs, for modules that read parameters of others
            (DeBERTa). The function must then be one that saves nothing for the backward pass, such as a sum.
    """

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        function: Callable[[Mapping[str, nn.Parameter]], Mapping[str, Tensor]],
        *,
        throughout: bool = False,
    ) -> None:
        self._hooks = ModuleHooks()
        self._function = function
        # By what runs at present: what is overridden in it, and what is to be when it runs again.
        self._overridden: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        self._checkpoints: dict[nn.Module, ExitStack] = {}
        # A pass that ended within a module, as by a KeyboardInterrupt, left parameters overridden: no hook was called.
        self._hooks.before(model, lambda *_: self._end())
        # What may run again in the backward pass must be overridden then, too: no block within a block is left out.
        lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
        blocks = {block for blocks in lists for block in blocks}
        blocks |= {module for module in model.modules() if hasattr(module, "gradient_checkpointing")} - {model}
        around = {part: block for block in model.modules() if block in blocks for part in block.modules()}
        places: dict[nn.Module, dict[str, nn.Module]] = {}
        for name in names:
            module = model.get_submodule(name.rpartition(".")[0])
            places.setdefault(around.get(module, module), {})[name] = module
        if throughout:
            every = {name: module for own in places.values() for name, module in own.items()}
            wholes = {whole: {*whole.modules()} for whole in (model, *around.values())}
            places = {
                whole: {name: module for name, module in every.items() if module in below}
                for whole, below in wholes.items()
            }
        for whole, own in places.items():
            self._override_in(whole, own)

    def close(self) -> None:
        """Remove the hooks. Idempotent."""
        self._hooks.close()
        self._end()

    def _end(self) -> None:
        for whole in list(self._checkpoints):
            self._leave(whole)

    def _leave(self, whole: nn.Module) -> None:
        self._restore(whole)
        self._checkpoints.pop(whole).close()

    def _restore(self, whole: nn.Module) -> None:
        for module, own in self._overridden.pop(whole, ()):
            module.__dict__.pop(own, None)

    def _override_in(self, whole: nn.Module, places: Mapping[str, nn.Module]) -> None:
        """Override the parameters at ``places``, by name, each of its module, while ``whole`` runs."""

        def override() -> None:
            found: dict[str, nn.Parameter] = {}
            for name, module in places.items():
                own = name.rpartition(".")[2]
                parameter = module._parameters[own]
                if module.training and parameter is not None and own not in module.__dict__:
                    found[name] = parameter
            if found:
                self._overridden[whole] = [(places[name], name.rpartition(".")[2]) for name in found]
                for name, tensor in self._function(found).items():
                    # Attribute lookup finds instance attributes before parameters.
                    places[name].__dict__[name.rpartition(".")[2]] = tensor

        @contextmanager
        def overridden() -> Iterator[None]:
            self._restore(whole)  # the same operations run the first time and again
            override()
            try:
                yield
            finally:
                self._restore(whole)

        def enter(_: nn.Module, args: Any) -> None:
            stack = self._checkpoints[whole] = ExitStack()
            override()
            # From transformers 5.24 on, a block that runs again in the backward pass does so without its own hooks.
            stack.enter_context(recomputed_within(whole, overridden))

        self._hooks.before(whole, enter)
        self._hooks.after(whole, lambda *_: self._leave(whole), always_call=True)


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
        self._kept: dict[tuple[str, torch.device], Tensor] = {}  # 0 where replaced, else 1 / (1 - p)

    def choose(self, context: StepContext) -> list[str]:
        """Return the names of the weights to act on; by default, those with a target."""
        return list(self.targets)

    def batch(self, context: StepContext) -> Batch:
        if self.names is None:
            self.names = self.choose(context)
            self._swapped = [ParameterOverride(model, self.names, self._mixed) for model in self._models]
        now = (context.key.seed, context.key.step)
        if now != self._seed_and_step:
            self._kept.clear()
        self._seed_and_step = now
        return context.batch

    def act_on_second_model(self, model: nn.Module) -> None:
        self._models.append(model)
        if self.names is not None:
            self._swapped.append(ParameterOverride(model, self.names, self._mixed))

    def close(self) -> None:
        for swapped in self._swapped:
            swapped.close()
        self._swapped.clear()
        self._kept.clear()

    def _mixed(self, weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
        """Mix the weights of a block; on a GPU those of neurons by one kernel for a shape, and one for its gradient."""
        device, dtype = (first := next(iter(weights.values()))).device, first.dtype
        together = self.by_neuron and not on_cpu(device)
        if any((name, device) not in self._kept for name in weights):
            self._sample((self.names or []) if self.by_neuron else list(weights), device, dtype)
        alike: dict[Any, list[str]] = {}
        for name, own in weights.items():
            kind = own.shape, own.dtype, self._mask_shape(name), name in self.targets
            alike.setdefault(kind if together else name, []).append(name)
        found: dict[str, Tensor] = {}
        for names in alike.values():
            parts: list[list[Any]] = [[weights[name] for name in names], [self._kept[name, device] for name in names]]
            parts.append([self.targets[name] for name in names if name in self.targets])
            stacked: list[Any] = [torch.stack(each) if len(each) > 1 else next(iter(each), None) for each in parts]
            weight, kept, target = stacked
            kept = kept.to(weight.dtype)
            if target is None:
                mixed = kept * weight
            elif together:
                mixed = torch.lerp(target.to(weight), weight, kept)
            else:  # not in the same bits
                target = target.to(weight)
                mixed = torch.addcmul(target, weight - target, kept)
            found |= zip(names, mixed.unbind() if len(names) > 1 else [mixed], strict=True)
        return found

    def _sample(self, names: Sequence[str], device: torch.device, dtype: torch.dtype) -> None:
        """Sample what is kept of some weights, with its factor; of neurons in a few kernels for all weights."""
        # Another network may run before this step's pass; it uses the masks of its own step.
        keys, shapes = [f"{self.method.name}/{name}" for name in names], [*map(self._mask_shape, names)]
        sizes, step = [*map(math.prod, shapes)], self._seed_and_step
        if self.by_neuron:
            mask = sample_small_masks(self.p, *step, keys, sizes).to(device, non_blocking=True)
        else:
            masks = (sample_parameter_mask(self.p, *step, *each, device) for each in zip(keys, shapes, strict=True))
            mask = torch.cat([each.flatten() for each in masks])
        kept = mask.logical_not().to(dtype).mul_(1 / (1 - self.p))
        for name, shape, part in zip(names, shapes, torch.split(kept, sizes), strict=True):
            self._kept[name, device] = part.view(*shape)

    def _mask_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight's mask, which is broadcast over it."""
        shape = self.model.get_parameter(name).shape
        if not self.by_neuron:
            return shape
        module = self.model.get_submodule(name.rpartition(".")[0])
        return (shape[0], 1) if input_dim(module) == 0 else (1, shape[1])


class InitialState:
    """Copy of the initial weights of a model that training changes, on the CPU, and of the state of its optimizer.

    Raises AttendropError if the optimizer or the number of planned steps is unknown.
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
    found = {parameter for _, module in below_the_head(model) for parameter in module.parameters(recurse=False)}
    return [name for name, parameter in model.named_parameters() if parameter in found]


def below_the_head(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Iterate over the modules of the pre-trained part, with their names in the whole model."""
    from transformers import PreTrainedModel

    own = transformers_model(model)
    names = {module: name for name, module in model.named_modules()}
    output: Any = own.get_output_embeddings() if isinstance(own, PreTrainedModel) else None  # type: ignore[no-untyped-call]
    for module in dict.fromkeys(module for part in _pretrained_parts(own) or [own] for module in part.modules()):
        if module is not output:
            yield names[module], module


def _pretrained_parts(module: Any) -> list[nn.Module]:
    """Return the base models in a module: a class of one's own, or one like CLIP's classifier, has others for them."""
    from transformers import PreTrainedModel
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    module = transformers_model(module)  # of PEFT
    base: nn.Module = getattr(module, "base_model", module)
    bare = MODEL_MAPPING_NAMES.get(getattr(getattr(module, "config", None), "model_type", ""))
    if base is not module or type(module).__name__ == bare:
        return [base]
    inner = [part for child in module.children() for part in _pretrained_parts(child)]
    return inner or ([module] if isinstance(module, PreTrainedModel) else [])
