"""What a model predicts, by kind of output; at which positions; and the targets of attribution behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from attendrop.attention.hooks import evaluating, forked_rng
from attendrop.attention.plan import Plan
from attendrop.errors import AttendropError, check_choice
from attendrop.support.models import ANSWER_MASK, Batch, named_outputs, number_of_rows, transformers_model

# Maximum number of tokens of an answer, as in the script of BERT's authors.
MOST_ANSWER_TOKENS = 30
# Logit of a token that cannot be part of an answer: its probability is 0, and differences stay finite.
_EXCLUDED = -1e4

# Kinds of output: logits of one of several classes or choices, ``(batch, classes)``; of independent labels, ``(batch,
# labels)``; numbers, ``(batch, 1)``; logits of a class for each token, ``(batch, n, classes)``; or of the first and the
# last token of an answer, ``start_logits`` and ``end_logits``, ``(batch, n)``.
CLASSES, LABELS, NUMBER, TOKENS, SPAN = "classes", "labels", "number", "tokens", "span"
# Attribute of a model; copies and wrappers of the model have it, and files do not.
_DECLARED = "attendrop_output_kind"

IGNORED = -100
# Whether each model shifts its labels, once known.
_SHIFTS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()

# From the outputs of a pass to the attributed score of each sequence, (batch,), or of all.
Target = Callable[[Any], Tensor]
# Runs a pass with a plan, and returns its outputs.
Forward = Callable[[Plan], Any]


def declare_output(model: nn.Module, kind: str) -> None:
    """Declare the kind of output of a model: ``"classes"``, ``"labels"``, ``"number"``, ``"tokens"`` or ``"span"``.

    Raises:
        AttendropError: It is another one, which would be taken for classes.
    """
    check_choice("kind", kind, (CLASSES, LABELS, NUMBER, TOKENS, SPAN))
    setattr(model, _DECLARED, kind)


def output_kind(model: nn.Module, outputs: Any, batch: Batch) -> str | None:
    """Return the kind of output of an unwrapped model, see :func:`declare_output`; None if it is none of these.

    Models without a declaration are judged by the form of their outputs, and by their configuration.
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
    """Return whether labels are numbers, and the configuration, of a class of one's own, does not say of what."""
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

    A span has only tokens that are ``allowed``, at most ``MOST_ANSWER_TOKENS``. All three are ``(batch, n)``; sums,
    first and last tokens ``(batch,)``; minus infinity, 0 and 0 in a row without an allowed token.
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


def aligned_labels(model: nn.Module, logits: Tensor, batch: Mapping[str, Any]) -> Tensor | None:
    """Move labels of tokens, ``(batch, n)``, to the positions that predict them: causal language models the next token.

    The model is unwrapped, its logits are ``(batch, n, classes)``, and labels are -100 where there is none; None
    without ``labels`` in the batch.
    """
    labels: Tensor | None = batch.get("labels")
    if labels is None:
        return None
    if labels.shape != logits.shape[:-1]:
        raise AttendropError(
            f"{type(model).__name__} returns logits of shape {tuple(logits.shape)} for labels of shape "
            f"{tuple(labels.shape)}: which position predicts which label is not known (CTC, prompt tuning). Use a "
            "method that does not look at predictions, or attribution='attention'."
        )
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORED) if shifts_labels(model, batch) else labels


def answer_positions(logits: Tensor, positions: Tensor) -> Tensor:
    """Return the first or last tokens of answers, ``(batch,)``, as losses expect them: 0 to ``n``, which is ignored."""
    return positions.reshape(-1).clamp(0, logits.shape[-1])


