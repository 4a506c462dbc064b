"""What a model predicts, by kind of output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.errors import AttendropError, check_choice
from attendrop.support.models import ANSWER_MASK, Batch, number_of_rows

# Maximum number of tokens of an answer, as in the script of BERT's authors.
MOST_ANSWER_TOKENS = 30
# Logit of a token that cannot be part of an answer: its probability is 0, and differences stay finite.
_EXCLUDED = -1e4

# Kinds of output, and what the model returns: the logits of one of several classes or choices, ``(batch, classes)``;
# those of labels that are independent of each other, ``(batch, labels)``; numbers, ``(batch, 1)``; the logits of a
# class for each token, ``(batch, n, classes)``; or those of the first and the last token of an answer, ``start_logits``
# and ``end_logits``, ``(batch, n)``.
CLASSES, LABELS, NUMBER, TOKENS, SPAN = "classes", "labels", "number", "tokens", "span"
# Attribute of a model; copies and wrappers of the model have it, and files do not.
_DECLARED = "attendrop_output_kind"


def declare_output(model: nn.Module, kind: str) -> None:
    """Declare the kind of output of a model: ``"classes"``, ``"labels"``, ``"number"``, ``"tokens"`` or ``"span"``.

    Raises:
        AttendropError: It is another one, which would be taken for classes.
    """
    check_choice("kind", kind, (CLASSES, LABELS, NUMBER, TOKENS, SPAN))
    setattr(model, _DECLARED, kind)


def output_kind(model: nn.Module, outputs: Any, batch: Batch) -> str | None:
    """Return the kind of output of a model, see :func:`declare_output`; None if its outputs are of none of these forms.

    Models without a declaration are judged by the form of their outputs, and by the configuration of the model, which
    is given without wrappers such as DistributedDataParallel.

    Raises:
        AttendropError: The labels of ``batch`` are a number for each output, and nothing says what these are.
    """
    declared: str | None = getattr(model, _DECLARED, None)
    if declared is not None or hasattr(outputs, "start_logits"):
        return declared or SPAN
    logits: Tensor | None = getattr(outputs, "logits", None)
    if logits is None or logits.ndim not in (2, 3):
        return None
    if logits.ndim == 3:
        return TOKENS
    if logits.shape[-1] == 1 and is_regression(model, batch):
        return NUMBER
    if logits.shape[-1] > 1 and _are_numbers(model, batch) and batch["labels"].shape == logits.shape:
        raise AttendropError(
            f"A row has {logits.shape[-1]} numbers as labels, and nothing says what {type(model).__name__} predicts: "
            "call attendrop.extend.declare_output(model, kind), with the kind 'labels' if several of them may apply, "
            "'number' if it predicts these numbers, or 'classes' if they are probabilities of classes."
        )
    return _configured(model) or (NUMBER if logits.shape[-1] == 1 else CLASSES)


def is_regression(model: nn.Module, batch: Batch) -> bool:
    """Return whether a model predicts numbers; if it does not say so, whether each row has one as its label."""
    declared = getattr(model, _DECLARED, None)
    if declared is None and _are_numbers(model, batch) and batch["labels"].numel() == number_of_rows(batch):
        return True
    return (declared or _configured(model)) == NUMBER


def _are_numbers(model: nn.Module, batch: Batch) -> bool:
    """Return whether labels are numbers, and the configuration of the model does not say of what.

    With labels, models of transformers complete it; but a loss of one's own may withhold them, and a class of one's own
    may have the configuration of an encoder.
    """
    labels = batch.get("labels")
    is_open = getattr(getattr(model, "config", None), "problem_type", None) is None
    return is_open and isinstance(labels, Tensor) and labels.is_floating_point()


def _configured(model: nn.Module) -> str | None:
    """Return the kind for which transformers chooses the loss of a model by its configuration; None without one."""
    config: Any = getattr(model, "config", None)
    problem, num_labels = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
    if problem is None and num_labels is None:
        return None
    if problem is None and num_labels == 1 and not type(model).__name__.endswith("ForMultipleChoice"):
        return NUMBER
    return {"multi_label_classification": LABELS, "regression": NUMBER}.get(str(problem), CLASSES)


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

    In this library's own tasks the column ``answer_mask`` marks them. Without it, these are the tokens of the second
    text by ``token_type_ids``, except its last one, a separator; or, in a row without such types, all tokens that are
    not padding by ``attention_mask``.
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

    A span has only tokens that are ``allowed``, at most ``MOST_ANSWER_TOKENS``. All three are ``(batch, n)``.

    Returns:
        Sums, first and last tokens, ``(batch,)``; minus infinity, 0 and 0 in a row without an allowed token.
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
