"""A calendar queue: it finds the rows that are due at a step without looking at the others.

Every row is due at one step, or at `NEVER`. Rows that are due soon have an entry in the bucket of
their step. When these buckets have passed, the column of all rows is scanned for the next ones. A
row that is rescheduled keeps its old entry; the column decides, so `take` skips such entries.

Looking ahead costs O(n) once in up to 1,024 steps. Rescheduling a row costs O(1), and a step
without due rows costs one dictionary lookup.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import IntArray

StepArray = npt.NDArray[np.uint32]

NEVER: Final = 2**32 - 1
_FARTHEST: Final = 2**10  # steps that have a bucket
_SHARE: Final = 16  # one row in this many has an entry at most; otherwise fewer steps have buckets
_SAMPLE: Final = 2**10
_BLOCK: Final = 2**16  # rows at a time, so that the temporaries stay in the cache
_SPARE: Final = 2**16  # outdated entries that the buckets may hold in addition
NO_ROWS: Final = np.empty(0, dtype=np.int64)


class DueSteps:
    """The step at which each row is due. Steps count up, from 0 to less than `NEVER`.

    Attributes:
        due: the step of each row, uint32, shape (n,); read-only for callers.
    """

    def __init__(self) -> None:
        self.due: StepArray = np.empty(0, dtype=np.uint32)
        self._buckets: dict[int, list[StepArray]] = {}
        self._entries = 0
        self._horizon = 0  # every row that is due before it has an entry

    def extend(self, rows: int, due: int) -> None:
        """Append rows that are all due at one step."""
        first = self.due.size
        self.due = np.append(self.due, np.full(rows, due, dtype=np.uint32))
        if rows and due < self._horizon:
            self._add_entries(np.arange(first, self.due.size), self.due[first:], due)

    def put(self, rows: IntArray, due: StepArray) -> None:
        """Schedule distinct rows for steps that have not been taken yet."""
        self.due[rows] = due
        near = due < self._horizon
        if near.any():
            self._add_entries(rows[near], due[near], self._horizon - _FARTHEST)
            if self._entries > self.due.size // _SHARE * 4 + _SPARE:
                self.forget()

    def replace(self, rows: slice, due: StepArray) -> None:
        """Schedule one part of all rows after `forget`; the caller does so for every part."""
        self.due[rows] = due

    def forget(self) -> None:
        """Empty the buckets: the next `take` looks ahead."""
        self._buckets.clear()
        self._entries, self._horizon = 0, 0

    def take(self, step: int) -> IntArray:
        """Return the rows that are due at a step, ascending.

        Steps are taken one after the other. The caller schedules the returned rows again.
        """
        if step >= self._horizon:
            self._look_ahead(step)
        entries = self._buckets.pop(step, None)
        if entries is None:
            return NO_ROWS
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
        rows = np.concatenate([NO_ROWS, *found])
        if rows.size:
            self._add_entries(rows, self.due[rows], step)

    def _add_entries(self, rows: IntArray, due: StepArray, first: int) -> None:
        """Add entries for rows that are due at `first` or up to `_FARTHEST` steps later."""
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


def distinct(rows: IntArray) -> IntArray:
    """Return each row once, ascending. The given array is sorted in place."""
    rows.sort()
    is_first = np.ones(rows.size, dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=is_first[1:])
    return np.asarray(rows[is_first])
