"""Float64 numbers as sums and products of exact parts.

A product is its rounded value plus an error that is a float64 too (Veltkamp and Dekker, "A
floating-point technique for extending the available precision", 1971), and a number is a whole
mantissa times a power of two. Only operations that IEEE 754 defines bit for bit are used.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from accounting.exact.validation import FloatArray, IntArray
from accounting.exact.wide import UintArray

MANTISSA_BITS: Final = 53

_SPLITTER: Final = 134217729.0  # 2**27 + 1


def split(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (high, low) of at most 26 bits each, high + low == values; |values| < 2**990."""
    scaled = _SPLITTER * values
    high = scaled - values
    np.subtract(scaled, high, out=high)
    return high, values - high


def split_one(value: float) -> tuple[float, float]:
    """Return `split` of one number."""
    scaled = _SPLITTER * value
    high = scaled - (scaled - value)
    return high, value - high


def two_product_error(
    product: FloatArray,
    a_high: FloatArray | float,
    a_low: FloatArray | float,
    b_high: FloatArray | float,
    b_low: FloatArray | float,
) -> FloatArray:
    """Return a * b - product exactly, for a = a_high + a_low and b likewise (see `split`).

    `product` is fl(a * b), with no overflow or underflow in any partial product. The arguments
    broadcast against one another to the shape of `product`.
    """
    error: FloatArray = np.asarray(a_high * b_high)
    term = np.empty_like(error)
    np.subtract(error, product, out=error)
    for left, right in ((a_high, b_low), (a_low, b_high), (a_low, b_low)):
        np.multiply(left, right, out=term)
        np.add(error, term, out=error)
    return error


def mantissas(values: FloatArray) -> tuple[UintArray, IntArray]:
    """Return (m, e) with values == m 2**e, m from 2**52 to 2**53 - 1, or 0; for values >= 0."""
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, MANTISSA_BITS).astype(np.uint64)
    return whole, exponents.astype(np.int64) - MANTISSA_BITS
