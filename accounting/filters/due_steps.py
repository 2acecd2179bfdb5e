"""A calendar queue: which of many rows are due at a step, found without looking at the others.

Every row has one step at which it is due, `NEVER` if it has none. The rows that are due soon lie in
a bucket for each step; the column of all rows is scanned for the next ones when these have passed.
A row that is put elsewhere stays where it lay, and is passed over there: the column is what counts.

Looking ahead costs O(n) once in up to 1,024 steps, a row that is put O(1), a step that finds
nobody one look into a dictionary.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.validation import IntArray

StepArray = npt.NDArray[np.uint32]

NEVER: Final = 2**32 - 1
_FARTHEST: Final = 2**10  # steps that have a bucket
_SHARE: Final = 16  # of the rows, one in so many is near at most, or the steps are made fewer
_SAMPLE: Final = 2**10
_BLOCK: Final = 2**16  # rows at a time, so that the temporaries stay in the cache
_SPARE: Final = 2**16  # entries that buckets may hold besides


class DueSteps:
    """Rows and the steps at which they are due. Steps count up, from 0 to less than `NEVER`.

    Attributes:
        due: the step of each row, uint32, shape (n,), for others to read.
    """

    def __init__(self) -> None:
        self.due: StepArray = np.empty(0, dtype=np.uint32)
        self._buckets: dict[int, list[StepArray]] = {}
        self._entries = 0
        self._horizon = 0  # every row that is due before it has an entry

    def extend(self, rows: int, due: int) -> None:
        """Add rows behind the others, all due at one step."""
        first = self.due.size
        self.due = longer(self.due, rows, due)
        if rows and due < self._horizon:
            self._sort_in(np.arange(first, self.due.size), self.due[first:], due)

    def put(self, rows: IntArray, due: StepArray) -> None:
        """Set when rows, all different, are due: at a step that has not been taken yet."""
        self.due[rows] = due
        self._enter(rows, due)

    def replace(self, rows: slice, due: StepArray) -> None:
        """Set when a part of all rows is due, after `forget`; the other parts follow."""
        self.due[rows] = due

    def forget(self) -> None:
        """Empty the buckets: the next step is found by looking ahead."""
        self._buckets.clear()
        self._entries, self._horizon = 0, 0

    def take(self, step: int) -> IntArray:
        """Return the rows that are due at a step, ascending; steps are taken one after the other.

        They have to be put again.
        """
        if step >= self._horizon:
            self._look_ahead(step)
        entries = self._buckets.pop(step, None)
        if entries is None:
            return _NOBODY
        self._entries -= sum(map(len, entries))
        rows = distinct(np.concatenate(entries).astype(np.int64))
        return np.asarray(rows[self.due[rows] == step])

    def _look_ahead(self, step: int) -> None:
        """Fill the buckets from a step on."""
        self.forget()
        sample = np.sort(self.due[:: max(1, self.due.size // _SAMPLE)])
        crowded = int(sample[sample.size // _SHARE]) if sample.size else step
        self._horizon = min(max(crowded, step + 1), step + _FARTHEST)
        parts = range(0, self.due.size, _BLOCK)
        found = [np.flatnonzero(self.due[i : i + _BLOCK] < self._horizon) + i for i in parts]
        rows = np.concatenate([_NOBODY, *found])
        if rows.size:
            self._sort_in(rows, self.due[rows], step)

    def _enter(self, rows: IntArray, due: StepArray) -> None:
        near = due < self._horizon
        if near.any():
            self._sort_in(rows[near], due[near], self._horizon - _FARTHEST)
            if self._entries > self.due.size // _SHARE * 4 + _SPARE:
                self.forget()

    def _sort_in(self, rows: IntArray, due: StepArray, first: int) -> None:
        """Add entries for rows that are due from a step on, within as many as have buckets."""
        # Small keys are sorted by counting.
        keys = (due.astype(np.int64) - first).astype(np.uint16)
        order = np.argsort(keys, kind="stable")
        keys, sorted_rows = keys[order], rows[order].astype(np.uint32)
        starts = np.flatnonzero(np.diff(keys, prepend=np.uint16(2**16 - 1)))
        ends = [*starts[1:].tolist(), rows.size]
        steps = (keys[starts].astype(np.int64) + first).tolist()
        for step, start, end in zip(steps, starts.tolist(), ends, strict=True):
            self._buckets.setdefault(step, []).append(sorted_rows[start:end])
        self._entries += rows.size


_NOBODY: Final = np.empty(0, dtype=np.int64)


def longer(steps: StepArray, rows: int, step: int) -> StepArray:
    """Return a column with one more step for as many more rows."""
    column = np.empty(steps.size + rows, dtype=np.uint32)
    column[: steps.size], column[steps.size :] = steps, step
    return column


def distinct(rows: IntArray) -> IntArray:
    """Return each row once, ascending; sorts the array that is given."""
    rows.sort()
    return np.asarray(rows[np.diff(rows, prepend=-1) != 0])
