"""Isolation of extra passes: random states, buffers, training modes and precision are restored afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType

import numpy as np
import torch
from torch import Tensor, nn


@contextmanager
def forked_rng(model: nn.Module) -> Iterator[None]:
    """Restore the random states of torch, numpy and Python, and the model's buffers, after an extra pass.

    Weights that autocast cast without gradients are not used again.
    """
    device = next(model.parameters()).device
    devices = [] if device.type == "cpu" else [device]
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices, device_type=device.type if devices else "cuda"), _copied_buffers(model):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            if not torch.is_grad_enabled():  # older versions of PyTorch would train through the cached weights
                torch.clear_autocast_cache()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module in evaluation mode within the block, and restore its mode afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def in_full_precision(model: nn.Module) -> Iterator[None]:
    """Run a model without autocast within the block, in the precision of its weights.

    This includes models whose ``forward`` accelerate has wrapped for mixed precision, which would switch autocast on
    again.
    """
    prepared = "_original_forward" in vars(model)
    wrapper = vars(model).pop("forward") if prepared else None
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        if prepared:
            vars(model)["forward"] = wrapper


@contextmanager
def in_precision_of(prepared: nn.Module, model: nn.Module) -> Iterator[None]:
    """Run a copy of a model within the block in the mixed precision that accelerate has wrapped the model for."""
    function = getattr(vars(prepared).get("forward"), "__func__", None)
    if function is None or "_original_forward" not in vars(prepared):
        yield
        return
    vars(model)["forward"] = MethodType(function, model)
    try:
        yield
    finally:
        del vars(model)["forward"]


@contextmanager
def _copied_buffers(model: nn.Module) -> Iterator[None]:
    """Replace the model's buffers by copies within the block.

    The originals are put aside rather than written back, which would invalidate a graph that has saved them. A buffer
    that a module replaces by another (rotary embeddings do for longer inputs) stays replaced.
    """
    copies: dict[Tensor, Tensor] = {}
    places = [(m, name, buffer) for m in model.modules() for name, buffer in m._buffers.items() if buffer is not None]
    for module, name, buffer in places:
        module._buffers[name] = copies.setdefault(buffer, buffer.clone())
    try:
        yield
    finally:
        for module, name, buffer in places:
            if module._buffers.get(name) is copies[buffer]:
                module._buffers[name] = buffer
