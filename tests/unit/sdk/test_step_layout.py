"""The cache of user ids, and the partitions of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams.records import Policy
from streams.records.users import UserIds
from streams.sdk.errors import InvalidRequest
from streams.sdk.step_layout import KnownUsers, lay_out

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
def test_the_same_ids_are_the_same_object(users: Any):
    known = KnownUsers()
    first = known.read(users)
    assert known.read(users) is first
    assert list(first) == list(users)


@pytest.mark.parametrize("kind", [list, np.array], ids=["list", "text"])
def test_a_change_in_place_is_noticed(kind: Any):
    known, users = KnownUsers(), kind(NAMES)
    known.read(users)
    users[17] = "another"
    assert list(known.read(users)) == [*NAMES[:17], "another", *NAMES[18:]]


def test_ids_are_a_copy():
    known, users = KnownUsers(), list(NAMES)
    read = known.read(users)
    users.reverse()
    assert read == UserIds(NAMES)


@pytest.mark.parametrize("same", [True, 1.0], ids=["a truth value", "a float"])
def test_value_that_equals_an_id_is_rejected(same: Any):
    known = KnownUsers()
    known.read(["a", 1])
    with pytest.raises(InvalidRequest):
        known.read(["a", same])


@pytest.mark.parametrize("more", [["x", "y"], [7, 8], ["x", 9]], ids=["text", "integers", "both"])
def test_longer_list_equals_one_read_at_once(more: list[Any]):
    known = KnownUsers()
    known.read(NAMES)
    read = known.read([*NAMES, *more])
    assert read.tolist() == [*NAMES, *more]
    assert set(map(type, read)) <= {int, str}


def test_ids_after_known_ones_are_checked():
    known = KnownUsers()
    known.read(NAMES)
    with pytest.raises(InvalidRequest):
        known.read([*NAMES, ""])


def test_rejected_ids_leave_the_cache():
    known = KnownUsers()
    first = known.read(NAMES)
    with pytest.raises(InvalidRequest):
        known.read([1.5])
    assert known.read(NAMES) is first


@pytest.mark.parametrize(
    ("ids", "more"),
    [
        (NAMES[:20], NAMES[20:]),
        (NAMES[:20], [3, "caf\u0065\u0301"]),
        (np.arange(20), np.arange(20, 45)),
    ],
    ids=["text", "mixed", "integers"],
)
def test_extended_layout_equals_a_new_one(ids: Any, more: Any):
    first = UserIds(ids)
    whole = first.join(UserIds(more))
    at_once, grown = lay_out(whole, POLICY), lay_out(whole, POLICY, lay_out(first, POLICY))
    assert grown.known == at_once.known
    for mine, there in zip(grown.positions, at_once.positions, strict=True):
        assert np.array_equal(mine, there)


TWICE = [np.array([4, 7, 4]), ["a", 4, "a"], [1, "1", 1], ["\u00e9", "e\u0301"]]


@pytest.mark.parametrize("ids", TWICE, ids=str)
def test_duplicate_id_is_rejected(ids: Any):
    with pytest.raises(InvalidRequest):
        lay_out(UserIds(ids), POLICY)


def test_duplicate_of_a_known_id_is_rejected():
    with pytest.raises(InvalidRequest):
        lay_out(UserIds([*NAMES, NAMES[3]]), POLICY, lay_out(UserIds(NAMES), POLICY))


@pytest.mark.parametrize("ids", [np.array([4, 7]), ["a", 4], [1, "1"], np.empty(0, int)], ids=str)
def test_distinct_ids_are_accepted(ids: Any):
    assert len(lay_out(UserIds(ids), POLICY).ids) == len(ids)
