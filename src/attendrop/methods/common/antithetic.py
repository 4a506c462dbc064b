"""Gradients of drop probabilities from a pass and its antithetic pass (ARM; Yin and Zhou, 2019), row by row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.edits import AttentionCall, AttentionEdit
from attendrop.attention.isolation import forked_rng
from attendrop.attribution.finite_gradients import wide
from attendrop.attribution.label_positions import IGNORED, aligned_labels, answer_positions
from attendrop.attribution.predictions import CLASSES, LABELS, SPAN, TOKENS, output_kind
from attendrop.errors import AttendropError
from attendrop.methods.common.random_mask import RandomMaskPlan
from attendrop.methods.core.base import Method
from attendrop.methods.core.context import ComputeLoss, StepContext
from attendrop.model_support.batches import Batch


class AntitheticPlan(RandomMaskPlan):
    """Plan that drops attention weights by ``u < p`` or, in the antithetic pass, by ``1 - u < p``.

    Kept weights are divided by ``1 - p``, through which a gradient reaches the log-odds of ``p``. ``keys`` are the keys
    of the layers to act on, or map them to their log-odds; a subclass may compute these in :meth:`log_odds`.

    Attributes:
        scores: ``1 - 2 v`` summed over the valid keys of a query, ``(batch, heads, query)``, by the key of the layer,
            where ``v`` is ``u`` or ``1 - u``. Times the loss of the sequence, it is an unbiased estimate of the
            gradient of the expected loss with respect to the log-odds at the query; 0 at padding.
        queries: Queries that are not padding, ``(batch, query)``, by the key of the layer.
    """

    def __init__(
        self, method: Method, context: StepContext, keys: Collection[str] | Mapping[str, Tensor], *, antithetic: bool
    ) -> None:
        super().__init__(method, context, keys=keys)
        self.antithetic = antithetic
        self.scores: dict[str, Tensor] = {}
        self.queries: dict[str, Tensor] = {}

    def log_odds(self, key: str) -> Tensor:
        """Return the log-odds of dropping in a layer, ``(batch, heads, query or 1)`` or a scalar."""
        assert isinstance(self.layer_keys, Mapping)
        found: Tensor = self.layer_keys[key]
        return found

    def make(self, call: AttentionCall) -> AttentionEdit:
        key, sampled = call.layer.key, self.uniform(call)
        if self.antithetic:
            sampled = 1 - sampled
        real = real_queries(call, self.context.batch)
        self.queries[key] = real[:, 0, :, 0]
        counted = real if call.valid is None else real & call.valid
        self.scores[key] = ((1 - 2 * sampled) * counted).sum(3)
        reported = False

        def dropped(weights: Tensor) -> Tensor:
            nonlocal reported
            log_odds = self.log_odds(key)
            log_odds = log_odds[..., None] if log_odds.ndim else log_odds
            drop = sampled < torch.sigmoid(log_odds.detach())
            if not (reported or self.antithetic):
                self.report(call, drop, real)
                reported = True
            return (weights / torch.sigmoid(-log_odds).to(weights.dtype)).masked_fill(drop, 0)

        return AttentionEdit(weights=dropped)


def with_antithetic_pass(
    context: StepContext, compute_loss: ComputeLoss, make_plan: Callable[[bool], AntitheticPlan]
) -> tuple[Tensor, Any, AntitheticPlan]:
    """Run a batch with a plan's dropout, and attach the gradient of the log-odds to its loss.

    The antithetic pass comes first, without gradients, and with the same sample of the model's own dropout.
    ``make_plan`` makes its plan (True), and that of the training pass (False). Returns the loss, the outputs of the
    model, and the plan of the training pass.
    """
    other = make_plan(True)
    with forked_rng(context.model), torch.no_grad():
        _, outputs = compute_loss(context.batch, other)
        losses = [row_losses(context.model, outputs, context.batch)]
    plan = make_plan(False)
    loss, outputs = compute_loss(context.batch, plan)
    losses.append(row_losses(context.model, outputs, context.batch).detach())
    estimate = torch.zeros((), device=loss.device)
    for each, found in zip((other, plan), losses, strict=True):
        for key, score in each.scores.items():
            of_sequence = found.repeat_interleave(len(score) // len(found))  # several choices are one row
            estimate = estimate + (score * of_sequence[:, None, None] * each.log_odds(key)).sum() / 2
    return loss + (estimate - estimate.detach()).to(loss.dtype), outputs, plan


def row_losses(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's part of the mean loss of a batch, ``(rows,)``: their sum is the mean over rows or tokens.

    It is the loss of transformers, without label smoothing or class weights. Raises AttendropError if the outputs have
    no logits, or the batch has no labels.
    """
    means = [losses.sum(1) / labelled.sum().clamp(min=1) for losses, labelled in _items(model, outputs, batch)]
    return torch.stack(means).mean(0)


