"""Gradients of activations that neither vanish nor overflow in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from attendrop.errors import AttendropError

NOT_FINITE = (
    "The attribution is not finite: training has diverged, or the model's activations are too large for float16. Lower "
    "the learning rate, or train in bfloat16."
)
# What is differentiated is multiplied by the first of these, so that float16 gradients do not vanish; where they
# overflow, by the next. Powers of two change no digit. The loss scale of the training would overflow: it is made for a
# mean over the batch, and starts at 65536, which float16 does not have.
_FACTORS = (2.0**10, 2.0**4, 2.0**-2, 2.0**-8)


def finite_gradients(compute: Callable[[float], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Compute gradients with the largest factor that does not overflow, and divide them by it.

    Args:
        compute: Function from a factor, by which it multiplies what it differentiates, to gradients. It is called again
            with a smaller factor while a gradient is not finite.

    Returns:
        The gradients, in float32 or better.

    Raises:
        AttendropError: No factor makes them finite.
    """
    for factor in _FACTORS:
        found = compute(factor)
        if all_finite(found.values()):
            return {key: wide(gradient) / factor for key, gradient in found.items()}
    raise AttendropError(NOT_FINITE)


def gradients_of(
    total: Tensor, keys: Sequence[str], units: Sequence[Tensor], *, keep_graph: bool = False
) -> dict[str, Tensor]:
    """Differentiate a scalar by each of ``units``, under the names ``keys``; zero where it does not depend on them."""
    found: Sequence[Tensor | None] = [None] * len(units)
    if units and total.requires_grad:  # not if the model has skipped all layers that the scalar reaches units through
        found = torch.autograd.grad(total, list(units), allow_unused=True, retain_graph=keep_graph)
    return {
        key: torch.zeros_like(unit) if grad is None else grad
        for key, unit, grad in zip(keys, units, found, strict=True)
    }


def all_finite(values: Iterable[Tensor]) -> bool:
    """Return whether no element is infinite or NaN."""
    found = [value.isfinite().all() for value in values]
    return not found or bool(torch.stack(found).all())


def wide(values: Tensor) -> Tensor:
    """Convert to float32, unless the dtype is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
