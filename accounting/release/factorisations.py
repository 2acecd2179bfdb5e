"""The factorisation A = L R of the matrix of running sums (A is lower triangular, all ones).

R x + noise is released and L is applied to it: the answers A x + L noise are post-processing, and
one user's cost depends on one column of R only. R is lower triangular, so each row is a Gaussian
mechanism on the counts so far, and counts may depend on earlier answers.

The entries of R are whole multiples of 2**-GRID_BITS and counts are integers, so R x is computed
exactly; floating point is used only after the noise is added.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from accounting.exact.argument_checks import FloatArray, whole_number

MAX_HORIZON: Final = 2**22  # a step takes O(horizon) time
MAX_TOTAL: Final = 2**36  # so that the dot products below stay inside int64

_GRID_BITS: Final = 52
_HALF_BITS: Final = 26
_GUARD_BITS: Final = 128


class SquareRoot:
    """L = R = the square root of A, a Toeplitz matrix.

    Its column is f_0 = 1, f_k = f_{k-1} (1 - 1/(2k)), the series of (1 - x)^(-1/2) (Fichtenberger,
    Henzinger and Upadhyay, "Constant matters", 2023; Henzinger, Upadhyay and Upadhyay, "Almost
    tight error bounds on differentially private continual counting", 2023). It is rounded to the
    nearest multiple of 2**-52, a relative change of the answers below 2**-51 sqrt(horizon).
    """

    grid_bits = _GRID_BITS

    def __init__(self, horizon: int) -> None:
        """Compute the column; raise `InvalidInput` unless 1 <= horizon <= `MAX_HORIZON`."""
        column = _square_root_column(whole_number("horizon", horizon, 1, MAX_HORIZON))
        self.horizon = column.size
        self._high = column >> _HALF_BITS
        self._low = column & (2**_HALF_BITS - 1)
        self._f: FloatArray = np.ldexp(column.astype(np.float64), -_GRID_BITS)
        self._counts = np.zeros(self.horizon, dtype=np.int64)
        self._noisy = np.zeros(self.horizon)

    def encode(self, step: int, count: int) -> int:
        """Compute one dot product of length `step`, in two halves that fit in int64."""
        past = self._counts[: step - 1]
        high, low = self._high[1:step][::-1], self._low[1:step][::-1]
        first = (int(self._high[0]) << _HALF_BITS) + int(self._low[0])
        return (int(high @ past) << _HALF_BITS) + int(low @ past) + first * count

    def decode(self, step: int, count: int, noisy: float) -> float:
        """Compute one dot product of length `step`."""
        self._counts[step - 1] = count
        self._noisy[step - 1] = noisy
        return float(self.row(step) @ self._noisy[:step])

    @property
    def squared_norm(self) -> Fraction:
        """The sum of f_k^2 over k < horizon: of the column of the first step, the longest."""
        column = (self._high << _HALF_BITS) + self._low
        return Fraction(sum(f * f for f in column.tolist()), 1 << (2 * _GRID_BITS))

    def error_weight(self, step: int) -> float:
        """Return the root of the sum of f_k^2 over k < step."""
        return math.sqrt(math.fsum((self._f[:step] ** 2).tolist()))

    def row(self, step: int) -> FloatArray:
        """Return row `step` of L up to its diagonal, shape (step,)."""
        return self._f[:step][::-1]


def _square_root_column(horizon: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return f_0 ... f_{horizon-1} in units of 2**-52, each to the nearest."""
    # With 128 extra bits, the total rounding error is below 2**-100.
    column = np.empty(horizon, dtype=np.int64)
    value = 1 << (_GRID_BITS + _GUARD_BITS)
    half = 1 << (_GUARD_BITS - 1)
    for k in range(horizon):
        if k:
            value = value * (2 * k - 1) // (2 * k)
        column[k] = (value + half) >> _GUARD_BITS
    return column
