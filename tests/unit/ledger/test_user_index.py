"""The index gives each user one permanent slot, for integer and string ids."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ledger.slots import UNKNOWN, SlotTable
from streams.ledger.user_index import UserIndex
from streams.records import ERASED_INTEGER, ERASED_STRING
from streams.records.users import UserIds

integers = st.integers(-(2**63), 2**63 - 1)
users = st.one_of(integers, st.integers(-50, 50), st.text(min_size=1, max_size=4))


@pytest.mark.slow
@given(st.lists(st.lists(users, unique=True, max_size=20), max_size=8), st.data())
def test_index_agrees_with_a_dict(batches, data):
    index, model = UserIndex(), {}
    for batch in batches:
        known = index.find(UserIds(batch))
        assert known.tolist() == [model.get(user, UNKNOWN) for user in batch]
        new = [user for user in batch if user not in model]
        for user, slot in zip(new, index.add(UserIds(new)).tolist(), strict=True):
            model[user] = slot
        living = [user for user in model if not str(user).startswith("erased:")]
        if living and data.draw(st.booleans()):
            user = data.draw(st.sampled_from(living))
            slot = model[user]
            kind = ERASED_STRING if isinstance(user, str) else ERASED_INTEGER
            index.erase(slot, f"{kind}{slot}")
            by_slot = {s: u for u, s in model.items()} | {slot: f"{kind}{slot}"}
            model = {by_slot[s]: s for s in range(len(index))}
    assert index.find(UserIds(list(model))).tolist() == list(model.values())
    assert sorted(model.values()) == list(range(len(index)))
    assert [index.user(slot) for slot in range(len(index))] == list(model)


def test_integer_and_string_of_its_digits_are_two_users():
    index = UserIndex()
    index.add(UserIds([7, "7"]))
    assert index.find(UserIds([7, "7"])).tolist() == [0, 1]


@pytest.mark.parametrize("stride", [1, 2**20, 2**40, -(2**33)])
def test_integer_users_that_collide_are_all_found(stride):
    ids = np.arange(20_000, dtype=np.int64) * stride
    index = UserIndex()
    for part in np.array_split(ids, 37):
        assert (index.find(UserIds(part)) == UNKNOWN).all()
        index.add(UserIds(part))
    assert index.find(UserIds(ids)).tolist() == list(range(len(ids)))
    assert (index.find(UserIds(ids + 1)) == UNKNOWN).sum() >= len(ids) - (
        20_000 if stride == 1 else 0
    )


@pytest.mark.parametrize("stride", [1, 2**20, 2**40])
def test_erased_integer_users_are_unknown_and_others_are_found(stride):
    ids = (np.arange(3_000, dtype=np.int64) - 1_500) * stride
    index = UserIndex()
    index.add(UserIds(ids))
    gone = np.random.default_rng(1).permutation(3_000)[:1_000]
    for slot in gone.tolist():
        index.erase(slot, f"{ERASED_INTEGER}{slot}")
    expected = np.arange(3_000)
    expected[gone] = UNKNOWN
    assert index.find(UserIds(ids)).tolist() == expected.tolist()
    again = index.add(UserIds(ids[gone]))
    assert index.find(UserIds(ids[gone])).tolist() == again.tolist()


def test_table_with_an_expected_size_does_not_grow():
    ids = np.random.default_rng(0).permutation(300_000) * 7
    index = UserIndex()
    index.expect(len(ids))
    first, *rest = np.array_split(ids, 70)
    index.add(UserIds(first))
    tracemalloc.start()
    try:
        for part in rest:
            index.add(UserIds(part))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * len(ids)  # a second table would have 8 bytes per user
    assert index.find(UserIds(ids)).tolist() == list(range(len(ids)))
    index.add(UserIds(ids[:10] + 1))  # more than were expected
    assert index.find(UserIds(ids[:10] + 1)).tolist() == list(range(len(ids), len(ids) + 10))
    assert index.find(UserIds(ids)).tolist() == list(range(len(ids)))


def test_mixed_list_adds_its_integers_together(monkeypatch):
    """Adding half a million integers one by one, beside one string, took seconds."""
    added, add = [], SlotTable.add
    monkeypatch.setattr(SlotTable, "add", lambda *given: added.append(len(given[1])) or add(*given))
    UserIndex().add(UserIds([*range(1000), "a"]))
    assert added == [1000]
