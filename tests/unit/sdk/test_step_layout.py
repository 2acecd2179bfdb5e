"""The cache of user ids, and the partitions of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams.records import Policy
from streams.records.users import UserIds
from streams.sdk.errors import InvalidRequest
from streams.sdk.step_layout import LastLayout, lay_out

NAMES = [f"user-{number}" for number in range(50)]
POLICY = Policy(
    dataset="d",
    partitions=3,
    measure="zcdp",
    budget=[1],
    odometer_step=[1],
    user_ids="mixed",
)


@pytest.mark.parametrize(
    "users",
    [NAMES, tuple(NAMES), np.array(NAMES), np.array(NAMES, dtype=object), np.arange(50)],
    ids=["list", "tuple", "text", "objects", "integers"],
)
def test_the_same_ids_have_the_same_layout(users: Any):
    layouts = LastLayout(POLICY, None)
    first = layouts.of(users)
    assert layouts.of(users) is first
    assert list(first.ids) == list(users)


@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "text"])
def test_a_change_in_place_is_noticed(kind: Any):
    layouts, users = LastLayout(POLICY, None), kind(NAMES)
    layouts.of(users)
    users[17] = "another"
    assert list(layouts.of(users).ids) == [*NAMES[:17], "another", *NAMES[18:]]


def test_ids_are_a_copy():
    layouts, users = LastLayout(POLICY, None), list(NAMES)
    layout = layouts.of(users)
    users.reverse()
    assert layout.ids == UserIds(NAMES)


@pytest.mark.parametrize("same", [True, 1.0], ids=["a truth value", "a float"])
def test_value_that_equals_an_id_is_rejected(same: Any):
    layouts = LastLayout(POLICY, None)
    layouts.of(["a", 1])
    with pytest.raises(InvalidRequest):
        layouts.of(["a", same])


def test_rejected_ids_leave_the_cache():
    layouts = LastLayout(POLICY, None)
    first = layouts.of(NAMES)
    with pytest.raises(InvalidRequest):
        layouts.of([1.5])
    assert layouts.of(NAMES) is first


TWICE = [np.array([4, 7, 4]), ["a", 4, "a"], [1, "1", 1], ["\u00e9", "e\u0301"]]


@pytest.mark.parametrize("ids", TWICE, ids=str)
def test_duplicate_id_is_rejected(ids: Any):
    with pytest.raises(InvalidRequest):
        lay_out(UserIds(ids), POLICY)


@pytest.mark.parametrize("ids", [np.array([4, 7]), ["a", 4], [1, "1"], np.empty(0, int)], ids=str)
def test_distinct_ids_are_accepted(ids: Any):
    assert len(lay_out(UserIds(ids), POLICY).ids) == len(ids)
