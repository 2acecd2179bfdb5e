from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accounting.reports import NormGrid

clip_norms = st.floats(min_value=1e-300, max_value=1e300)
level_counts = st.integers(min_value=1, max_value=130)


@given(clip_norms, level_counts, st.lists(st.floats(0.0, 1.0), max_size=20), st.data())
def test_norms_are_rounded_up_to_the_next_level_exactly(
    clip_norm: float, levels: int, shares: list[float], data: st.DataObject
) -> None:
    grid = NormGrid(clip_norm, levels)
    norms = [share * clip_norm for share in shares]
    edges = data.draw(st.lists(st.sampled_from(grid.norms.tolist()), max_size=5))
    norms += edges
    norms += [math.nextafter(edge, 0.0) for edge in edges]
    norms += [math.nextafter(edge, math.inf) for edge in edges if edge < clip_norm]
    for norm, level in zip(norms, grid.levels_of(norms).tolist(), strict=True):
        if norm == 0.0:
            assert level == -1
        else:
            assert norm <= grid.norms[level]
            assert level == 0 or grid.norms[level - 1] < norm


def test_counts_are_a_histogram_of_rounded_norms_and_zero_norms_are_no_steps() -> None:
    norms = [[0.0, 0.5, 0.50001, 1.0], [0.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.75, 0.0]]
    expected = [[0, 1, 1, 1], [0, 0, 0, 0], [2, 0, 1, 0]]
    counts = NormGrid(1.0, 4).counts(norms)
    assert counts.dtype == np.int64
    assert counts.tolist() == expected


def test_the_levels_cannot_be_overwritten() -> None:
    grid = NormGrid(1.0, 4)
    assert not grid.norms.flags.writeable
    assert grid == NormGrid(1.0, 4) != NormGrid(1.0, 5)
