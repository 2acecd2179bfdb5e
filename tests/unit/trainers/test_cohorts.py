"""Cohorts in which a user's part depends on that user alone (tests/unit/conditions: why)."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from streams.sdk.errors import InvalidRequest
from streams.trainers import rotating_cohort

USERS = np.arange(41)


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: rotating_cohort([1.5], 0, period=3, key="a"),
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
