"""Cohorts with which the contributions of other users do not depend on one user."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from accounting import banded_steps
from streams.sdk.errors import InvalidRequest
from streams.trainers import rotating_cohort, sampled_cohort
from tests.unit.sdk.partitions import Partitions

USERS = np.arange(41)
MINE, NORM = 0, 0.05  # a user, and the norm of what that user contributes
STEPS, NOISE, SEPARATION = 60, 6.0, 2
COLUMN = [1.0, 0.5]
PRICES = banded_steps(np.array(COLUMN), NOISE, min_separation=SEPARATION, steps=STEPS)
MATRIX = np.eye(STEPS) + np.diag(np.full(STEPS - 1, COLUMN[1]), -1)
BUDGET = 0.1186  # mu^2, of (1.5, 1e-6)

Rule: TypeAlias = Callable[[int, NDArray[np.int64], set[int]], NDArray[np.int64]]
"""Of a step, all users and those who were admitted lately: the users who are asked."""


def contribution(user: int) -> float:
    return 1.0 if user % 2 else -1.0


def trained(rule: Rule, users: NDArray[np.int64], mine: float) -> tuple[NDArray[Any], float]:
    """The sum of each step, and the mu^2 that the user was charged."""
    service = Partitions(2)
    service.create("d", measure="gdp", budget=None, epsilon=1.5, delta=1e-6)
    run = service.open(min_separation=SEPARATION)
    sums, lately = [], set[int]()
    for step in range(STEPS):
        cohort = rule(step, users, lately)
        rows = np.array([mine if user == MINE else contribution(user) for user in cohort])
        decided = run.charge(cohort, np.abs(rows), mechanism=PRICES[step], clip_norm=1.0)
        sums.append(rows[decided.admitted].sum())
        lately = set(cohort[decided.admitted & (rows != 0)].tolist())
    return np.array(sums), service.spent().get(MINE, 0.0)


def difference(rule: Rule, *, removed: bool) -> tuple[float, float]:
    """By how much released rows differ, as mu^2, and what the user was charged."""
    sums, charged = trained(rule, USERS, NORM)
    others = USERS[USERS != MINE] if removed else USERS
    without, _ = trained(rule, others, 0.0)
    return float((((MATRIX @ (sums - without)) / NOISE) ** 2).sum()), charged


def everybody(step: int, users: NDArray[np.int64], lately: set[int]) -> NDArray[np.int64]:
    return users


def in_turn(step: int, users: NDArray[np.int64], lately: set[int]) -> NDArray[np.int64]:
    return users[rotating_cohort(users, step, period=3, key="night-7")]


def by_coin(step: int, users: NDArray[np.int64], lately: set[int]) -> NDArray[np.int64]:
    coins = np.random.default_rng(step)  # of each user the same in both worlds
    cohort = USERS[sampled_cohort(USERS, 0.4, not_private_generator=coins)]
    return cohort[np.isin(cohort, users)]


def every_second_of_those_who_are_left(
    step: int, users: NDArray[np.int64], lately: set[int]
) -> NDArray[np.int64]:
    return np.array([user for user in users.tolist() if user not in lately])[::2]


def a_fixed_number_of_those_who_are_left(
    step: int, users: NDArray[np.int64], lately: set[int]
) -> NDArray[np.int64]:
    left = np.array([user for user in users.tolist() if user not in lately])
    return np.sort(np.random.default_rng(step).permutation(left)[:20])


@pytest.mark.slow
@pytest.mark.parametrize("removed", [True, False], ids=["removed", "data set to zero"])
@pytest.mark.parametrize("rule", [everybody, in_turn, by_coin])
def test_released_rows_differ_by_what_was_charged_whoever_else_is_asked(
    rule: Rule, removed: bool
) -> None:
    differ, charged = difference(rule, removed=removed)
    assert 0.0 < charged <= BUDGET
    assert differ <= charged * (1.0 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("removed", [True, False], ids=["removed", "data set to zero"])
@pytest.mark.parametrize(
    ("rule", "at_least"),
    [(every_second_of_those_who_are_left, BUDGET), (a_fixed_number_of_those_who_are_left, 0.0)],
)
def test_cohorts_that_follow_admissions_exceed_what_was_charged(
    rule: Rule, at_least: float, removed: bool
) -> None:
    """What the condition of ``cohorts`` excludes; the service cannot see it."""
    differ, charged = difference(rule, removed=removed)
    assert differ > 10.0 * charged
    assert differ > at_least


@pytest.mark.parametrize(
    "ids", [USERS, [f"user {n}" for n in range(41)], [1, "1", 2, "2"]], ids=len
)
def test_every_user_has_one_turn_in_each_period(ids: Any) -> None:
    turns = [rotating_cohort(ids, step, period=5, key="a") for step in range(10)]
    assert sorted(np.concatenate(turns[:5]).tolist()) == list(range(len(ids)))
    for first, second in zip(turns[:5], turns[5:], strict=True):
        assert np.array_equal(first, second)


def test_group_of_a_user_depends_on_the_id_alone() -> None:
    names = [f"José {n}" for n in range(30)]
    for step in range(3):
        chosen = {names[place] for place in rotating_cohort(names, step, period=3, key=b"a")}
        fewer = [unicodedata.normalize("NFD", name) for name in names[10:]]
        again = {names[10 + place] for place in rotating_cohort(fewer, step, period=3, key="a")}
        assert again == chosen - set(names[:10])


def test_another_key_makes_other_groups_of_similar_sizes() -> None:
    groups = [
        [rotating_cohort(np.arange(3_000), step, period=10, key=key) for step in range(10)]
        for key in ("a", "b")
    ]
    for sizes in ([len(group) for group in mine] for mine in groups):
        assert stats.chisquare(sizes).pvalue > 1e-6
    shared = np.intersect1d(groups[0][0], groups[1][0])
    assert 5 < len(shared) < 80


def test_each_user_is_asked_by_a_coin_of_that_user() -> None:
    asked = [sampled_cohort(USERS, 0.3) for _ in range(2_000)]
    counts = np.bincount(np.concatenate(asked), minlength=len(USERS))
    assert stats.chisquare(counts).pvalue > 1e-6
    assert counts.sum() == pytest.approx(0.3 * 41 * 2_000, rel=0.05)


@pytest.mark.parametrize(
    "call",
    [
        lambda: sampled_cohort(USERS, 1.5),
        lambda: sampled_cohort(USERS, float("nan")),
        lambda: sampled_cohort([1.5], 0.5),
        lambda: rotating_cohort(USERS, -1, period=3, key="a"),
        lambda: rotating_cohort(USERS, 0.5, period=3, key="a"),
        lambda: rotating_cohort(USERS, 0, period=0, key="a"),
        lambda: rotating_cohort(USERS, 0, period=3, key=""),
        lambda: rotating_cohort({1, 2}, 0, period=3, key="a"),
    ],
)
def test_invalid_cohort_arguments_are_rejected(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidRequest):
        call()
