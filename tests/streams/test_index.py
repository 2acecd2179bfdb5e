"""The index gives each user one slot for ever, whatever the mixture of ids."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.index import UNKNOWN, UserIndex

integers = st.integers(-(2**63), 2**63 - 1)
users = st.one_of(integers, st.integers(-50, 50), st.text(min_size=1, max_size=4))


@given(st.lists(st.lists(users, unique=True, max_size=30), max_size=20))
def test_index_agrees_with_a_dict_over_any_sequence_of_arrivals(batches):
    index, model = UserIndex(), {}
    for batch in batches:
        known = index.find(batch)
        assert known.tolist() == [model.get(user, UNKNOWN) for user in batch]
        new = [user for user in batch if user not in model]
        for user, slot in zip(new, index.add(new).tolist(), strict=True):
            model[user] = slot
    assert sorted(model.values()) == list(range(len(index)))
    listed = index.users(0, len(index))
    assert list(model) == (listed.tolist() if isinstance(listed, np.ndarray) else listed)
    assert [index.user(slot) for slot in range(len(index))] == list(model)


def test_a_number_and_its_digits_are_two_users():
    index = UserIndex()
    index.add([7, "7"])
    assert index.find([7, "7"]).tolist() == [0, 1]


@pytest.mark.parametrize("stride", [1, 2**20, 2**40, -(2**33)])
def test_integer_users_that_collide_are_all_found(stride):
    ids = np.arange(20_000, dtype=np.int64) * stride
    index = UserIndex()
    for part in np.array_split(ids, 37):
        assert (index.find(part) == UNKNOWN).all()
        index.add(part)
    assert index.find(ids).tolist() == list(range(len(ids)))
    assert (index.find(ids + 1) == UNKNOWN).sum() >= len(ids) - (20_000 if stride == 1 else 0)
