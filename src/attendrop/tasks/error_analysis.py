"""Which answers to trust, and a model's errors: scores by class, confusions, calibration, the most confident errors.

Answers are accepted from a least confidence on, from which they are right often enough. The confidence of an answer is
the probability of the predicted class. Nearness to the training rows of that class tells rows of no class from others
no better (docs/experiments.md, 2026-11-28), and wrong answers from right ones worse.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax
from scipy.stats import beta
from sklearn.metrics import precision_recall_fscore_support

from attendrop.tasks.base import Task
from attendrop.tasks.splits import nearest_texts
from attendrop.tasks.table import plain
from attendrop.tasks.types.base import Answer, Array
from attendrop.tasks.types.classification import MultiLabel, predicted_classes
from attendrop.wording import counted

# Greatest number of confusions and of errors that are listed, and bins of probability.
_LISTED, _BINS = 20, 10
# With fewer rows, the best fit mostly reflects the prior of the fit.
ROWS_FOR_TEMPERATURE = 100
# Error rate of the promise that is kept with a threshold: one in ten such thresholds may accept more errors.
ALPHA = 0.1
# Thresholds that are tested, each of which accepts a further twentieth of the rows; the first accepts a fifth. One that
# accepts fewer rows allows no error, so that the sequence would mostly end there.
_STEPS, _FIRST = 20, 4


def error_analysis(
    task: Task, outputs: Array, references: Array, rows: Dataset, train: Dataset | None = None
) -> dict[str, Any] | None:
    """Analyse the errors of a model, by logits ``(rows, classes)``, on rows as they were loaded; return JSON values.

    References are class ids ``(rows,)``, or zeros and ones ``(rows, labels)``.

    Returns:
        ``classes``, with the scores of each; for single classes also ``confusions``, the most frequent ones;
        :func:`calibration`; ``coverage``, by :func:`accuracy_at_coverage`; and ``errors``, the most confident ones:
        ``row`` is that of the file, from 0, and ``nearest`` the most similar training row by TF-IDF, with its
        ``likeness`` (cosine, 0 to 1). None for other kinds of predictions.
    """
    task_type = task.type
    if not task_type.num_classes and not isinstance(task_type, MultiLabel):
        return None
    outputs = task_type.checked(outputs)
    names, numbers = task_type.all_names, range(len(task_type.output_names))
    predicted: Array = predicted_classes(outputs) if task_type.num_classes else expit(outputs) > 0.5
    found = precision_recall_fscore_support(references, predicted, labels=list(numbers), zero_division=0.0)
    counts = predicted.sum(0) if predicted.ndim == 2 else np.bincount(predicted, minlength=len(numbers))
    columns = zip(task_type.label_names, *(part.tolist() for part in found), counts.tolist(), strict=True)
    classes = [
        {"class": name, "rows": rows, "predicted": count, "precision": p, "recall": r, "f1": f1}
        for name, p, r, f1, rows, count in columns
    ]
    if not task_type.num_classes:
        return {"classes": classes}
    wrong = np.flatnonzero(predicted != references)
    confused = Counter(zip(references[wrong], predicted[wrong], strict=True))
    probabilities, texts = confidences(outputs), task_type.texts(rows)
    errors: list[dict[str, Any]] = [
        {
            "row": rows["index"][int(row)],
            "text": " | ".join(texts[row]),
            "class": names[references[row]],
            "predicted": names[predicted[row]],
            "probability": float(probabilities[row]),
        }
        for row in wrong[np.argsort(-probabilities[wrong], kind="stable")[:_LISTED]]
    ]
    if train is not None and errors:
        known, labels = [" | ".join(text) for text in task_type.texts(train)], task_type.strata_of(train)
        same: defaultdict[str, list[int]] = defaultdict(list)
        for row, text in enumerate(known):
            same[plain(text)].append(row)
        for error, (row, likeness) in zip(errors, nearest_texts([e["text"] for e in errors], known), strict=True):
            # Of several rows as near, one that contradicts the label.
            row = next((each for each in same[plain(error["text"])] if names[labels[each]] != error["class"]), row)
            error["nearest"] = {"text": known[row], "class": names[labels[row]], "likeness": likeness}
    return {
        "classes": classes,
        "confusions": [
            {"class": names[true], "predicted": names[answer], "rows": count}
            for (true, answer), count in confused.most_common(_LISTED)
        ],
        "calibration": calibration(outputs, references),
        "coverage": accuracy_at_coverage(outputs, references),
        "errors": errors,
    }


def calibration(logits: Array, labels: Array) -> dict[str, Any]:
    """Compare the confidence of a model, by logits ``(rows, classes)``, with its accuracy.

    Labels are class ids ``(rows,)``; ids that are not a class count as wrong.

    Returns:
        ``error``, the expected calibration error (Guo et al., 2017) over ten bins of equal width; ``bins`` with rows,
        each with its ``rows``, mean ``probability`` and ``accuracy``; and ``temperature``, by which to divide logits
        for probabilities that fit these rows best (least cross-entropy, between 0.05 and 20).
    """
    probabilities, right = confidences(logits), predicted_classes(logits) == labels
    places = np.minimum((probabilities * _BINS).astype(int), _BINS - 1)
    bins = []
    for place in np.unique(places):
        inside = places == place
        means = {"probability": float(probabilities[inside].mean()), "accuracy": float(right[inside].mean())}
        bins.append({"rows": int(inside.sum()), **means})
    error = sum(part["rows"] * abs(part["probability"] - part["accuracy"]) for part in bins) / len(labels)
    return {"error": error, "bins": bins, "temperature": best_temperature(logits, labels)}


def best_temperature(logits: Array, labels: Array) -> float:
    """Return the number by which to divide logits so that their cross-entropy is least, between 0.05 and 20.

    With ``n`` rows, a label has the probability ``(n + 1) / (n + 2)``, and the other classes share the rest, as in
    Platt (1999), so that a few rows that are all right do not make the model overconfident.
    """
    known = labels < logits.shape[1]
    logits, labels = logits[known], labels[known]
    if not len(labels):
        return 1.0
    rest = 1 / (len(labels) + 2)
    targets = np.full(logits.shape, rest / (logits.shape[1] - 1))
    targets[np.arange(len(labels)), labels] = 1 - rest

    def loss(log_temperature: float) -> float:
        return -float((targets * log_softmax(logits / np.exp(log_temperature), axis=1)).sum(axis=1).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.05), np.log(20)), method="bounded").x))


def worst_classes(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the classes that occur or are predicted, those with the lowest F1 first."""
    found = (each for each in analysis["classes"] if each["rows"] or each["predicted"])
    return sorted(found, key=lambda each: each["f1"])


