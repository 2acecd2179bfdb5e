"""Private steps against a filter that charges every user at every step. Fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from streams.sdk.errors import InvalidRequest, ReleasedTwice, Unusable
from streams.trainers.steps import PrivateSteps
from tests.unit.trainers.rosters import FilterDecision, FilterRun, FilterService


class Silence:
    """In the place of the noise: nothing, and how often it was asked for."""

    def __init__(self) -> None:
        self.draws: list[tuple[float, int]] = []

    def draw(self, stddev: float, count: int) -> NDArray[np.int64]:
        self.draws.append((stddev, count))
        return np.zeros(count, dtype=np.int64)


def steps_of(
    service: FilterService | None = None, run: FilterRun | None = None, **changes: object
) -> PrivateSteps:
    arguments: dict[str, object] = {
        "clip_norm": 1.0,
        "noise_multiplier": 2.0,
        "sampling_rate": 0.5,
        "expected_batch": 10.0,
        "not_private_generator": np.random.default_rng(3),
        **changes,
    }
    users = arguments.pop("users", np.arange(20))
    return PrivateSteps(run or (service or FilterService()).open(), users, **arguments)


def silenced(steps: PrivateSteps) -> Silence:
    steps._noise = silence = Silence()
    return silence


def test_all_users_are_charged_before_any_coin_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    service = FilterService()
    steps = steps_of(service, not_private_generator=None)
    charged_at_draw: list[int] = []
    sample = FilterDecision.sample

    def watched(decision: FilterDecision) -> NDArray[np.int64]:
        charged_at_draw.append(int(np.count_nonzero(service.spent[:, 0])))
        return sample(decision)

    monkeypatch.setattr(FilterDecision, "sample", watched)
    step = steps.begin()
    assert charged_at_draw == [20]
    assert len(step.positions) < 20


def test_release_is_the_clipped_sum_over_the_expected_batch() -> None:
    service = FilterService()
    steps = steps_of(service)
    service.levels[:10] = 0.25
    silence = silenced(steps)
    step = steps.begin()
    assert 0 < len(step.positions) < 20
    rows = np.zeros((len(step.positions), 3))
    rows[:, 1] = -2.0
    step.add(rows)
    value = step.release(3)
    sums = sum(0.25 if place < 10 else 1.0 for place in step.positions)
    assert value == pytest.approx([0.0, -sums / 10.0, 0.0], rel=1e-5)
    assert [count for _, count in silence.draws] == [3]


@pytest.mark.parametrize("rate", [1e-9, 0.5], ids=["nobody is drawn", "half"])
def test_noise_is_added_once_and_is_that_which_was_charged(rate: float) -> None:
    service = FilterService()
    steps = steps_of(service, sampling_rate=rate, noise_multiplier=3.0, expected_batch=2.0)
    step = steps.begin()
    assert (len(step.positions) == 0) == (rate < 0.5)
    step.add(np.eye(len(step.positions), 50_000) / 2)
    noise = step.release(50_000)[20:] * 2.0
    assert stats.kstest(noise / 3.0, "norm").pvalue > 1e-6
    assert service.charges == [(3.0, rate)]


def test_every_deviate_of_a_private_training_is_used_once() -> None:
    steps = steps_of(
        FilterService(epsilon=50.0),
        sampling_rate=1e-9,
        noise_multiplier=3.0,
        expected_batch=2.0,
        not_private_generator=None,
    )
    noise = np.concatenate([steps.begin().release(607) for _ in range(120)]) * 2.0
    assert len(np.unique(noise)) > 0.99 * len(noise)
    assert stats.kstest(noise / 3.0, "norm").pvalue > 1e-6


def test_observed_norms_become_levels_from_the_next_step() -> None:
    service = FilterService()
    steps = steps_of(service)
    step = steps.begin()
    rows = np.zeros((len(step.positions), 4))
    rows[:, 2] = 0.101
    rows[0, 2] = 7.0
    step.add(rows)
    assert (service.levels == 1.0).all()
    step.release(4)
    drawn = np.zeros(20, dtype=np.bool_)
    drawn[step.positions] = True
    assert (service.levels[~drawn] == 1.0).all()
    assert service.levels[step.positions[1:]] == pytest.approx(0.21)  # twice the norm
    assert service.levels[step.positions[0]] == 1.0
    spent = service.spent.copy()
    steps.begin()
    step_costs = (service.spent - spent)[:, 0]
    assert (step_costs[step.positions[1:]] < step_costs[~drawn].min() / 15).all()


def test_failed_step_is_repeated_with_the_same_batch_and_charge() -> None:
    service = FilterService()
    steps = steps_of(service)
    silenced(steps)
    step = steps.begin()
    step.add(np.ones((len(step.positions), 2)))
    again = steps.begin()
    assert np.array_equal(again.positions, step.positions)
    assert len(service.charges) == 1
    again.add(np.full((len(again.positions), 2), 0.1))
    assert again.release(2)[0] == pytest.approx(len(again.positions) * 0.01, rel=1e-5)
    assert steps.begin().step == 1


def test_no_step_is_released_twice() -> None:
    service = FilterService()
    steps = steps_of(service)
    step = steps.begin()
    step.add(np.ones((len(step.positions), 2)))
    step.release(2)
    with pytest.raises(Unusable):
        step.release(2)
    steps._run.step = 0
    with pytest.raises(ReleasedTwice):
        steps.begin()


def test_missing_or_repeated_gradients_release_nothing() -> None:
    steps = steps_of(sampling_rate=1.0)
    silence = silenced(steps)
    step = steps.begin()
    step.add(np.ones((5, 2)), slice(0, 5))
    rejected = [
        lambda: step.add(np.ones((5, 2)), slice(4, 9)),  # user 4 was added before
        lambda: step.add(np.ones((4, 2)), slice(5, 10)),
        lambda: step.add(np.ones((15, 3)), slice(5, 20)),
        lambda: step.add(np.ones(15), slice(5, 20)),
        lambda: step.add(np.full((15, 2), "1"), slice(5, 20)),
        lambda: step.add(np.full((15, 2), 1j), slice(5, 20)),
        lambda: step.add([[1.0, 2.0]] * 15, slice(5, 20)),  # type: ignore[list-item]
        lambda: step.add([], slice(5, 20)),
        lambda: step.release(2),  # 15 users are missing
    ]
    for refused in rejected:
        with pytest.raises(InvalidRequest):
            refused()
    step.add(np.ones((15, 2)), slice(5, 20))
    with pytest.raises(InvalidRequest):
        step.release(3)
    assert not silence.draws
    step.release(2)


@pytest.mark.parametrize(
    "places",
    [
        np.array([0, 0, 1]),
        np.array([0, 1, -20]),
        np.array([0, 1, 20]),
        np.array([0, 1, 2**64 - 1], dtype=np.uint64),
        np.arange(20) < 3,
        np.array([0.0, 1.0, 2.0]),
        np.array([[0, 1, 2]]),
        np.array(["0", "1", "2"]),
        3,
        None,
        slice(0.0, 3.0),
        slice(0, 3, 0),
    ],
)
def test_invalid_places_are_rejected_and_add_nothing(places: object) -> None:
    steps = steps_of(sampling_rate=1.0)
    silenced(steps)
    step = steps.begin()
    with pytest.raises(InvalidRequest):
        step.add(np.full((3, 2), 0.5), places)
    step.add(np.full((20, 2), 0.25))
    assert step.release(2) == pytest.approx([0.5, 0.5], rel=1e-5)


@pytest.mark.parametrize("order", [np.array([7, 2, 19]), np.array([7, 2, 19], dtype=np.uint8)])
def test_rows_may_be_added_in_any_order(order: NDArray[np.int64]) -> None:
    service = FilterService()
    steps = steps_of(service, sampling_rate=1.0)
    silenced(steps)
    step = steps.begin()
    rows = np.linspace(0.01, 0.2, 20)[:, np.newaxis]
    step.add(rows[order], order)
    with pytest.raises(InvalidRequest):
        step.add(rows[:3], np.array([0, 1, 2]))
    rest = np.delete(np.arange(20), order)
    step.add(rows[rest], rest)
    assert step.release(1) == pytest.approx([0.21], rel=1e-5)
    above = service.levels[:20] - 2.0 * rows[:, 0]  # the next of 100 levels
    assert ((above >= 0) & (above < 0.0101)).all()


def test_noise_and_rate_may_follow_a_public_schedule() -> None:
    service = FilterService()
    steps = steps_of(
        service,
        noise_multiplier=lambda step: 2.0 + step,
        sampling_rate=lambda step: 0.5 / (step + 1),
    )
    for _ in range(2):
        step = steps.begin()
        step.add(np.ones((len(step.positions), 2)))
        step.release(2)
    assert service.charges == [(2.0, 0.5), (3.0, 0.25)]


@pytest.mark.parametrize(("noise", "refuses"), [(1e-6, False), (2e-7, True)])
def test_no_number_of_users_decides_whether_noise_is_too_low(noise: float, refuses: bool) -> None:
    refused = []
    for users in (1, 100_000):
        try:
            # Of a schedule it is not checked whether the budget pays for a step.
            steps_of(users=np.arange(users), noise_multiplier=lambda step: noise)
            refused.append(False)
        except InvalidRequest:
            refused.append(True)
    assert refused == [refuses] * 2


INVALID: dict[str, list[object]] = {
    "clip_norm": [0.0, math.inf],
    "expected_batch": [0.0, math.nan],
    "noise_multiplier": [0.0, 1e-12, 1e-300],
    "sampling_rate": [1.5],
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_enrol_no_user(name: str) -> None:
    for value in INVALID[name]:
        service = FilterService()
        with pytest.raises(InvalidRequest):
            steps_of(service, **{name: value})
        assert not service.users
