"""The table of models and methods: each part of each method takes effect on each model, in its first step."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from helpers import zoo
from helpers.table import FIRST_STEP, ON_MOVED_WEIGHTS, PLAIN, SAMPLED_ROWS, SAMPLED_TERMS, TABLE, TERMS, UNFIT, given
from torch import Tensor

from attendrop import AttendropError, Compose, FineTune, Method, RDrop, regularize

ON_GPU = ("bert", "bart", "llama-class", "deberta-v3")
# Each model with each method on one of its backends; on the other, slow.
CELLS = [
    pytest.param(
        name, row, backend, marks=[pytest.mark.slow] * ((i + j + k) % 2) + [pytest.mark.gpu] * (name in ON_GPU)
    )
    for i, name in enumerate(zoo.ZOO)
    for j, row in enumerate(TABLE | TERMS)
    if row not in ON_MOVED_WEIGHTS
    for k, backend in enumerate(zoo.ZOO[name].implementations)
]


def first_step(
    name: str, backend: str, method: Method, *, dropout: float = 0.0, copies: int = 1, steps: int = 1
) -> tuple[Tensor, dict[str, float]]:
    """The direction of the gradient that the optimizer sees in the last of some steps that change nothing, and the log.

    A further pass of the same rows through the same model would make it longer, and leave its direction as it is.
    """
    model, batch = zoo.build(name, backend, dropout=dropout), repeated(zoo.batch_of(name), copies)
    needed: dict[str, Any] = given(model, batch)
    needed["optimizer"].param_groups[0]["lr"] = 0.0
    seen: list[Tensor] = []
    with regularize(model, method, **needed) as reg:
        needed["optimizer"].register_step_pre_hook(lambda *_: seen.append(gradient_of(model)))
        for _ in range(steps):
            model.zero_grad()
            torch.manual_seed(5)
            loss = reg.loss(batch)
            loss.backward()
            assert torch.isfinite(loss)
            needed["optimizer"].step()
            reg.step()
        logs = reg.logs()
    assert all(gradient.isfinite().all() for gradient in seen)
    return seen[-1] / seen[-1].norm(), logs


def repeated(batch: zoo.Batch, copies: int) -> zoo.Batch:
    return {column: value.repeat_interleave(copies, 0) for column, value in batch.items()}


def gradient_of(model: torch.nn.Module) -> Tensor:
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])


@cache
def plain_step(name: str, backend: str, dropout: float, copies: int) -> Tensor:
    return first_step(name, backend, FineTune(), dropout=dropout, copies=copies)[0]


def without_one(method: Method) -> Iterator[tuple[Method, int]]:
    """What is left of a method without one of its parts, and how many copies of each row that part makes."""
    for part in method.parts:
        rest = [other for other in method.parts if other is not part]
        left = Compose(*rest) if len(rest) > 1 else rest[0] if rest else FineTune()
        yield left, 2 if isinstance(part, RDrop) else 1


@pytest.mark.sampled(13)
@pytest.mark.sampled(4, SAMPLED_ROWS | SAMPLED_TERMS)
@pytest.mark.parametrize(("name", "row", "backend"), CELLS)
def test_every_method_takes_effect_on_every_model_in_its_first_step(name: str, row: str, backend: str) -> None:
    """The gradient does not point where it would without the method, or without one of several, on the same rows.

    The models have no dropout, which would make any further pass look like an effect; but R-Drop compares what dropout
    does, with the same draws.
    """
    method = (TABLE | TERMS)[row]
    refused = UNFIT.get((row, name))
    if refused is not None:
        with pytest.raises(AttendropError, match=refused):
            first_step(name, backend, method)
        return
    dropout, steps = 0.1 if isinstance(method, RDrop) else 0.0, FIRST_STEP.get(row, 1)
    direction, logs = first_step(name, backend, method, dropout=dropout, steps=steps)
    for left, copies in without_one(method):
        if isinstance(left, FineTune):
            reference = plain_step(name, backend, dropout, copies)
        else:
            reference, _ = first_step(name, backend, left, copies=copies, steps=steps)
        assert ((direction - reference).norm() > 1e-3) == (row not in PLAIN)
    if method.name == "finetune":
        assert logs == {}
    for part in method.parts if method.name != "finetune" else ():
        assert logs[f"{part.source}/active"] == 1
        assert logs.get(f"{part.source}/divergence", 1) > 0
        dropped = logs.get(f"{part.source}/dropped")
        assert dropped is None or 0 < dropped < 0.8 or ("layers" in part.info.acts_on and 0 <= dropped <= 1)
