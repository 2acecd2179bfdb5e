"""Which users take part in a step may not follow other users' admissions, draws or budgets."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from accounting import GdpFilter, NormGrid, PoissonGaussian, ReportAccountant, banded_steps
from streams import Turnstile

USERS, STEPS, NOISE, BUDGET = 41, 60, 6.0, (1.5, 1e-6)
PRICES = banded_steps(np.array([1.0, 0.5]), NOISE, min_separation=2, steps=STEPS)
MATRIX = np.eye(STEPS) + np.diag(np.full(STEPS - 1, 0.5), -1)

Cohort = Callable[[int, set[int]], list[int]]

# --- A1: other users' participation ---


def outputs(norm: float, cohort: Cohort) -> tuple[np.ndarray, float]:
    """The sums of a banded training, and what user 0, whose gradient has this norm, is charged."""
    gradients = {user: 1.0 if user % 2 else -1.0 for user in range(USERS)} | {0: norm}
    sums, charged = [], 0.0
    with Turnstile.in_memory() as turnstile:
        turnstile.create_dataset("p", measure="gdp", epsilon=BUDGET[0], delta=BUDGET[1])
        run, lately = turnstile.run("p", "r", min_separation=2), set[int]()
        for step in range(STEPS):
            asked = np.array(cohort(step, lately))
            norms = np.array([abs(gradients[int(user)]) for user in asked])
            decision = run.charge(asked, norms, mechanism=PRICES[step], clip_norm=1.0)
            admitted = set(asked[decision.admitted].tolist())
            sums.append(sum(gradients[user] for user in admitted))
            lately = {user for user in admitted if gradients[user]}
            if 0 in admitted:
                charged += (norm / PRICES[step].noise_stddev) ** 2
    return np.array(sums), charged


def difference(cohort: Cohort) -> tuple[float, float]:
    """mu squared between the outputs with and without user 0, and what user 0 is charged."""
    with_user, charged = outputs(0.05, cohort)
    without, nothing = outputs(0.0, cohort)
    assert nothing == 0.0
    return float(((MATRIX @ (with_user - without)) ** 2).sum()) / NOISE**2, charged


def budget() -> float:
    with Turnstile.in_memory() as turnstile:
        policy = turnstile.create_dataset("p", measure="gdp", epsilon=BUDGET[0], delta=BUDGET[1])
    return policy.budget[0] * 2.0**-44


def every_second_of_those_not_admitted_lately(step: int, lately: set[int]) -> list[int]:
    return [user for user in range(USERS) if user not in lately][::2]


@pytest.mark.slow
def test_cohort_without_recent_users_breaks_the_guarantee() -> None:
    real, charged = difference(every_second_of_those_not_admitted_lately)
    assert charged < 0.003
    assert real > 10 * budget()
    assert real == pytest.approx(1.90, abs=0.01)


SOUND: dict[str, Cohort] = {
    "all users": lambda step, lately: list(range(USERS)),
    "public groups in turn": lambda step, lately: list(range(step % 2, USERS, 2)),
    "a coin for each user": lambda step, lately: [
        user for user in range(USERS) if (user * 2654435761 + step * 40503) >> 7 & 1
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("cohort", SOUND.values(), ids=SOUND)
def test_cohorts_that_do_not_depend_on_other_users_keep_it(cohort: Cohort) -> None:
    real, charged = difference(cohort)
    assert 0.0 < real <= charged * (1 + 1e-9) <= budget()


# --- A5: records with several owners ---


@pytest.mark.parametrize("records", [10, 100])
def test_records_paid_by_all_owners_are_unsound(records: int) -> None:
    """Record j is owned by users j and j + 1. Without user 0 there is no record 0."""

    def admitted(first: int) -> list[bool]:
        rule = GdpFilter(1.0)
        state, taken = rule.initial_state(records + 1), [False] * first
        for owner in range(first, records):
            owners = state[owner : owner + 2]
            charged, can_pay = rule.admit(owners, np.ones(2))
            taken.append(bool(can_pay.all()))
            if taken[-1]:
                state[owner : owner + 2] = charged
        return taken

    flipped = sum(a != b for a, b in zip(admitted(0), admitted(1), strict=True))
    assert flipped == records  # each by a norm of 1 at noise 1, where user 0 was charged 1


# --- A7: one draw per decision ---


def law(is_there: bool, keep: Callable[[int], bool]) -> dict[tuple[int, int], Fraction]:
    """The law of the coins of user i, who may be absent, and user j, drawn until `keep` agrees."""
    coins = product((0, 1) if is_there else (0,), (0, 1))
    kept = [pair for pair in coins if keep(sum(pair))]
    return {pair: Fraction(1, len(kept)) for pair in kept}


def seen_of_j(is_there: bool, keep: Callable[[int], bool]) -> Fraction:
    """The probability that user j, whose contribution is plain to see, is in the batch."""
    return sum(
        (p for (_, j), p in law(is_there, keep).items() if j),
        start=Fraction(0),
    )


def test_drawing_until_the_batch_is_small_is_unsound() -> None:
    """Users i and j are drawn with probability 1 / 2; i contributes a hundredth of the noise."""
    report = ReportAccountant(PoissonGaussian(1.0, 0.5), NormGrid(0.01, 1))
    charged = float(report.delta([1], 0.0))  # the total variation that i's charge allows
    once = [seen_of_j(is_there, lambda size: True) for is_there in (False, True)]
    assert once[0] == once[1]
    again = [seen_of_j(is_there, lambda size: size <= 1) for is_there in (False, True)]
    assert abs(again[0] - again[1]) == Fraction(1, 6) > 50 * charged
