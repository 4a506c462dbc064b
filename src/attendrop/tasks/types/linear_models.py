"""Linear models of fixed features, fitted by scikit-learn, as the weights of a linear layer.

Features are ``(rows, features)``, dense or sparse. They are divided by one number, their mean norm, for which the
weights compensate, so that a strength of the regularisation means the same for all.
"""

from __future__ import annotations

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedGroupKFold, StratifiedKFold

from attendrop.errors import AttendropError

Array = np.ndarray[Any, np.dtype[Any]]
# Inverse strengths of the regularisation, for features of norm 1. If a class has fewer rows than this, the default is
# used, because the choice is noisy: with five rows per class of Banking77, 10 is up to 0.01 more accurate than 100.
_CS, _DEFAULT_C, _FOLDS, _LEAST_ROWS = (1.0, 10.0, 100.0), 10.0, 3, 10
# Maximum number of rows for which sparse features are rotated, which takes time in proportion to its cube.
_ROTATED_ROWS = 3000
# What a fit keeps, in copies of the weights: the last ten steps of L-BFGS, with their gradients, and its working space.
_COPIES = 25
# Weight of an unlabelled row, chosen among 0.1, 0.3 and 1 on Banking77 and HWU64, and how often rows are divided into
# folds. Two rounds, or only the confident half, gain less. To leave out unlabelled rows that are further from all rows
# than seven in ten rows are from each other costs up to 0.016 of the gain.
_UNLABELLED_WEIGHT, _REPEATS = 0.3, 3


@dataclass(frozen=True)
class LinearFit:
    """Linear model of features."""

    kind: str  # such as "logistic regression"
    weight: Array  # ``(outputs, features)``
    bias: Array  # ``(outputs,)``
    settings: dict[str, float]  # chosen strength of the regularisation, such as ``{"C": 10.0}``
    score: tuple[str, float]  # name and value of its score on the rows that it was fitted to: accuracy, micro F1 or R2

    def outputs(self, features: Array) -> Array:
        """Compute outputs ``(rows, outputs)`` of features ``(rows, features)``."""
        return np.asarray(features @ self.weight.T + self.bias)


def fit_logistic_regression(
    features: Array,
    labels: Sequence[int],
    num_classes: int,
    *,
    balanced: bool = False,
    groups: Sequence[Any] | None = None,
    strength: float | None = None,
    weights: Array | None = None,
) -> LinearFit | None:
    """Fit a logistic regression with a penalty on the squared weights; None if all rows are of one class.

    The strength ``C`` has the best likelihood in cross-validation over 1, 10 and 100; it is 10 if a class has fewer
    than ten rows, or, with ``groups`` of rows, which folds keep whole, is missing from a fold; or the ``strength`` that
    is given. A class without rows gets weights of zero and the lowest bias. If ``balanced``, classes have equal weight,
    instead of rows, whose ``weights`` are 1 by default.

    Raises:
        AttendropError: The fit takes more memory than the machine has.
    """
    counts = Counter(labels)
    if len(counts) < 2:
        return None
    scaled, restored = _scaled(features)
    needed = 8 * len(counts) * (_COPIES * scaled.shape[1] + features.shape[1])
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else math.inf
    if needed > there:
        raise AttendropError(
            f"A linear model of {len(counts)} classes and {features.shape[1]} features takes {needed / 2**30:.0f} GiB "
            f"of memory, of which there are {there / 2**30:.0f}; leave this baseline out."
        )
    weighting = "balanced" if balanced else None
    model: Any = LogisticRegression(C=strength or _DEFAULT_C, max_iter=1000, class_weight=weighting)
    folds: Any = None
    if strength is None and min(counts.values()) >= _LEAST_ROWS:
        if groups is None:
            folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)
        elif len(set(groups)) >= _FOLDS:
            folds = list(StratifiedGroupKFold(_FOLDS, shuffle=True, random_state=0).split(scaled, labels, groups))
            if any(len({labels[row] for row in part}) < len(counts) for fold in folds for part in fold):
                folds = None
    if folds is not None:
        model = GridSearchCV(model, {"C": _CS}, cv=folds, scoring="neg_log_loss").fit(scaled, labels).best_estimator_
    else:
        with warnings.catch_warnings():  # with a row or two of each, scikit-learn doubts that these are classes
            warnings.filterwarnings("ignore", message="The number of unique classes")
            model.fit(scaled, labels, sample_weight=weights)
    weight, bias = model.coef_, model.intercept_
    if len(weight) == 1:  # of two classes, scikit-learn gives the difference
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    all_weights, all_biases = np.zeros((num_classes, features.shape[1])), np.full(num_classes, bias.min())
    all_weights[model.classes_], all_biases[model.classes_] = restored(weight), bias
    accuracy = float(model.score(scaled, labels))
    return LinearFit("logistic regression", all_weights, all_biases, {"C": model.C}, ("accuracy", accuracy))