def remarks(analysis: Mapping[str, Any]) -> list[str]:
    """Describe in sentences how well probabilities are calibrated, and which labels are doubtful."""
    found = []
    if calibrated := analysis.get("calibration"):
        found.append(f"Probabilities are off by {calibrated['error']:.3f} on average (expected calibration error).")
        if sure := [part for part in calibrated["bins"] if part["probability"] > 0.9]:
            rows, accuracy = sure[-1]["rows"], sure[-1]["accuracy"]
            hits = round(rows * accuracy)
            share = f"{accuracy:.1%} are" if rows >= 100 else f"{hits} is" if hits == 1 else f"{hits} are"
            found.append(f"Of {counted(rows, 'prediction')} with a probability above 0.9, {share} right.")
        if sum(part["rows"] for part in calibrated["bins"]) >= ROWS_FOR_TEMPERATURE:
            temperature, shown = calibrated["temperature"], f"{calibrated['temperature']:.2f}"
            so = f"the model should be {'less' if temperature > 1 else 'more'} confident"
            so = "the model is as confident as it should be" if shown == "1.00" else so
            found.append(f"A temperature of {shown} would fit these rows best: {so}.")
    if accept := analysis.get("accept"):
        wanted, accepted = accept["wanted"], accept["accepted"]
        told = f"No answer is accepted at {wanted:g}: the rows of the run do not support it."
        if accept["threshold"] is not None:
            right = f", and {accept['right'] / accepted:.3f} of these answers are right" if accepted else ""
            chosen = " The threshold was chosen on these rows." if accept["chosen_here"] else ""
            told = (
                f"{accepted / accept['rows']:.0%} of new rows can be answered at {wanted:g}: {accepted} of these "
                f"{counted(accept['rows'], 'row')} have a confidence of {accept['threshold']:.3f} or more{right}."
                f"{chosen}"
            )
        found.append(told)
    errors = analysis.get("errors", ())
    nearest = [(error, error["nearest"]) for error in errors if error.get("nearest")]
    if doubtful := [e for e, n in nearest if plain(n["text"]) == plain(e["text"]) and n["class"] != e["class"]]:
        among = f" of the {_LISTED} most confident ones" if len(errors) == _LISTED else ""
        found.append(
            f"The text of {counted(len(doubtful), 'error')}{among} is that of a training row with another label: one "
            "of the two labels is wrong."
        )
    return found