def shifts_labels(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """Return whether the model's loss compares each label with the prediction one position before it.

    Two passes of each model show whether a label in the first position alone changes the loss; if not, a third one,
    with a label in the second, shows whether it is compared with the prediction there, as by a tagger that leaves out
    [CLS]. A model that cannot compute these losses does not shift, nor do encoder-decoder models, which move labels to
    the inputs of their decoder.
    """
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    if model not in _SHIFTS:
        labels = batch["labels"]
        given = labels[labels != IGNORED]
        if not len(given):
            return False
        none = torch.full_like(labels, IGNORED)

        def outputs_with(place: int) -> Any:
            labels = none.clone()
            labels[:, place : place + 1] = given[0]
            return named_outputs(model(**{**batch, "labels": labels}), batch)

        try:
            with torch.no_grad(), forked_rng(model), evaluating(model):
                loss_of_none = outputs_with(labels.shape[1]).loss
                found = torch.allclose(outputs_with(0).loss, loss_of_none, equal_nan=True)
                if found and labels.shape[1] > 1:
                    outputs, label = outputs_with(1), given[:1].expand(len(labels))
                    losses = [functional.cross_entropy(outputs.logits[:, place].float(), label) for place in (0, 1)]
                    before, there = (torch.allclose(outputs.loss.float(), each, rtol=1e-3) for each in losses)
                    found = before or not there  # neither, if the model scales its loss
        except torch.OutOfMemoryError:
            raise
        except Exception:  # of a model that takes no labels, or none that are left out
            found = False
        _SHIFTS[model] = found
    return _SHIFTS[model]


def refuse_smoothing(model: nn.Module, logits: Tensor | None, batch: Mapping[str, Any]) -> None:
    """Raise AttendropError where ``transformers.Trainer`` cannot smooth labels as the model's loss would.

    It smooths numbers as if they were classes, and shifts labels by the name of the model's class.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    labels: Tensor | None = batch.get("labels")
    if not isinstance(labels, Tensor):
        return
    if labels.is_floating_point() or (labels.ndim == 1 and is_regression(model, batch)):
        raise AttendropError(
            "label_smoothing_factor is above 0, but the labels are numbers, and only classes can be smoothed; set it "
            "to 0."
        )
    if logits is None or labels.ndim < 2 or labels.shape != logits.shape[:-1]:
        return
    if model not in _SHIFTS and not (labels != IGNORED).any():
        return
    name = type(transformers_model(model)).__name__
    if shifts_labels(model, batch) != (name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        raise AttendropError(
            f"label_smoothing_factor is above 0: transformers would smooth the labels of {name} one position away from "
            "the predictions that the model's own loss compares them with. Set it to 0, or pass a compute_loss_func."
        )


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

    The ``target`` is ``"pseudo_label"``, what the model predicts in ``outputs`` (Eq. 4); ``"gold_label"``, which needs
    ``labels`` in the batch; or ``"loss"``. Raises AttendropError where these are missing, or outputs of no known form.
    """
    if target == "loss":
        if getattr(outputs, "loss", None) is None:
            raise AttendropError(
                f"{type(model).__name__} returned no loss, which target='loss' attributes; add 'labels' to the batch."
            )
        return lambda outputs: -outputs.loss
    kind = output_kind(model, outputs, batch)
    if kind == SPAN:
        if target == "gold_label":
            first = _required(batch.get("start_positions"), "start_positions")
            last = _required(batch.get("end_positions"), "end_positions")
        else:
            start, end = outputs.start_logits.detach(), outputs.end_logits.detach()
            _, first, last = best_spans(start, end, answer_tokens(batch, start))
        # A position beyond the tokens is not in this window: the model's loss ignores it.
        places = [answer_positions(outputs.start_logits, position)[:, None] for position in (first, last)]

        def score_of_span(outputs: Any) -> Tensor:
            ends = (functional.pad(logits, (0, 1)) for logits in (outputs.start_logits, outputs.end_logits))
            first, last = (end.gather(-1, place).squeeze(-1) for end, place in zip(ends, places, strict=True))
            return first + last

        return score_of_span
    logits: Tensor | None = getattr(outputs, "logits", None)
    if kind is None or logits is None:
        form = "no logits" if logits is None else f"logits of shape {tuple(logits.shape)}"
        raise AttendropError(
            f"{type(model).__name__} returns {form}; attribution needs (batch, ...) or (batch, n, ...)."
        )
    labels = batch.get("labels")
    if kind == TOKENS:
        labels = aligned_labels(model, logits, batch)
        if labels is not None:
            scored = labels != -100
        elif batch.get("attention_mask") is not None and batch["attention_mask"].shape == logits.shape[:2]:
            scored = batch["attention_mask"].bool()
        else:
            scored = torch.ones_like(logits[..., 0], dtype=torch.bool)
        tokens = _required(labels) if target == "gold_label" else logits.detach().argmax(-1)
        # An encoder-decoder model that generates begins with the token that its generation forces, such as a language.
        forced = getattr(getattr(model, "generation_config", None), "forced_bos_token_id", None)
        if target != "gold_label" and forced is not None and getattr(model.config, "is_encoder_decoder", False):
            tokens[:, 0] = forced
        ids = tokens.where(scored, 0)[..., None]

        def score_of_tokens(outputs: Any) -> Tensor:
            likelihood = functional.log_softmax(outputs.logits, dim=-1).gather(-1, ids).squeeze(-1)
            return torch.where(scored, likelihood, 0).sum(-1)

        return score_of_tokens
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


def _required(labels: Tensor | None, name: str = "labels", also: str = "") -> Tensor:
    if labels is None:
        raise AttendropError(
            f"The batch has no '{name}', which target='gold_label' attributes: use 'pseudo_label' or 'loss'{also}."
        )
    return labels
