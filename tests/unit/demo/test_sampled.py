"""The demo of sampled training: its accounting, its baselines, and what it says of users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting import epsilon_of
from streams import Turnstile
from streams.demo import sampled
from streams.demo.images import Images, load_digits
from streams.demo.plots import plot_sampled
from streams.demo.sampled import (
    SAMPLED_DIGITS,
    SAMPLED_MNIST,
    SampledResult,
    SampledSettings,
    SampledTrace,
    descend_sampled,
    train_sampled,
)
from streams.demo.table import over_seeds, summary_of_sampled
from streams.sdk.rosters import Roster
from streams.trainers import PrivateSteps

SMALL = replace(SAMPLED_DIGITS[0], steps=40, filter_steps=8)
ALL = [*SAMPLED_DIGITS, *SAMPLED_MNIST]


@pytest.fixture(scope="module")
def digits() -> Images:
    return load_digits()


@contextmanager
def small_service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=2) as turnstile:
        for name in ("a", "b"):
            turnstile.create_dataset(
                name, measure="renyi", epsilon=SMALL.epsilon, delta=SMALL.delta
            )
        yield turnstile


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with small_service() as turnstile:
        yield turnstile


def train(service: Turnstile, digits: Images, dataset: str, paced: bool = True) -> SampledTrace:
    return train_sampled(service.run(dataset, "t"), digits, SMALL, seed=3, paced=paced)


@pytest.mark.slow
@pytest.mark.parametrize("settings", ALL, ids=lambda s: f"{s.epsilon:g}-{s.clip_norm:.2f}")
def test_the_worst_cases_spend_the_guarantee_and_would_exceed_it_with_one_step_more(
    settings: SampledSettings,
) -> None:
    def epsilon(noise: float, steps: int) -> float:
        rate, delta = settings.sampling_rate, settings.delta
        return epsilon_of(noise, rate, steps, delta, clip_norm=settings.clip_norm)

    k0 = settings.worst_case_steps
    assert epsilon(settings.noise_stddev, k0) <= settings.epsilon
    assert epsilon(settings.noise_stddev, k0 + 1) > settings.epsilon
    assert epsilon(settings.noise_stddev_equal_steps, settings.steps) <= settings.epsilon
    assert epsilon(0.998 * settings.noise_stddev_equal_steps, settings.steps) > settings.epsilon


@pytest.mark.parametrize("settings", ALL, ids=lambda s: f"{s.epsilon:g}-{s.clip_norm:.2f}")
def test_the_worst_case_makes_more_steps_than_the_filter_grants_it(
    settings: SampledSettings,
) -> None:
    assert settings.filter_steps < settings.worst_case_steps < settings.steps
    assert settings.noise_stddev < settings.noise_stddev_equal_steps


def test_the_denominator_is_not_counted_in_the_data(
    service: Turnstile, digits: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    class Watched(PrivateSteps):
        def __init__(self, *given: Any, expected_batch: float, **options: Any) -> None:
            seen.append(expected_batch)
            super().__init__(*given, expected_batch=expected_batch, **options)

    monkeypatch.setattr(sampled, "PrivateSteps", Watched)
    short = replace(SMALL, steps=1)
    for dataset, users in (("a", 500), ("b", 501)):
        fewer = replace(
            digits, train=digits.train[:users], train_labels=digits.train_labels[:users]
        )
        train_sampled(service.run(dataset, "t"), fewer, short, seed=3)
    assert seen == [SMALL.sampling_rate * SMALL.population] * 2


@pytest.fixture(scope="module")
def paced(digits: Images) -> SampledTrace:
    with small_service() as service:
        return train(service, digits, "a")


@pytest.fixture(scope="module")
def unpaced(digits: Images) -> SampledTrace:
    with small_service() as service:
        return train(service, digits, "a", paced=False)


@pytest.mark.slow
def test_with_a_pace_everybody_takes_part_to_the_end_and_nobody_overspends(
    digits: Images, paced: SampledTrace
) -> None:
    trace = paced
    assert trace.admitted.tolist() == [len(digits.train)] * SMALL.steps
    assert 0.0 < trace.spent.min() < 0.9 * trace.spent.max()
    assert trace.spent.max() <= 1.0


@pytest.mark.slow
def test_without_a_pace_users_run_out_and_nobody_overspends(
    digits: Images, unpaced: SampledTrace
) -> None:
    trace = unpaced
    assert (trace.admitted[: SMALL.filter_steps] == len(digits.train)).all()
    assert 0 < trace.admitted[-1] < len(digits.train)
    assert trace.spent.max() <= 1.0


@pytest.mark.slow
def test_what_is_shown_as_spent_is_where_the_filter_refuses_one_more_step(
    service: Turnstile, digits: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = np.linspace(0.1, 1.0, len(digits.train)) * SMALL.clip_norm

    def observe(roster: Roster, positions: np.ndarray, norms: np.ndarray) -> None:
        roster.set_norms(levels)

    monkeypatch.setattr(Roster, "observe", observe)
    trace = train(service, digits, "a", paced=False)
    n = len(digits.train)
    gone = n - int(trace.admitted[-1])
    assert gone > 0
    # Levels rise with the place: who is gone spent nearly all, who is not has a step left or more.
    assert trace.spent[n - gone :].min() > 1.0 - 1.5 / SMALL.filter_steps
    assert (np.diff(trace.spent[: n - gone]) >= 0).all()


@pytest.mark.slow
def test_the_same_seed_gives_the_same_training(
    service: Turnstile, digits: Images, paced: SampledTrace
) -> None:
    first, second = paced, train(service, digits, "b")
    np.testing.assert_array_equal(first.accuracy, second.accuracy)
    np.testing.assert_array_equal(first.spent, second.spent)


@pytest.mark.slow
def test_both_accountings_are_of_the_same_training(service: Turnstile, digits: Images) -> None:
    quiet = replace(SMALL, steps=100)
    worst = descend_sampled(digits, quiet, noise_stddev=1e-6, steps=100, seed=1)
    service.create_dataset("rich", measure="renyi", epsilon=500.0, delta=SMALL.delta)
    rich = replace(quiet, epsilon=500.0, filter_steps=100)
    trace = train_sampled(service.run("rich", "t"), digits, rich, seed=1)
    assert worst[-1] > 0.85
    assert trace.accuracy[-1] == pytest.approx(worst[-1], abs=0.04)


@pytest.mark.slow
def test_summary_and_plot_say_what_was_found(
    digits: Images, paced: SampledTrace, unpaced: SampledTrace, tmp_path: Path
) -> None:
    traces = paced, unpaced
    equal, stopped = np.linspace(0.1, 0.7, SMALL.steps), np.linspace(0.1, 0.6, 8)
    known = SampledResult(digits, SMALL, *traces, stopped, equal)
    tuned = SampledResult(digits, SAMPLED_DIGITS[1], traces[0], None, stopped, equal)
    summary = over_seeds([summary_of_sampled(known, "demo")])
    assert summary["gain_over_equal_steps"] == pytest.approx(traces[0].accuracy[-1] - 0.7)
    assert summary["gain_over_worst_case"] == pytest.approx(traces[0].accuracy[-1] - 0.6)
    assert summary["users_at_the_end"] > summary["users_at_the_end_unpaced"]
    assert summary["spent_median"] == np.median(traces[0].spent)
    assert "accuracy_unpaced" not in summary_of_sampled(tuned, "demo")
    (path,) = plot_sampled([[known, known], [tuned, tuned]], tmp_path)
    assert path.name == "digits-dpsgd.png"
    assert path.stat().st_size > 10_000
