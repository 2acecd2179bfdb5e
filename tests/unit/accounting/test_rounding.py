"""Directed rounding: numbers, next to their float64 and to narrower types."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import Gaussian, NormGrid, ZcdpFilter
from accounting.exact.rounding import float_toward, floats_toward, root_up
from accounting.release.clipping import round_to

exact_numbers = st.one_of(
    st.integers(-(2**1030), 2**1030),
    st.fractions(),
    st.floats(allow_nan=False, allow_infinity=False).map(Fraction),
)


@given(exact_numbers)
@example(Fraction(1, 10**400))
@example(10**400)
def test_a_number_lies_between_its_floats_and_these_are_neighbours(number: int | Fraction) -> None:
    low, high = float_toward(number, "down"), float_toward(number, "up")
    exact = Fraction(number)
    assert low == -math.inf or Fraction(low) <= exact
    assert high == math.inf or exact <= Fraction(high)
    assert low == high or math.nextafter(low, math.inf) == high
    assert (low == high) == (math.isfinite(low) and Fraction(low) == exact)


@given(st.lists(st.integers(-(2**62), 2**62), max_size=10))
def test_whole_numbers_in_an_array_are_rounded_as_each_by_itself(numbers: list[int]) -> None:
    array = np.array(numbers, dtype=np.int64)
    for toward in ("up", "down"):
        expected = [float_toward(number, toward) for number in numbers]
        assert floats_toward(array, toward).tolist() == expected


@given(st.fractions(min_value=Fraction(1, 10**9), max_value=10**12))
def test_the_root_is_the_smallest_float_whose_square_is_not_below(square: Fraction) -> None:
    root = root_up(square)
    assert Fraction(root) ** 2 >= square > Fraction(math.nextafter(root, 0.0)) ** 2


# ------------------------------------------------------------------------------- narrower types

NARROW = [np.float16, np.float32, np.float64]
any_number = st.floats(allow_nan=False)


@pytest.mark.parametrize("kind", NARROW)
@given(values=st.lists(any_number, max_size=10))
def test_round_to_gives_the_nearest_number_of_the_type_on_each_side(
    kind: type[np.floating], values: list[float]
) -> None:
    up, down = round_to(values, kind, "up"), round_to(values, kind, "down")
    assert up.dtype == down.dtype == kind
    for value, high, low in zip(values, up, down, strict=True):
        assert float(low) <= value <= float(high)
        with np.errstate(over="ignore", under="ignore"):
            assert low == high or np.nextafter(low, kind(np.inf)) == high


@pytest.mark.parametrize("clip", [0.1, 1.0, 1 / 3, 12.7])
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_norms_clipped_in_a_narrow_type_are_within_the_clip_rounded_up(
    clip: float, kind: type[np.floating]
) -> None:
    norms = np.minimum(np.linspace(0.0, 20.0, 500).astype(kind), kind(clip))
    bound = float(round_to(clip, kind, "up"))
    assert norms.max() <= bound
    grid = NormGrid(bound, 100)
    assert (grid.norms[grid.levels_of(norms[1:])] >= norms[1:]).all()
    rule = ZcdpFilter(100.0)
    _, granted = rule.grant(rule.initial_state(500), Gaussian(4.0), norms, clip_norm=clip)
    limits = round_to(granted, kind, "down")
    assert (limits.astype(np.float64) <= granted).all()
    assert granted.max() <= clip
