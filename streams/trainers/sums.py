"""Exact sums of clipped gradients on a grid.

The sum does not depend on the order of users, and one user changes it by at most that user's level.

Each row is multiplied by a factor that makes it no longer than its level, in float64, and rounded
towards zero to the grid; the sum is over integers. Rows of every type are converted to float64 in
blocks that stay in the cache, so that one error analysis, that of ``clip_factors``, holds for all.
float32 kernels would take a third of the time of these sums, and an error analysis of their own.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.exact.invalid_input import quoted
from accounting.release.clipping import clip_factors, row_norms
from streams.sdk.errors import InvalidRequest

Floats: TypeAlias = NDArray[np.float64]
Rows: TypeAlias = NDArray[np.floating]

_BLOCK: Final = 2**17  # entries per block, so that they stay in the cache
_EXACT: Final = 2.0**53
_LARGEST_ENTRY: Final = 1e150  # of a row whose norm is a float64
_SMALLEST: Final = 2.0**-900  # of the sums of squares that are computed directly
_LARGEST: Final = 2.0**1000


class ClippedSum:
    """A sum over users of clipped rows.

    Args:
        exponent: the sum is in multiples of the grid spacing 2**exponent.

    Attributes:
        columns: the number of columns; None before the first row.
    """

    def __init__(self, exponent: int) -> None:
        self._exponent = exponent
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
        if self.columns is None:
            self.begin(rows.shape[1])
        norms, at_once = np.empty(len(rows)), max(1, _BLOCK // max(1, rows.shape[1]))
        # No row is longer than this number of grid spacings.
        units = math.ldexp(float(limits.max(initial=0.0)), -self._exponent)
        for start in range(0, len(rows), at_once):
            block = slice(start, start + at_once)
            # A warning would tell that there is a user with such a row.
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                some = np.array(rows[block], dtype=np.float64, order="C")
                lengths = _norms(some)
            usable = np.isfinite(lengths)
            some[~usable] = 0.0
            factors = clip_factors(np.where(usable, lengths, 0.0), limits[block])
            # A factor that underflows here makes every product less than one spacing.
            some *= np.ldexp(factors, -self._exponent)[:, np.newaxis]
            whole = np.trunc(some, out=some)
            norms[block] = lengths
            if units * len(whole) < _EXACT:  # sums of such floats are exact
                self._total += whole.sum(axis=0).astype(np.int64)
            else:
                self._total += whole.astype(np.int64).sum(axis=0)
        return norms


def _norms(rows: Floats) -> Floats:
    """Return the norms of rows, rounded up; infinite where a row is not finite or too long."""
    # Not by einsum: it splits rows of more than 8192 entries at places that depend on other rows.
    squares = np.square(rows).sum(axis=1)
    # d squares, d - 1 sums, a root and this product: a relative (d / 2 + 3) 2**-53 at most.
    norms: Floats = np.sqrt(squares) * (1.0 + (rows.shape[1] + 8) * 2.0**-53)
    # In other sums of squares, underflow may matter, or they are not finite.
    rare = ~((squares > _SMALLEST) & (squares < _LARGEST))
    if rare.any():
        some = rows[rare]
        usable = np.abs(some).max(axis=1, initial=0.0) < _LARGEST_ENTRY  # no NaN is
        lengths = row_norms(np.where(usable[:, np.newaxis], some, 0.0))
        norms[rare] = np.where(usable, lengths, np.inf)
    return norms
