"""What is summed is never longer than what was charged, as exact numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from accounting import round_to
from accounting.release.clipping import clip_factors, clip_rows, norm_products, row_norms

Rows = NDArray[np.float64]

TINY = 5e-324
SIZES = st.one_of(
    st.floats(-1e150, 1e150),
    st.floats(-1e-150, 1e-150),
    st.floats(-1e-306, 1e-306),
    st.integers(-40, 40).map(lambda units: units * TINY),
    st.floats(-10.0, 10.0),
)
LIMITS = st.one_of(
    st.floats(0.0, 1e160),
    st.floats(0.0, 1e-300),
    st.integers(0, 40).map(lambda units: units * TINY),
    st.floats(0.0, 10.0),
)
NUMBERS = arrays(np.float64, st.integers(1, 6), elements=SIZES)
VECTORS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=SIZES)


def squared_norms(rows: Rows) -> list[Fraction]:
    """Exactly."""
    rows = rows[:, np.newaxis] if rows.ndim == 1 else rows
    return [sum((Fraction(x) ** 2 for x in row), Fraction(0)) for row in rows.tolist()]


def assert_within(rows: Rows, limits: Rows) -> None:
    for square, limit in zip(squared_norms(rows), limits.tolist(), strict=True):
        assert square <= Fraction(limit) ** 2


@given(NUMBERS | VECTORS)
@example(np.zeros((2, 3)))
@example(np.empty((2, 0)))
def test_norms_are_never_rounded_down_and_hardly_up(rows: Rows) -> None:
    for square, norm in zip(squared_norms(rows), row_norms(rows).tolist(), strict=True):
        assert Fraction(norm) ** 2 >= square
        assert (norm == 0.0) == (square == 0)
        below = (Fraction(norm) - 2 * Fraction(TINY)) * (1 - Fraction(2) ** -48)
        assert below <= 0 or below**2 <= square


@given(NUMBERS | VECTORS, LIMITS)
@example(np.full((1, 100), TINY), 6 * TINY)  # every entry would be rounded up to itself
@example(np.full((1, 2), 1e200), 1.5 * TINY)  # and so would the factor
@example(np.full((1, 3), 1e-308), 1e-308)
@example(np.random.default_rng(0).normal(0.0, 1.0, (3, 2000)), 0.1)  # many small roundings
@example(np.empty((0, 3)), 1.0)
@example(np.empty((2, 0)), 0.0)
def test_what_comes_out_is_never_longer_than_granted(rows: Rows, limit: float) -> None:
    limits = np.full(len(rows), limit)
    assert_within(clip_rows(rows, limits), limits)


@given(NUMBERS | VECTORS)
def test_what_is_granted_its_norm_stays_as_it_is(rows: Rows) -> None:
    np.testing.assert_array_equal(clip_rows(rows, row_norms(rows)), rows)
    np.testing.assert_array_equal(clip_rows(rows, np.full(len(rows), np.inf)), rows)


@given(VECTORS, st.floats(1e-3, 1.0))
def test_clipped_rows_keep_their_direction_and_nearly_their_norm(rows: Rows, share: float) -> None:
    rows = np.where(np.abs(rows) < 1e-140, 1.0, rows)
    granted = row_norms(rows) * share
    np.testing.assert_allclose(clip_rows(rows, granted), rows * share, rtol=1e-12)


@given(VECTORS, VECTORS, LIMITS)
@example(np.full((1, 1), TINY), np.full((1, 1), 1e-200), TINY)
def test_outer_products_are_clipped_by_one_of_their_factors(a: Rows, b: Rows, limit: float) -> None:
    count = min(len(a), len(b))
    a, b = (np.where(np.abs(rows[:count]) < 1e-70, 1.0, rows[:count]) for rows in (a, b))
    norms = norm_products(row_norms(a), row_norms(b))
    factors = clip_factors(norms, np.full(count, limit))
    assert norm_products(norms, np.zeros(count)).tolist() == [0.0] * count
    exact = [x * y for x, y in zip(squared_norms(a), squared_norms(b), strict=True)]
    assert all(Fraction(n) ** 2 >= square for n, square in zip(norms.tolist(), exact, strict=True))
    scaled = b * factors[:, np.newaxis]
    scaled[np.abs(scaled) < 1e-300] = 0.0
    for x, y in zip(squared_norms(a), squared_norms(scaled), strict=True):
        assert x * y <= Fraction(limit) ** 2


# --- narrower types ----------------------------------------------------------------------------

NARROW = [np.float16, np.float32, np.float64]


@pytest.mark.parametrize("kind", NARROW)
@given(values=st.lists(st.floats(allow_nan=False), max_size=10))
def test_round_to_gives_the_nearest_number_on_each_side(
    kind: type[np.floating], values: list[float]
) -> None:
    up, down = round_to(values, kind, "up"), round_to(values, kind, "down")
    assert up.dtype == down.dtype == kind
    for value, high, low in zip(values, up, down, strict=True):
        assert float(low) <= value <= float(high)
        with np.errstate(over="ignore", under="ignore"):
            assert low == high or np.nextafter(low, kind(np.inf)) == high
