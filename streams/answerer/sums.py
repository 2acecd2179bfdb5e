"""Sums of the answers of consecutive windows: of the last ones, or of all since the first.

A sum of answers is post-processing: it costs no user anything. Sums of overlapping stretches share
the noise of the windows that they share. A query with overlapping windows draws new noise for each,
and charges an event in each.

With noise s in each of n answers, the noise of their sum is s sqrt(n). The sum over blocks that are
corrected is that of the answers and of what the blocks left out, which has no bias: its noise is
that of both. It does not depend on how the correction divides a block among its windows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from streams.answerer.kinds import Floats
from streams.queries.answerer import quantile_of_noise


class NoisySum(NamedTuple):
    """A sum of answers.

    Attributes:
        start: the beginning of its first window, in ms since 1970.
        value: (d,).
        stddev: of the noise in each number.
    """

    start: int
    value: Floats
    stddev: float

    def interval(self, confidence: float) -> tuple[Floats, Floats]:
        """Return the ends of the interval of all numbers together."""
        width = self.stddev * quantile_of_noise(confidence, len(self.value))
        return self.value - width, self.value + width


class AnsweredSums(msgspec.Struct, frozen=True):
    """The answers of a query so far. Everything in it was published.

    Attributes:
        starts: when the last windows began, in ms since 1970.
        rows: packed little-endian float64, (n, d + 1): their answers, and the variance of the
            noise in each.
        start, end: of the windows of ``total``, in ms since 1970.
        total: packed, (d + 1,): the sum of the answers of all windows, and its variance.
        corrected_end: the end of the windows of ``corrected``.
        corrected: as ``total``, of the blocks that were corrected, for all users.
    """

    starts: list[int] = []
    rows: bytes = b""
    start: int = 0
    end: int = 0
    total: bytes = b""
    corrected_end: int = 0
    corrected: bytes = b""

    def after(self, start: int, end: int, value: Floats, stddev: float, most: int) -> AnsweredSums:
        """Return the answers with those of the next window; after a gap, only of that one.

        Args:
            start, end: of the window.
            value: (d,), its answer.
            stddev: of its noise.
            most: how many windows a sum of the last ones needs.
        """
        row = np.append(value, stddev**2)
        if not self.total or self.end != start:
            return AnsweredSums([start], _packed(row), start, end, _packed(row), start)
        rows = np.vstack([self._rows(len(row)), row])[-most:]
        return msgspec.structs.replace(
            self,
            starts=[*self.starts, start][-most:],
            rows=_packed(rows),
            end=end,
            total=_packed(_read(self.total) + row),
        )

    def corrected_after(self, start: int, end: int, value: Floats, variance: float) -> AnsweredSums:
        """Return the answers with the sum over the next block, for all users."""
        if self.corrected_end != start:
            return self
        row = np.append(value, variance)
        before = _read(self.corrected) if self.corrected else np.zeros(len(row))
        return msgspec.structs.replace(self, corrected_end=end, corrected=_packed(before + row))

    def last(self, windows: int) -> NoisySum | None:
        """Return the sum of the last windows, or of all for 0; None if there are too few."""
        total = _read(self.total)
        if not windows:
            return _sum(self.start, total)
        rows = self._rows(len(total))[-windows:]
        return None if len(rows) < windows else _sum(self.starts[-windows], rows.sum(axis=0))

    def sums(self, wanted: tuple[int, ...]) -> Iterator[NoisySum]:
        """Yield the sums that a query asks for and that there are."""
        for windows in wanted:
            if (found := self.last(windows)) is not None:
                yield found

    def sum_of_blocks(self, end: int) -> NoisySum | None:
        """Return the sum over all blocks up to a time; None if a window was not corrected."""
        is_whole = self.corrected_end == end and self.corrected
        return _sum(self.start, _read(self.corrected)) if is_whole else None

    def _rows(self, columns: int) -> Floats:
        return _read(self.rows).reshape(-1, columns)


def _sum(start: int, row: Floats) -> NoisySum:
    return NoisySum(start, row[:-1], math.sqrt(row[-1]))


def _packed(numbers: Floats) -> bytes:
    return numbers.astype("<f8").tobytes()


def _read(packed: bytes) -> Floats:
    return np.frombuffer(packed, dtype="<f8").astype(np.float64)
