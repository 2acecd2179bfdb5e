"""UserIds: a sequence of ids with one packed form."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.records import User
from streams.records.users import UserIds, partitions_of

LISTS = st.lists(
    st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-3, 3), st.text(max_size=3)), max_size=9
)


def position_of(users: list[User], user: User) -> int | None:
    return users.index(user) if user in users else None


@given(LISTS, st.data())
def test_user_ids_behave_like_a_list(users: list[User], data: st.DataObject) -> None:
    ids = UserIds(users)
    assert (len(ids), list(ids), ids.tolist()) == (len(users), users, users)
    assert [type(user) for user in ids] == [type(user) for user in users]
    assert ids.are_integers == all(isinstance(user, int) for user in users)
    start, stop = (data.draw(st.integers(0, len(users))) for _ in range(2))
    assert ids[start:stop].tolist() == users[start:stop]
    assert [ids[at] for at in range(len(users))] == users
    some = data.draw(st.lists(st.sampled_from(range(len(users))), max_size=9)) if users else []
    assert ids.select(np.array(some, dtype=np.int64)).tolist() == [users[at] for at in some]
    twice = ids.duplicate()
    assert (twice is None) == (len(set(users)) == len(users))
    assert twice is None or users.count(twice) > 1
    distinct, places = ids.distinct()
    assert distinct.tolist() == list(dict.fromkeys(users))
    assert distinct.select(places).tolist() == users
    for user in [*users, 0, "", "no"]:
        assert ids.position(user) == position_of(users, user)
    other = data.draw(st.one_of(st.integers(0, 5), st.text(max_size=2)))
    for at in range(len(users)):
        changed = ids.replace({at: other})
        assert changed.tolist() == [*users[:at], other, *users[at + 1 :]]
    assert ids.tolist() == users


@given(LISTS)
def test_equal_ids_have_equal_bytes(users: list[User]) -> None:
    packed = UserIds(users).pack()
    assert isinstance(packed, bytes) == all(isinstance(user, int) for user in users)
    assert UserIds.unpack(packed) == UserIds.unpack(users) == UserIds(users)
    assert UserIds(["x", *users])[1:].pack() == packed


@given(LISTS, st.integers(1, 9))
def test_homes_agree_with_the_partitioner(users: list[User], partitions: int) -> None:
    assert UserIds(users).homes(partitions).tolist() == partitions_of(users, partitions).tolist()


@pytest.mark.parametrize("dtype", [">i8", "<i4", "u1"])
def test_arrays_of_any_integer_type_are_packed_little_endian(dtype: str) -> None:
    assert UserIds(np.array([1, 2], dtype=dtype)) == UserIds([1, 2])
    assert UserIds(np.array([1, 2], dtype=dtype)).pack() == struct.pack("<2q", 1, 2)
    assert UserIds([1, 2]) != UserIds([1, "2"])
    assert UserIds([1]) != [1]
