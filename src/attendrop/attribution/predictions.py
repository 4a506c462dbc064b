"""What a model predicts, by kind of output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.batches import ANSWER_MASK, Batch

# Answers have at most so many tokens, as in the script of BERT's authors.
MOST_ANSWER_TOKENS = 30
# Logit of a token that cannot be part of an answer: its probability is 0, and differences stay finite.
_EXCLUDED = -1e4


def kind_of(model: nn.Module, logits: Tensor) -> str:
    """Return the kind of prediction: ``"classes"`` (one of several), ``"labels"`` (multi-label) or ``"number"``."""
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "multi_label_classification":
        return "labels"
    return "number" if problem == "regression" or logits.shape[-1] == 1 else "classes"


def is_regression(model: nn.Module) -> bool:
    """Tell from its configuration whether a model predicts numbers: as transformers does at the first loss."""
    config: Any = getattr(model, "config", None)
    problem = getattr(config, "problem_type", None)
    if problem is not None or type(model).__name__.endswith("ForMultipleChoice"):
        return problem == "regression"
    return getattr(config, "num_labels", None) == 1


def predicted_tokens(model: nn.Module, logits: Tensor) -> Tensor:
    """Return the classes of tokens, ``(batch, n)``, given logits ``(batch, n, classes)``.

    An encoder-decoder model that generates begins with the token that its generation forces, such as a language.
    """
    tokens = logits.detach().argmax(-1)
    first = getattr(getattr(model, "generation_config", None), "forced_bos_token_id", None)
    if first is not None and getattr(model.config, "is_encoder_decoder", False):
        tokens[:, 0] = first
    return tokens


def answer_tokens(batch: Batch, logits: Tensor) -> Tensor:
    """Find the tokens that can be part of an answer, boolean ``(batch, n)``.

    The column ``answer_mask`` tells, which this library's own tasks have. Without it, these are the tokens of the
    second text by ``token_type_ids``, but its last one, a separator; or, in a row where there are no such types, all
    tokens that are not padding by ``attention_mask``.

    Args:
        batch: Inputs of the model.
        logits: Start logits, ``(batch, n)``.
    """
    given, types, attended = (batch.get(name) for name in (ANSWER_MASK, "token_type_ids", "attention_mask"))
    if given is not None:
        return functional.pad(given == 1, (0, logits.shape[1] - given.shape[1]))
    found = torch.ones_like(logits, dtype=torch.bool)
    if attended is not None and attended.shape == logits.shape:
        found = attended.bool()
    if types is not None and types.shape == logits.shape:
        second = types == 1
        second = second & functional.pad(second[:, 1:], (0, 1))
        found = torch.where(second.any(-1, keepdim=True), second & found, found)
    return found


def answer_logits(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return start and end logits, ``(batch, n)``, with a probability of 0 where no answer can be."""
    excluded = ~answer_tokens(batch, outputs.start_logits)
    start, end = (logits.masked_fill(excluded, _EXCLUDED) for logits in (outputs.start_logits, outputs.end_logits))
    return start, end


def best_spans(start: Tensor, end: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Find the span of each row with the greatest sum of a start and an end logit.

    Args:
        start: Start logits, ``(batch, n)``.
        end: End logits.
        allowed: Tokens that can be part of an answer; a span has only such tokens, at most ``MOST_ANSWER_TOKENS``.

    Returns:
        Sums, first and last tokens, ``(batch,)``; minus infinity, 0 and 0 in a row without a token.
    """
    gaps = (~allowed).cumsum(-1)
    further = (0, MOST_ANSWER_TOKENS - 1)
    ends, gaps_before = (
        functional.pad(each, further, value=fill).unfold(-1, MOST_ANSWER_TOKENS, 1)
        for each, fill in ((end, -torch.inf), (gaps, -1))
    )
    broken = ~allowed[..., None] | (gaps_before != gaps[..., None])
    sums, place = (start[..., None] + ends).masked_fill(broken, -torch.inf).flatten(1).max(-1)
    first = place // MOST_ANSWER_TOKENS
    return sums, first, first + place % MOST_ANSWER_TOKENS
