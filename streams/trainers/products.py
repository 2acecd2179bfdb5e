"""Matrix products of which no row depends on the other rows, bit for bit.

The product of a batch and a matrix is rounded differently in a batch of another size, or with
another number of threads: linear algebra libraries add up in an order that follows the shape. So
the gradient of one user would depend, in its last bits, on which other users were drawn, which the
proofs exclude (docs/guarantees.md).

Here the entries of both factors are rounded to few bits, at one power of two for each row and one
for each column. A sum of products, in units of the two powers, is then a sum of integers below
2^53. float64 holds every partial sum exactly, in whatever order the library adds. (Numbers so small
that products underflow are not meant: scores of 1e-300 are 0 to a softmax.)
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]

_EXACT_BITS: Final = 53
_SMALLEST_EXPONENT: Final = -990  # entries that are smaller become zero


def rounded_rows(rows: Floats) -> Floats:
    """Round the entries of each row, (m, d), so that ``row_products`` is exact.

    Each is rounded to a relative 2^-k of the largest entry in its row, where k = (53 - log2 d) / 2:
    23 bits for 65 columns, 21 for 785.
    """
    return _rounded(rows, 1, _bits(rows.shape[1]))


def row_products(rows: Floats, matrix: Floats) -> Floats:
    """Multiply rows from ``rounded_rows`` by a matrix, (d, c), whose columns are rounded alike."""
    return np.asarray(rows @ _rounded(matrix, 0, _bits(len(matrix))))


def softmax(scores: Floats) -> Floats:
    """Return the softmax of each row, (m, c)."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _bits(terms: int) -> int:
    """Bits of each factor, so that a sum of so many products is below 2^53."""
    return (_EXACT_BITS - terms.bit_length()) // 2


def _rounded(values: Floats, axis: int, bits: int) -> Floats:
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0.0)
    exponents = np.maximum(np.frexp(largest)[1], _SMALLEST_EXPONENT)
    whole = np.rint(values * np.ldexp(1.0, bits - exponents))
    return np.asarray(whole * np.ldexp(1.0, exponents - bits))
