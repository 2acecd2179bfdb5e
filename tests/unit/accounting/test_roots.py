"""Bisection: what it returns lies on the side that the caller asked about."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray
from accounting.filters.measure_filters import bisected_floats

ends = st.floats(0.0, 1e300)


@given(st.lists(st.tuples(ends, ends), min_size=1, max_size=10))
def test_floats_that_hold_and_that_do_not_are_within_the_ulps_asked_for(
    pairs: list[tuple[float, float]],
) -> None:
    end = np.array([min(pair) for pair in pairs])
    above = np.array([max(pair) for pair in pairs])
    asked: list[IntArray] = []

    def holds(values: FloatArray, rows: IntArray) -> BoolArray:
        asked.append(rows)
        return np.asarray(values < end[rows])

    low, high = bisected_floats(holds, above, ulps=16)
    assert ((low < end) | (low == 0.0)).all()
    assert ((high >= end) & (high <= above)).all()
    assert (high.view(np.int64) - low.view(np.int64) <= 16).all()
    assert all(rows.size for rows in asked)


def test_an_entry_that_is_done_is_not_asked_again() -> None:
    seen: list[list[int]] = []

    def holds(values: FloatArray, rows: IntArray) -> BoolArray:
        seen.append(rows.tolist())
        return np.zeros(rows.size, dtype=np.bool_)

    bisected_floats(holds, np.array([0.0, 1.0]), ulps=1)
    assert all(rows == [1] for rows in seen)