def row_shares(model: nn.Module, outputs: Any, batch: Batch) -> Tensor:
    """Compute each row's share of the items over which a batch's loss is a mean, ``(rows,)``; zero without labels."""
    shares = [labelled.sum(1) / labelled.sum().clamp(min=1) for _, labelled in _items(model, outputs, batch)]
    return torch.stack(shares).mean(0)


def _items(model: nn.Module, outputs: Any, batch: Batch) -> list[tuple[Tensor, Tensor]]:
    """List, for each mean that makes the loss, the losses of the items, and which are labelled: ``(rows, items)``."""
    kind = output_kind(model, outputs, batch)
    if kind == SPAN:
        return [
            _classes(wide(logits), answer_positions(logits, batch[name])[:, None], logits.shape[1])
            for logits, name in ((outputs.start_logits, "start_positions"), (outputs.end_logits, "end_positions"))
        ]
    logits, labels = getattr(outputs, "logits", None), batch.get("labels")
    if kind is None or logits is None or labels is None:
        missing = "logits" if kind is None or logits is None else "labels in the batch"
        raise AttendropError(f"The loss of single rows of {type(model).__name__} needs {missing}; use another method.")
    logits = wide(logits)
    if kind == TOKENS:
        aligned = aligned_labels(model, logits, batch)
        assert aligned is not None
        return [_classes(logits, aligned, IGNORED)]
    if kind == CLASSES and not labels.is_floating_point():
        return [_classes(logits, labels.view(-1, 1), IGNORED)]
    if kind == CLASSES:  # labels are probabilities of the classes
        found = functional.cross_entropy(logits, labels.to(logits), reduction="none")[:, None]
    elif kind == LABELS:
        found = functional.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none")
    else:
        found = (logits - labels.to(logits).view_as(logits)).square()
    return [(found.mean(-1, keepdim=True), torch.ones_like(found[:, :1], dtype=torch.bool))]


def _classes(logits: Tensor, labels: Tensor, ignored: int) -> tuple[Tensor, Tensor]:
    """Compute cross-entropy, 0 where a label is ignored; ``(rows, classes)`` or ``(rows, items, classes)``."""
    flat = functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=ignored, reduction="none"
    )
    return flat.view_as(labels), labels != ignored


def real_queries(call: AttentionCall, batch: Batch) -> Tensor:
    """Find the queries that are not padding, ``(batch, 1, query, 1)``.

    The mask of a layer shows neither padded targets of an encoder-decoder model nor padded choices; the batch does.
    """
    size, _, length, _ = call.shape
    rows = call.valid_queries()
    real = torch.ones(size, 1, length, 1, dtype=torch.bool, device=call.device)
    if rows is not None:
        real = real & rows.any(1, keepdim=True)
    mask: Tensor | None = batch.get("attention_mask")
    if mask is not None and mask.ndim == 3 and mask.shape[:2].numel() == size:  # (rows, choices, tokens)
        real = real & mask.bool().any(-1).view(-1, 1, 1, 1)
    targets = None if call.layer.kind == "encoder" else real_targets(batch)
    if targets is not None and targets.shape == (size, length):
        real = real & targets[:, None, :, None]
    return real


def real_targets(batch: Batch) -> Tensor | None:
    """Find the inputs of a decoder that are not padding, ``(batch, n)``; None if this cannot be seen from the batch.

    Models shift the labels to get these inputs or, without token labels, the encoder's inputs (BART as a classifier).
    """
    mask: Tensor | None = batch.get("decoder_attention_mask")
    if mask is not None:
        return mask.bool()
    labels: Tensor | None = batch.get("labels")
    if labels is not None and labels.ndim == 2 and not labels.is_floating_point():
        return up_to_last(labels != IGNORED)
    mask = batch.get("attention_mask")
    return None if mask is None or mask.ndim != 2 or "decoder_input_ids" in batch else up_to_last(mask.bool())


def up_to_last(marked: Tensor) -> Tensor:
    """Mark the positions up to the last marked one in each row; later ones of a decoder change nothing before them."""
    return marked.flip(-1).cumsum(-1).flip(-1) > 0
