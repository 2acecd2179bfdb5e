"""Clipped sums of rows, and of outer products that are not written out, against fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from accounting.release.clipping import clip_factors
from streams.trainers import sums
from streams.trainers.sums import FINER_BITS, ClippedSum, Outer, Part, Scratch

WIDTHS = [1, 300, 7]
USERS = 12


def square(row: NDArray[np.floating]) -> Fraction:
    return sum((Fraction(float(x)) ** 2 for x in row), start=Fraction(0))


def rows_of(dtype: type, scale: float, seed: int = 0) -> NDArray[np.floating]:
    rng = np.random.default_rng(seed)
    lengths = rng.choice([1.0, 1e-3, 0.0, 30.0], (12, 1))
    rows = rng.normal(0.0, min(scale, 1e36), (12, sum(WIDTHS))) * lengths
    return np.asarray(rows, dtype=dtype)


def in_parts(rows: NDArray[np.floating]) -> list[NDArray[np.floating]]:
    return np.split(rows, np.cumsum(WIDTHS)[:-1], axis=1)


def outer_of(left_scale: float, right_scale: float) -> Outer:
    rng = np.random.default_rng(0)
    lengths = rng.choice([1.0, 1e-3, 0.0, 30.0], (2, USERS, 1))
    left = rng.normal(0.0, left_scale, (USERS, 3)) * lengths[0]
    right = rng.normal(0.0, right_scale, (USERS, 5)) * lengths[1]
    left[:, 1] *= 1e-6  # entries of one row differ in size
    return Outer(left.astype(np.float32), right.astype(np.float32))


def rows_at(part: Part, users: Any) -> Part:
    if isinstance(part, Outer):
        return Outer(part.left[users], part.right[users])
    return part[users]


def total_of(clipped: ClippedSum) -> NDArray[np.int64]:
    ((_, total),) = clipped.totals()
    return total


def squared(clipped: ClippedSum) -> Fraction:
    return sum(
        (
            Fraction(int(units)) ** 2 * Fraction(4) ** exponent
            for exponent, total in clipped.totals()
            for units in total
        ),
        start=Fraction(0),
    )


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [-24, -40, -3, -130, 30])
@pytest.mark.parametrize("scale", [1.0, 1e-20, 1e-43, 1e20, 1e37])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_user_changes_the_sum_by_no_more_than_the_level(
    dtype: type, scale: float, exponent: int
) -> None:
    rows = rows_of(dtype, scale)
    limits = np.full(len(rows), 0.37) * scale
    for row, limit in zip(rows, limits, strict=True):
        if limit / 2.0**exponent > 2.0**61:
            continue  # which `PrivateSteps` refuses
        one = ClippedSum(exponent)
        (norm,) = one.add(in_parts(row[np.newaxis]), np.array([limit]))
        assert square(row) <= Fraction(float(norm)) ** 2
        assert squared(one) <= min(Fraction(float(limit)) ** 2, square(row))


SCALES = [1.0, 1e-12, 1e-38, 1e30]


@pytest.mark.parametrize("exponent", [-26, -3])
@pytest.mark.parametrize("left_scale", SCALES)
@pytest.mark.parametrize("right_scale", SCALES)
@pytest.mark.parametrize("level", [1e-3, 0.37])
def test_an_outer_product_changes_the_sum_by_at_most_the_level(
    left_scale: float, right_scale: float, exponent: int, level: float
) -> None:
    rows = outer_of(left_scale, right_scale)
    biases = rows.left.copy()  # written out, on a grid of its own
    for user in range(USERS):
        one = ClippedSum(exponent, outer={0})
        parts = [rows_at(rows, [user]), biases[[user]]]
        (norm,) = one.add(parts, np.array([level]))
        length = square(rows.left[user]) * (1 + square(rows.right[user]))
        assert length <= Fraction(float(norm)) ** 2
        assert squared(one) <= min(Fraction(level) ** 2, length)
        if norm > 1e-150:  # nor is it much longer than it has to be
            rounded = float(length) ** 0.5
            assert norm <= rounded * 1.001 or rounded < 1e-30


def test_sums_of_outer_products_are_those_of_clipped_rows() -> None:
    rows = outer_of(0.3, 2.0)
    levels = np.linspace(0.1, 1.0, USERS)
    written = np.einsum("ni,nj->nij", rows.left.astype(float), rows.right).reshape(USERS, -1)
    lengths = np.linalg.norm(written, axis=1)
    shorter = np.minimum(1.0, levels / np.maximum(lengths, 1e-300))
    wanted = (written * shorter[:, None]).sum(axis=0)
    for part, close in ((rows, 1e-4), (written, USERS * 2.0**-24)):  # on the same grid
        clipped = ClippedSum(-24, outer={0})
        assert clipped.add([part], levels) == pytest.approx(lengths, rel=1e-4)
        ((exponent, total),) = clipped.totals()
        assert exponent == -24 - FINER_BITS
        assert np.ldexp(total.astype(float), exponent) == pytest.approx(wanted, abs=close)


def added(parts: list[Part], limits: NDArray[np.float64], exponent: int, *groups: Any) -> list[int]:
    """Return the sum of the users in groups that come one after the other."""
    clipped = ClippedSum(exponent, {0} if isinstance(parts[0], Outer) else ())
    for users in groups:
        clipped.add([rows_at(part, users) for part in parts], limits[users])
    return total_of(clipped).tolist()


@pytest.mark.parametrize("block", [1, 400, 2**20])
@pytest.mark.parametrize("exponent", [-24, -29, -55])
@pytest.mark.parametrize("kind", ["float32", "float64", "outer"])
def test_sums_do_not_depend_on_the_order_of_users(
    kind: str, exponent: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "_BLOCK", block)
    if kind == "outer":
        monkeypatch.setattr(sums, "_EXACT_PRODUCTS", 2.0**37 * block)
        exponent = max(exponent, -24)
    parts = [outer_of(3.0, 7.0)] if kind == "outer" else in_parts(rows_of(np.dtype(kind).type, 0.1))
    limits, users = np.linspace(0.1, 0.9, USERS), np.arange(USERS)
    first = added(parts, limits, exponent, users[:5], users[5:])
    assert first == added(parts, limits, exponent, users[:6:-1], users[6::-1])
    alone = [np.array(added(parts, limits, exponent, [user]), dtype=object) for user in users]
    assert first == list(sum(alone))


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
def test_parts_worked_on_together_are_added_up_as_each_by_itself(
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


@pytest.mark.parametrize("kind", ["float32", "float64", "left", "right"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_count_as_zero(kind: str, bad: float) -> None:
    if kind in ("left", "right"):
        outer = Outer(np.ones((3, 2), np.float32) / 10, np.ones((3, 4), np.float32) / 10)
        getattr(outer, kind)[1, 1] = bad
        parts: list[Part] = [outer]
    else:
        rows = np.full((3, 308), 0.01, dtype=kind)
        rows[1, 299] = bad
        parts = in_parts(rows)
    clipped = ClippedSum(-24, {0} if len(parts) == 1 else ())
    norms = clipped.add(parts, np.ones(3))
    assert np.isinf(norms).tolist() == [False, True, False]
    ((exponent, total),) = clipped.totals()
    assert total * 2.0**exponent == pytest.approx(np.full(len(total), 0.02), rel=1e-3)


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_batches_and_rows_of_zeros_add_nothing(dtype: type) -> None:
    for width in (0, 1, 256, 1000):
        for rows in (0, 2):
            clipped = ClippedSum(-24)
            norms = clipped.add([np.zeros((rows, width), dtype)], np.ones(rows))
            assert norms.tolist() == [0.0] * rows
            assert total_of(clipped).tolist() == [0] * width


@pytest.mark.parametrize(
    ("outer", "level", "other"),
    [((), 255.9, 256.1), ((0,), 0.0624, 0.0626)],
    ids=["plain", "outer"],
)
def test_rounding_of_a_row_does_not_depend_on_levels_of_others(
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
def test_the_norm_of_a_row_is_its_own_in_any_layout(dtype: type, width: int) -> None:
    rows = np.random.default_rng(2).normal(size=(9, width)).astype(dtype)
    limits = np.ones(len(rows))
    norms = ClippedSum(-24).add([rows], limits)
    assert (ClippedSum(-24).add([np.asfortranarray(rows)], limits) == norms).all()
    for one, norm in zip(rows, norms, strict=True):
        assert ClippedSum(-24).add([one[np.newaxis]], np.ones(1)) == norm


def test_a_norm_over_many_parts_does_not_depend_on_other_users() -> None:
    random = np.random.default_rng(4)
    parts = [
        Outer(*(random.normal(size=(USERS, 5)).astype(np.float32) for _ in range(2)))
        for _ in range(40)
    ]
    levels = np.full(USERS, 0.5)
    together = ClippedSum(-24, outer=range(40)).add(parts, levels)
    alone = [
        ClippedSum(-24, outer=range(40)).add([rows_at(part, [u]) for part in parts], levels[:1])[0]
        for u in range(USERS)
    ]
    assert together.tolist() == alone


def test_the_grid_of_what_is_released_follows_no_data() -> None:
    rows = Outer(np.ones((1, 2), np.float32), np.ones((1, 3), np.float32))
    of_step = [ClippedSum(-24, outer={0, 2}) for _ in range(3)]
    of_step[0].begin([6, 2, 6])  # no user was drawn
    of_step[1].add([rows, rows.left, rows], np.ones(1))
    of_step[2].add([np.ones((1, 6)), rows.left, rows], np.ones(1))  # not all as outer products
    grids = [[(exponent, len(total)) for exponent, total in one.totals()] for one in of_step]
    assert grids[0] == grids[1] == grids[2] == [(-36, 6), (-24, 2), (-36, 6)]
