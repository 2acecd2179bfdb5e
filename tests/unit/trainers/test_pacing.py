"""Levels that last, on the service in this process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from accounting import PoissonGaussian
from streams import InvalidRequest, Turnstile
from streams.sdk.roster_steps import RosterStep
from streams.trainers import Pace, PrivateSteps, noise_for_steps

STEPS = 40
SIZES = np.linspace(0.0, 2.0, 50)


@pytest.fixture
def service() -> Iterator[Turnstile]:
    with Turnstile.in_memory(partitions=2) as turnstile:
        turnstile.create_dataset("digits", measure="renyi", epsilon=4.0, delta=1e-5)
        yield turnstile


def steps_of(service: Turnstile, lasting: int, *, paced: bool = True) -> PrivateSteps:
    """With noise that lasts so many steps for users at the clip norm."""
    return PrivateSteps(
        service.run("digits", "night-7", released=None),
        np.arange(50),
        clip_norm=1.0,
        noise_stddev=noise_for_steps(4.0, 1e-5, lasting, sampling_rate=0.4),
        sampling_rate=0.4,
        expected_batch=20.0,
        pace=Pace(4.0, 1e-5, STEPS) if paced else None,
        not_private_generator=np.random.default_rng(1),
    )


def train(steps: PrivateSteps, until: int) -> list[int]:
    """How many users were admitted to each step."""
    admitted: list[int] = []
    charge = steps.roster.charge

    def watched(*, noise_stddev: float, sampling_rate: float) -> RosterStep:
        decision = charge(noise_stddev=noise_stddev, sampling_rate=sampling_rate)
        admitted.append(int(np.count_nonzero(decision.admitted)))
        return decision

    steps.roster.charge = watched
    while steps.step < until:
        step = steps.begin()
        step.add(SIZES[step.positions, None])
        step.release(1)
    return admitted


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [STEPS, 20, 10])
def test_paced_users_last_until_the_end(service: Turnstile, lasting: int) -> None:
    assert train(steps_of(service, lasting), STEPS) == [50] * STEPS


def test_without_a_pace_the_same_users_are(service: Turnstile) -> None:
    admitted = train(steps_of(service, 20, paced=False), STEPS)
    assert admitted[0] == 50
    assert admitted[-1] < 40


def test_unspent_budget_of_a_paced_user_can_be_spent_later() -> None:
    pace = Pace(4.0, 1e-5, STEPS)
    mechanism = PoissonGaussian(noise_for_steps(4.0, 1e-5, 10, sampling_rate=0.4), 0.4)
    first = pace.begin(2, 0, mechanism, 1.0, 100)
    assert 0.0 < first < 1.0
    both = np.array([0, 1])
    assert pace.limited(0, both, np.array([1.0, 0.05])) == pytest.approx([first, 0.05])
    for step in range(1, 20):
        pace.charged(step, mechanism)
    # The second user has saved nearly half of its budget, and has half of the steps to go.
    saved = pace.limited(19, both, np.array([1.0, 1.0]))
    assert saved[0] == pytest.approx(first)
    assert saved[1] > 1.2 * first
    # More noise from here on: levels may be higher again.
    pace.charged(20, PoissonGaussian(2.0 * mechanism.noise_stddev, 0.4))
    later = pace.limited(20, both, np.array([1.0, 1.0]))
    assert later[0] > 1.2 * first
    assert later[1] == 1.0


def test_restarted_paced_training_lasts_until_the_end(service: Turnstile) -> None:
    admitted = train(steps_of(service, 15), 17)
    admitted += train(steps_of(service, 15), STEPS)
    assert admitted == [50] * STEPS


def test_noise_lasts_for_the_requested_steps_and_few_more() -> None:
    for epsilon, steps, rate in ((1.0, 100, 0.1), (8.0, 7, 1.0)):
        with Turnstile.in_memory(partitions=1) as turnstile:
            turnstile.create_dataset("d", measure="renyi", epsilon=epsilon, delta=1e-5)
            noise = noise_for_steps(epsilon, 1e-5, steps, sampling_rate=rate, clip_norm=0.5)
            for share, least, most in ((1.0, steps, 1.05 * steps), (0.9, 0, steps - 1)):
                run = turnstile.run("d", f"at-{share}")
                roster = run.enrol([f"u {share}"], clip_norm=0.5)
                charged = [
                    roster.charge(noise_stddev=share * noise, sampling_rate=rate).admitted[0]
                    for _ in range(2 * steps)
                ]
                run.close()
                made = int(np.sum(charged))
                assert least <= made <= most


@pytest.mark.parametrize(
    "arguments",
    [
        (1.0, 1e-5, 0),
        (-1.0, 1e-5, 10),
        (1.0, 2.0, 10),
    ],
)
def test_invalid_pace_and_noise_arguments_are_rejected(arguments: tuple[float, float, int]) -> None:
    with pytest.raises(InvalidRequest):
        Pace(*arguments)
    with pytest.raises(InvalidRequest):
        noise_for_steps(*arguments)
    with pytest.raises(InvalidRequest):
        noise_for_steps(1.0, 1e-5, 10, sampling_rate=0.0)
    with pytest.raises(InvalidRequest):
        noise_for_steps(1.0, 1e-5, 10, clip_norm=0.0)


def test_pace_needs_own_coins(service: Turnstile) -> None:
    with pytest.raises(InvalidRequest):
        PrivateSteps(
            service.run("digits", "night-7"),
            np.arange(50),
            clip_norm=1.0,
            noise_stddev=1.0,
            sampling_rate=0.4,
            expected_batch=20.0,
            own_coins=False,
            pace=Pace(4.0, 1e-5, STEPS),
        )
