from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import estimator_checks_generator

from streams.sdk.errors import InvalidRequest, Unusable
from streams.trainers import IndividualDPClassifier, classifier, estimators, noise_for_steps
from tests.unit.trainers.rosters import FilterService


@pytest.fixture(autouse=True)
def _own_runs_are_of_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    def own_run(made: IndividualDPClassifier) -> object:
        return FilterService(made.epsilon, made.delta).open()

    monkeypatch.setattr(IndividualDPClassifier, "_own_run", own_run)


# With fresh noise two fits differ, which some checks do not expect. Another kind of arrays than
# numpy's is none of what it takes.
CHECKS = [
    (estimator, check)
    for estimator, check in estimator_checks_generator(
        IndividualDPClassifier(
            epsilon=100.0, steps=20, sampling_rate=1.0, noise_stddev=1.0, not_private_seed=0
        )
    )
    if check.func.__name__ != "check_array_api_input"
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "check"), CHECKS, ids=[check.func.__name__ for _, check in CHECKS]
)
def test_it_is_an_estimator_of_scikit_learn(estimator: Any, check: Any) -> None:
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
    model = IndividualDPClassifier(
        epsilon=8.0, steps=100, sampling_rate=0.2, noise_stddev=1.5, not_private_seed=1
    ).fit(rows, labels)
    assert model.score(test_rows, test_labels) > 0.8
    assert model.predict_proba(test_rows).sum(axis=1) == pytest.approx(np.ones(len(test_rows)))
    assert model.decision_function(test_rows).shape == (len(test_rows), 10)
    assert model.n_iter_ == 100


def test_noise_is_what_the_worst_case_needs_for_its_steps() -> None:
    rows, labels, _, _ = digits()
    service = FilterService()
    model = IndividualDPClassifier(epsilon=2.0, steps=3, worst_case_steps=40, sampling_rate=1.0)
    model.fit(rows, labels, run=service.open())
    wanted = noise_for_steps(2.0, 1e-5, 40, sampling_rate=1.0, clip_norm=1.0)
    assert model.noise_stddev_ == wanted
    assert service.charges == [(wanted, 1.0)] * 3


def test_users_with_many_examples_are_charged_once_a_step_and_clipped_as_one() -> None:
    rows, labels, _, _ = digits()
    service = FilterService()
    users = [f"user {place % 100}" for place in range(len(rows))]
    model = IndividualDPClassifier(steps=2, sampling_rate=1.0, noise_stddev=1e-3, paced=False)
    model.fit(rows, labels, users, run=service.open())
    assert service.users == [f"user {place}" for place in range(100)]
    # Fourteen gradients of about 0.9 each: the sum is longer than any of them.
    assert np.median(service.levels) == 1.0


def test_a_fit_that_died_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    rows, labels, _, _ = digits()
    service, file = FilterService(), str(tmp_path / "fit.npz")
    model = IndividualDPClassifier(steps=4, noise_stddev=1.0, checkpoint=file)
    model.fit(rows, labels, run=service.open())
    again = IndividualDPClassifier(steps=6, noise_stddev=1.0, checkpoint=file)
    again.fit(rows, labels, run=service.open(released=3))
    assert len(service.charges) == 6
    assert not np.array_equal(model.coef_, again.coef_)


def test_the_denominator_is_the_public_population() -> None:
    rows, labels, _, _ = digits()
    moved = [
        IndividualDPClassifier(steps=1, noise_stddev=1.0, population=population, not_private_seed=1)
        .fit(rows, labels)
        .coef_
        for population in (1_000, 2_000)
    ]
    assert moved[0] == pytest.approx(2.0 * moved[1])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sampling": "shuffled"}, "2411.04205"),
        ({"sampling": "weighted"}, "more often"),
        ({"classes": [0, 1]}, "not among classes"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"clip_norm": -1.0}, "clip_norm"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(changes: dict[str, Any], reason: str) -> None:
    rows, labels, _, _ = digits()
    with pytest.raises(InvalidRequest, match=reason):
        IndividualDPClassifier(steps=2).set_params(**changes).fit(rows, labels)
    with pytest.raises(InvalidRequest, match="3 user ids"):
        IndividualDPClassifier(steps=2).fit(rows, labels, users=[1, 2, 3])


def test_labels_that_nobody_has_may_be_declared() -> None:
    rows, labels, _, _ = digits()
    few = labels < 3
    model = IndividualDPClassifier(steps=2, noise_stddev=1.0, classes=range(10))
    model.fit(rows[few], labels[few])
    assert model.classes_.tolist() == list(range(10))


@pytest.fixture
def without_sklearn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in sys.modules if name.split(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    importlib.reload(estimators)
    yield importlib.reload(classifier).IndividualDPClassifier
    monkeypatch.undo()
    importlib.reload(estimators)
    importlib.reload(classifier)


def test_scikit_learn_is_not_needed(without_sklearn: Any) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, 2))
    labels = np.where(rows[:, 0] > 0, "right", "left")
    model = without_sklearn(steps=30, noise_stddev=1.0, not_private_seed=2)
    with pytest.raises(Unusable, match="not fitted"):
        model.predict(rows)
    model.set_params(sampling_rate=0.5)
    assert model.get_params()["sampling_rate"] == 0.5
    model.fit(rows, labels, run=FilterService().open())
    assert model.score(rows, labels) > 0.9
    for refused, reason in (
        (lambda: model.set_params(speed=1), "no argument 'speed'"),
        (lambda: model.predict(rows[:, :1]), "has 1 features"),
        (lambda: model.fit(rows, labels[1:]), "y has shape"),
        (lambda: model.fit(rows * np.nan, labels), "finite"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            refused()