def stratified_parts(units: Array, classes: Array, parts: int, seed: int, *, strata: int) -> Array:
    """Divide rows into parts that are alike in size and in classes, numbers below ``strata``; each unit is in one part.

    Units, one for each row, are the rows that belong together, or the rows themselves. Returns the part of each row,
    ``(rows,)``; the same seed gives the same parts.
    """
    _, first_rows, unit_of = np.unique(units, return_index=True, return_inverse=True)
    # Units are dealt to the parts in turn, class after class, each of which is in random order.
    generator = np.random.default_rng(seed)
    dealt, class_order = generator.permutation(len(first_rows)), generator.permutation(strata)
    dealt = dealt[np.argsort(class_order[classes[first_rows[dealt]]], kind="stable")]
    part_of_unit = np.empty(len(dealt), int)
    part_of_unit[dealt] = np.arange(len(dealt)) % parts
    return part_of_unit[unit_of]


def self_trained(
    fit: LinearFit,
    features: Array,
    labels: Sequence[int],
    unlabelled: Array,
    *,
    never_held_out: Sequence[bool],
    balanced: bool = False,
    groups: Sequence[Any] | None = None,
) -> tuple[LinearFit, dict[str, Any]]:
    """Fit a logistic regression again, with unlabelled rows of the classes that it predicts, unless rows lose by it.

    This is one round of self-training, in which all unlabelled rows have weight 0.3. Whether it is used is decided by
    cross-validation: three times, rows are divided into three parts, stratified by class, and each part is scored by
    the models of the others, with and without the unlabelled rows. These are used if no accuracy is lost on average.

    Args:
        fit: The model of the rows, whose strength is kept.
        features: Those of the rows; this and other arguments are as for :func:`fit_logistic_regression`.
        labels: Their classes.
        unlabelled: Features of the unlabelled rows, ``(unlabelled rows, features)``.
        never_held_out: For each row, whether it is only trained on, as names of classes are.
        balanced: Whether classes have equal weight.
        groups: Rows of a group are held out together.

    Returns:
        The model to use; and ``used``, with ``difference``, the accuracy on held-out rows with unlabelled rows minus
        that without, or None if no row can be held out, because its class would have no other.
    """
    classes, every = np.asarray(labels), np.arange(len(labels))
    rows = np.flatnonzero(~np.asarray(never_held_out, dtype=bool))
    stacked = sparse.vstack if sparse.issparse(features) else np.concatenate
    options: dict[str, Any] = {"num_classes": len(fit.bias), "balanced": balanced, "strength": fit.settings["C"]}

    def trained_again(first: LinearFit, kept: Array) -> LinearFit:
        predicted = first.outputs(unlabelled).argmax(axis=1)
        weights = np.repeat([1.0, _UNLABELLED_WEIGHT], [len(kept), len(predicted)])
        both = stacked([features[kept], unlabelled])
        found = fit_logistic_regression(both, [*classes[kept], *predicted], weights=weights, **options)
        assert found is not None
        return found

    units = rows if groups is None else np.array([repr(groups[int(row)]) for row in rows])
    differences: list[float] = []
    for repeat in range(_REPEATS):
        part_of = stratified_parts(units, classes[rows], _FOLDS, repeat, strata=len(fit.bias))
        for part in range(_FOLDS):
            held = rows[part_of == part]
            kept = np.setdiff1d(every, held)
            held = held[np.isin(classes[held], classes[kept])]
            first = fit_logistic_regression(features[kept], classes[kept].tolist(), **options) if len(held) else None
            if first is not None:
                without, having = (
                    model.outputs(features[held]).argmax(axis=1) == classes[held]
                    for model in (first, trained_again(first, kept))
                )
                differences += (having.astype(float) - without).tolist()
    difference = float(np.mean(differences)) if differences else None
    if difference is None or difference < 0:
        return fit, {"used": False, "difference": difference}
    found = trained_again(fit, every)
    accuracy = float(np.mean(found.outputs(features).argmax(axis=1) == classes))
    return replace(found, score=("accuracy", accuracy)), {"used": True, "difference": difference}


