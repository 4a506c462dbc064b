"""The choice between two ways of computing the same masks: numpy on a CPU, few kernels on any other device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_FEW_KERNELS: ContextVar[bool] = ContextVar("few_kernels", default=False)


def on_cpu(device: torch.device) -> bool:
    """Return whether to compute as is fast on a CPU; else with as few kernels as possible, whose launches take time."""
    return device.type == "cpu" and not _FEW_KERNELS.get()


@contextmanager
def few_kernels() -> Iterator[None]:
    """Compute on a CPU as on a GPU within the block, to count kernels and to compare masks."""
    token = _FEW_KERNELS.set(True)
    try:
        yield
    finally:
        _FEW_KERNELS.reset(token)
