"""AutoDropout: search for a pattern of attention dropout."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attendrop.extend import (
    EXCHANGES_WEIGHTS,
    LAYERS,
    SCORES_ROWS,
    AttendropError,
    AttentionCall,
    AttentionEdit,
    AttentionLayer,
    Batch,
    InitialState,
    Method,
    MethodInfo,
    MethodState,
    Plan,
    RandomMaskPlan,
    StepContext,
    TrainingContext,
    choice,
    count,
    evaluating,
    floor_fraction,
    forked_rng,
    in_full_precision,
    number_of_rows,
    option,
    sample_mask,
    uniform,
    unit_interval,
)
from attendrop.methods.core.replay import Replay
from attendrop.wording import counted


@dataclass(frozen=True)
class AutoDropout(Method):
    """Search for a structured pattern of dropped attention scores, and training with the best one.

    A pattern drops ``size`` consecutive keys, keeps the next ``stride``, and so on, from a random offset. It is applied
    to a row of scores with probability ``p``. Heads may share the sample (``share_heads``), and so may the queries of a
    sequence (``share_rows``); ``part`` is the lower half or upper half of the layers, or all of them.

    The first ``search`` fraction of the planned steps is divided into ``trials`` training runs of equal length, each
    with a pattern sampled at random. All else is equal: initial weights and optimizer state, the micro-batches of the
    first trial, all random numbers, and learning rates that decay linearly to zero, whatever the schedule of the run.
    The score is the mean loss on held-out rows. Training then restarts from the initial state with the best pattern,
    for the remaining steps and the rest of the schedule. In a custom loop ``reg.step()`` scores and restarts.

    Args:
        search: Fraction of the planned steps used for the search, in (0, 1).
        trials: Number of patterns to try.
        max_size: Maximum ``size``.
        max_stride: Maximum ``stride``.
        reward_data: Rows to score on. ``"selection"``: the rows on which the best epoch is selected (a trainer's
            ``eval_dataset``). ``"split"``: ``reward_fraction`` of the training rows, held out for this purpose only.
            ``"eval"``: the development set; results on it are then biased.
        reward_fraction: See ``reward_data``.
        reward_batch_size: Batch size for scoring.
        layers: Candidate layers, see :func:`attendrop.attention.layers.select_layers`.

    Raises:
        AttendropError: The optimizer, the number of steps or the rows to score on are unknown, or there are fewer
            search steps than trials.

    Source: Pham, Le (2021), https://arxiv.org/abs/2101.01761, whose patterns for Transformers have a size, a stride,
    and sharing options. Deviations: one pattern serves all layers of ``part``, on attention scores only, while theirs
    differ by layer and place; patterns are sampled uniformly, while they train a controller on full training runs;
    trials and the final training share one run. All defaults are ours. The micro-batches of a trial are kept in memory
    and in checkpoints, and the loss scale of float16 is carried over between them. Evaluations during the search count
    neither for the best checkpoint nor for early stopping.
    """

    info = MethodInfo(
        "autodropout",
        "searches for the pattern in which attention is dropped",
        "Pham, Le (2021), AutoDropout: Learning Dropout Patterns to Regularize Deep Networks",
        acts_on=("scores",),
        forward="1 + scoring",
        state="the weights of the start, a trial's batches",
        traits={EXCHANGES_WEIGHTS: "", SCORES_ROWS: ""},
    )

    search: float = option(0.5, unit_interval())
    trials: int = option(8, count())
    max_size: int = option(8, count())
    max_stride: int = option(8, count())
    reward_data: str = option("selection", choice("selection", "split", "eval"))
    reward_fraction: float = option(0.1, unit_interval())
    reward_batch_size: int = option(32, count())
    layers: str | int | Sequence[int] = option("all", LAYERS)

    def start(self, training: TrainingContext) -> MethodState:
        return _Search(self, training)


class _Search(MethodState):
    """State of the search: tries patterns in sequence, then trains with the best."""

    method: AutoDropout

    def __init__(self, method: AutoDropout, training: TrainingContext) -> None:
        super().__init__(method)
        if training.reward_data is None:
            raise AttendropError("AutoDropout scores patterns on held-out labelled rows: pass reward_data.")
        self.training = training
        self.start = InitialState(method, training)
        searched = int(floor_fraction(torch.tensor(self.start.steps), method.search))
        self.length = searched // method.trials
        if not self.length:
            raise AttendropError(
                f"search={method.search} of {counted(self.start.steps, 'step')} is {searched}, fewer than "
                f"trials={method.trials}. Train longer, raise search, or lower trials."
            )
        self.seed = training.seed
        self.recorded = Replay(self.length)
        self.rates = [group.get("initial_lr", group["lr"]) for group in self.start.optimizer.param_groups]
        self._scheduled: list[Any] = []
        self._step = 0
        self.trials: list[dict[str, Any]] = []
        self.pattern = self._next()
        optimizer = self.start.optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(self._set_rates),
            optimizer.register_step_post_hook(self._restore_rates),
        ]

    def plan(self, context: StepContext) -> Plan:
        self._step = context.key.step
        return patterned(self.method, context, self.pattern)

    def after_step(self, steps_taken: int) -> dict[str, float]:
        if not self.searching():
            return {}
        self.recorded.check(steps_taken - 1)
        if steps_taken < self.length * (len(self.trials) + 1):
            return {}
        value = self._score()
        self.trials.append({"pattern": self.pattern, "value": value})
        self.start.rewind()
        self.pattern = self._next()
        return {"trial": float(len(self.trials)), "trial_loss": value}

    def replay(self) -> Replay | None:
        return self.recorded if self.searching() else None

    def searching(self) -> bool:
        return len(self.trials) < self.method.trials

    def state_dict(self) -> dict[str, Any]:
        start = self.start.state_dict()
        return {"start": start, "trials": list(self.trials), "seed": self.seed, "rates": self.rates}

    def rank_state_dict(self) -> dict[str, Any]:
        return {"steps": self.recorded.steps} if self.searching() else {}

    def load_state_dict(self, state: Mapping[str, Any], rank_state: Mapping[str, Any]) -> None:
        self.start.load_state_dict(state["start"])
        self.trials, self.seed, self.rates = list(state["trials"]), state["seed"], state["rates"]
        self.recorded.steps = list(rank_state.get("steps", []))
        self.pattern = self._next()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def final_report(self, batches: Iterable[Batch]) -> dict[str, Any]:
        """Report the best pattern, and all trials with their losses."""
        return {"autodropout": {"best": self._best(), "trials": self.trials}} if self.trials else {}

    def restore(self, metrics: Mapping[str, Any], tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        found = metrics.get("autodropout", {})
        if found:
            self.trials, self.pattern = list(found["trials"]), found["best"]["pattern"]

    def _best(self) -> dict[str, Any]:
        return min(self.trials, key=lambda trial: float(trial["value"]))

    def _next(self) -> dict[str, Any]:
        """Return the pattern to train with next: a sample or, after the last trial, the best one."""
        if self.searching():
            return sample_pattern(self.seed, len(self.trials), self.method.max_size, self.method.max_stride)
        self.start.forget()
        self.recorded.steps = []
        return dict(self._best()["pattern"])

    def _set_rates(self, *_: Any) -> None:
        """Set the learning rates of the trial, just before an optimizer step."""
        if self.searching():
            groups = self.start.optimizer.param_groups
            self._scheduled = [group["lr"] for group in groups]
            for group, rate in zip(groups, self.rates, strict=True):
                group["lr"] = rate * (1 - self._step / self.length)

    def _restore_rates(self, *_: Any) -> None:
        """Restore the learning rates of the run's schedule, just after an optimizer step."""
        for group, rate in zip(self.start.optimizer.param_groups, self._scheduled, strict=False):
            group["lr"] = rate
        self._scheduled = []

    def _score(self) -> float:
        """Compute the mean loss on the held-out rows over all processes; infinite if it is NaN."""
        assert self.training.reward_data is not None
        model, processes = self.training.model, self.training.processes
        sums = torch.zeros(2, dtype=torch.float64)
        with torch.no_grad(), evaluating(model), forked_rng(model), in_full_precision(model):
            for batch in self.training.reward_data.iter_batches(self.method.reward_batch_size, processes):
                rows = number_of_rows(batch)
                sums += torch.tensor([float(self.training.evaluate(model, batch)[0]) * rows, rows], dtype=torch.float64)
        total, number = processes.total(sums).tolist()
        return total / number if math.isfinite(total) else math.inf


