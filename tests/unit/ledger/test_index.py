"""The index gives each user one slot for ever, whatever the mixture of ids."""

import ast
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.ledger.index import UNKNOWN, UserIndex, _SlotTable
from streams.records import ERASED_INTEGER, ERASED_STRING
from streams.records.users import UserIds
from tests.unit.ledger.test_ledger import random_log

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
    assert list(model) == index.users(0, len(index)).tolist()
    assert [index.user(slot) for slot in range(len(index))] == list(model)


def test_a_number_and_its_digits_are_two_users():
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


def table_of(ids, table):
    """A table that holds these ids in the slots of their order."""
    for part in np.array_split(np.arange(len(ids)), 10):
        table.add(part, ids)
    return table


def probes(ids, table):
    """How many places are looked at to find each id."""
    places = np.empty(len(ids), dtype=np.int64)
    taken = np.flatnonzero(table._slots != UNKNOWN)
    places[table._slots[taken]] = taken
    return (places - table._home(ids)) % table._places + 1


@pytest.mark.parametrize("stride", [1, 2**20, 2**40])
def test_erased_integer_users_are_found_no_more_and_all_others_are(stride):
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


KNOWN = (0x9E3779B97F4A7C15, 0, 1)
"""What an attacker knows, as he knew the one factor of a table that drew none."""


def colliding(count, bits):
    """Ids that have the last part of 2**bits as home in a table with the known seed."""
    homes = np.arange(count, dtype=np.uint64) + np.uint64((1 << bits) - 1 << (64 - bits))
    mixed = homes ^ (homes >> np.uint64(32))  # undoes the folding: the upper half is as it was
    return (mixed * np.uint64(pow(KNOWN[0], -1, 2**64))).view(np.int64)


def test_ids_chosen_to_collide_collide_only_where_the_seed_is_known():
    ids = colliding(4_000, bits=14)
    known = probes(ids, table_of(ids, _SlotTable(KNOWN)))
    drawn = probes(ids, table_of(ids, _SlotTable()))
    assert known.mean() > 1_000
    assert drawn.mean() < 2
    assert drawn.max() < 64


@pytest.mark.parametrize("stride", [1, 3, 2**20, 2**32, 2**40, 2**44 + 1, -(2**33)])
def test_rows_of_ids_are_spread_whatever_seed_is_drawn(stride):
    ids = np.arange(20_000, dtype=np.int64) * stride
    for seed in range(20):
        drawn = np.random.default_rng(seed).integers(0, 2**64, 3, dtype=np.uint64).tolist()
        table = table_of(ids, _SlotTable((drawn[0] | 1, drawn[1], drawn[2] | 1)))
        assert probes(ids, table).mean() < 1.5


def test_a_table_for_those_who_are_expected_is_made_once_and_half_full():
    """An acquisition would make it again and again, and beside the last one the next."""
    ids = np.random.default_rng(0).permutation(300_000) * 7
    index, made = UserIndex(), []
    index.expect(len(ids))
    table = index._integers
    allocate = table._allocate
    table._allocate = lambda places: made.append(places) or allocate(places)
    for part in np.array_split(ids, 70):
        index.add(UserIds(part))
    assert made == [2 * len(ids)]
    assert len(index._integer_at) == len(ids)
    assert index.find(UserIds(ids)).tolist() == list(range(len(ids)))
    index.add(UserIds(ids[:10] + 1))  # more than were expected
    assert index.find(UserIds(ids[:10] + 1)).tolist() == list(range(len(ids), len(ids) + 10))
    assert index.find(UserIds(ids)).tolist() == list(range(len(ids)))


@pytest.mark.process
def test_every_process_draws_a_seed_of_its_own():
    script = "from streams.ledger.index import _SEED; print(_SEED)"
    seeds = {subprocess.check_output([sys.executable, "-c", script]) for _ in range(2)}
    assert len(seeds) == 2
    for first, _, second in map(ast.literal_eval, map(bytes.decode, seeds)):
        assert first % 2 == second % 2 == 1


def test_what_is_written_does_not_depend_on_the_seed(monkeypatch):
    logs = []
    for seed in (KNOWN, (3, 4, 5)):
        monkeypatch.setattr(_SlotTable.__init__, "__defaults__", (seed,))
        logs.append(random_log(3))
    assert logs[0].outputs == logs[1].outputs
    assert logs[0].changes == logs[1].changes


def test_a_mixed_list_is_entered_at_once():
    """One by one, half a million integers beside a string took seconds."""
    index, added = UserIndex(), []
    index._integers.add = lambda slots, ids: added.append(len(slots))
    index.add(UserIds([*range(1000), "a"]))
    assert added == [1000]
