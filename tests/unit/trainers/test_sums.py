"""Clipped sums against fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accounting.release.clipping import clip_factors
from streams.trainers import sums
from streams.trainers.sums import ClippedSum, Scratch

WIDTHS = [1, 300, 7]


def square(row: NDArray[np.floating]) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), start=Fraction(0))


def rows_of(dtype: type, scale: float, seed: int = 0) -> NDArray[np.floating]:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1.0, 1e-3, 0.0, 30.0], (12, 1))
    rows = rng.normal(0.0, min(scale, 1e36), (12, sum(WIDTHS))) * lengths
    return np.asarray(rows, dtype=dtype)


def in_parts(rows: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    return np.split(rows, np.cumsum(WIDTHS)[:-1], axis=1)


def total_of(clipped: ClippedSum) -> NDArray[np.int64]:
    ((_, total),) = clipped.totals()
    return total


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-24, -40, -3, -130, 30])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-43, 1e20, 1e37])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_user_changes_the_sum_by_no_more_than_the_level(
    dtype: type, scale: float, exponent: int
) -> None:
    rows = rows_of(dtype, scale)
    limits = np.full(len(rows), 0.37) * scale
    spacing = Fraction(2) ** exponent
    for row, limit in zip(rows, limits, strict=True):
        if limit / 2.0**exponent > 2.0**61:
            continue  # which `PrivateSteps` refuses
        one = ClippedSum(exponent)
        (norm,) = one.add(in_parts(row[np.newaxis]), np.array([limit]))
        total = total_of(one)
        assert square(row) <= Fraction(float(norm)) ** 2
        added = sum(int(units) ** 2 for units in total) * spacing**2
        assert added <= min(Fraction(float(limit)) ** 2, square(row))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_are_those_of_clipped_rows_but_for_the_grid(dtype: type) -> None:
    rows = rows_of(dtype, 0.05)
    limits = np.linspace(0.1, 1.0, len(rows))
    clipped = ClippedSum(-30)
    norms = clipped.add(in_parts(rows), limits)
    exact = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert norms == pytest.approx(exact, rel=1e-4)
    wanted = (rows * np.minimum(1.0, limits / np.maximum(exact, 1e-300))[:, None]).sum(axis=0)
    total = total_of(clipped)
    assert total * 2.0**-30 == pytest.approx(wanted, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("block", [1, 400, 2**20])
@pytest.mark.parametrize("exponent", [-24, -29, -55])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_depend_neither_on_the_order_of_users_nor_on_how_they_come(
    dtype: type, exponent: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_BLOCK", block)
    rows, limits = rows_of(dtype, 0.1), np.full(12, 0.5)
    totals = []
    for order in (np.arange(12), np.arange(12)[::-1]):
        clipped = ClippedSum(exponent)
        for users in (order[:5], order[5:]):
            clipped.add(in_parts(rows[users]), limits[users])
        totals.append(total_of(clipped))
    one_by_one = sum(
        total_of(alone).astype(object)
        for alone in (_alone(rows[user], limits[user], exponent) for user in range(12))
    )
    assert totals[0].tolist() == totals[1].tolist() == list(one_by_one)


def _alone(row: NDArray[np.floating], limit: float, exponent: int) -> ClippedSum:
    alone = ClippedSum(exponent)
    alone.add(in_parts(row[np.newaxis]), np.array([limit]))
    return alone


def one_by_one(
    parts: list[NDArray[np.floating]], limits: NDArray[np.float64], exponent: int
) -> tuple[list[int], NDArray[np.float64]]:
    """Sum and norms, of each part and each user by itself."""
    norms = np.concatenate(
        [
            ClippedSum(exponent).add([part[[user]] for part in parts], limits[[user]])
            for user in range(len(limits))
        ]
    )
    factors = clip_factors(norms, limits)
    shorter = np.where(factors < 1.0, factors * sums._SHORTER, 1.0)
    total: list[int] = []
    for part in parts:
        in_integers = part.dtype == np.float32 and limits.max() * 2.0**-exponent < 2.0**31
        exactly = np.ldexp(shorter if in_integers else factors, -exponent)
        by = exactly.astype(np.float32) if in_integers else exactly
        total += [
            sum(int(entry * scale) for entry, scale in zip(column, by, strict=True))
            for column in part.T
        ]
    return total, norms


@given(
    widths=st.lists(st.sampled_from([1, 3, 40, 255, 256, 600]), min_size=1, max_size=20),
    doubles=st.sets(st.integers(0, 5), max_size=2),
    users=st.integers(1, 9),
    exponent=st.integers(-34, -3),
    narrow=st.sampled_from([0, 40, 2_000]),
    block=st.sampled_from([1, 900, 2**17]),
    seed=st.integers(0, 2**32),
)
def test_parts_that_are_worked_on_together_are_added_up_as_each_by_itself(
    widths: list[int],
    doubles: set[int],
    users: int,
    exponent: int,
    narrow: int,
    block: int,
    seed: int,
) -> None:
    rng, scratch = np.random.default_rng(seed), Scratch()
    limits = np.full(users, 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sums, "_NARROW", narrow)
        patch.setattr(sums, "_BLOCK", block)
        for _ in range(2):  # the second time in memory in which something is left
            parts = [
                (rng.normal(size=(users, width)) * rng.choice([0.0, 1e-25, 0.02, 3.0])).astype(
                    np.float64 if place in doubles else np.float32
                )
                for place, width in enumerate(widths)
            ]
            clipped = ClippedSum(exponent, scratch=scratch)
            norms = clipped.add(parts, limits)
            expected, expected_norms = one_by_one(parts, limits, exponent)
            assert total_of(clipped).tolist() == expected
            assert norms.tolist() == expected_norms.tolist()


def test_rows_at_their_level_stay_as_they_are() -> None:
    row = np.array([[3.0, 4.0]], dtype=np.float32)
    clipped = ClippedSum(0)
    assert clipped.add([row], np.array([5.001])) == pytest.approx([5.0], rel=1e-4)
    assert total_of(clipped).tolist() == [3, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_count_as_zero(dtype: type, bad: float) -> None:
    rows = np.full((3, 308), 0.01, dtype=dtype)
    rows[1, 299] = bad
    clipped = ClippedSum(-24)
    norms = clipped.add(in_parts(rows), np.ones(3))
    assert np.isinf(norms).tolist() == [False, True, False]
    assert total_of(clipped) * 2.0**-24 == pytest.approx(np.full(308, 0.02), rel=1e-4)


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
        norms.append(clipped.add([one], some)[-19:].tolist())
        sums.append(total_of(clipped).tolist())
    assert sums[0] == sums[1] == sums[2]
    assert norms[0] == norms[1] == norms[2]


def test_float32_rows_with_overflowing_squares_are_clipped() -> None:
    rows = np.full((1, 4), 3e38, dtype=np.float32)
    clipped = ClippedSum(-24)
    assert clipped.add([rows], np.array([1.0])) == pytest.approx([6e38])
    assert total_of(clipped) * 2.0**-24 == pytest.approx(np.full(4, 0.5), rel=1e-4)


def test_a_row_of_zeros_has_no_norm() -> None:
    clipped = ClippedSum(-24)
    assert clipped.add([np.zeros((2, 5), dtype=np.float32)], np.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_batches_add_nothing(dtype: type) -> None:
    for width in (0, 1, 256, 1000):
        clipped = ClippedSum(-24)
        assert len(clipped.add([np.zeros((0, width), dtype)], np.zeros(0))) == 0
        assert total_of(clipped).tolist() == [0] * width


@pytest.mark.parametrize(
    ("outer", "level", "other"),
    [((), 255.9, 256.1), ((0,), 0.0624, 0.0626)],
    ids=["plain", "outer"],
)
def test_how_a_row_is_rounded_does_not_depend_on_the_levels_of_others(
    outer: tuple[int, ...], level: float, other: float
) -> None:
    """One level is just short enough for float32, and the other is not."""
    rng = np.random.default_rng(1)
    rows = np.asarray(rng.uniform(300, 400, (50, 4)), dtype=np.float32)
    nothing = np.zeros((1, 4), dtype=np.float32)
    alone, beside = ClippedSum(-23, outer), ClippedSum(-23, outer)
    alone.add([rows], np.full(50, level))
    beside.add([np.vstack([rows, nothing])], np.append(np.full(50, level), other))
    assert (total_of(alone) == total_of(beside)).all()


def test_subnormal_float32_factors_count_as_zero() -> None:
    entry = np.float32(float.fromhex("0x1.fc1ae4p+127"))
    for limit in (0.99999998509, 1.0 - 2.0**-30, 2.0 - 2.0**-26, 3.0):
        clipped = ClippedSum(0)
        clipped.add([np.array([[entry]])], np.array([limit]))
        assert total_of(clipped)[0] <= limit


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("width", [3, 100, 300])
def test_the_norm_of_a_row_is_its_own_in_whatever_order_it_is_laid_out(
    dtype: type, width: int
) -> None:
    rows = np.random.default_rng(2).normal(size=(9, width)).astype(dtype)
    limits = np.ones(len(rows))
    norms = ClippedSum(-24).add([rows], limits)
    assert (ClippedSum(-24).add([np.asfortranarray(rows)], limits) == norms).all()
    for one, norm in zip(rows, norms, strict=True):
        assert ClippedSum(-24).add([one[np.newaxis]], np.ones(1)) == norm
