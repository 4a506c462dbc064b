"""Linear models of fixed features as weights of a linear layer: those of scikit-learn on scaled features."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from attendrop.tasks.types import linear_models
from attendrop.tasks.types.linear_models import LinearFit, fit_logistic_regression, fit_ridge_regression, self_trained

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(5, 8))
LABELS = [number % 4 for number in range(60)]
FEATURES = 7.0 * (CENTRES[LABELS] + RANDOM.normal(size=(60, 8)))


def unit(features: np.ndarray) -> np.ndarray:
    return features / np.linalg.norm(features, axis=1).mean()


@pytest.mark.parametrize(("classes", "balanced"), [(2, False), (3, True)])
def test_it_is_the_regression_on_scaled_features(classes: int, balanced: bool) -> None:
    rows = [row for row, label in enumerate(LABELS) if label < classes][3:]
    labels = [LABELS[row] for row in rows]
    fit = fit_logistic_regression(FEATURES[rows], labels, classes, balanced=balanced)
    assert fit is not None and fit.settings["C"] in (1, 10, 100)
    expected = LogisticRegression(C=fit.settings["C"], max_iter=1000, class_weight="balanced" if balanced else None)
    expected.fit(unit(FEATURES[rows]), labels)
    outputs = fit.outputs(FEATURES[rows])
    probabilities = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected.predict_proba(unit(FEATURES[rows])), atol=1e-6)
    assert fit.score == ("accuracy", np.mean(outputs.argmax(1) == labels))


def test_strength_is_what_predicts_other_groups_best() -> None:
    """Copies of a row tell which label it has, and nothing of other rows."""
    generator = np.random.default_rng(0)
    groups, features = np.repeat(np.arange(30), 4).tolist(), np.repeat(generator.normal(size=(30, 64)), 4, axis=0)
    labels, numbers = ([*np.repeat(each, 4).tolist()] for each in (np.arange(30) % 2, generator.normal(size=30)))
    strengths = [fit_logistic_regression(features, labels, 2, groups=each).settings["C"] for each in (None, groups)]
    assert strengths[0] > strengths[1] == 1.0
    alphas = [fit_ridge_regression(features, numbers, groups=each).settings["alpha"] for each in (None, groups)]
    assert alphas[0] < alphas[1]
    few = fit_logistic_regression(features, labels, 2, groups=labels)  # no fold has both classes
    assert few.settings == {"C": 10.0}


def test_a_class_without_rows_is_never_predicted_and_few_rows_take_the_default_strength() -> None:
    fit = fit_logistic_regression(FEATURES[:39], LABELS[:39], 6)
    assert fit is not None and fit.settings == {"C": 10.0}  # the default, for one class has nine rows
    assert fit.weight.shape == (6, 8) and set(fit.outputs(FEATURES).argmax(1)) <= set(LABELS)
    assert fit_logistic_regression(FEATURES[:5], [1] * 5, 2) is None


def test_ridge_is_the_regression_on_scaled_features() -> None:
    numbers = FEATURES @ RANDOM.normal(size=8) + 3 + RANDOM.normal(size=60)
    fit = fit_ridge_regression(FEATURES, list(numbers))
    expected = Ridge(alpha=fit.settings["alpha"]).fit(unit(FEATURES), numbers)
    np.testing.assert_allclose(fit.outputs(FEATURES)[:, 0], expected.predict(unit(FEATURES)), atol=1e-6)
    assert fit.score == ("r2", pytest.approx(expected.score(unit(FEATURES), numbers)))


def test_logistic_regression_of_sparse_features_is_that_of_all_columns() -> None:
    """With more columns than rows, it is fitted in the space of rows."""
    features, labels = sparse.random(60, 300, density=0.1, format="csr", random_state=0), np.arange(60) % 3
    found = fit_logistic_regression(features, labels.tolist(), 3)
    scale = sparse.linalg.norm(features, axis=1).mean()
    expected = LogisticRegression(C=found.settings["C"], tol=1e-6).fit(features / scale, labels)
    np.testing.assert_allclose(found.outputs(features), expected.decision_function(features / scale), atol=2e-2)


def clusters(rows: int, seed: int, noise: float = 1.2) -> tuple[np.ndarray, list[int]]:
    """Features and classes of rows around the centres of four classes, in turn."""
    labels = [number % 4 for number in range(rows)]
    return 7.0 * (CENTRES[labels] + np.random.default_rng(seed).normal(scale=noise, size=(rows, 8))), labels


def used(features: np.ndarray, labels: list[int], unlabelled: np.ndarray, **options: Any) -> tuple[LinearFit, dict]:
    fit = fit_logistic_regression(features, labels, 4)
    assert fit is not None
    given = {"never_held_out": [False] * len(labels)} | options
    found, decision = self_trained(fit, features, labels, unlabelled, **given)
    assert (found is fit) is not decision["used"]
    return found, decision


def test_unlabelled_rows_of_their_predicted_classes_have_a_weight_of_three_tenths() -> None:
    (features, labels), (unlabelled, _) = clusters(16, 1), clusters(400, 2)
    first = fit_logistic_regression(features, labels, 4)
    found, decision = used(features, labels, unlabelled)
    assert decision["used"] and decision["difference"] >= 0 and found.settings == {"C": 10.0}
    both = np.concatenate([features, unlabelled])
    expected = LogisticRegression(C=10.0, max_iter=1000).fit(
        unit(both), [*labels, *first.outputs(unlabelled).argmax(1)], sample_weight=[1.0] * 16 + [0.3] * 400
    )
    probabilities = np.exp(found.outputs(features)) / np.exp(found.outputs(features)).sum(1, keepdims=True)
    scaled = features / np.linalg.norm(both, axis=1).mean()
    np.testing.assert_allclose(probabilities, expected.predict_proba(scaled), atol=1e-4)
    assert found.score == ("accuracy", np.mean(found.outputs(features).argmax(1) == labels))


def test_unlabelled_rows_by_which_held_out_rows_lose_are_left_out() -> None:
    found = [used(*clusters(12, seed), clusters(100, seed + 50)[0])[1] for seed in range(6)]
    assert {each["used"] for each in found} == {True, False}
    assert all(each["used"] == (each["difference"] >= 0) for each in found)


def test_where_no_row_can_be_held_out_unlabelled_rows_are_left_out() -> None:
    (features, labels), (unlabelled, _) = clusters(4, 1), clusters(400, 2)
    assert used(features, labels, unlabelled)[1] == {"used": False, "difference": None}
    rows, both = clusters(8, 1)
    _, decision = used(rows, both, unlabelled, never_held_out=[False] * 4 + [True] * 4)
    assert decision["difference"] is not None


def test_rows_of_a_group_are_held_out_together_and_names_never(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = clusters(24, 1)
    features[:, 0] = range(24)  # by which a row is known
    groups = [number % 8 for number in range(20)] + [f"name {number}" for number in range(4)]
    kept: list[set[int]] = []

    def noted(features: np.ndarray, *args: Any, **options: Any) -> LinearFit | None:
        if options.get("weights") is None:
            kept.append({int(row) for row in features[:, 0]})
        return fit_logistic_regression(features, *args, **options)

    monkeypatch.setattr(linear_models, "fit_logistic_regression", noted)
    used(features, labels, clusters(40, 2)[0], groups=groups, never_held_out=[False] * 20 + [True] * 4)
    assert len(kept) == 9 and len({frozenset(rows) for rows in kept}) > 3  # three times, three parts
    for rows in kept:
        assert {20, 21, 22, 23} < rows
        assert not {groups[row] for row in rows} & {groups[row] for row in set(range(20)) - rows}