def fit_logistic_regressions(
    features: Array,
    targets: Sequence[Any],
    num_labels: int,
    *,
    balanced: bool = False,
    groups: Sequence[Any] | None = None,  # nothing is chosen by cross-validation
) -> LinearFit | None:
    """Fit a logistic regression for each label; None if no label varies.

    Targets are ``(rows, labels)``, zeros and ones; ``C`` is 10. A label that does not vary gets weights of zero, and as
    its bias the log-odds of its rows, with half a row of each kind added. If ``balanced``, rows with and without a
    label have equal weight.
    """
    wanted = np.asarray(targets)
    varying = np.flatnonzero(np.ptp(wanted, axis=0))
    if not len(varying):
        return None
    scaled, restored = _scaled(features)
    weights, having = np.zeros((num_labels, features.shape[1])), wanted.sum(axis=0)
    biases = np.log((having + 0.5) / (len(wanted) - having + 0.5))
    for label in varying:
        model = LogisticRegression(C=_DEFAULT_C, max_iter=1000, class_weight="balanced" if balanced else None)
        model.fit(scaled, wanted[:, label])
        weights[label], biases[label] = restored(model.coef_)[0], model.intercept_[0]
    f1 = float(f1_score(wanted, features @ weights.T + biases > 0, average="micro", zero_division=0.0))
    return LinearFit("logistic regression", weights, biases, {"C": _DEFAULT_C}, ("f1_micro", f1))


def fit_ridge_regression(
    features: Array,
    numbers: Sequence[float],
    num_outputs: int = 1,
    *,
    balanced: bool = False,  # there are no classes
    groups: Sequence[Any] | None = None,
) -> LinearFit:
    """Fit a ridge regression.

    The strength has the least squared error when each row in turn is left out; with sparse features, each fifth; with
    ``groups`` of rows, a fifth of these.
    """
    scaled, restored = _scaled(features)
    folds: Any = min(5, len(numbers)) if sparse.issparse(scaled) else None
    if groups is not None and len(set(groups)) > 1:
        folds = list(GroupKFold(min(5, len(set(groups)))).split(scaled, numbers, groups))
    model = RidgeCV((0.001, 0.01, 0.1, 1.0, 10.0, 100.0), cv=folds).fit(scaled, numbers)
    weight, score = restored(model.coef_[None]), ("r2", float(model.score(scaled, numbers)))
    bias, settings = np.array([model.intercept_]), {"alpha": float(model.alpha_)}
    return LinearFit("ridge regression", weight, bias, settings, score)


def _scaled(features: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Divide features by their mean norm; return them, and a function that converts weights to those of the original.

    Sparse features with more columns than rows are rotated into the space of their rows: with a penalty on the squared
    weights the fit is the same, and many times faster.
    """
    features = features.astype(np.float64)
    norms = sparse.linalg.norm(features, axis=1) if sparse.issparse(features) else np.linalg.norm(features, axis=1)
    scale = float(norms.mean()) or 1.0
    scaled, (rows, columns) = features / scale, features.shape
    if not sparse.issparse(scaled) or not rows < columns or rows > _ROTATED_ROWS:
        return scaled, lambda weight: weight / scale
    products: Any = scaled @ scaled.T
    values, vectors = np.linalg.eigh(products.toarray())
    kept = values > values[-1] * 1e-10
    roots, vectors = np.sqrt(values[kept]), vectors[:, kept]
    return vectors * roots, lambda weight: (weight / roots @ vectors.T) @ scaled / scale
