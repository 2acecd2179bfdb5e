from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from accounting import InvalidInput
from streams.sdk.errors import DecisionTimeout, Unusable
from streams.sdk.roster_steps import RosterStep, poisson_sample
from streams.sdk.run import Run
from tests.unit.sdk.partitions import Partitions


def test_admitted_users_are_drawn_independently() -> None:
    rng = np.random.default_rng(1)
    admitted = np.array([True, False, True, True, False, True])
    draws = [poisson_sample(admitted, 0.3, not_private_generator=rng) for _ in range(4000)]
    # Which of the four were drawn, as a number: 16 outcomes of independent coins.
    places = {0: 0, 2: 1, 3: 2, 5: 3}
    outcomes = [sum(1 << places[int(user)] for user in drawn) for drawn in draws]
    counts = np.bincount(outcomes, minlength=16)
    chances = [0.3 ** bin(k).count("1") * 0.7 ** (4 - bin(k).count("1")) for k in range(16)]
    assert stats.chisquare(counts, np.array(chances) * len(draws)).pvalue > 1e-6


def test_rates_zero_and_one() -> None:
    admitted = np.array([False, True, True])
    assert poisson_sample(admitted, 1.0).tolist() == [1, 2]
    assert poisson_sample(admitted, 0.0).tolist() == []
    assert poisson_sample(admitted[:0], 0.5).tolist() == []


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_invalid_rate_is_rejected(rate: float) -> None:
    with pytest.raises(InvalidInput):
        poisson_sample(np.ones(3, dtype=np.bool_), rate)


# --- the coins of a step --------------------------------------------------------------------------

RATE = 0.4


def sampled_service() -> Partitions:
    service = Partitions(3)
    service.create(measure="renyi", budget=None, epsilon=8.0, delta=1e-5)
    return service


def charged(run: Run, rate: float = RATE) -> RosterStep:
    roster = run.enrol(range(200), clip_norm=1.0)
    return roster.charge(noise_stddev=4.0, sampling_rate=rate)


def test_a_step_draws_its_users_once() -> None:
    service = sampled_service()
    roster = service.open().enrol(range(200), clip_norm=1.0)
    first = roster.charge(noise_stddev=4.0, sampling_rate=RATE)
    drawn = first.sample()
    kept = drawn.copy()
    drawn[:] = 0  # what a caller does with its positions changes no later answer
    for _ in range(2):
        assert np.array_equal(first.sample(), kept)
    second = roster.charge(noise_stddev=4.0, sampling_rate=RATE)
    assert np.array_equal(first.sample(), kept)
    assert not np.array_equal(second.sample(), kept)


def test_step_decided_earlier_is_not_drawn_again() -> None:
    service = sampled_service()
    charged(service.open()).sample()
    step = charged(service.open(released=-1))
    assert (step.step, step.may_be_drawn) == (0, True)
    with pytest.raises(Unusable):
        step.sample()
    drawn = step.sample(no_coin_drawn=True)
    assert np.array_equal(step.sample(), drawn)


def test_step_without_an_earlier_decision_is_drawn() -> None:
    service = sampled_service()
    roster = service.open().enrol(range(200), clip_norm=1.0)
    service.deaf = {2}
    with pytest.raises(DecisionTimeout):
        roster.charge(noise_stddev=4.0, sampling_rate=RATE)
    service.deaf = set()
    run = service.open()
    assert run.interrupted
    step = charged(run)
    assert (step.step, step.may_be_drawn) == (0, False)
    assert len(step.sample())


def test_a_step_without_coins_is_handed_back_whole() -> None:
    service = sampled_service()
    charged(service.open(), rate=1.0).sample()
    step = charged(service.open(released=-1), rate=1.0)
    assert (step.step, step.may_be_drawn) == (0, False)
    assert np.array_equal(step.sample(), np.arange(200))
