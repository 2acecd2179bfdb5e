"""The training demo: its mathematics, and what it says about the two ways of accounting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import special

from accounting import Gaussian, zcdp_cost
from accounting.release.clipping import clip_factors, norm_products, row_norms
from streams.demo.images import CLASSES, FEATURE_NORM, Images, load_digits
from streams.demo.training import (
    CLIP_NORM,
    DIGITS,
    MNIST,
    Settings,
    descend,
    probabilities,
    train_privately,
    worst_case_steps,
)
from streams.sdk.run import Run
from streams.trainers.products import rounded_rows
from tests.unit.sdk.partitions import in_memory_run

SMALL = Settings(3.0, 1e-5, population=1_438, worst_case_steps=6, steps=20, learning_rate=10.0)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


def clipping_run(settings: Settings) -> Run:
    return in_memory_run(settings.rho, on_exhaustion="clip")[1]


def _residuals(images: Images, seed: int) -> np.ndarray:
    weights = np.random.default_rng(seed).normal(0, 3, (images.train.shape[1], CLASSES))
    return probabilities(images.train, weights) - np.eye(CLASSES)[images.train_labels]


def test_probabilities_sum_to_one_and_do_not_overflow() -> None:
    rows = probabilities(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[800.0, 0.0], [1.0, 1.0]]))
    np.testing.assert_allclose(rows, [[1.0, 0.0], [0.5, 0.5]])


def test_a_user_is_the_same_with_and_without_another_user_in_the_batch(digits: Images) -> None:
    weights = np.random.default_rng(4).normal(0, 3, (digits.train.shape[1], CLASSES))
    rows = rounded_rows(digits.train)
    alone = np.concatenate([probabilities(rows[[i]], weights) for i in range(65)])
    for size in range(1, 65):
        assert np.array_equal(probabilities(rows[1 : size + 1], weights), alone[1 : size + 1])
        assert np.array_equal(probabilities(rows[: size + 1], weights), alone[: size + 1])


def _norms(images: Images, residuals: np.ndarray) -> np.ndarray:
    return norm_products(row_norms(residuals), row_norms(images.train))


def test_gradient_norm_is_that_of_the_explicit_gradient_of_each_user(digits: Images) -> None:
    residuals = _residuals(digits, 0)
    explicit = digits.train[:, :, None] * residuals[:, None, :]
    norms = _norms(digits, residuals)
    np.testing.assert_allclose(norms, np.linalg.norm(explicit, axis=(1, 2)), rtol=1e-11)


def test_explicit_gradient_is_the_derivative_of_the_loss(digits: Images) -> None:
    row, label = digits.train[:1], digits.train_labels[0]
    weights = np.random.default_rng(1).normal(0, 1, (row.shape[1], CLASSES))
    gradient = row.T @ (probabilities(row, weights) - np.eye(CLASSES)[[label]])
    at, step = (int(np.argmax(row[0])), 3), 1e-6
    losses = []
    for sign in (1, -1):
        moved = weights.copy()
        moved[at] += sign * step
        losses.append(special.logsumexp(row @ moved) - (row @ moved)[0, label])
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(gradient[at], rel=1e-5)


def test_no_gradient_is_longer_than_the_clip_norm(digits: Images) -> None:
    assert np.linalg.norm(digits.train, axis=1).max() <= FEATURE_NORM * (1 + 1e-12)
    for seed in range(5):
        assert _norms(digits, _residuals(digits, seed)).max() <= CLIP_NORM * (1 + 1e-12)
    worst = np.zeros(CLASSES)
    worst[0], worst[1] = 1.0, -1.0
    assert np.linalg.norm(worst) * FEATURE_NORM == pytest.approx(CLIP_NORM)


def test_clipped_gradient_sums_gradients_scaled_to_the_granted_norms(digits: Images) -> None:
    residuals = _residuals(digits, 3)
    norms = _norms(digits, residuals)
    granted = norms * np.random.default_rng(4).choice([0.0, 0.4, 1.0], len(norms))
    explicit = digits.train[:, :, None] * residuals[:, None, :]
    expected = np.tensordot(granted / norms, explicit, 1)
    actual = digits.train.T @ (residuals * clip_factors(norms, granted)[:, None])
    np.testing.assert_allclose(actual, expected, atol=1e-10)


def test_training_without_noise_learns_the_digits(digits: Images) -> None:
    settings = replace(DIGITS, steps=150)
    trace = descend(digits, settings, noise_stddev=1e-9, noise=np.random.default_rng(0))
    assert trace.accuracy[-1] > 0.9


@pytest.mark.parametrize("settings", [DIGITS, MNIST, SMALL], ids=["digits", "mnist", "small"])
def test_worst_case_accounting_pays_for_k0_steps_and_not_for_one_more(settings: Settings) -> None:
    k0 = worst_case_steps(CLIP_NORM, settings.noise_stddev, settings.rho)
    assert k0 == settings.worst_case_steps
    cost = zcdp_cost(Gaussian(settings.noise_stddev), [CLIP_NORM])[0]
    assert k0 * cost <= settings.rho < (k0 + 1) * cost


@pytest.mark.parametrize("settings", [DIGITS, MNIST, SMALL], ids=["digits", "mnist", "small"])
def test_the_worst_case_of_equal_steps_pays_for_all_of_them(settings: Settings) -> None:
    cost = zcdp_cost(Gaussian(settings.noise_stddev_equal_steps), [CLIP_NORM])[0]
    assert settings.steps * cost == pytest.approx(settings.rho, rel=1e-7)
    assert settings.steps * cost <= settings.rho


@pytest.mark.slow
def test_the_worst_case_of_equal_steps_is_a_training_of_its_own(digits: Images) -> None:
    run = clipping_run(SMALL)
    result = train_privately(run, digits, SMALL, seed=5, progress=lambda done, total: None)
    equal = descend(
        digits,
        SMALL,
        noise_stddev=SMALL.noise_stddev_equal_steps,
        noise=np.random.default_rng(5),
    )
    np.testing.assert_array_equal(result.equal_steps, equal.accuracy)
    assert result.accuracy_equal_steps == equal.accuracy[-1] != result.accuracy


def test_nobody_is_clipped_before_k0_so_both_trainings_are_the_same_until_then(
    digits: Images,
) -> None:
    run = clipping_run(SMALL)
    result = train_privately(run, digits, SMALL, seed=5, progress=lambda done, total: None)
    k0, n = result.k0, len(digits.train)
    worst = descend(
        digits,
        replace(SMALL, steps=k0),
        noise_stddev=SMALL.noise_stddev,
        noise=np.random.default_rng(5),
    )
    np.testing.assert_array_equal(result.trace.accuracy[:k0], worst.accuracy)
    assert result.accuracy_worst_case == worst.accuracy[-1]
    assert (result.trace.active[: k0 - 1] == n).all()
    assert (result.trace.admitted[:k0] == n).all()


@pytest.mark.slow
def test_users_run_out_at_different_steps_and_never_overspend(digits: Images) -> None:
    settings = replace(SMALL, steps=40)
    service, run = in_memory_run(settings.rho, on_exhaustion="clip")
    result = train_privately(run, digits, settings, seed=6, progress=lambda done, total: None)
    trace = result.trace
    assert (np.diff(trace.active) <= 0).all()
    assert len(np.unique(trace.active)) > 5
    assert trace.halted.sum() > 0
    np.testing.assert_array_equal(trace.admitted + trace.halted, len(digits.train))
    assert trace.spent.max() <= settings.rho * (1 + 1e-12)
    spent = service.spent()
    charged = np.array([spent[user] for user in range(len(digits.train))])
    np.testing.assert_allclose(trace.spent, charged, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_individual_accounting_learns_more_of_the_digits_than_equal_steps(digits: Images) -> None:
    """With the noise of the seeds that the demo has."""
    results = [
        train_privately(
            clipping_run(DIGITS), digits, DIGITS, seed=seed, progress=lambda done, total: None
        )
        for seed in (1, 2)
    ]
    assert sum(result.accuracy - result.accuracy_equal_steps for result in results) > 0.0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_training(digits: Images) -> None:
    traces = [
        train_privately(
            clipping_run(SMALL),
            digits,
            SMALL,
            seed=seed,
            progress=lambda done, total: None,
        ).trace.accuracy
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(traces[0], traces[1])
    assert (traces[0] != traces[2]).any()


def test_progress_comes_to_its_end(digits: Images) -> None:
    seen: list[tuple[int, int]] = []
    run = clipping_run(SMALL)
    train_privately(
        run, digits, SMALL, seed=1, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(done, 2 * SMALL.steps) for done in range(1, 2 * SMALL.steps + 1)]
