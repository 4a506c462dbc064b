"""Devices and processes on which models are trained: gradient scalers with fused optimizers, and FSDP2.

A gradient scaler divides the gradients by the scale, and skips the step if one is infinite or NaN; it leaves both to an
optimizer with a fused kernel. Hooks before a step are called before either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from attendrop.errors import AttendropError

# These devices have no 64-bit floating-point numbers, in which counts are multiplied by fractions, and metrics summed.
_WITHOUT_DOUBLES = ("mps",)


def compute_device(device: str) -> torch.device:
    """Return the device that ``"auto"`` or ``"cpu"`` means on this machine; Apple's GPUs are not used."""
    if device == "cpu":
        return torch.device("cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return torch.device("cpu") if accelerator is None or accelerator.type in _WITHOUT_DOUBLES else accelerator


def refuse_device(device: torch.device) -> None:
    """Raise AttendropError for a device on which no method can train."""
    if device.type in _WITHOUT_DOUBLES:
        raise AttendropError(
            "Apple's GPUs (MPS) have no 64-bit floating-point numbers, which the library needs; train on the CPU, in a "
            "trainer with TrainingArguments(use_cpu=True)."
        )


def before_step(optimizer: Optimizer, act: Callable[[], None]) -> RemovableHandle:
    """Call a function before each step of an optimizer, when its gradients are known: after the step's closure, if any.

    Lightning passes a closure to each step. Returns the handle that ends this.
    """

    def enter(_: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first argument is the optimizer
        if closure is None:
            act()
            return args, kwargs

        def acting() -> Any:
            loss = closure()
            act()
            return loss

        if len(args) > 1:
            return (args[0], acting, *args[2:]), kwargs
        return args, {**kwargs, "closure": acting}

    return optimizer.register_step_pre_hook(enter)


def skips_step(optimizer: Optimizer) -> bool:
    """Return, in a hook before a step, whether the optimizer will skip it. May wait for the device."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


@torch.no_grad()
def unscale(optimizer: Optimizer) -> None:
    """Unscale the gradients in a hook before a step, as the optimizer would do in the step."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]


def sharding_mesh(model: nn.Module) -> Any:
    """Return the device mesh over which a model's parameters are divided; None for a model that is whole.

    Raises:
        AttendropError: They are divided over a mesh of several dimensions, or by other means than ``fully_shard``.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    mesh = next((each.device_mesh for each in model.parameters() if isinstance(each, DTensor)), None)
    if mesh is not None and (mesh.ndim > 1 or not any(isinstance(module, FSDPModule) for module in model.modules())):
        raise AttendropError(
            f"The parameters of {type(model).__name__} are divided among processes over several dimensions, or "
            "otherwise than by fully_shard (FSDP2); divide them by fully_shard over a mesh of one dimension."
        )
    return mesh


def true_everywhere(model: nn.Module, value: bool) -> bool:
    """Return whether a value is true in all processes among which a model is divided, and which run it together."""
    mesh = sharding_mesh(model)
    if mesh is None:
        return value
    found = torch.tensor(int(value), device=mesh.device_type)
    distributed.all_reduce(found, distributed.ReduceOp.MIN, group=mesh.get_group())
    return bool(found)


def gathered(value: Any, group: Any = None) -> list[Any]:
    """Return what the processes of a group pass, in the order of their ranks."""
    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, value, group=group)
    return found
