from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import estimator_checks_generator

from streams.sdk.errors import InvalidRequest
from streams.trainers import (
    ExamplesByUser,
    IndividualDPClassifier,
    classifier,
    noise_for_steps,
)
from tests.unit.trainers.rosters import FilterService


@pytest.fixture(autouse=True)
def _own_runs_are_of_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_run(made: IndividualDPClassifier) -> object:
        return FilterService(made.epsilon, made.delta).open()

    monkeypatch.setattr(IndividualDPClassifier, "_own_run", own_run)


class LabelsOfTheData(IndividualDPClassifier):
    """Takes the labels from y, since the checks of scikit-learn have labels of many kinds."""

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        users: Any = None,
        *,
        run: Any = None,
    ) -> LabelsOfTheData:
        known, self.classes = self.classes, y
        try:
            return super().fit(X, y, users, run=run)
        finally:
            self.classes = known


# With fresh noise two fits differ, which some checks do not expect.
CHECKS = [
    (estimator, check)
    for estimator, check in estimator_checks_generator(
        LabelsOfTheData(
            epsilon=100.0,
            population=100,
            classes=(0, 1),
            steps=20,
            sampling_rate=1.0,
            noise_multiplier=1.0,
            not_private_seed=0,
        )
    )
    if check.func.__name__
    not in (
        "check_array_api_input",  # it takes no other arrays than numpy's
        "check_parameters_default_constructible",  # public numbers have no default
        # No example of one user is an error, and neither is the number of users.
        "check_classifiers_regression_target",
        "check_estimators_empty_data_messages",
        "check_estimators_nan_inf",
        "check_supervised_y_no_nan",
    )
]


def digits_classifier(**changes: Any) -> IndividualDPClassifier:
    return IndividualDPClassifier(**{"population": 1_400, "classes": range(10), **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[check.func.__name__ for _, check in CHECKS]
)
def test_classifier_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rows, labels = load_digits(return_X_y=True)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = order[:1400], order[1400:]
    return rows[train], labels[train], rows[test], labels[test]


@pytest.mark.slow
def test_digits_are_learnt() -> None:
    rows, labels, test_rows, test_labels = digits()
    model = digits_classifier(epsilon=8.0, steps=100, sampling_rate=0.2, not_private_seed=1).fit(
        rows, labels
    )
    assert model.score(test_rows, test_labels) > 0.8
    assert model.predict_proba(test_rows).sum(axis=1) == pytest.approx(np.ones(len(test_rows)))
    assert model.decision_function(test_rows).shape == (len(test_rows), 10)
    assert model.n_iter_ == 100


def test_noise_follows_from_the_budget_of_the_run_and_the_steps() -> None:
    rows, labels, _, _ = digits()
    service = FilterService(epsilon=2.0)
    run = service.open()
    model = digits_classifier(epsilon=99.0, steps=3, sampling_rate=1.0, clip_norm=0.5)
    model.fit(rows, labels, run=run)
    wanted = noise_for_steps([run.policy], 3)
    assert model.noise_multiplier_ == wanted
    assert service.charges == [(0.5 * wanted, 1.0)] * 3


def test_user_with_many_examples_is_clipped_once_per_step() -> None:
    rows, labels, _, _ = digits()
    service = FilterService()
    users = [f"user {place % 100}" for place in range(len(rows))]
    model = digits_classifier(steps=2, sampling_rate=1.0)
    model.fit(rows, labels, users, run=service.open())
    assert service.users == [f"user {place}" for place in range(100)]
    # Fourteen gradients of about 0.9 each: the sum is longer than any of them.
    assert np.median(service.levels) == 1.0


def test_the_denominator_is_the_public_population() -> None:
    rows, labels, _, _ = digits()
    moved = [
        digits_classifier(steps=1, noise_multiplier=1.0, population=population, not_private_seed=1)
        .fit(rows, labels)
        .coef_
        for population in (1_000, 2_000)
    ]
    assert moved[0] == pytest.approx(2.0 * moved[1])


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("examples", [1, 3], ids=["one example each", "three examples each"])
def test_gradient_does_not_depend_on_other_users_in_the_batch(examples: int) -> None:
    rows, labels, _, _ = digits()
    count = 65 * examples
    owners = ExamplesByUser.of(np.random.default_rng(1).permutation(np.arange(count) % 65))
    gradients = classifier.logistic_gradients(rows[:count], labels[:count], 10, owners)
    model = np.random.default_rng(2).normal(size=rows.shape[1] * 10)
    positions = np.arange(65)
    alone = np.concatenate([gradients(model, positions[place : place + 1]) for place in range(65)])
    for size in range(1, 65):
        assert np.array_equal(gradients(model, positions[1 : size + 1]), alone[1 : size + 1])
        with_another = gradients(model, positions[: size + 1])
        assert np.array_equal(with_another, alone[: size + 1])


@pytest.mark.parametrize(
    "changes",
    [
        {"epsilon": -1.0},
        {"sampling_rate": 0.0},
        {"clip_norm": -1.0},
        {"population": 0},
        {"population": None},
        {"population": float("inf")},
        {"classes": [3, 3]},
    ],
)
def test_invalid_arguments_are_rejected(changes: dict[str, Any]) -> None:
    rows, labels, _, _ = digits()
    with pytest.raises(InvalidRequest):
        digits_classifier(steps=2).set_params(**changes).fit(rows, labels)


def test_examples_not_finite_or_of_no_class_count_as_zero() -> None:
    rows, labels, _, _ = digits()
    rows, labels = rows[:200].copy(), labels[:200].copy()
    users = np.arange(200) // 2  # of each user, the second example is dropped
    settings = {"steps": 3, "noise_multiplier": 1.0, "sampling_rate": 0.5, "not_private_seed": 1}
    expected = digits_classifier(**settings).fit(rows[::2], labels[::2], users[::2])
    rows[1:100:2, 3] = np.nan
    labels[101::2] = 10
    found = digits_classifier(**settings).fit(rows, labels, users)
    assert np.array_equal(found.coef_, expected.coef_)
    assert np.array_equal(found.intercept_, expected.intercept_)


@pytest.mark.parametrize("large", [10**400, -(10**400)])
@pytest.mark.parametrize("read", [list, lambda rows: np.array(rows, dtype=object)])
def test_example_with_a_number_beyond_float64_counts_as_zero(read: Any, large: int) -> None:
    settings = {"steps": 3, "noise_multiplier": 1.0, "sampling_rate": 0.5, "not_private_seed": 1}
    rows, users = [[0.5, 1.0], [1.0, 2**64]], ["a", "b", "b"]
    expected = digits_classifier(**settings).fit(read([*rows, [np.nan, 0]]), [0, 1, 1], users)
    found = digits_classifier(**settings).fit(read([*rows, [large, 0]]), [0, 1, 1], users)
    assert np.array_equal(found.coef_, expected.coef_)
