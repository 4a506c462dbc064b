"""Parts of a period of AttendOut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attendrop import AttendOut, regularize
from attendrop.methods.attend_out_networks import Attack, Micro, Players
from attendrop.methods.core.context import RunningStatistics, StepContext
from attendrop.randomness.keyed_random import SampleKey
from helpers import zoo
from helpers.plans import attached

DOUBLE = {"dtype": torch.float64}


def optimizer_of(model: torch.nn.Module, rate: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate)


def players_of(
    name: str = "bert", lengths: Sequence[int] = (6, 4), *, model: Any = None, **options: Any
) -> tuple[Players, StepContext]:
    """Make the generator and the context that it needs, for a tiny model in float64."""
    model = model or zoo.build(name, **DOUBLE)
    batch = zoo.batch_of(name, lengths)
    adapter = attached(model, batch)
    context = StepContext(
        model, batch, SampleKey(0, 0, 0, len(batch["labels"])), RunningStatistics(), "attendout", adapter=adapter
    )
    training = zoo.training(model, optimizer=optimizer_of(model), reward_data=object())
    return Players(AttendOut(**options), training, adapter.attention_layers, context.inputs, 0), context


def attack_of(players: Players, context: StepContext) -> tuple[Attack, Micro]:
    micro = Micro(dict(context.batch), dict(context.inputs), context.key)
    return Attack(players, context, micro), micro


def act(players: Players, context: StepContext, number: int = 0) -> Micro:
    """Let the generator act on a pass of its model, without training."""
    plan, micro = attack_of(players, replace(context, key=replace(context.key, step=number)))
    context.adapter.forward(context.batch, plan)
    return micro


def dropped_in(players: Players, micro: Micro) -> dict[str, Tensor]:
    """Return what was dropped in each layer that ran, by sampling it again."""
    with torch.no_grad():
        outcomes = [outcome.dropped for outcome in players.replayed(micro)]
    return dict(zip([key for key in micro.layers if key in players.selected_keys], outcomes, strict=True))


# --- The two networks


def run(
    method: Any,
    steps: int,
    *,
    name: str = "bert",
    accumulation: int = 1,
    watch: Any = None,
    model: Any = None,
    max_norm: float | None = None,
    **options: Any,
) -> Any:
    """Train in a custom loop; ``watch`` is called with the regularization after each step."""
    torch.manual_seed(7)
    model = model or zoo.build(name, dropout=0.1, **DOUBLE)
    optimizer = options.pop("optimizer", optimizer_of)(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
    rows = zoo.rows(name, (5, 6, 4, 7) * 2)
    with regularize(
        model, method, optimizer=optimizer, reward_data=[zoo.batch_of(name, seed=8)], max_grad_norm=max_norm, **options
    ) as reg:
        for step in range(steps):
            for part in range(accumulation):
                size = 4 // accumulation
                start = step % 2 * 4 + part * size
                (reg.loss(zoo.on_device(zoo.collate(rows[start : start + size]))) / accumulation).backward()
            if max_norm is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            reg.step()
            if watch is not None:
                watch(reg)
    return model
