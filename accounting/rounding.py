"""Directed rounding: squares of ratios and products, rounded up to the next float64, exactly.

Only operations that IEEE 754 defines bit for bit are used (+, -, x, /, comparison), so results
are the same on every machine. A product is split into its rounded value and its rounding error
(Veltkamp and Dekker, "A floating-point technique for extending the available precision", 1971);
the error decides the direction. Where the error is too small to be sure of its sign, and for
numbers near the ends of the float64 range, Python integers decide, once for each distinct value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.errors import InvalidInput
from accounting.validation import (
    DOWN,
    UP,
    BoolArray,
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
)

_SPLITTER: Final = 134217729.0  # 2**27 + 1
_BLOCK: Final = 4096  # values at a time, so that the temporaries stay in the cache
# Inside these limits no product, and no rounding error of a product, overflows or underflows.
_SQUARE_LIMITS: Final = (2.0**-600, 2.0**600)
_PLAIN_EXPONENTS: Final = 100  # of the divisor, below which it needs no scaling
_PRODUCT_LIMITS: Final = (2.0**-800, 2.0**900)
# The quotient and its correction are known to a relative 2**-100; 2**-96 leaves a margin.
_UNSURE: Final = 2.0**-96
_EXACT_INTEGERS: Final = 2.0**53
_INTERVAL: Final = 2.0**-50
_FEW: Final = 16  # decided one by one sooner than as arrays
_RATIO_LIMITS: Final = (2.0**-300, 2.0**300)  # times a square inside its limits: no underflow


def square_ratio_up(c: npt.ArrayLike, s: float) -> FloatArray:
    """Return the smallest float64 >= (c / s)**2, where the right side is exact.

    `c`: finite, >= 0, any shape; `s`: finite, > 0. c > 0 never gives 0: what would underflow is
    rounded up to the smallest positive float64. What is above the largest float64 gives infinity.
    Raises `InvalidInput` outside these ranges.
    """
    scale = positive_finite("s", s, DOWN)
    values = _finite_values("c", c)
    return _in_blocks(values, lambda block: _square_ratio_block(block, scale))


def square_ratio_ceil(c: npt.ArrayLike, s: float, bits: int, limit: int) -> IntArray:
    """Return min(ceil((c / s)**2 * 2**bits), limit) in exact arithmetic, as int64.

    `c`, `s` as in `square_ratio_up`; `limit` a power of two from 2**53 to 2**62.
    """
    scale = positive_finite("s", s, DOWN)
    values = _finite_values("c", c)
    exact_ratio, ratio = _units_per_square(scale, bits)
    if not _RATIO_LIMITS[0] < ratio < _RATIO_LIMITS[1]:
        return _square_ratio_ceil_exact(values, scale, bits, limit)
    # Three roundings are within a relative 2**-51. Where both ends of an interval that is wider
    # than that, and than their own roundings, have one ceiling, it is the exact one.
    with np.errstate(over="ignore", under="ignore"):
        square = values * values
        tiny = square < _SQUARE_LIMITS[0]
        low = square * ratio
        high = low * (1.0 + _INTERVAL)
        low *= 1.0 - _INTERVAL
    for end in (low, high):
        np.minimum(end, float(limit), out=end)
        np.ceil(end, out=end)
    whole: IntArray = low.astype(np.int64)
    unsure = low != high
    unsure |= tiny
    if unsure.any():
        unsure &= values != 0.0
        if np.count_nonzero(unsure) <= _FEW:
            _decide_exactly(whole, unsure, values, _exact_ceiling(exact_ratio, limit))
        else:
            whole[unsure] = _square_ratio_ceil_exact(values[unsure], scale, bits, limit)
    return whole


def _square_ratio_ceil_exact(c: FloatArray, scale: float, bits: int, limit: int) -> IntArray:
    """Return `square_ratio_ceil` of any values, by way of `square_ratio_up`."""
    # Rounding up to float64 and then to an integer is one rounding up while integers are exact.
    scaled = square_ratio_up(c, scale)
    np.minimum(scaled, math.ldexp(float(limit), -bits), out=scaled)
    np.multiply(scaled, math.ldexp(1.0, bits), out=scaled)
    np.ceil(scaled, out=scaled)
    whole: IntArray = scaled.astype(np.int64)
    if scaled.size and scaled.max() > _EXACT_INTEGERS:
        large = (scaled > _EXACT_INTEGERS) & (scaled < limit)
        _decide_exactly(whole, large, c, _exact_ceiling(_units_per_square(scale, bits)[0], limit))
    return whole


@lru_cache(maxsize=16)
def _units_per_square(scale: float, bits: int) -> tuple[Fraction, float]:
    """Return 2**bits / scale**2, exactly and as the nearest float64."""
    ratio = Fraction(2) ** bits / Fraction(scale) ** 2
    try:
        return ratio, float(ratio)
    except OverflowError:
        return ratio, math.inf


def _exact_ceiling(ratio: Fraction, limit: int) -> Callable[[float], int]:
    """Return the function c -> min(ceil(c**2 * ratio), limit) in Python integers."""
    top, bottom = ratio.as_integer_ratio()

    def exact(value: float) -> int:
        numerator, denominator = value.as_integer_ratio()
        return min(-(-(numerator * numerator * top) // (denominator * denominator * bottom)), limit)

    return exact


def product_up(a: float, m: npt.ArrayLike) -> FloatArray:
    """Return the smallest float64 >= a * m, where the right side is exact.

    `a`: finite, > 0; `m`: >= 0, infinity allowed, any shape. Raises `InvalidInput` outside.
    """
    factor = positive_finite("a", a, UP)
    values = nonnegative_array("m", m)
    return _in_blocks(values, lambda block: _product_block(factor, block))


def split(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (high, low) of at most 26 bits each, high + low == values; |values| < 2**990."""
    scaled = _SPLITTER * values
    high = scaled - values
    np.subtract(scaled, high, out=high)
    return high, values - high


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


