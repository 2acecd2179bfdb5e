from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from streams.sdk.errors import InvalidRequest
from streams.trainers.examples import ExamplesByUser, SumsByUser

OWNERS = [7, 3, 7, 9, 3, 7]


@pytest.mark.parametrize(
    "ids",
    [OWNERS, np.array(OWNERS), pd.Series(OWNERS), [str(owner) for owner in OWNERS]],
    ids=["list", "array", "series", "strings"],
)
def test_users_are_in_the_order_of_their_first_example(ids: object) -> None:
    grouped = ExamplesByUser.of(ids)
    assert [int(user) for user in grouped.users] == [7, 3, 9]
    assert len(grouped) == 3
    examples, counts = grouped.select(np.array([0, 2, 1]))
    assert examples.tolist() == [0, 2, 5, 3, 1, 4]
    assert counts.tolist() == [3, 1, 2]
    for chosen in grouped.select(np.array([], dtype=np.int64)):
        assert chosen.tolist() == []


def test_a_users_examples_are_capped_by_their_own_order_alone() -> None:
    random = np.random.default_rng(4)
    owners = np.repeat(np.arange(8), [1, 2, 3, 4, 7, 20, 300, 5])
    random.shuffle(owners)
    for most in (1, 3, 10**12):
        found = {}
        for without in range(9):  # user 8 does not exist
            rest = np.flatnonzero(owners != without)
            grouped = ExamplesByUser.of(owners[rest], max_examples_per_user=most)
            grouped.check_covers(len(rest))
            for position, user in enumerate(grouped.users):
                chosen = rest[grouped.select(np.array([position]))[0]].tolist()
                assert len(set(chosen)) == min(most, np.count_nonzero(owners == user))
                assert (owners[chosen] == user).all()
                assert found.setdefault(int(user), chosen) == chosen
    for bad in (0, -1, 1.5, True):
        with pytest.raises(InvalidRequest):
            ExamplesByUser.of(OWNERS, max_examples_per_user=bad)


def test_another_number_of_examples_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        ExamplesByUser.of(OWNERS).check_covers(5)
    with pytest.raises(InvalidRequest):
        ExamplesByUser.covering(5, OWNERS)
    with pytest.raises(InvalidRequest):
        ExamplesByUser.of([1, None])


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 16, 100])
@pytest.mark.parametrize("counts", [[1, 12, 3, 1, 1, 40, 2], [1, 1, 1], []], ids=str)
def test_sums_by_user_do_not_depend_on_the_pieces(counts: list[int], piece: int) -> None:
    total = sum(counts)
    scales = np.geomspace(1e-9, 1e9, total)[:, None]
    rows = (np.random.default_rng(1).normal(size=(total, 3)) * scales).astype(np.float32)
    expected, end = [], 0
    for count in counts:
        one = np.zeros(3)
        for row in rows[end : end + count]:
            one += row
        expected.append(one)
        end += count
    running, found, users = SumsByUser(np.array(counts, dtype=np.int64)), [], []
    for start in range(0, total, piece):
        here = rows[start : start + piece]
        complete, (first, rest) = running.add([here[:, :1], here[:, 1:]])
        users += range(complete.start, complete.stop)
        found += list(np.hstack([first, rest]))
        assert first.dtype == np.float64
    assert users == list(range(len(counts)))
    assert np.array_equal(np.array(found), np.array(expected))
