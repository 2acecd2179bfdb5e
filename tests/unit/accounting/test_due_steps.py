"""The rows due at a step, and the rows of a position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from accounting.filters.due_steps import NEVER, DueSteps
from accounting.filters.roster_columns import SlotMap


@given(st.data())
def test_the_calendar_finds_who_is_due_and_nobody_else(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    queue, due = DueSteps(), np.full(rows, 1, dtype=np.int64)
    queue.extend(rows, 1)
    for step in range(1, data.draw(st.integers(2, 60))):
        found = queue.take(step)
        assert found.tolist() == np.flatnonzero(due == step).tolist()
        moved = np.union1d(found, rng.choice(rows, data.draw(st.integers(0, 3))))
        reach = data.draw(st.sampled_from([1, 5, 2000]))
        later = step + rng.integers(1, reach + 1, moved.size)
        later[rng.random(moved.size) < 0.2] = NEVER
        due[moved] = later
        queue.put(moved, later.astype(np.uint32))


@given(
    st.lists(st.lists(st.integers(0, 30), unique=True), max_size=4),
    st.lists(st.integers(0, 40), unique=True),
)
def test_slots_and_positions_are_each_others_way_back(
    groups: list[list[int]], asked: list[int]
) -> None:
    slots, known = SlotMap(), []
    for group in groups:
        added = [slot for slot in group if slot not in known]
        further = np.array(added, dtype=np.int64)
        slots.extend(further)
        known += added
        positions = slots.positions(np.array(asked, dtype=np.int64)).tolist()
        assert positions == [known.index(slot) for slot in asked if slot in known]
        everybody = slots.rows(slice(0, len(known)))
        assert np.arange(64)[everybody].tolist() == known
        backwards = np.arange(len(known))[::-1]
        assert np.arange(64)[slots.rows(backwards)].tolist() == known[::-1]
