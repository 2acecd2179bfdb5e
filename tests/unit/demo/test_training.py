"""The training scenario: its mathematics, and its guarantee under each accounting."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import special

from accounting import gdp_budget
from accounting.release.clipping import norm_products, row_norms
from streams import Turnstile
from streams.demo.plots import plot_training
from streams.demo.table import show_summary, summary_of_training
from streams.demo.training import (
    CLASSES,
    CLIP_NORM,
    DIGITS,
    FEATURE_NORM,
    WAYS,
    Images,
    TrainingResult,
    TrainingSettings,
    Way,
    descend,
    features,
    load_digits,
    train_all_ways,
)
from streams.trainers.loop import row_products, softmax

SMALL = TrainingSettings(3.0, 1e-5, population=1_438, full_steps=6, steps=24, learning_rate=10.0)


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


@pytest.fixture(scope="module")
def result(digits: Images) -> TrainingResult:
    with Turnstile.in_memory() as turnstile:
        return train_all_ways(turnstile, ["a", "b"], digits, SMALL)


def test_no_image_is_in_training_and_test(digits: Images) -> None:
    rows = np.vstack([digits.train, digits.test])
    assert len(np.unique(rows, axis=0)) == len(rows) == 1797
    assert digits.users.tolist() == list(range(len(digits.train)))


def test_every_image_has_the_feature_norm_and_a_blank_one_less() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 12)).astype(np.float64)
    pixels[0] = 0.0
    norms = np.linalg.norm(features(pixels), axis=1)
    np.testing.assert_allclose(norms[1:], FEATURE_NORM)
    assert norms[0] == pytest.approx(0.3)


def _residuals(images: Images, seed: int) -> np.ndarray:
    weights = np.random.default_rng(seed).normal(0, 3, (images.train.shape[1], CLASSES))
    return softmax(row_products(images.train, weights)) - np.eye(CLASSES)[images.train_labels]


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
    gradient = row.T @ (softmax(row_products(row, weights)) - np.eye(CLASSES)[[label]])
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


@pytest.mark.parametrize("settings", [DIGITS, SMALL], ids=["digits", "small"])
@pytest.mark.parametrize("way", WAYS)
def test_the_noise_pays_for_the_same_guarantee_in_every_way(
    way: Way, settings: TrainingSettings
) -> None:
    charged = settings.full_steps if way == "individual" else settings.steps
    mu = math.sqrt(charged) * settings.clip_norm(way) / settings.noise_stddev(way)
    assert mu == pytest.approx(gdp_budget(settings.epsilon, settings.delta))


def test_the_smaller_clip_norm_has_the_noise_of_individual_accounting() -> None:
    assert DIGITS.noise_stddev("smaller clip norm") == DIGITS.noise_stddev("individual")
    assert DIGITS.clip_norm("smaller clip norm") < DIGITS.clip_norm("individual") == CLIP_NORM


def test_users_are_halted_only_after_the_steps_that_the_noise_pays_for(digits: Images) -> None:
    few = replace(SMALL, steps=SMALL.full_steps)
    with Turnstile.in_memory() as turnstile:
        (charged,) = train_all_ways(turnstile, ["few"], digits, few).charged
    assert (charged["admitted"], charged["halted"]) == (few.steps * len(digits.train), 0)


def test_every_halt_is_published(result: TrainingResult) -> None:
    for charged in result.charged:
        assert charged["halt_events"] == charged["halted"] > 0
        assert charged["odometer_records"] > 0
        assert charged["admitted"] + charged["halted"] == SMALL.steps * len(result.images.train)


def test_the_baselines_are_trainings_without_a_service(
    digits: Images, result: TrainingResult
) -> None:
    for way in ("worst case", "smaller clip norm"):
        for seed, accuracy in enumerate(result.accuracy[way], start=1):
            trace = descend(digits, SMALL, way, seed=seed)
            np.testing.assert_array_equal(accuracy, trace.accuracy)


def test_the_same_seed_gives_the_same_training(digits: Images, result: TrainingResult) -> None:
    with Turnstile.in_memory() as turnstile:
        again = train_all_ways(turnstile, ["a"], digits, SMALL)
    first, second = result.accuracy["individual"]
    np.testing.assert_array_equal(again.accuracy["individual"][0], first)
    assert (first != second).any()


@pytest.mark.slow
def test_every_way_learns_the_digits(digits: Images) -> None:
    with Turnstile.in_memory(partitions=1) as turnstile:
        found = train_all_ways(turnstile, ["digits"], digits, DIGITS)
    for way in WAYS:
        assert found.final(way)[0] > 0.8  # with the noise of a fixed seed


def test_the_summary_has_a_row_for_each_way_and_differences_paired_by_seed(
    result: TrainingResult,
) -> None:
    summary = msgspec.json.decode(msgspec.json.encode(summary_of_training(result)))
    assert [row["accounting"] for row in summary["results"]] == list(WAYS)
    for row in summary["results"]:
        assert row["accuracy"] == pytest.approx(result.final(row["accounting"]).mean())
    less = result.final("smaller clip norm") - result.final("individual")
    assert summary["smaller_clip_norm_less_individual"] == pytest.approx(less.mean())
    assert summary["smaller_clip_norm_less_individual_standard_error"] == pytest.approx(
        less.std(ddof=1) / 2**0.5
    )
    table, *_ = show_summary(summary)
    assert table.row_count == len(WAYS)


def test_one_seed_has_no_standard_error(digits: Images) -> None:
    with Turnstile.in_memory() as turnstile:
        one = train_all_ways(turnstile, ["a"], digits, replace(SMALL, steps=6))
    summary = summary_of_training(one)
    assert not [key for row in summary["results"] for key in row if key.endswith("error")]


@pytest.mark.slow
def test_the_plot_is_a_picture(result: TrainingResult, tmp_path: Path) -> None:
    path = plot_training(result, tmp_path / "new")
    assert path.read_text(encoding="utf-8").count("<path ") > 20
