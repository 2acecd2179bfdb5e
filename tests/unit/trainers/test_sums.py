"""Clipped sums of rows, against fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accounting.release.clipping import clip_factors
from streams.trainers import sums
from streams.trainers.sums import ClippedSum

COLUMNS = 308
USERS = 12
TYPES = [np.float32, np.float64]


def square(row: NDArray[np.floating]) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), start=Fraction(0))


def rows_of(dtype: type, scale: float, seed: int = 0) -> NDArray[np.floating]:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1.0, 1e-3, 0.0, 30.0], (USERS, 1))
    rows = rng.normal(0.0, 1.0, (USERS, COLUMNS)) * lengths * scale
    return np.asarray(rows, dtype=dtype)


def total_of(clipped: ClippedSum) -> NDArray[np.int64]:
    return clipped.total()[1]


def squared(clipped: ClippedSum) -> Fraction:
    exponent, total = clipped.total()
    return Fraction(sum(int(units) ** 2 for units in total)) * Fraction(4) ** exponent


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-24, -40, -3, -130, 30])
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *[(dtype, scale) for dtype in TYPES for scale in (1.0, 1e-20, 1e-43, 1e20, 1e36)],
        *[(np.float64, 1e-140), (np.float64, 1e-160)],
    ],
)
def test_one_user_changes_the_sum_by_no_more_than_the_level(
    dtype: type, scale: float, exponent: int
) -> None:
    rows = rows_of(dtype, scale)
    limits = np.full(len(rows), 0.37) * scale
    for row, limit in zip(rows, limits, strict=True):
        if limit / 2.0**exponent > 2.0**61:
            continue  # which `PrivateSteps` refuses
        one = ClippedSum(exponent)
        (norm,) = one.add(row[np.newaxis], np.array([limit]))
        assert square(row) <= Fraction(float(norm)) ** 2
        assert squared(one) <= min(Fraction(float(limit)) ** 2, square(row))


def added(
    rows: NDArray[np.floating], limits: NDArray[np.float64], exponent: int, *groups: Any
) -> list[int]:
    """Return the sum of the users in groups that come one after the other."""
    clipped = ClippedSum(exponent)
    for users in groups:
        clipped.add(rows[users], limits[users])
    return total_of(clipped).tolist()


@pytest.mark.parametrize("block", [1, 400, 2**20])
@pytest.mark.parametrize("exponent", [-24, -29, -55])
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_sums_do_not_depend_on_the_order_of_users(
    kind: str, exponent: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_BLOCK", block)
    rows = rows_of(np.dtype(kind).type, 0.1)
    limits, users = np.linspace(0.1, 0.9, USERS), np.arange(USERS)
    first = added(rows, limits, exponent, users[:5], users[5:])
    assert first == added(rows, limits, exponent, users[:6:-1], users[6::-1])
    alone = [np.array(added(rows, limits, exponent, [user]), dtype=object) for user in users]
    assert first == list(sum(alone))


def one_by_one(
    rows: NDArray[np.floating], limits: NDArray[np.float64], exponent: int
) -> tuple[list[int], list[float]]:
    """Sum and norms, of each user by itself."""
    norms = [
        float(ClippedSum(exponent).add(rows[[user]], limits[[user]])[0])
        for user in range(len(limits))
    ]
    factors = clip_factors(norms, limits)
    by = np.ldexp(factors, -exponent)
    total = [
        sum(int(entry * scale) for entry, scale in zip(column, by, strict=True))
        for column in rows.T
    ]
    return total, norms


@given(
    width=st.sampled_from([1, 3, 40, 255, 256, 600, 3_000]),
    dtype=st.sampled_from(TYPES),
    users=st.integers(1, 9),
    exponent=st.integers(-34, -3),
    block=st.sampled_from([1, 900, 2**17]),
    seed=st.integers(0, 2**32),
)
# Longer rows than numpy's buffers.
@example(width=10_000, dtype=np.float64, users=9, exponent=-24, block=2**17, seed=0)
def test_users_worked_on_together_are_added_up_as_each_by_itself(
    width: int, dtype: type, users: int, exponent: int, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    limits = np.full(users, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_BLOCK", block)
        scale = rng.choice([0.0, 1e-25, 0.02, 1.0, 3.0], (users, 1))
        rows = (rng.normal(size=(users, width)) * scale).astype(dtype)
        clipped = ClippedSum(exponent)
        norms = clipped.add(rows, limits)
        assert (total_of(clipped).tolist(), norms.tolist()) == one_by_one(rows, limits, exponent)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "longdouble"])
def test_row_that_is_not_finite_does_not_change_others(
    dtype: str, order: Literal["C", "F"]
) -> None:
    rng = np.random.default_rng(5)
    rows = np.asarray(rng.normal(size=(20, 3000)), dtype=dtype, order=order)
    native = rows.astype(rows.dtype.newbyteorder("="))
    bad = rows.copy(order)
    bad[0, 7] = np.nan
    limits = np.full(20, 0.9)
    sums, norms = [], []
    for one, some in ((bad, limits), (rows[1:], limits[1:]), (native[1:], limits[1:])):
        clipped = ClippedSum(-24)
        found = clipped.add(one, some)
        assert np.isinf(found).sum() == len(one) - 19
        norms.append(found[-19:].tolist())
        sums.append(total_of(clipped).tolist())
    assert sums[0] == sums[1] == sums[2]
    assert norms[0] == norms[1] == norms[2]


@pytest.mark.parametrize(("dtype", "entry"), [(np.float32, 3e38), (np.float64, 9e149)])
def test_rows_with_the_largest_entries_are_clipped(dtype: type, entry: float) -> None:
    clipped = ClippedSum(-24)
    norms = clipped.add(np.full((1, 4), entry, dtype), np.array([1.0]))
    assert norms == pytest.approx([2 * entry])
    assert total_of(clipped) * 2.0**-24 == pytest.approx(np.full(4, 0.5), rel=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
def test_empty_batches_and_rows_of_zeros_add_nothing(dtype: type) -> None:
    for width in (0, 1, 256, 1000):
        for rows in (0, 2):
            clipped = ClippedSum(-24)
            norms = clipped.add(np.zeros((rows, width), dtype), np.ones(rows))
            assert norms.tolist() == [0.0] * rows
            assert total_of(clipped).tolist() == [0] * width
