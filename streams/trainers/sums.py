"""Exact sums of clipped gradients on a grid.

The sum does not depend on the order of users, and one user changes it by at most that user's level.

Each row is multiplied by a factor that makes it no longer than its level, in exact arithmetic, and
rounded towards zero to the grid; the sum is over integers. float32 rows, as frameworks return them,
stay float32 until they are integers: copying a batch of gradients to float64 takes longer than all
other work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.exact.invalid_input import quoted
from accounting.release.clipping import clip_factors, row_norms
from streams.sdk.errors import InvalidRequest

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.floating]

_BLOCK: Final = 2**17  # entries per block, so that they stay in the cache
_RUN: Final = 128  # squares that are summed in float32
_INTEGERS: Final = 2.0**31
_EXACT: Final = 2.0**53
_LARGEST_ENTRY: Final = 1e150  # of a float64 row whose norm is a float64
# Error bounds of a sum of squares, in float32 within runs and in float64 over runs: 129 nested
# roundings of 2**-24 each, 2**30 of 2**-53, and the underflow of processors that flush to zero.
_SQUARES: Final = 1.0 + 2.0**-16
_LOST: Final = 2.0**-125
_SHORTER: Final = 1.0 - 2.0**-22  # covers rounding a factor and a product to float32
_NORMAL: Final = 2.0**-126  # the smallest normal float32


class Scratch:
    """A buffer that is reused from sum to sum, since memory that is new to the process is slow."""

    def __init__(self) -> None:
        self._integers = np.empty(0, dtype=np.int32)

    def integers(self, rows: int, columns: int) -> NDArray[np.int32]:
        """Return an uninitialised array of this shape."""
        size = rows * columns
        if self._integers.size < size:
            self._integers = np.empty(size, dtype=np.int32)
        return self._integers[:size].reshape(rows, columns)


class ClippedSum:
    """A sum over users of clipped rows.

    Args:
        exponent: the sum is in multiples of the grid spacing 2**exponent.
        scratch: a buffer shared by consecutive sums.

    Attributes:
        columns: the number of columns; None before the first row.
    """

    def __init__(self, exponent: int, scratch: Scratch | None = None) -> None:
        self._exponent, self._scratch = exponent, scratch or Scratch()
        self.columns: int | None = None

    def begin(self, columns: int) -> None:
        """Set the number of columns, for a sum that may stay empty."""
        self.columns, self._total = columns, np.zeros(columns, dtype=np.int64)

    def total(self) -> tuple[int, NDArray[np.int64]]:
        """Return the exponent of the grid spacing, and the sum in multiples of it."""
        return self._exponent, self._total

    def check(self, rows: Any, users: int) -> None:
        """Check that the sum can take these rows.

        Raises:
            InvalidRequest: they are not one row per user, or have another length than before.
        """
        if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu":
            raise InvalidRequest(f"rows is {quoted(rows)}; it must be an array of numbers")
        if rows.ndim != 2 or len(rows) != users:
            raise InvalidRequest(
                f"rows has shape {rows.shape}; it must be ({users}, d), one row per user"
            )
        if self.columns not in (None, rows.shape[1]):
            raise InvalidRequest(
                f"rows have {rows.shape[1]} entries; they must have {self.columns}, as those before"
            )

    def add(self, rows: Rows, limits: Floats) -> Floats:
        """Add rows, clipped to their limits; return their norms, (k,), rounded up.

        A row that is not finite, or too long for a float64, counts as zero, with an infinite norm.

        Args:
            rows: (k, d).
            limits: (k,), the norms to clip to.
        """
        if not rows.dtype.isnative:
            # The type decides how rows are rounded. numpy counts the byte order as a part of the
            # type in some operations and not in others.
            rows = rows.astype(rows.dtype.newbyteorder("="))
        if self.columns is None:
            self.begin(rows.shape[1])
        norms = _norms(rows)
        usable, lengths = np.isfinite(norms), norms
        if not usable.all():  # without a warning, which would tell that there is such a user
            rows = np.where(usable[:, np.newaxis], rows, rows.dtype.type(0))
            lengths = np.where(usable, norms, 0.0)
        factors = clip_factors(lengths, limits)
        if rows.dtype == np.float32 and -120 < self._exponent < 120:
            self._add_by_level(rows, factors, limits)
        else:
            self._add_float64(rows, factors, self._units(limits))
        return norms

    def _units(self, limits: Floats) -> float:
        """Return the largest limit in grid spacings."""
        return math.ldexp(float(limits.max(initial=0.0)), -self._exponent)

    def _add_by_level(self, rows: Rows, factors: Floats, limits: Floats) -> None:
        """Add float32 rows.

        The rounding of a row depends on its own level only, not on the other rows.
        """
        short = limits < math.ldexp(_INTEGERS, self._exponent)
        if short.all():
            self._add_float32(rows, factors, self._units(limits))
            return
        adds: list[tuple[NDArray[np.bool_], Callable[[Rows, Floats, float], None]]] = [
            (short, self._add_float32),
            (~short, self._add_float64),
        ]
        for chosen, add in adds:
            add(rows[chosen], factors[chosen], self._units(limits[chosen]))

    def _add_float32(self, rows: Rows, factors: Floats, units: float) -> None:
        """Add rows, none of them longer than ``units`` spacings, an int32.

        Rows are summed in int32 in runs that are short enough not to overflow.
        """
        shorter = np.where(factors < 1.0, factors * _SHORTER, 1.0)
        exact = np.ldexp(shorter, -self._exponent)
        # A subnormal factor would be rounded by more than ``_SHORTER`` covers.
        scale = np.where(exact < _NORMAL, 0.0, exact).astype(np.float32)[:, np.newaxis]
        for run in _blocks(len(rows), 1, at_most=_INTEGERS / (units + 1.0) - 1.0):
            added = np.zeros(rows.shape[1], dtype=np.int32)
            for block in _blocks(*rows[run].shape):
                some = rows[run][block]
                whole = self._scratch.integers(*some.shape)
                np.multiply(  # in float32, then towards zero
                    some, scale[run][block], out=whole, dtype=np.float32, casting="unsafe"
                )
                added += np.add.reduce(whole, axis=0, dtype=np.int32)
            self._total += added

    def _add_float64(self, rows: Rows, factors: Floats, units: float) -> None:
        """Add rows, none of them longer than ``units`` spacings, whatever their number."""
        for block in _blocks(*rows.shape):
            scaled = np.multiply(rows[block], factors[block, np.newaxis], dtype=np.float64)
            scaled *= math.ldexp(1.0, -self._exponent)  # exact, unless it is below one spacing
            whole = np.trunc(scaled, out=scaled)
            if units * len(whole) < _EXACT:  # sums of such floats are exact
                self._total += whole.sum(axis=0).astype(np.int64)
            else:
                self._total += whole.astype(np.int64).sum(axis=0)


def _blocks(rows: int, columns: int, at_most: float = math.inf) -> Iterator[slice]:
    at_once = max(1, int(min(_BLOCK // max(1, columns), at_most)))
    for start in range(0, rows, at_once):
        yield slice(start, start + at_once)


def _norms(rows: Rows) -> Floats:
    """Return the norms of rows, rounded up; infinite where a row is not finite or too long."""
    if rows.dtype != np.float32:
        return _norms_float64(rows)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        squares = _squares(rows)
    norms: Floats = np.sqrt(squares * _SQUARES + _LOST * rows.shape[1])
    # Recompute sums of squares that are tiny or beyond float32 in float64.
    closely = ~((squares >= 2.0**-60) & (squares < np.inf))
    if closely.any():
        norms[closely] = _norms_float64(rows[closely])
    return norms


def _norms_float64(rows: Rows) -> Floats:
    norms = np.empty(len(rows))
    for block in _blocks(*rows.shape):
        wide = rows[block].astype(np.float64, copy=False)
        usable = np.asarray(np.abs(wide).max(axis=1, initial=0.0) < _LARGEST_ENTRY)  # no NaN is
        lengths = row_norms(wide if usable.all() else np.where(usable[:, np.newaxis], wide, 0.0))
        norms[block] = np.where(usable, lengths, np.inf)
    return norms


def _squares(rows: Rows) -> Floats:
    """Return the sums of squares of rows, in float32 within runs and in float64 over runs.

    The order of summation within a run must not depend on the number of rows.
    """
    rows = np.ascontiguousarray(rows)
    whole = rows.shape[1] // _RUN * _RUN
    rest = rows[:, whole:]
    squares: Floats = np.einsum("ik,ik->i", rest, rest).astype(np.float64)
    if whole:
        runs = rows[:, :whole].reshape(len(rows), whole // _RUN, _RUN)
        squares += np.einsum("ijk,ijk->ij", runs, runs).sum(axis=1, dtype=np.float64)
    return squares
