"""Factorisations A = L R of the matrix of running sums (A is lower triangular, all ones).

R x + noise is released and L is applied to it: the answers A x + L noise are post-processing, and
one user's cost depends on one column of R only. R is lower triangular, so each row is a Gaussian
mechanism on the counts so far, and counts may depend on earlier answers.

The entries of R are whole multiples of 2**-GRID_BITS and counts are integers, so R x is computed
exactly; floating point is used only after the noise is added.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate
from typing import Final, Protocol

import numpy as np

from accounting.exact.errors import InvalidInput
from accounting.exact.validation import FloatArray

# A step takes O(horizon) time; use the binary tree for longer streams.
MAX_SQUARE_ROOT_HORIZON: Final = 2**22
MAX_TOTAL: Final = 2**36  # so that the dot products below stay inside int64

_GRID_BITS: Final = 52
_HALF_BITS: Final = 26
_GUARD_BITS: Final = 128


class Factorisation(Protocol):
    """L and R, applied to a stream one step at a time. Steps count from 1."""

    grid_bits: int

    def encode(self, step: int, count: int) -> int:
        """Return row `step` of R x, in units of 2**-grid_bits, without changing the state."""

    def decode(self, step: int, count: int, noisy: float) -> float:
        """Store the count and the noisy row of this step; return row `step` of L (R x + z)."""

    def squared_norm(self, step: int) -> Fraction:
        """Return the squared L2 norm of column `step` of R, exactly."""

    def error_weight(self, step: int) -> float:
        """Return the L2 norm of row `step` of L: standard deviation of the error over the noise."""


class SquareRoot:
    """L = R = the square root of A, a Toeplitz matrix.

    Its column is f_0 = 1, f_k = f_{k-1} (1 - 1/(2k)), the series of (1 - x)^(-1/2) (Fichtenberger,
    Henzinger and Upadhyay, "Constant matters", 2023; Henzinger, Upadhyay and Upadhyay, "Almost
    tight error bounds on differentially private continual counting", 2023). It is rounded to the
    nearest multiple of 2**-52, a relative change of the answers below 2**-51 sqrt(horizon).
    """

    grid_bits = _GRID_BITS

    def __init__(self, horizon: int) -> None:
        if horizon > MAX_SQUARE_ROOT_HORIZON:
            allowed = f"at most {MAX_SQUARE_ROOT_HORIZON} for square-root; use binary-tree"
            raise InvalidInput("horizon", horizon, allowed)
        column = _square_root_column(horizon)
        self._high = column >> _HALF_BITS
        self._low = column & (2**_HALF_BITS - 1)
        self._f: FloatArray = np.ldexp(column.astype(np.float64), -_GRID_BITS)
        self._counts = np.zeros(horizon, dtype=np.int64)
        self._noisy = np.zeros(horizon)

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

    def squared_norm(self, step: int) -> Fraction:
        """Return the sum of f_k^2 over k <= horizon - step."""
        squares = sum(f * f for f in self._column(self._counts.size - step + 1))
        return Fraction(squares, 1 << (2 * _GRID_BITS))

    def squared_norms(self) -> list[Fraction]:
        """Return `squared_norm` of every step, from the first to the horizon."""
        sums = accumulate(f * f for f in self._column(self._counts.size))
        return [Fraction(total, 1 << (2 * _GRID_BITS)) for total in sums][::-1]

    def error_weight(self, step: int) -> float:
        """Return the root of the sum of f_k^2 over k < step."""
        return math.sqrt(math.fsum((self._f[:step] ** 2).tolist()))

    def row(self, step: int) -> FloatArray:
        """Return row `step` of L up to its diagonal, shape (step,)."""
        return self._f[:step][::-1]

    def _column(self, terms: int) -> list[int]:
        column: list[int] = ((self._high[:terms] << _HALF_BITS) + self._low[:terms]).tolist()
        return column


class BinaryTree:
    """R sums over dyadic blocks; a running sum adds the blocks of its binary expansion.

    (Dwork, Naor, Pitassi and Rothblum 2010; Chan, Shi and Song 2011.) Step t ends one block, of
    the length of the lowest bit of t. No running sum uses any other block, so no other block gets
    noise: a count in step 1 is in floor(log2(horizon)) + 1 blocks, and later counts in no more.
    """

    grid_bits = 0

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._blocks: dict[int, tuple[int, float]] = {}  # by log2 of the length: exact, noisy

    def encode(self, step: int, count: int) -> int:
        """Return the sum over the block that ends at this step."""
        return count + sum(self._blocks[level][0] for level in range(_lowest_bit(step)))

    def decode(self, step: int, count: int, noisy: float) -> float:
        """Add the blocks of the binary expansion of `step`."""
        level = _lowest_bit(step)
        total = self.encode(step, count)
        for shorter in range(level):
            del self._blocks[shorter]
        self._blocks[level] = (total, noisy)
        return math.fsum(block for _, block in self._blocks.values())

    def squared_norm(self, step: int) -> Fraction:
        """Return the number of blocks that contain `step` and end within the horizon."""
        index = step - 1
        levels = range(self._horizon.bit_length())
        used = (
            (index >> level) % 2 == 0 and ((index >> level) + 1) << level <= self._horizon
            for level in levels
        )
        return Fraction(sum(used))

    def error_weight(self, step: int) -> float:
        """Return the root of the number of ones in the binary expansion of `step`."""
        return math.sqrt(step.bit_count())


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


def _lowest_bit(step: int) -> int:
    return (step & -step).bit_length() - 1
