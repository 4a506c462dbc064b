"""Analysis of a model's errors: scores by class, confusions, calibration, and the most confident errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import Dataset
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import precision_recall_fscore_support

from attendrop.tasks.acceptance import accuracy_at_coverage, share_told
from attendrop.tasks.base import Task
from attendrop.tasks.splits import nearest_texts
from attendrop.tasks.table import plain
from attendrop.tasks.types.base import Array
from attendrop.tasks.types.classification import MultiLabel, predicted_classes
from attendrop.wording import counted

# Greatest number of confusions and of errors that are listed.
_LISTED = 20
# Bins of probability of the reliability diagram, and of the expected calibration error.
_BINS = 10
# With fewer rows, the best fit mostly reflects the prior of the fit.
ROWS_FOR_TEMPERATURE = 100


def error_analysis(
    task: Task, outputs: Array, references: Array, rows: Dataset, train: Dataset | None = None
) -> dict[str, Any] | None:
    """Analyse the errors of a model; return JSON values.

    Args:
        task: The task.
        outputs: Logits of the rows, ``(rows, classes)``.
        references: Class ids ``(rows,)``, or zeros and ones ``(rows, labels)``.
        rows: The rows as they were loaded.
        train: The training rows, in which the nearest neighbours of errors are searched; None: there is no search.

    Returns:
        ``classes``: for each class its ``class, rows, predicted, precision, recall, f1``. For single classes also
        ``confusions``, the most frequent pairs with ``class, predicted, rows``; ``calibration``, see
        :func:`calibration`; ``coverage``, see :func:`attendrop.tasks.acceptance.accuracy_at_coverage`; and ``errors``,
        the most confident wrong predictions: ``row`` (in the file, from 0), ``text, class, predicted, probability``,
        and with training rows ``nearest``: the most similar one by TF-IDF, with ``text, class, likeness`` (cosine, 0 to
        1). None for other kinds of predictions.
    """
    task_type = task.type
    if not task_type.num_classes and not isinstance(task_type, MultiLabel):
        return None
    outputs = task_type.checked(outputs)
    names, numbers = task_type.all_names, range(len(task_type.output_names))
    predicted: Array = predicted_classes(outputs) if task_type.num_classes else expit(outputs) > 0.5
    found = precision_recall_fscore_support(references, predicted, labels=list(numbers), zero_division=0.0)
    counts = predicted.sum(0) if predicted.ndim == 2 else np.bincount(predicted, minlength=len(numbers))
    classes = [
        {"class": name, "rows": int(rows), "predicted": int(count), "precision": p, "recall": r, "f1": f1}
        for name, p, r, f1, rows, count in zip(
            task_type.label_names, *(part.tolist() for part in found), counts, strict=True
        )
    ]
    if not task_type.num_classes:
        return {"classes": classes}
    wrong = np.flatnonzero(predicted != references)
    confused = Counter(zip(references[wrong], predicted[wrong], strict=True))
    probabilities, texts = softmax(outputs, axis=1)[wrong, predicted[wrong]], task_type.texts(rows)
    errors: list[dict[str, Any]] = [
        {
            "row": rows["index"][int(wrong[place])],
            "text": " | ".join(map(str, texts[wrong[place]])),
            "class": names[references[wrong[place]]],
            "predicted": names[predicted[wrong[place]]],
            "probability": float(probabilities[place]),
        }
        for place in np.argsort(-probabilities, kind="stable")[:_LISTED]
    ]
    if train is not None and errors:
        known, labels = [" | ".join(map(str, text)) for text in task_type.texts(train)], task_type.strata_of(train)
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
    """Compare the confidence of a model with its accuracy.

    Args:
        logits: ``(rows, classes)``.
        labels: Class ids ``(rows,)``; ids that are not a class count as wrong.

    Returns:
        ``error``, the expected calibration error (Guo et al., 2017) over ten bins of equal width; ``bins`` with rows,
        each with its ``rows``, mean ``probability`` and ``accuracy``; and ``temperature``, by which to divide logits
        for probabilities that fit these rows best (least cross-entropy, between 0.05 and 20).
    """
    probabilities, right = softmax(logits, axis=1).max(axis=1), predicted_classes(logits) == labels
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
    """Describe in sentences how well probabilities are calibrated, and which labels are doubtful.

    Of an error whose text is that of a training row of another class, one of the two labels is wrong.
    """
    found = []
    if calibrated := analysis.get("calibration"):
        found.append(f"Probabilities are off by {calibrated['error']:.3f} on average (expected calibration error).")
        if sure := [part for part in calibrated["bins"] if part["probability"] > 0.9]:
            rows, accuracy = sure[-1]["rows"], sure[-1]["accuracy"]
            right = round(rows * accuracy)
            share = f"{accuracy:.1%} are" if rows >= 100 else f"{right} is" if right == 1 else f"{right} are"
            found.append(f"Of {counted(rows, 'prediction')} with a probability above 0.9, {share} right.")
        if sum(part["rows"] for part in calibrated["bins"]) >= ROWS_FOR_TEMPERATURE:
            temperature, shown = calibrated["temperature"], f"{calibrated['temperature']:.2f}"
            so = f"the model should be {'less' if temperature > 1 else 'more'} confident"
            so = "the model is as confident as it should be" if shown == "1.00" else so
            found.append(f"A temperature of {shown} would fit these rows best: {so}.")
    if accepted := analysis.get("accept"):
        found.append(share_told(accepted))
    errors = analysis.get("errors", ())
    nearest = [(error, error["nearest"]) for error in errors if error.get("nearest")]
    if doubtful := [e for e, n in nearest if plain(n["text"]) == plain(e["text"]) and n["class"] != e["class"]]:
        among = f" of the {_LISTED} most confident ones" if len(errors) == _LISTED else ""
        found.append(
            f"The text of {counted(len(doubtful), 'error')}{among} is that of a training row with another label: one "
            "of the two labels is wrong."
        )
    return found
