"""Ids that come again are recognised, and others never taken for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streams.records import Policy
from streams.sdk.errors import InvalidRequest
from streams.sdk.layout import KnownUsers, lay_out

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


def test_what_was_read_does_not_change_with_what_was_given():
    known, users = KnownUsers(), list(NAMES)
    read = known.read(users)
    users.reverse()
    assert read == NAMES


@pytest.mark.parametrize("same", [True, 1.0], ids=["a truth value", "a float"])
def test_what_equals_an_id_but_is_none_is_refused(same: Any):
    known = KnownUsers()
    known.read(["a", 1])
    with pytest.raises(InvalidRequest, match="an int or str"):
        known.read(["a", same])


@pytest.mark.parametrize("more", [["x", "y"], [7, 8], ["x", 9]], ids=["text", "integers", "both"])
def test_more_at_the_end_is_as_if_all_had_been_read_at_once(more: list[Any]):
    known = KnownUsers()
    known.read(NAMES)
    read = known.read([*NAMES, *more])
    assert read == [*NAMES, *more]
    assert set(map(type, read)) <= {int, str}


def test_what_follows_known_ids_is_checked():
    known = KnownUsers()
    known.read(NAMES)
    with pytest.raises(InvalidRequest, match="0 characters"):
        known.read([*NAMES, ""])


def test_a_refusal_leaves_what_is_known():
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
def test_a_layout_that_grows_is_that_of_all_its_users(ids: Any, more: Any):
    whole = [*ids, *more] if isinstance(ids, list) else np.concatenate([ids, more])
    at_once, grown = lay_out(whole, POLICY), lay_out(whole, POLICY, lay_out(ids, POLICY))
    assert grown.users == at_once.users
    for mine, there in zip(grown.positions, at_once.positions, strict=True):
        assert np.array_equal(mine, there)


def test_a_layout_that_grows_has_nobody_twice():
    with pytest.raises(InvalidRequest, match="appears twice"):
        lay_out([*NAMES, NAMES[3]], POLICY, lay_out(NAMES, POLICY))