# Accepted answers -----------------------------------------------------------------------------------------------------


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
        groups: Group of each row; rows of a group are not independent. None: each row is its own.

    Returns:
        ``wanted``; ``threshold``, None if no threshold passes; ``rows``, and as how many independent ones they count,
        ``effective_rows``; how many the threshold has ``accepted``, how many of these are ``right``, and ``at_least``,
        the lower limit.
    """
    confidence, right = confidences(logits), predicted_classes(logits) == labels
    group = np.unique(range(len(labels)) if groups is None else list(map(str, groups)), return_inverse=True)[1]
    effective = int(_effective_rows(np.bincount(group)))
    found = {"wanted": wanted, "threshold": None, "rows": len(labels), "effective_rows": effective}
    found |= {"accepted": 0, "right": 0, "at_least": None}
    for step in range(_FIRST, _STEPS + 1) if effective >= least_rows(wanted) else ():
        threshold = float(np.sort(confidence)[-math.ceil(len(labels) * step / _STEPS)])
        accepted = confidence >= threshold
        sizes, hits = np.bincount(group[accepted]), np.bincount(group[accepted], right[accepted])
        if _effective_rows(sizes) < least_rows(wanted):
            continue
        # The limit is for as many rows as the accepted groups are worth (Korn and Graubard, 1998).
        worth, accuracy = _effective_rows(sizes), hits.sum() / sizes.sum()
        if variance := ((hits - accuracy * sizes) ** 2).sum() / sizes.sum() ** 2:
            worth = min(worth, accuracy * (1 - accuracy) / variance)
        limit = float(beta.ppf(ALPHA, accuracy * worth, (1 - accuracy) * worth + 1)) if accuracy else 0.0
        if limit < wanted:
            break
        # A little below the row's, since the last digits of confidences differ between machines and batches.
        threshold -= min(1e-6, float(threshold - confidence[~accepted].max(initial=-1.0)) / 2)
        found |= {"threshold": threshold, "accepted": int(sizes.sum()), "right": int(hits.sum()), "at_least": limit}
    return found


def _effective_rows(sizes: Array) -> float:
    """Count the independent rows that groups of such sizes are worth at least (Kish, 1965); all, if each has one."""
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if sizes.size else 0.0


def least_rows(wanted: float) -> int:
    """Count the rows that show an accuracy of ``wanted`` if the answers to all of them are right: 45 for 0.95."""
    return math.ceil(math.log(ALPHA) / math.log(wanted))


def confidences(logits: Array) -> Array:
    """Compute the probability of the predicted class of each row of logits ``(rows, classes)``."""
    return np.asarray(softmax(logits, axis=1).max(axis=1))


def with_acceptance(rows: Sequence[Answer], logits: Array, accept: Mapping[str, Any] | None) -> list[Answer]:
    """Add the columns ``confidence`` and ``accepted`` to predictions, if ``accept`` says which are accepted."""
    if accept is None:
        return list(rows)
    threshold = math.inf if accept["threshold"] is None else accept["threshold"]
    return [
        row | {"confidence": round(float(value), 6), "accepted": bool(value >= threshold)}
        for row, value in zip(rows, confidences(logits), strict=True)
    ]


def accepted_share(logits: Array, labels: Array, accept: Mapping[str, Any]) -> dict[str, Any]:
    """Count ``rows``, those of them whose answers are ``accepted``, and those that are ``right``, beside ``accept``."""
    accepted = confidences(logits) >= (math.inf if accept["threshold"] is None else accept["threshold"])
    right = int((predicted_classes(logits) == labels)[accepted].sum())
    counts = {"rows": len(labels), "accepted": int(accepted.sum()), "right": right}
    return {"wanted": accept["wanted"], "threshold": accept["threshold"], **counts}


def accuracy_at_coverage(logits: Array, labels: Array) -> list[dict[str, float]]:
    """Compute the accuracy of the most confident tenth of the rows, of two tenths, and so on.

    Returns ``coverage``, the share of the rows, 0 to 1, with the ``confidence`` of its last row and its ``accuracy``.
    """
    confidence, right = confidences(logits), predicted_classes(logits) == labels
    _, tied = np.unique(confidence, return_inverse=True)  # rows of the same confidence have no order
    right = (np.bincount(tied, right) / np.bincount(tied))[tied]
    order = np.argsort(-confidence, kind="stable")
    means = np.cumsum(right[order]) / np.arange(1, len(order) + 1)
    places = sorted({math.ceil(len(order) * tenths / 10) for tenths in range(1, 11)})
    return [
        {"coverage": place / len(order), "confidence": float(confidence[order[place - 1]]), "accuracy": float(mean)}
        for place, mean in zip(places, means[np.array(places) - 1], strict=True)
    ]


def promise(accept: Mapping[str, Any]) -> str:
    """Say in a sentence which answers are accepted, and what is promised of them; or why none is accepted.

    ``accept`` is what :func:`choose_threshold` returns, with the number of other rows, whose text was ``trained_on``.
    """
    wanted, rows, threshold = accept["wanted"], counted(accept["rows"], "held-out row"), accept["threshold"]
    alike, again = accept["effective_rows"] < accept["rows"], accept.get("trained_on")
    remarks = [f"as good as {accept['effective_rows']} that are not alike"] if alike else []
    remarks += [f"{again} more have a text of training rows"] if again else []
    rows += f" ({'; '.join(remarks)})" if remarks else ""
    if accept["effective_rows"] < (least := least_rows(wanted)):
        return (
            f"No answer is accepted at {wanted:g}: {rows} cannot show such an accuracy, which takes {least} with right "
            "answers to all; score more new rows, by --eval-file or --test-fraction."
        )
    if threshold is None:
        return f"No answer is accepted at {wanted:g}: {rows} show no confidence from which so many answers are right."
    return (
        f"{accept['accepted'] / accept['rows']:.0%} of new rows can be answered at {wanted:g}: those with a confidence "
        f"of {threshold:.3f} or more. At least {accept['at_least']:.3f} of them are right, with 90 % confidence: "
        f"{accept['right']} of {accept['accepted']} were, of {rows}."
    )