def _finite_values(argument: str, values: npt.ArrayLike) -> FloatArray:
    array = nonnegative_array(argument, values)
    if array.size and array.max() == math.inf:
        raise InvalidInput(argument, math.inf, "finite throughout")
    return array


def _split_one(value: float) -> tuple[float, float]:
    scaled = _SPLITTER * value
    high = scaled - (scaled - value)
    return high, value - high


def _square_ratio_block(c: FloatArray, scale: float) -> FloatArray:
    """Return `square_ratio_up` for one flat block."""
    scale_given = scale
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        x = c
        exponent = math.frexp(scale)[1]
        if abs(exponent) > _PLAIN_EXPONENTS:
            # Scaling both by the same power of two is exact and leaves the ratio as it is.
            x, scale = np.ldexp(c, -exponent), math.ldexp(scale, -exponent)
        divisor = scale * scale
        high, low = _split_one(scale)
        divisor_error = ((high * high - divisor) + 2.0 * high * low) + low * low
        square = x * x
        square_error = two_product_error(square, *(2 * split(x)))

        # One step of long division: c^2 / s^2 = quotient + correction, up to a relative 2**-100.
        quotient = square / divisor
        back = quotient * divisor
        residual = square - back
        residual -= two_product_error(back, *split(quotient), *_split_one(divisor))
        residual += square_error
        residual -= quotient * divisor_error
        residual /= divisor
        nearest = quotient + residual
        rest = residual - (nearest - quotient)

        unsure = np.abs(rest) <= _UNSURE * nearest
        if divisor_error == 0.0:
            # Without error terms the residual is the remainder of the division, which is exact.
            unsure &= square_error != 0.0
        unsure |= square < _SQUARE_LIMITS[0]
        unsure |= square > _SQUARE_LIMITS[1]
        up: FloatArray = (nearest.view(np.int64) + (rest > 0.0)).view(np.float64)
    if unsure.any():
        unsure &= c != 0.0
        _decide_exactly(up, unsure, c, _exact_square_ratio(scale_given))
    return up


def _product_block(factor: float, m: FloatArray) -> FloatArray:
    """Return `product_up` for one flat block."""
    factor_given = factor
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        exponent = math.frexp(factor)[1]
        scaled = abs(exponent) > _PLAIN_EXPONENTS
        if scaled:
            factor = math.ldexp(factor, -exponent)
        product = factor * m
        error = two_product_error(product, *_split_one(factor), *split(m))
        up: FloatArray = (product.view(np.int64) + (error > 0.0)).view(np.float64)
        outside = (m < _PRODUCT_LIMITS[0]) | (m > _PRODUCT_LIMITS[1])
        if scaled:
            up = np.ldexp(up, exponent)
            outside |= up < _PRODUCT_LIMITS[0]
    if outside.any():
        outside &= m != 0.0
        exact_factor = Fraction(factor_given)
        _decide_exactly(up, outside, m, lambda value: _exact_product(exact_factor, value))
    return up


def _exact_square_ratio(scale: float) -> Callable[[float], float]:
    """Return the function c -> smallest float64 >= (c / scale)**2 in Python integers."""
    numerator, denominator = scale.as_integer_ratio()

    def exact(value: float) -> float:
        top, bottom = value.as_integer_ratio()
        return _fraction_up((top * denominator) ** 2, (bottom * numerator) ** 2)

    return exact


def _exact_product(factor: Fraction, value: float) -> float:
    if value == math.inf:
        return math.inf
    product = factor * Fraction(value)
    return _fraction_up(product.numerator, product.denominator)


def _fraction_up(numerator: int, denominator: int) -> float:
    """Return the smallest float64 >= numerator / denominator; both > 0."""
    try:
        nearest = numerator / denominator  # correctly rounded by Python
    except OverflowError:
        return math.inf
    top, bottom = nearest.as_integer_ratio()
    return math.nextafter(nearest, math.inf) if top * denominator < numerator * bottom else nearest


def _decide_exactly(
    results: FloatArray | IntArray,
    where: BoolArray,
    values: FloatArray,
    exact: Callable[[float], float],
) -> None:
    """Overwrite `results[where]` by `exact` of each distinct value there."""
    distinct, position = np.unique(values[where], return_inverse=True)
    decided = np.array([exact(value) for value in distinct.tolist()], dtype=results.dtype)
    results[where] = decided[position]


def _in_blocks(values: FloatArray, kernel: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Apply an elementwise kernel to flat blocks of `values`; the result has their shape."""
    flat = values.reshape(-1)
    results = np.empty_like(flat)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        results[block] = kernel(flat[block])
    return results.reshape(values.shape)
