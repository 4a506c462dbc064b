"""Which attention positions a method drops in one training step, for the attention viewer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from attendrop.attention.blocks import Block
from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.layers import AttentionLayer
from attendrop.attention.plan import AttentionCall, AttentionEdit, BlockEdit, CombinedPlan, Plan
from attendrop.methods.core.base import Compose, Method
from attendrop.methods.core.context import TrainingContext, tokens_of
from attendrop.runs.run_folder import read_metrics
from attendrop.support.models import ROW_INDEX, Batch, number_of_rows
from attendrop.training.regularization import Regularization, labelled_data, run_model

# What a method acts on, see MethodInfo, if it can drop positions of attention.
IN_ATTENTION = frozenset({"scores", "weights", "heads", "layers"})


@dataclass(frozen=True)
class DropMoment:
    """The moment of a training at which a method decides.

    Attributes:
        step, total_steps: Number of optimizer steps taken before, and planned.
        epoch: Number of the epoch, from 0; the method must be active in it.
    """

    seed: int = 0
    step: int = 0
    total_steps: int = 1000
    epoch: int = 0


@dataclass(frozen=True)
class Learnt:
    """What a finished run learnt beside its model.

    Attributes:
        metrics: Its ``metrics.json``.
        tensors: The tensors that it saved, by the name of their file.
    """

    metrics: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, folder: Path) -> Learnt:
        """Read what the finished run in a folder learnt."""
        files = [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith("model")]
        return cls(read_metrics(folder) or {}, {file.stem: load_file(file) for file in files})


@dataclass(frozen=True)
class LayerDrops:
    """Positions of one attention layer in one pass.

    Attributes:
        possible: Positions that are not padding and not hidden by the model's mask, ``(batch, 1, query, key)``.
        dropped: Those of them that were dropped, ``(batch, heads, query, key)``.
    """

    layer: AttentionLayer
    possible: Tensor
    dropped: Tensor


def acting_in_attention(method: Method) -> Method | None:
    """Return the method, or the methods of a composition, that can drop positions of attention; None if there are none.

    A skipped layer and a dropped head count as all of their positions.
    """
    parts = [part for part in method.parts if part.info.uses_attention and IN_ATTENTION & set(part.info.acts_on)]
    if len(parts) == len(method.parts):
        return method
    return Compose(*parts) if len(parts) > 1 else parts[0] if parts else None


def active_epochs(method: Method, num_epochs: int) -> list[int]:
    """Return the epochs, from 0, in which all parts of a method are active; if there are none, those of any part."""
    epochs = range(num_epochs)
    together = [epoch for epoch in epochs if all(part.active(epoch) for part in method.parts)]
    return together or [epoch for epoch in epochs if method.active(epoch)]


def record_drops(
    model: PreTrainedModel,
    method: Method,
    batch: Batch,
    moment: DropMoment,
    *,
    learnt: Learnt | None = None,
    tokenizer: Any = None,
) -> dict[str, LayerDrops]:
    """Run a method's training step on a batch without an update, and record what its first changed pass drops.

    The model's own dropout is off, and the model stays unchanged.

    Args:
        model: The model.
        method: The method, from :func:`acting_in_attention`.
        batch: Inputs with labels, on the model's device.
        moment: When in the training.
        learnt: What a finished run learnt; None: the method has learnt nothing yet. One that searches before it trains
            is then at the first of its steps.
        tokenizer: The model's tokenizer, for methods that change tokens.

    Returns:
        The attention layers by key, in the order of execution; none if no pass of the step changes anything.

    Raises:
        AttendropError: The method cannot act on the model or the batch, or what it learnt was not saved.
    """
    passes: list[dict[str, LayerDrops]] = []

    def compute_loss(given: Batch, plan: Plan | None = None, other: nn.Module | None = None) -> tuple[Tensor, Any]:
        if plan is None:
            return run_model(other or model, given)
        assert regularization.adapter is not None
        watched = WatchedPlan(plan)
        regularization.adapter.bind(watched)
        found = run_model(model, given, watched)
        if watched.skipped and not watched.seen:  # the shapes of layers are known from those that run
            every = WatchedPlan(Plan())
            with torch.no_grad():
                regularization.adapter.forward(given, every)
            watched.seen = every.seen
        passes.append(watched.drops(regularization.adapter.attention_layers))
        return found

    training = TrainingContext(
        model=model,
        evaluate=run_model,
        seed=moment.seed,
        total_steps=moment.total_steps,
        optimizer=torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.0),
        metric=lambda logits, labels: 0.0,
        reward_data=labelled_data("reward_data", [batch], model.device),
        train_data=labelled_data("train_data", [batch], model.device),
        **tokens_of(tokenizer),
    )
    with forked_rng(model), evaluating(model), ExitStack() as stack:
        stack.callback(setattr, model, "training", False)
        model.training = True  # methods look at the model's own mode; its modules, and so its dropout, stay off
        torch.manual_seed(moment.seed + moment.step)
        regularization = Regularization(training, method)
        stack.callback(regularization.close)
        if learnt is not None:
            regularization.method_state.restore(learnt.metrics, learnt.tensors)
        regularization.set_epoch(moment.epoch)
        regularization.begin_step(moment.step)
        with torch.enable_grad():
            if method.needs_rows:  # what is recorded of rows in one pass is dropped in the next
                batch = {**batch, ROW_INDEX: torch.arange(number_of_rows(batch))}
                regularization.set_epoch(max(0, moment.epoch - 1))  # with cross-tuning, a plain one
                regularization.compute(batch, compute_loss)[0].backward()  # type: ignore[no-untyped-call]
                model.zero_grad()
                passes.clear()
                regularization.set_epoch(moment.epoch)
                regularization.begin_step(moment.step + 1)
            regularization.compute(batch, compute_loss)
    return passes[0] if passes else {}


class WatchedPlan(CombinedPlan):
    """Plan that wraps another one, and records what it drops.

    A position is dropped if the plan drops its score, multiplies its weight by less than half of the largest factor in
    the layer, or sets its head to zero; and so are all positions of a layer with constant attention, or that is
    skipped.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__([plan])
        self.acts_on = plan.acts_on | {"attention"}
        self.seen: dict[str, LayerDrops] = {}
        self.skipped: dict[str, AttentionLayer] = {}

    def wants(self, layer: AttentionLayer) -> bool:
        return True

    def edit(self, call: AttentionCall) -> AttentionEdit | None:
        edit, rows = super().edit(call), call.valid_queries()
        batch, _, queries, keys = call.shape
        possible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=call.device)
        if call.valid is not None:
            possible = call.valid.any(1, keepdim=True)
        possible = (possible if rows is None else possible & rows).expand(batch, 1, queries, keys)
        dropped = torch.zeros(call.shape, dtype=torch.bool, device=call.device)
        self.seen.setdefault(call.layer.key, LayerDrops(call.layer, possible, dropped))
        if edit is None:
            return None
        note = partial(self._note, call.layer.key)
        if edit.constant:
            note(torch.ones_like(possible))
        if edit.drop is not None:
            note(edit.drop)
        weights, output = edit.weights, edit.output

        def watched_weights(before: Tensor) -> Tensor:
            assert weights is not None
            after = weights(before)
            kept = before > 0
            factor = after.detach() / torch.where(kept, before, 1).detach()
            note(kept & ((factor < factor.max() / 2) | (after == 0)))
            return after

        def watched_output(before: Tensor) -> Tensor:
            assert output is not None
            after = output(before)
            gone = (after == 0).all(-1) & (before != 0).any(-1)
            note(gone.transpose(1, 2).unsqueeze(-1))
            return after

        return dataclasses.replace(edit, weights=weights and watched_weights, output=output and watched_output)

    def block(self, block: Block) -> BlockEdit | None:
        edit = super().block(block)
        if edit is not None and edit.skip:
            self.skipped |= {layer.key: layer for layer in block.attention_layers}
        return edit

    def drops(self, layers: list[AttentionLayer]) -> dict[str, LayerDrops]:
        """Return what was dropped in each layer that ran or was skipped, in the order of ``layers``."""
        found = dict(self.seen)
        for key, layer in self.skipped.items():
            like = next((drops for drops in self.seen.values() if drops.layer.kind == layer.kind), None)
            if like is not None:
                found[key] = LayerDrops(layer, like.possible, like.possible.expand(like.dropped.shape))
        return {layer.key: found[layer.key] for layer in layers if layer.key in found}

    @torch.no_grad()
    def _note(self, key: str, dropped: Tensor) -> None:
        found = self.seen[key]
        self.seen[key] = dataclasses.replace(found, dropped=found.dropped | (dropped & found.possible))
