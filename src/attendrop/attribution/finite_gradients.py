"""Gradients of activations that neither vanish nor overflow in float16."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from attendrop.errors import AttendropError
from attendrop.support.models import true_everywhere

NOT_FINITE = (
    "The attribution is not finite: training has diverged, or the model's activations are too large for float16. Lower "
    "the learning rate, or train in bfloat16."
)
# Factors for what is differentiated: the first keeps float16 gradients from vanishing; where they overflow, the next is
# used. Powers of two are exact. The loss scale of the training would overflow: it is meant for a mean over the batch,
# and starts at 65536, which exceeds the range of float16.
_FACTORS = (2.0**10, 2.0**4, 2.0**-2, 2.0**-8)
_Found = TypeVar("_Found")


def first_finite(attempt: Callable[[float], _Found | None], model: nn.Module) -> _Found:
    """Return the result computed with the largest factor for which it is finite.

    Args:
        attempt: Function of a factor, by which it multiplies what it differentiates; returns None if a gradient is not
            finite. It is then called again with a smaller factor.
        model: The model that it runs. If several processes run it together, they take the same factor.

    Raises:
        AttendropError: No factor makes the gradients finite.
    """
    for factor in _FACTORS:
        found = attempt(factor)
        if true_everywhere(model, found is not None):
            assert found is not None
            return found
    raise AttendropError(NOT_FINITE)


def finite_gradients(compute: Callable[[float], dict[str, Tensor]], model: nn.Module) -> dict[str, Tensor]:
    """Return gradients that ``compute`` multiplies by a factor, divided by the largest for which none overflows.

    They are in float32 or better. See :func:`first_finite`.
    """

    def attempt(factor: float) -> dict[str, Tensor] | None:
        found = compute(factor)
        if not all_true(map(is_finite, found.values())):
            return None
        return {key: upcast(gradient) / factor for key, gradient in found.items()}

    return first_finite(attempt, model)


def gradients_of(
    total: Tensor, keys: Sequence[str], units: Sequence[Tensor], *, keep_graph: bool = False
) -> dict[str, Tensor]:
    """Differentiate a scalar by each of ``units``, under the names ``keys``; zero where it does not depend on them."""
    found: Sequence[Tensor | None] = [None] * len(units)
    if units and total.requires_grad:  # False if the model skipped all layers that link the scalar to units
        found = torch.autograd.grad(total, list(units), allow_unused=True, retain_graph=keep_graph)
    return {
        key: torch.zeros_like(unit) if grad is None else grad
        for key, unit, grad in zip(keys, units, found, strict=True)
    }


def is_finite(values: Tensor) -> Tensor:
    """Return whether no element is infinite or NaN, as a boolean scalar on the device of the elements."""
    # A tenth of the time that isfinite().all() takes on a CPU; aminmax propagates NaN.
    return torch.stack(values.aminmax()).isfinite().all()


def all_true(values: Iterable[Tensor]) -> bool:
    """Return whether all of some boolean scalars are true, in one transfer from their device."""
    found = list(values)
    return not found or bool(torch.stack(found).all())


def upcast(values: Tensor) -> Tensor:
    """Convert to float32, unless the dtype is wider."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
