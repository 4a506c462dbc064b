"""Check of methods on the same rows with more padding, and split differently into micro-batches and processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attendrop import Method
from attendrop.methods.core.context import Processes
from attendrop.training.regularization import Regularization
from helpers import zoo


def logits(
    model: Any,
    method: Method,
    rows: list[zoo.Batch],
    first: int = 0,
    *,
    rank: int = 0,
    world: int = 1,
    columns: dict[str, Tensor] | None = None,
    **padding: Any,
) -> Tensor:
    """Return the model's logits in the training pass on some rows.

    Args:
        model: The model.
        method: The method.
        rows: The rows.
        first: Number of the first of them in the micro-batches of this process.
        rank: Number of this process.
        world: Number of processes.
        columns: Further columns of the batch.
        **padding: See :func:`zoo.collate`.
    """
    training = zoo.training(model, Processes(rank, world), total_steps=8)
    reg = Regularization(training, method)
    reg.begin_step(1)
    reg._sequences = first
    try:
        return reg.compute({**zoo.collate(rows, **padding), **(columns or {})}, reg._model_loss)[1].logits.detach()
    finally:
        reg.close()


def assert_immaterial(name: str, method: Method, *, left: bool = False) -> None:
    """Check that results depend neither on padding nor on the split of the global batch, but on the index of a row."""
    model, rows = zoo.build(name, dtype=torch.float64), zoo.rows(name, (8, 5, 3, 6))
    whole = logits(model, method, rows)
    for other in (
        torch.cat([logits(model, method, rows[:1]), logits(model, method, rows[1:], 1)]),
        torch.cat([logits(model, method, rows[2 * r : 2 * r + 2], rank=r, world=2) for r in (0, 1)]),
        logits(model, method, rows, extra=2),
        logits(model, method, rows, extra=5, left=left),
    ):
        torch.testing.assert_close(other, whole)
    assert not torch.allclose(logits(model, method, rows, 4), whole)
