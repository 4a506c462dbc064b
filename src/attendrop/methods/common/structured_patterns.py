"""Structured patterns of dropped attention scores, and their proposal in a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attendrop.attention.call import AttentionCall
from attendrop.attention.layers import AttentionLayer
from attendrop.errors import AttendropError
from attendrop.keyed_random import sample_mask, uniform
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import StepContext

PARTS = ("all", "lower", "upper")


class Patterned(RandomMaskPlan):
    """Plan that drops scores in a pattern.

    Args:
        method: The method.
        context: The micro-batch.
        keys: Keys of the layers to act on.
        pattern: Pattern returned by :func:`propose`.
    """

    def __init__(self, method: Method, context: StepContext, keys: set[str], pattern: Mapping[str, Any]) -> None:
        super().__init__(method, context, keys)
        self.pattern = pattern

    def drop_mask(self, call: AttentionCall) -> Tensor:
        pattern, key, layer = self.pattern, self.context.key, call.layer.key
        batch, heads, queries, length = call.shape
        shape = (batch, 1 if pattern["share_heads"] else heads, 1 if pattern["share_rows"] else queries, 1)
        origins = self.origins(call)
        top = origins * torch.tensor([0 if pattern["share_rows"] else 1, 0], device=call.device)
        chosen = sample_mask(pattern["p"], key, f"{layer}/chosen", shape, top, call.device)
        period = pattern["size"] + pattern["stride"]
        begin = (uniform(key, f"{layer}/begin", shape, top, call.device) * period).long()
        column = torch.arange(length, device=call.device) - origins[:, 1].view(-1, 1, 1, 1)
        within: Tensor = (column - begin) % period < pattern["size"]
        return chosen & within


def part_of(attention_layers: Sequence[AttentionLayer], part: str) -> list[AttentionLayer]:
    """Return the lower or upper half of the layers of each kind, or all; a middle layer is in both halves."""
    found = []
    for layer in attention_layers:
        kind = [other for other in attention_layers if other.kind == layer.kind]
        place = kind.index(layer)
        half = -(-len(kind) // 2)
        if part == "all" or (place < half if part == "lower" else place >= len(kind) - half):
            found.append(layer)
    return found


def propose(space: Mapping[str, Any], seed: int, at_random: int, trials: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Propose the next pattern, a function of the seed and of the trials so far.

    Args:
        space: Maximum ``size`` and ``stride``, by these names.
        seed: Seed of the search.
        at_random: Number of random trials before the search uses the results of earlier trials.
        trials: Trials so far, each with its ``pattern`` and resulting ``value``; lower is better.

    Raises:
        AttendropError: optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise AttendropError(
            "AutoDropout needs optuna, which is not installed; run `pip install attendrop[search]`."
        ) from None
    choices = optuna.distributions
    distributions: dict[str, Any] = {
        **{name: choices.IntDistribution(1, greatest) for name, greatest in space.items()},
        "p": choices.FloatDistribution(0.1, 1.0),
        **{name: choices.CategoricalDistribution((False, True)) for name in ("share_heads", "share_rows")},
        "part": choices.CategoricalDistribution(PARTS),
    }
    # One sampler per trial: a resumed run needs no random state of earlier trials.
    own_seed = (seed * 1_000_003 + len(trials)) % 2**32
    sampler = optuna.samplers.TPESampler(seed=own_seed, n_startup_trials=at_random)
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(sampler=sampler)
        for trial in trials:
            params, value = dict(trial["pattern"]), trial["value"]
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
        return dict(study.ask(distributions).params)
    finally:
        optuna.logging.set_verbosity(verbosity)
