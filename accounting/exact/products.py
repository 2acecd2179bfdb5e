"""Ratios, their squares, and products, rounded up to the next float64 or whole number, exactly.

Only operations that IEEE 754 defines bit for bit are used (+, -, x, /, comparison), so results
are the same on every machine. Cases that float64 leaves open are decided in Python's integers, in
about 1 µs per distinct number. Vectorised integers of 128 bits were not faster, and twice the code.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_array,
    norm_vector,
    positive_finite,
)
from accounting.exact.rounding import UP, float_toward, moved

_BLOCK: Final = 2**13  # norms at a time, so that the temporaries stay in the cache
_SPLITTER: Final = 134217729.0  # 2**27 + 1
_INTERVAL: Final = 2.0**-50
_RATIO_LIMITS: Final = (2.0**-300, 2.0**300)  # of the factor of an estimate: no overflow
_LEAST, _MOST = 2.0**-400, 2.0**400  # between these, no partial product over- or underflows
# The quotient and its correction are known to a relative 2**-100; 2**-96 leaves a margin.
_UNSURE: Final = 2.0**-96


def square_ratio_up(c: npt.ArrayLike, s: float, halvings: int = 0) -> FloatArray:
    """Return the smallest float64 >= (c / s)**2 / 2**halvings, where the right side is exact.

    Where c / s is positive and below 2**-400 it counts as 2**-399, and above 2**400 as infinity.

    Args:
        c: finite, >= 0, shape (n,).
        s: finite, > 0.
        halvings: 0 or 1.
    """
    values, (scale, exponent) = norm_vector("norms", c), np.frexp(positive_finite("s", s))
    if values.size > _BLOCK:
        parts = range(0, values.size, _BLOCK)
        return np.concatenate([square_ratio_up(values[i : i + _BLOCK], s, halvings) for i in parts])
    with np.errstate(over="ignore", under="ignore"):
        x = np.ldexp(values, -exponent)
    large = x > _MOST
    x = np.where(values > 0.0, np.clip(x, _LEAST, _MOST), 0.0)
    square, divisor = x * x, scale * scale
    square_error = two_product_error(square, *(2 * split(x)))
    divisor_error = two_product_error(divisor, *(2 * split(scale)))
    # One step of long division: x^2 / scale^2 = quotient + correction, to a relative 2**-100.
    quotient = square / divisor
    back = quotient * divisor
    correction = (square - back) - two_product_error(back, *split(quotient), *split(divisor))
    correction = ((correction + square_error) - quotient * divisor_error) / divisor
    nearest = quotient + correction
    rest = correction - (nearest - quotient)
    up = moved(nearest, rest > 0.0, UP)
    unsure = (np.abs(rest) <= _UNSURE * nearest) & (x != 0.0)
    if divisor_error == 0.0:
        # Without error terms the correction is the remainder of the division, which is exact.
        unsure &= square_error != 0.0
    left, position = np.unique(x[unsure], return_inverse=True)
    exact = [float_toward((Fraction(one) / Fraction(scale)) ** 2, UP) for one in left.tolist()]
    up[unsure] = np.array(exact, dtype=np.float64)[position]
    return np.where(large, np.inf, np.ldexp(up, -halvings))


def product_up(a: float, m: npt.ArrayLike) -> FloatArray:
    """Return the smallest float64 >= a * m, where the right side is exact.

    Where m is positive and below 2**-800 it counts as 2**-800, and above 2**800 as infinity.

    Args:
        a: from 2**-100 to 2**100.
        m: >= 0, infinity allowed, any shape.
    """
    values, factor = nonnegative_array("m", m), np.asarray(a, dtype=np.float64)
    usual = np.where(values > 0.0, np.clip(values, _LEAST**2, _MOST**2), 0.0)
    product = factor * usual
    error = two_product_error(product, *split(factor), *split(usual))
    return np.where(values > _MOST**2, np.inf, moved(product, error > 0.0, UP))


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
    top, bottom = scale.as_integer_ratio()
    found = [
        -(-((over * bottom) ** power << bits) // (under * top) ** power)
        for over, under in map(float.as_integer_ratio, c.reshape(-1).tolist())
    ]
    return np.array([min(one, limit) for one in found], dtype=np.int64).reshape(c.shape)


def split(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (high, low) of at most 26 bits each, high + low == values; |values| < 2**990.

    Veltkamp and Dekker, "A floating-point technique for extending the available precision", 1971.
    """
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high


def two_product_error(
    product: FloatArray,
    a_high: FloatArray,
    a_low: FloatArray,
    b_high: FloatArray,
    b_low: FloatArray,
) -> FloatArray:
    """Return a * b - product exactly, for a = a_high + a_low and b likewise (see `split`).

    `product` is fl(a * b), with no overflow or underflow in any partial product. The arguments
    broadcast against one another to the shape of `product`.
    """
    error = ((a_high * b_high - product) + a_high * b_low) + a_low * b_high
    return np.asarray(error + a_low * b_low)
