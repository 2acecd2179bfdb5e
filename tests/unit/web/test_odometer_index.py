"""The index finds every odometer record of a user that it was given, or says that it cannot."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.web.indexes import IndexFull, OdometerIndex, some

USERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["1", "ada", "ÿ"]))


@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abc"), USERS), max_size=200))
def test_every_place_of_a_user_is_found(records: list[tuple[int, str, int | str]]) -> None:
    places = OdometerIndex()
    for offset, (partition, dataset, user) in enumerate(records):
        places.add(partition, dataset, user, offset)
    for partition, _, user in records:
        wanted: dict[str, list[int]] = {}
        for offset, (where, dataset, other) in enumerate(records):
            if (where, other) == (partition, user) and type(other) is type(user):
                wanted.setdefault(dataset, []).append(offset)
        found = places.of(partition, user)
        assert all(set(offsets) <= set(found[name]) for name, offsets in wanted.items())


def test_when_it_is_full_the_newest_place_of_each_user_and_dataset_stays() -> None:
    places = OdometerIndex(most=1000)
    for offset in range(5000):
        places.add(offset % 2, "ab"[offset // 2 % 2], offset // 4 % 100, offset)
    assert len(places) <= 1000
    for user in range(100):
        newest = max(o for o in range(5000) if (o % 2, o // 2 % 2, o // 4 % 100) == (1, 0, user))
        assert places.of(1, user)["a"][-1] == newest


def test_a_full_index_shows_no_user() -> None:
    places = OdometerIndex(most=100)
    for user in range(101):
        places.add(0, "a", user, user)
    for user in (0, 100, 5000):
        with pytest.raises(IndexFull):
            places.of(0, user)
    places.clear()
    places.add(0, "a", 7, 0)
    assert places.of(0, 7) == {"a": [0]}


@given(st.lists(st.integers(), unique=True, max_size=300).map(sorted), st.integers(1, 64))
def test_some_places_have_the_last_one_among_them(offsets: list[int], most: int) -> None:
    chosen = some(offsets, most)
    assert len(chosen) <= most
    assert chosen == sorted(set(chosen))
    assert chosen[-1:] == offsets[-1:]
