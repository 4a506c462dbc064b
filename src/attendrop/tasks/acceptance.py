"""Which answers to trust: a least confidence from which answers are right often enough, and accuracy at coverage.

The confidence of an answer is the probability of the predicted class. Nearness to the training rows of that class tells
rows of no class from others no better (docs/experiments.md, 2026-11-28), and wrong answers from right ones worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax
from scipy.stats import beta

from attendrop.tasks.types.base import Array
from attendrop.tasks.types.classification import predicted_classes
from attendrop.wording import counted

# Error rate of the promise that is kept with a threshold: one in ten such thresholds may accept more errors.
ALPHA = 0.1
# Thresholds that are tested, each of which accepts a further twentieth of the rows; the first accepts a fifth. One that
# accepts fewer rows allows no error, so that the sequence would mostly end there.
_STEPS, _FIRST = 20, 4


def choose_threshold(
    logits: Array, labels: Array, wanted: float, groups: Sequence[Any] | None = None
) -> dict[str, Any]:
    """Choose the least confidence from which answers are right at least as often as ``wanted``, with 90 % confidence.

    Thresholds are tested from the strictest on, until one fails: it passes if the lower limit of Clopper and Pearson
    (1934) of the accuracy of the accepted rows is at least ``wanted``. In such a fixed sequence the chance that any one
    passes wrongly is that of a single test (Angelopoulos et al., 2021, Learn then Test), if answers are right the more
    often, the more confident they are.

    Args:
        logits: Of rows that were not trained on, ``(rows, classes)``.
        labels: Class ids ``(rows,)``; ids that are not a class count as wrong.
        wanted: Accuracy of the accepted answers, above 0 and below 1.
        groups: Group of each row. One row of each, at random, is used: rows of a group are not independent.

    Returns:
        ``wanted``; ``threshold``, None if no threshold passes; ``rows`` that were used; and of these how many the
        threshold has ``accepted``, how many of them are ``right``, and ``at_least``, the lower limit.
    """
    used = np.arange(len(labels))
    if groups is not None:
        order = np.random.default_rng(0).permutation(len(labels))
        used = order[np.unique(np.asarray([str(groups[row]) for row in order]), return_index=True)[1]]
    logits, labels = logits[used], labels[used]
    confidence, right = confidences(logits), predicted_classes(logits) == labels
    found = {"wanted": wanted, "threshold": None, "rows": len(labels), "accepted": 0, "right": 0, "at_least": None}
    least = least_rows(wanted)
    for step in range(_FIRST, _STEPS + 1):
        place = math.ceil(len(labels) * step / _STEPS)
        if place < least:
            continue
        threshold = float(np.sort(confidence)[-place])
        accepted, hits = int((confidence >= threshold).sum()), int(right[confidence >= threshold].sum())
        limit = float(beta.ppf(ALPHA, hits, accepted - hits + 1)) if hits else 0.0
        if limit < wanted:
            break
        found |= {"threshold": threshold, "accepted": accepted, "right": hits, "at_least": limit}
    return found


def least_rows(wanted: float) -> int:
    """Count the rows that show an accuracy of ``wanted`` if the answers to all of them are right: 45 for 0.95."""
    return math.ceil(math.log(ALPHA) / math.log(wanted))


def confidences(logits: Array) -> Array:
    """Compute the probability of the predicted class of each row of logits ``(rows, classes)``."""
    found: Array = softmax(logits, axis=1).max(axis=1)
    return found


def with_acceptance(
    rows: Sequence[dict[str, Any]], logits: Array, accept: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Add the columns ``confidence`` and ``accepted`` to predictions, if ``accept`` says which are accepted."""
    if accept is None:
        return list(rows)
    return [
        row | {"confidence": round(float(value), 6), "accepted": bool(is_accepted)}
        for row, value, is_accepted in zip(rows, *_accepted(logits, accept), strict=True)
    ]


def _accepted(logits: Array, accept: Mapping[str, Any]) -> tuple[Array, Array]:
    """Return the confidence of each row, and whether its answer is accepted; without a threshold none is."""
    confidence, threshold = confidences(logits), accept["threshold"]
    return confidence, confidence >= (math.inf if threshold is None else threshold)


def accepted_share(logits: Array, labels: Array, accept: Mapping[str, Any]) -> dict[str, Any]:
    """Count ``rows``, those of them whose answers are ``accepted``, and those that are ``right``, beside ``accept``."""
    accepted = _accepted(logits, accept)[1]
    right = int((predicted_classes(logits) == labels)[accepted].sum())
    counts = {"rows": len(labels), "accepted": int(accepted.sum()), "right": right}
    return {"wanted": accept["wanted"], "threshold": accept["threshold"], **counts}


def accuracy_at_coverage(logits: Array, labels: Array) -> list[dict[str, float]]:
    """Compute the accuracy of the most confident tenth of the rows, of two tenths, and so on.

    Returns ``coverage``, the share of the rows, 0 to 1, with the ``confidence`` of its last row and its ``accuracy``.
    """
    confidence, right = confidences(logits), predicted_classes(logits) == labels
    order = np.argsort(-confidence, kind="stable")
    means = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    places = sorted({math.ceil(len(order) * tenths / 10) for tenths in range(1, 11)})
    return [
        {"coverage": place / len(order), "confidence": float(confidence[order[place - 1]]), "accuracy": float(mean)}
        for place, mean in zip(places, means[np.array(places) - 1], strict=True)
    ]


def promise(accept: Mapping[str, Any]) -> str:
    """Say in a sentence which answers are accepted, and what is promised of them; or why none is accepted.

    ``accept`` is what :func:`choose_threshold` returns.
    """
    wanted, rows, threshold = accept["wanted"], counted(accept["rows"], "held-out row"), accept["threshold"]
    if accept["rows"] < (least := least_rows(wanted)):
        return (
            f"No answer is accepted at {wanted:g}: {rows} cannot show such an accuracy, which takes {least} with right "
            "answers to all; hold out more by --test-fraction, or give an --eval-file."
        )
    if threshold is None:
        return f"No answer is accepted at {wanted:g}: {rows} show no confidence from which so many answers are right."
    return (
        f"{accept['accepted'] / accept['rows']:.0%} of new rows can be answered at {wanted:g}: those with a confidence "
        f"of {threshold:.3f} or more. At least {accept['at_least']:.3f} of them are right, with 90 % confidence: "
        f"{accept['right']} of {accept['accepted']} were, of {rows}."
    )


def share_told(found: Mapping[str, Any]) -> str:
    """Say in a sentence how many rows are accepted, and how many of these answers are right (`accepted_share`)."""
    if found["threshold"] is None:
        return f"No answer is accepted at {found['wanted']:g}: the rows of the run do not support it."
    right = f", and {found['right'] / found['accepted']:.3f} of these answers are right" if found["accepted"] else ""
    share = f"{found['accepted'] / found['rows']:.0%} of new rows can be answered at {found['wanted']:g}"
    rows = f"{found['accepted']} of these {counted(found['rows'], 'row')}"
    chosen = " The threshold was chosen on these rows." if found["chosen_here"] else ""
    return f"{share}: {rows} have a confidence of {found['threshold']:.3f} or more{right}.{chosen}"
