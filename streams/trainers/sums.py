"""Sums of clipped gradients on a grid, exactly: the sum does not depend on the order of users, and
one user changes it by no more than that user's level.

Every row is multiplied by a factor that makes it no longer than its level, as exact numbers, and
rounded towards zero to the grid; what is added up are integers. float32 rows, as frameworks give
them, stay float32 until they are integers: to copy a batch of gradients as float64 takes longer
than all the rest. Outer products are not written out at all (``streams.trainers.outer``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.release.clipping import clip_factors, row_norms
from streams.trainers.outer import FINER_BITS, Outer

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.floating]
Part: TypeAlias = Rows | Outer

_BLOCK: Final = 2**17  # entries worked on at a time: they stay in the cache
_RUN: Final = 256  # squares that are added up in float32
_INTEGERS: Final = 2.0**31
_EXACT: Final = 2.0**53
_LARGEST_ENTRY: Final = 1e150  # of a float64 row whose norm is a float64
# Of a sum of 256 squares in float32: each rounding 2**-24, 257 of them one upon the other, and what
# underflows, if processors flush it to zero.
_SQUARES: Final = 1.0 + 2.0**-15
_LOST: Final = 2.0**-125
_SHORTER: Final = 1.0 - 2.0**-22  # for the rounding of a factor and of a product to float32


class ClippedSum:
    """A sum over users. Rows may come in parts of columns.

    Args:
        exponent: the sum is in spacings of a grid of 2**exponent.
        outer: numbers of the parts that may come as outer products: their grid is finer, however
            they come. What is released shows its grid, which therefore follows no data.
    """

    def __init__(self, exponent: int, outer: Collection[int] = ()) -> None:
        self._exponent, self._outer = exponent, frozenset(outer)
        self._totals: list[NDArray[np.int64]] | None = None
        # Kept, because memory that is new to the process is slow.
        self._scaled = np.empty(0, dtype=np.float32)
        self._integers = np.empty(0, dtype=np.int32)

    @property
    def widths(self) -> list[int] | None:
        """How many columns each part of a row has; None before the first."""
        return None if self._totals is None else [len(total) for total in self._totals]

    def begin(self, widths: Sequence[int]) -> None:
        """Say how many columns each part has, where nothing may be added."""
        self._totals = [np.zeros(width, dtype=np.int64) for width in widths]

    def totals(self) -> list[tuple[int, NDArray[np.int64]]]:
        """The sum: runs of columns on one grid, each with its exponent."""
        placed = list(enumerate(self._totals or []))
        return [
            (exponent, np.concatenate([total for _, total in run]))
            for exponent, run in groupby(placed, key=lambda one: self._exponent_of(one[0]))
        ]

    def add(self, parts: Sequence[Part], limits: Floats) -> Floats:
        """Add rows, clipped to their limits; return their norms, (k,), rounded up.

        A row that is not finite, or too long for a float64, counts as zero, its norm as infinite.

        Args:
            parts: at least one, (k, d_i) each: the columns of the rows.
            limits: (k,).
        """
        if self._totals is None:
            self.begin([part.shape[1] for part in parts])
        totals = self._totals or []
        norms = _norms(parts)
        usable = np.isfinite(norms)
        if not usable.all():
            warnings.warn("gradients that are not finite count as zero", stacklevel=4)
            parts = [_only(part, usable) for part in parts]
        factors = clip_factors(np.where(usable, norms, 0.0), limits)
        longest = float(limits.max(initial=0.0))
        for place, (part, total) in enumerate(zip(parts, totals, strict=True)):
            exponent = self._exponent_of(place)
            units = math.ldexp(longest, -exponent)
            if isinstance(part, Outer):
                total += part.clipped_sum(factors, exponent, units)
                continue
            for rows in _blocks(part, at_most=_INTEGERS / (units + 1.0) - 1.0):
                total += self._whole(part[rows], factors[rows], units, exponent)
        return norms

    def _exponent_of(self, place: int) -> int:
        return self._exponent - (FINER_BITS if place in self._outer else 0)

    def _whole(
        self, rows: Rows, factors: Floats, units: float, exponent: int
    ) -> NDArray[np.signedinteger]:
        """The sum in spacings of the grid, where no row is longer than so many units."""
        in_int32 = units * len(rows) < _INTEGERS and -120 < exponent < 120
        if rows.dtype == np.float32 and in_int32:
            return self._whole_float32(rows, factors, exponent)
        scaled = np.multiply(rows, factors[:, np.newaxis], dtype=np.float64)
        whole = np.trunc(np.ldexp(scaled, -exponent, out=scaled), out=scaled)
        if units * len(rows) < _EXACT:  # sums of such floats are exact
            return np.asarray(whole.sum(axis=0).astype(np.int64))
        return np.asarray(whole.astype(np.int64).sum(axis=0))

    def _whole_float32(self, rows: Rows, factors: Floats, exponent: int) -> NDArray[np.int32]:
        """The sum in spacings of the grid; it is known to be an int32."""
        shorter = np.where(factors < 1.0, factors * _SHORTER, 1.0)
        scale = np.ldexp(shorter, -exponent).astype(np.float32)
        if self._scaled.size < rows.size:
            self._scaled, self._integers = (
                np.empty(rows.size, np.float32),
                np.empty(rows.size, np.int32),
            )
        scaled = self._scaled[: rows.size].reshape(rows.shape)
        whole = self._integers[: rows.size].reshape(rows.shape)
        np.multiply(rows, scale[:, np.newaxis], out=scaled)
        np.copyto(whole, scaled, casting="unsafe")  # towards zero
        return np.asarray(np.add.reduce(whole, axis=0, dtype=np.int32))


def _blocks(rows: Rows, at_most: float = math.inf) -> Iterator[slice]:
    at_once = max(1, int(min(_BLOCK // max(1, rows.shape[1]), at_most)))
    for start in range(0, len(rows), at_once):
        yield slice(start, start + at_once)


def _only(part: Part, usable: NDArray[np.bool_]) -> Part:
    """The same with zeros in the other rows."""
    if isinstance(part, Outer):
        return part.only(usable)
    return np.where(usable[:, np.newaxis], part, part.dtype.type(0))


def _norms(parts: Sequence[Part]) -> Floats:
    """Norms of rows, rounded up; infinite where a row is not finite or too long."""
    by_part = np.column_stack([_norms_of(part) for part in parts])
    finite = np.asarray(np.isfinite(by_part).all(axis=1))
    norms = row_norms(np.where(finite[:, np.newaxis], by_part, 0.0))
    return np.where(finite, norms, np.inf)


def _norms_of(part: Part) -> Floats:
    if isinstance(part, Outer):
        return part.norms()
    return _norms_float32(part) if part.dtype == np.float32 else _norms_float64(part)


def _norms_float64(rows: Rows) -> Floats:
    norms = np.empty(len(rows))
    for block in _blocks(rows):
        norms[block] = _norms_of_block(rows[block])
    return norms


def _norms_of_block(rows: Rows) -> Floats:
    wide = rows.astype(np.float64, copy=False)
    usable = np.asarray(np.abs(wide).max(axis=1, initial=0.0) < _LARGEST_ENTRY)  # no NaN is
    norms = row_norms(wide if usable.all() else np.where(usable[:, np.newaxis], wide, 0.0))
    return np.asarray(np.where(usable, norms, np.inf))


def _norms_float32(rows: Rows) -> Floats:
    runs = rows.shape[1] // _RUN
    in_runs = rows[:, : runs * _RUN].reshape(len(rows), runs, _RUN)
    rest = rows[:, runs * _RUN :]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squares = np.einsum("ijk,ijk->ij", in_runs, in_runs).sum(axis=1, dtype=np.float64)
        squares += np.einsum("ik,ik->i", rest, rest)
        norms: Floats = np.sqrt(squares * _SQUARES + rows.shape[1] * _LOST)
    # Nothing at all, and squares beyond float32, are looked at more closely.
    small, large = squares < 2.0**-60, ~np.isfinite(squares)
    for kind in (small, large):
        if kind.any():
            norms[kind] = _norms_float64(rows[kind])
    return norms