def sample_pattern(seed: int, trial: int, max_size: int, max_stride: int) -> dict[str, Any]:
    """Sample the pattern of a trial, uniformly: a function of the seed and the number of the trial."""
    chance = random.Random(f"{seed}/{trial}/pattern")
    return {
        "size": chance.randint(1, max_size),
        "stride": chance.randint(1, max_stride),
        "p": chance.uniform(0.1, 1.0),
        "share_heads": chance.random() < 0.5,
        "share_rows": chance.random() < 0.5,
        "part": chance.choice(("all", "lower", "upper")),
    }


def patterned(method: Method, context: StepContext, pattern: Mapping[str, Any]) -> Plan:
    """Return the plan that drops scores in a pattern, see :func:`sample_pattern`."""

    def make(plan: RandomMaskPlan, call: AttentionCall) -> AttentionEdit:
        key, layer = context.key, call.layer.key
        batch, heads, queries, length = call.shape
        shape = (batch, 1 if pattern["share_heads"] else heads, 1 if pattern["share_rows"] else queries, 1)
        origins = plan.origins(call)
        top = origins * torch.tensor([0 if pattern["share_rows"] else 1, 0], device=call.device)
        chosen = sample_mask(pattern["p"], key, f"{layer}/chosen", shape, top, call.device)
        period = pattern["size"] + pattern["stride"]
        begin = (uniform(key, f"{layer}/begin", shape, top, call.device) * period).long()
        column = torch.arange(length, device=call.device) - origins[:, 1].view(-1, 1, 1, 1)
        return plan.drop_scores(call, chosen & ((column - begin) % period < pattern["size"]))

    attention_layers = part_of(method.selected_layers(context.adapter.attention_layers), pattern["part"])
    return RandomMaskPlan(method, context, make, {layer.key for layer in attention_layers})


def part_of(attention_layers: Sequence[AttentionLayer], part: str) -> list[AttentionLayer]:
    """Return the lower or upper half of the layers of each kind, or all; a middle layer is in both halves."""
    found = []
    for layer in attention_layers:
        kind = [other for other in attention_layers if other.kind == layer.kind]
        place, half = kind.index(layer), -(-len(kind) // 2)
        if part == "all" or (place < half if part == "lower" else place >= len(kind) - half):
            found.append(layer)
    return found
