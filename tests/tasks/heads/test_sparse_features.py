"""Linear models of sparse features with more columns than rows: fitted in the space of rows."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression, Ridge

from attendrop.tasks.heads import sequence as linear_fit
from attendrop.tasks.heads.sequence import fit_logistic_regression, fit_ridge_regression

FEATURES = sparse.random(60, 300, density=0.1, format="csr", random_state=0)
LABELS = np.arange(60) % 3
NUMBERS = FEATURES[:, 0].toarray()[:, 0] + FEATURES[:, 1].toarray()[:, 0]


def test_logistic_regression_is_that_of_all_columns() -> None:
    found = fit_logistic_regression(FEATURES, LABELS.tolist(), 3)
    scale = sparse.linalg.norm(FEATURES, axis=1).mean()
    expected = LogisticRegression(C=found.settings["C"], tol=1e-6).fit(FEATURES / scale, LABELS)
    np.testing.assert_allclose(found.outputs(FEATURES), expected.decision_function(FEATURES / scale), atol=2e-2)


def test_ridge_regression_is_that_of_all_columns() -> None:
    found = fit_ridge_regression(FEATURES, NUMBERS.tolist())
    scale = sparse.linalg.norm(FEATURES, axis=1).mean()
    expected = Ridge(found.settings["alpha"], solver="lsqr", tol=1e-8).fit(FEATURES.toarray() / scale, NUMBERS)
    np.testing.assert_allclose(found.outputs(FEATURES)[:, 0], expected.predict(FEATURES.toarray() / scale), atol=1e-3)


def test_many_rows_are_not_rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    rotated = fit_logistic_regression(FEATURES, LABELS.tolist(), 3)
    monkeypatch.setattr(linear_fit, "_ROTATED_ROWS", 10)
    plain, numbers = (
        fit_logistic_regression(FEATURES, LABELS.tolist(), 3),
        fit_ridge_regression(FEATURES, NUMBERS.tolist()),
    )
    np.testing.assert_allclose(plain.outputs(FEATURES), rotated.outputs(FEATURES), atol=2e-2)
    assert numbers.outputs(FEATURES).shape == (60, 1)
