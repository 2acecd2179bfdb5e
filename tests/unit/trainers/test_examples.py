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
    selection = grouped.select(np.array([0, 2, 1]))
    assert selection.examples.tolist() == [0, 2, 5, 3, 1, 4]
    assert selection.counts.tolist() == [3, 1, 2]


def test_gradients_are_summed_by_user() -> None:
    selection = ExamplesByUser.of(OWNERS).select(np.array([0, 1]))
    rows = np.arange(10.0).reshape(5, 2)
    assert selection.sums(rows).tolist() == [[6.0, 9.0], [14.0, 16.0]]
    nobody = ExamplesByUser.of(OWNERS).select(np.array([], dtype=np.int64))
    assert nobody.examples.tolist() == []
    assert nobody.sums(np.empty((0, 2))).shape == (0, 2)


def test_without_ids_every_example_is_a_user() -> None:
    grouped = ExamplesByUser.one_each(4)
    assert grouped.select(np.array([1, 3])).examples.tolist() == [1, 3]
    assert list(grouped.users) == [0, 1, 2, 3]


def test_users_with_one_example_each_keep_their_own() -> None:
    selection = ExamplesByUser.of(["c", "a", "b"]).select(np.array([2, 0]))
    assert selection.examples.tolist() == [2, 0]
    assert selection.counts.tolist() == [1, 1]


def test_a_users_examples_are_capped_by_the_users_own_order_alone() -> None:
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
                chosen = rest[grouped.select(np.array([position])).examples].tolist()
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
        ExamplesByUser.of([1, None])


@pytest.mark.parametrize("at_once", [1, 2, 3, 6, 100])
def test_parts_contain_each_user_once_and_bound_the_examples(
    at_once: int,
) -> None:
    grouped = ExamplesByUser.of(OWNERS)
    positions = np.array([0, 1, 2])
    parts = grouped.parts(positions, at_once)
    assert np.concatenate([positions[part] for part in parts]).tolist() == [0, 1, 2]
    for part in parts:
        counts = grouped.select(positions[part]).counts
        assert counts[:-1].sum() < at_once
    assert grouped.parts(positions[:0], at_once) == []


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 16, 100])
def test_sums_by_user_do_not_depend_on_the_pieces(piece: int) -> None:
    counts = np.array([1, 12, 3, 1, 1, 40, 2])
    rows = np.random.default_rng(1).normal(size=(60, 3)) * np.geomspace(1e-9, 1e9, 60)[:, None]
    expected, end = [], 0
    for count in counts:
        total = np.zeros(3)
        for row in rows[end : end + count]:
            total += row
        expected.append(total)
        end += count
    running, found, users = SumsByUser(counts), [], []
    for start in range(0, 60, piece):
        here = rows[start : start + piece]
        complete, (first, rest) = running.add([here[:, :1], here[:, 1:]])
        users += range(complete.start, complete.stop)
        found += list(np.hstack([first, rest]))
    assert users == list(range(7))
    assert np.array_equal(np.array(found), np.array(expected))
