"""Models whose parameters ``torch.distributed.fsdp.fully_shard`` (FSDP2) divides among processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import distributed, nn

from attendrop.errors import AttendropError


def sharding_mesh(model: nn.Module) -> Any:
    """Return the device mesh over which a model's parameters are divided; None for a model that is whole.

    Raises:
        AttendropError: They are divided over a mesh of several dimensions, or otherwise than by ``fully_shard``.
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
