"""Trainings with one user and without that user, through the service in memory (A1, denominators).

A canary sees only what a user's own contribution reveals. A denominator, or a draw, that follows
other users moves everybody's contribution: only a comparison of the two worlds shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from streams import Turnstile
from streams.trainers.steps import PrivateSteps

NOISE = 8.0


def releases(
    users: int, contribution: float, norms: Sequence[float] = (0.25, 0.25, 1.0)
) -> np.ndarray:
    """The sums times 10 of a full-batch training, with the same noise in every world.

    The last of three users contributes `contribution`. A user of norm 1 can pay for three steps.
    """
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("d", measure="gdp", budget=(3.5**0.5) / NOISE)
        made = PrivateSteps(
            turnstile.run("d", "r"),
            np.arange(users),
            clip_norm=1.0,
            noise_multiplier=NOISE,
            sampling_rate=1.0,
            expected_batch=10.0,
            levels="clip_norm",
            not_private_generator=np.random.default_rng(5),
        )
        made.roster.set_norms(norms[:users])
        values = []
        for _ in range(6):
            step = made.begin()
            rows = np.zeros((len(step.positions), 2))
            rows[:, 0] = np.array([0.25, -0.125, contribution])[step.positions]
            step.add(rows)
            values.append(step.release(2) * 10.0)
    return np.array(values)


def test_release_differs_by_one_contribution_only() -> None:
    """While the user is admitted, and after the user is halted."""
    difference = releases(3, 1.0) - releases(2, 1.0)
    expected = np.zeros((6, 2))
    expected[:3, 0] = 1.0
    np.testing.assert_allclose(difference, expected, atol=1e-5)
    absent = releases(3, 0.0) - releases(2, 0.0)
    np.testing.assert_allclose(absent, 0.0, atol=1e-5)


def test_a_user_who_can_pay_longer_does_not_make_steps_exist() -> None:
    """User 1 can pay for every step. Without it no user is admitted after step 2."""
    both, alone = (releases(users, 1.0, norms=(1.0, 0.25)) for users in (2, 1))
    expected = np.zeros((6, 2))
    expected[:, 0] = -0.125
    np.testing.assert_allclose(both - alone, expected, atol=1e-5)


@pytest.mark.slow
def test_draws_of_a_user_do_not_depend_on_another_user() -> None:
    """User 0 has a coin of probability 1/2, whether or not there is a user 1."""
    steps = 60
    for users in (1, 2):
        with Turnstile.in_memory() as turnstile:
            turnstile.create_dataset("d", measure="renyi", epsilon=8.0, delta=1e-5)
            made = PrivateSteps(
                turnstile.run("d", "r"),
                np.arange(users),
                clip_norm=1.0,
                noise_multiplier=40.0,
                sampling_rate=0.5,
                expected_batch=1.0,
                levels="clip_norm",
                not_private_generator=np.random.default_rng(users),
            )
            drawn = 0
            for _ in range(steps):
                step = made.begin()
                drawn += int(0 in step.positions)
                step.add(np.zeros((len(step.positions), 1)))
                step.release(1)
        assert stats.binomtest(drawn, steps, 0.5).pvalue > 1e-6
