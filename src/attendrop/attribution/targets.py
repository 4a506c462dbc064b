"""Targets of attribution: the logits or likelihoods behind a prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.plan import Plan
from attendrop.attribution.label_positions import aligned_labels, answer_positions
from attendrop.attribution.predictions import (
    LABELS,
    NUMBER,
    SPAN,
    TOKENS,
    answer_tokens,
    best_spans,
    output_kind,
    predicted_tokens,
)
from attendrop.errors import AttendropError
from attendrop.support.models import Batch

# From the outputs of a pass to the attributed score of each sequence, (batch,), or of all.
Target = Callable[[Any], Tensor]
# Runs a pass with a plan, and returns its outputs.
Forward = Callable[[Plan], Any]


def fix_target(model: nn.Module, outputs: Any, batch: Batch, target: str) -> Target:
    """Fix the attributed score from the outputs of one pass, as a function of the outputs of any pass.

    ====================================  ==========================================================================
    classification, multiple choice       the logit of the target class; the mean logit, if labels are probabilities
    several labels per text               log-likelihood of the target labels
    regression                            the negative squared error on the gold value, whatever ``target``; the
                                          predicted score, if there are no labels (reward models)
    token-level, sequence-to-sequence     log-likelihood of the target tokens at the positions that have a label
    question answering (spans)            the logits of the target's first and last token; what is predicted is the
                                          best span of the text, see :func:`best_spans` and :func:`answer_tokens`
    any, with the target ``"loss"``       the negative loss of the batch
    ====================================  ==========================================================================

    Args:
        model: The model, for its kind.
        outputs: Outputs of the model, with ``logits``; for its loss, with ``loss``.
        batch: Its inputs. Gold labels need ``labels``.
        target: ``"pseudo_label"``: what the model predicts in ``outputs`` (Eq. 4); ``"gold_label"``; ``"loss"``.

    Raises:
        AttendropError: Labels or the loss are needed and missing, or the outputs are of no known form.
    """
    if target == "loss":
        if getattr(outputs, "loss", None) is None:
            raise AttendropError(
                f"{type(model).__name__} returned no loss, which target='loss' attributes; add 'labels' to the batch."
            )
        return lambda outputs: -outputs.loss
    kind = output_kind(model, outputs, batch)
    if kind == SPAN:
        return _span_target(outputs, batch, target)
    logits: Tensor | None = getattr(outputs, "logits", None)
    if kind is None or logits is None:
        form = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise AttendropError(
            f"{type(model).__name__} returns {form}; attribution needs (batch, ...) or (batch, n, ...)."
        )
    labels = batch.get("labels")
    if kind == TOKENS:
        return _token_target(model, logits, batch, target)
    if kind == NUMBER:
        if labels is None and target == "pseudo_label":
            return lambda outputs: outputs.logits.sum(-1)
        kind_of = f"{type(model).__name__} is taken for a regression, which attendrop.extend.declare_output changes"
        gold = _required(labels, "labels", f"; {kind_of}").reshape(logits.shape)
        return lambda outputs: -(outputs.logits - gold.to(outputs.logits.dtype)).square().sum(-1)
    if kind == LABELS:
        present = _required(labels) if target == "gold_label" else (logits > 0)
        sign = present.to(logits.dtype) * 2 - 1
        return lambda outputs: functional.logsigmoid(sign * outputs.logits).sum(-1)
    classes = _required(labels) if target == "gold_label" else logits.detach().argmax(-1)
    if classes.is_floating_point():  # gold labels that are probabilities of the classes
        return lambda outputs: (classes.to(outputs.logits.dtype) * outputs.logits).sum(-1)
    classes = classes.reshape(-1)
    labelled, index = classes != -100, classes.clamp(min=0)[:, None]
    return lambda outputs: outputs.logits.gather(-1, index).squeeze(-1).where(labelled, 0)


def _span_target(outputs: Any, batch: Batch, target: str) -> Target:
    if target == "gold_label":
        first = _required(batch.get("start_positions"), "start_positions")
        last = _required(batch.get("end_positions"), "end_positions")
    else:
        start, end = outputs.start_logits.detach(), outputs.end_logits.detach()
        _, first, last = best_spans(start, end, answer_tokens(batch, start))

    def pick(logits: Tensor, position: Tensor) -> Tensor:
        # A position beyond the tokens is not in this window: the model's loss ignores it.
        return functional.pad(logits, (0, 1)).gather(-1, answer_positions(logits, position)[:, None]).squeeze(-1)

    def score(outputs: Any) -> Tensor:
        return pick(outputs.start_logits, first) + pick(outputs.end_logits, last)

    return score


def _token_target(model: nn.Module, logits: Tensor, batch: Batch, target: str) -> Target:
    labels = aligned_labels(model, logits, batch)
    if labels is not None:
        scored = labels != -100
    elif batch.get("attention_mask") is not None and batch["attention_mask"].shape == logits.shape[:2]:
        scored = batch["attention_mask"].bool()
    else:
        scored = torch.ones_like(logits[..., 0], dtype=torch.bool)
    tokens = _required(labels) if target == "gold_label" else predicted_tokens(model, logits)
    index = tokens.where(scored, 0)[..., None]

    def score(outputs: Any) -> Tensor:
        likelihood = functional.log_softmax(outputs.logits, dim=-1).gather(-1, index).squeeze(-1)
        return torch.where(scored, likelihood, 0).sum(-1)

    return score


def _required(labels: Tensor | None, name: str = "labels", also: str = "") -> Tensor:
    if labels is None:
        raise AttendropError(
            f"The batch has no '{name}', which target='gold_label' attributes: use 'pseudo_label' or 'loss'{also}."
        )
    return labels
