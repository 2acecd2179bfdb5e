"""Ratios, their squares, and products, rounded up to the next float64 or whole number, exactly.

Only operations that IEEE 754 defines bit for bit are used (+, -, x, /, comparison), so results
are the same on every machine. A product is its rounded value and its rounding error, a float64 too
(Veltkamp and Dekker, "A floating-point technique for extending the available precision", 1971); the
error decides the direction. Numbers are scaled to between 1/2 and 1 first, so that nothing
overflows or underflows. Cases that float64 leaves open are decided in Python's integers, in about
1 µs per distinct number. Vectorised integers of 128 bits were not faster, and twice the code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import UP, float_toward, moved

_MANTISSA_BITS: Final = 53
_SPLITTER: Final = 134217729.0  # 2**27 + 1
_BLOCK: Final = 4096  # values at a time, so that the temporaries stay in the cache
# The quotient and its correction are known to a relative 2**-100; 2**-96 leaves a margin.
_UNSURE: Final = 2.0**-96
_INTERVAL: Final = 2.0**-50
_RATIO_LIMITS: Final = (2.0**-300, 2.0**300)  # of the factor of an estimate: no overflow


def square_ratio_up(c: npt.ArrayLike, s: float, halvings: int = 0) -> FloatArray:
    """Return the smallest float64 >= (c / s)**2 / 2**halvings, where the right side is exact.

    c > 0 never gives 0: what would underflow is rounded up to the smallest positive float64. What
    is above the largest float64 gives infinity.

    Args:
        c: finite, >= 0, any shape.
        s: finite, > 0.
        halvings: 0 or 1.
    """
    scale, exponent = math.frexp(positive_finite("s", s))
    values = nonnegative_array("c", c)
    if values.size and values.max() == math.inf:
        raise InvalidInput("c", math.inf, "finite throughout")

    def block_up(block: FloatArray) -> FloatArray:
        x, exponents = np.frexp(block)
        return _scaled_up(_square_ratio(x, scale), 2 * (exponents - exponent) - halvings)

    return _in_blocks(values, block_up)


def product_up(a: float, m: npt.ArrayLike) -> FloatArray:
    """Return the smallest float64 >= a * m, where the right side is exact.

    Args:
        a: finite, > 0.
        m: >= 0, infinity allowed, any shape.
    """
    factor, exponent = math.frexp(positive_finite("a", a))
    values = nonnegative_array("m", m)

    def block_up(block: FloatArray) -> FloatArray:
        x, exponents = np.frexp(block)
        product = factor * x
        with np.errstate(invalid="ignore"):  # infinity has no error, and stays what it is
            error = two_product_error(product, *split_one(factor), *split(x))
        return _scaled_up(moved(product, error > 0.0, UP), exponents + exponent)

    return _in_blocks(values, block_up)


def ratio_ceil(
    c: FloatArray, s: float, bits: int, limit: int, power: Literal[1, 2] = 1
) -> IntArray:
    """Return min(ceil((c / s)**power * 2**bits), limit) in exact arithmetic, as int64.

    Args:
        c: finite, >= 0, any shape; not checked.
        s: finite, > 0.
        bits: the exponent, 0 to 60.
        limit: a power of two from 2**53 to 2**62.
        power: 1 or 2.
    """
    scale = positive_finite("s", s)
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        divisor = np.float64(scale)
        factor = 2.0**bits / (divisor if power == 1 else divisor * divisor)
        if not _RATIO_LIMITS[0] < factor < _RATIO_LIMITS[1]:
            return _ceilings(c, scale, bits, limit, power)
        estimate = c * factor if power == 1 else c * c * factor
    # Four roundings are within a relative 2**-51 if nothing underflowed. A number that is further
    # than a relative 2**-50 from the whole numbers on both sides has the ceiling of its estimate,
    # and an estimate that far beyond the limit gives the limit.
    most = limit * (1.0 + _INTERVAL)
    np.minimum(estimate, most, out=estimate)
    above = np.ceil(estimate)
    whole: IntArray = np.minimum(above, float(limit)).astype(np.int64)
    above -= estimate  # exact: how far the next whole number is
    np.minimum(above, 1.0 - above, out=above)
    # An estimate that underflowed to 0 is unsure; any other tiny one has the ceiling 1.
    unsure = above <= estimate * _INTERVAL
    if unsure.any():
        unsure &= (c != 0.0) & (estimate < most)
        left, position = np.unique(c[unsure], return_inverse=True)
        whole[unsure] = _ceilings(left, scale, bits, limit, power)[position]
    return whole


def _ceilings(c: FloatArray, scale: float, bits: int, limit: int, power: int) -> IntArray:
    """Return `ratio_ceil` of each number in integers of any length."""
    tops, exponents = mantissas(c)
    bottoms, divisor_exponents = mantissas(np.array([scale]))
    divisor = int(bottoms[0]) ** power
    shifts = power * (exponents - divisor_exponents) + bits
    found = [
        -(-(top**power << max(shift, 0)) // (divisor << max(-shift, 0)))
        for top, shift in zip(tops.reshape(-1).tolist(), shifts.reshape(-1).tolist(), strict=True)
    ]
    return np.array([min(one, limit) for one in found], dtype=np.int64).reshape(c.shape)


def _square_ratio(x: FloatArray, scale: float) -> FloatArray:
    """Return the smallest float64 >= (x / scale)^2; `x`: 0, or like `scale` from 1/2 to 1."""
    divisor = scale * scale
    high, low = split_one(scale)
    divisor_error = ((high * high - divisor) + 2.0 * high * low) + low * low
    square = x * x
    square_error = two_product_error(square, *(2 * split(x)))
    # One step of long division: x^2 / scale^2 = quotient + correction, to a relative 2**-100.
    quotient = square / divisor
    back = quotient * divisor
    residual = square - back
    residual -= two_product_error(back, *split(quotient), *split_one(divisor))
    residual += square_error
    residual -= quotient * divisor_error
    residual /= divisor
    nearest = quotient + residual
    rest = residual - (nearest - quotient)
    up = moved(nearest, rest > 0.0, UP)
    unsure = (np.abs(rest) <= _UNSURE * nearest) & (x != 0.0)
    if divisor_error == 0.0:
        # Without error terms the residual is the remainder of the division, which is exact.
        unsure &= square_error != 0.0
    if unsure.any():
        left, position = np.unique(x[unsure], return_inverse=True)
        exact = [float_toward((Fraction(one) / Fraction(scale)) ** 2, UP) for one in left.tolist()]
        up[unsure] = np.array(exact)[position]
    return up


def _scaled_up(values: FloatArray, exponents: npt.NDArray[np.integer]) -> FloatArray:
    """Return the smallest float64 >= values 2**exponents; `values`: 0, infinite, or 1/4 to 4."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(values, exponents)
        lost = np.ldexp(scaled, -exponents) < values  # among subnormal numbers
        return moved(scaled, lost, UP)


def _in_blocks(values: FloatArray, kernel: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Apply an elementwise kernel to flat blocks of `values`; the result has their shape."""
    flat = values.reshape(-1)
    results = np.empty(flat.size)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        results[block] = kernel(flat[block])
    return results.reshape(values.shape)


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


def mantissas(values: FloatArray) -> tuple[IntArray, IntArray]:
    """Return (m, e) with values == m 2**e, m from 2**52 to 2**53 - 1, or 0; for values >= 0."""
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, _MANTISSA_BITS).astype(np.int64)
    return whole, exponents.astype(np.int64) - _MANTISSA_BITS
