"""Optimizers with a fused kernel under a gradient scaler.

A gradient scaler leaves to them what it does itself for others: they divide the gradients by the scale, and skip the
step where a gradient is infinite or NaN. Hooks before a step are called before either.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


def skips_step(optimizer: Optimizer) -> bool:
    """Tell, in a hook before a step, whether the optimizer will skip it. Waits for the device if it has the answer."""
    found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf)


@torch.no_grad()
def unscale(optimizer: Optimizer) -> None:
    """Divide the gradients, in a hook before a step, by the scale by which the optimizer would divide them in it."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(scale.to(parameter.grad.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]
