"""Ratios, their squares, and products, rounded up to the next float64 or whole number, exactly.

Only operations that IEEE 754 defines bit for bit are used (+, -, x, /, comparison), so results
are the same on every machine. A product is its rounded value and its rounding
error, a float64 too (Veltkamp and Dekker, "A floating-point technique for extending the available
precision", 1971); the error decides the direction. Where the error is too small to be
sure of its sign, and for numbers near the ends of the float64 range, whole numbers of 128 bits
decide (`accounting.exact.wide`), all at once: no value takes longer than another, even if it is in
a wrong unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from accounting.exact import wide
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import UP, moved

_MANTISSA_BITS: Final = 53
_SPLITTER: Final = 134217729.0  # 2**27 + 1
_BLOCK: Final = 4096  # values at a time, so that the temporaries stay in the cache
# Inside these limits no product, and no rounding error of a product, overflows or underflows.
_SQUARE_LIMITS: Final = (2.0**-600, 2.0**600)
_PLAIN_EXPONENTS: Final = 100  # of the divisor, below which it needs no scaling
_PRODUCT_LIMITS: Final = (2.0**-800, 2.0**900)
# The quotient and its correction are known to a relative 2**-100; 2**-96 leaves a margin.
_UNSURE: Final = 2.0**-96
_INTERVAL: Final = 2.0**-50
_RATIO_LIMITS: Final = (2.0**-300, 2.0**300)  # times a square inside its limits: no underflow
_FEW: Final = 128  # up to this many, deciding one by one is faster than as arrays

_Result = TypeVar("_Result", FloatArray, IntArray)


def square_ratio_up(c: npt.ArrayLike, s: float) -> FloatArray:
    """Return the smallest float64 >= (c / s)**2, where the right side is exact.

    c > 0 never gives 0: what would underflow is rounded up to the smallest positive float64. What
    is above the largest float64 gives infinity.

    Args:
        c: finite, >= 0, any shape.
        s: finite, > 0.
    """
    scale = positive_finite("s", s)
    values = _finite_values("c", c)
    return _in_blocks(values, lambda block: _square_ratio_block(block, scale), np.float64)


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

    def ceilings(block: FloatArray) -> IntArray:
        return _exact_ceilings(block, scale, bits, limit, power)

    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        divisor = np.float64(scale)
        factor = 2.0**bits / (divisor if power == 1 else divisor * divisor)
        if not _RATIO_LIMITS[0] < factor < _RATIO_LIMITS[1]:
            return _in_blocks(c, ceilings, np.int64)
        estimate = c * factor if power == 1 else c * c * factor
    return _rounded_up(
        estimate,
        limit,
        c,
        ceilings,
        lambda few: [_one_ceiling(value, scale, bits, limit, power) for value in few],
    )


def product_up(a: float, m: npt.ArrayLike) -> FloatArray:
    """Return the smallest float64 >= a * m, where the right side is exact.

    Args:
        a: finite, > 0.
        m: >= 0, infinity allowed, any shape.
    """
    factor = positive_finite("a", a)
    values = nonnegative_array("m", m)
    return _in_blocks(values, lambda block: _product_block(factor, block), np.float64)


def _exact_ceilings(
    c: FloatArray, scale: float, bits: int, limit: int, power: Literal[1, 2]
) -> IntArray:
    """Return `ratio_ceil` for one flat block."""
    tops, exponents = mantissas(c)
    bottoms, divisor_exponents = mantissas(np.full_like(c, scale))
    shift = power * (exponents - divisor_exponents) + bits
    # Within a relative 2**-50, so that those not far above the limit are still decided exactly.
    ratio = tops.astype(np.float64) / bottoms.astype(np.float64)
    most = _MANTISSA_BITS + limit.bit_length()
    near = np.ldexp(ratio if power == 1 else ratio * ratio, np.clip(shift, -most, most))
    result = np.where(near < 1.0, 1, limit)
    result[c == 0.0] = 0
    # A quotient of mantissas is between 1/2 and 2, and its square between 1/4 and 4.
    inside = np.flatnonzero((near >= 0.5) & (near <= limit * (1.0 + _INTERVAL)))
    top, bottom, by = tops[inside], bottoms[inside], shift[inside]
    zero = np.zeros_like(top)
    dividend, divisor = (
        wide.Wide(zero, one) if power == 1 else wide.product(one, one) for one in (top, bottom)
    )
    whole = wide.quotient_up(
        wide.shifted_left(dividend, np.maximum(by, 0).astype(np.uint64)),
        wide.shifted_left(divisor, np.maximum(-by, 0).astype(np.uint64)),
        near[inside].astype(np.int64),
    )
    result[inside] = np.minimum(whole, limit)
    return result


def _rounded_up(
    estimate: FloatArray,
    limit: int,
    values: FloatArray,
    exact: Callable[[FloatArray], IntArray],
    one_by_one: Callable[[list[float]], list[int]],
) -> IntArray:
    """Return the ceilings of the numbers that `estimate` approximates; it is overwritten.

    Four roundings are within a relative 2**-51 if nothing underflowed. A number that is further
    than a relative 2**-50 from the whole numbers on both sides has the ceiling of its estimate, and
    an estimate that far beyond the limit gives the limit. All others are decided by `exact`, or
    `one_by_one` if they are few. An estimate below 2**-50 is always among these, except for 0,
    because it may have underflowed.
    """
    most = limit * (1.0 + _INTERVAL)
    np.minimum(estimate, most, out=estimate)
    above = np.ceil(estimate)
    whole: IntArray = np.minimum(above, float(limit)).astype(np.int64)
    above -= estimate  # exact: how far the next whole number is
    np.minimum(above, 1.0 - above, out=above)
    estimate *= _INTERVAL
    np.maximum(estimate, _INTERVAL, out=estimate)
    unsure = above <= estimate
    if unsure.any():
        unsure &= (values != 0.0) & (estimate < most * _INTERVAL)
        left, position = np.unique(values[unsure], return_inverse=True)
        if left.size <= _FEW:
            decided = np.array(one_by_one(left.tolist()), dtype=np.int64)
        else:
            decided = _in_blocks(left, exact, np.int64)
        whole[unsure] = decided[position]
    return whole


def _one_ceiling(value: float, scale: float, bits: int, limit: int, power: Literal[1, 2]) -> int:
    """Return `ratio_ceil` of one number, in integers of any length."""
    (top, bottom), (divisor_top, divisor_bottom) = (
        value.as_integer_ratio(),
        scale.as_integer_ratio(),
    )
    dividend, divisor = (top * divisor_bottom) ** power << bits, (bottom * divisor_top) ** power
    ceiling: int = -(-dividend // divisor)
    return min(ceiling, limit)


def _finite_values(argument: str, values: npt.ArrayLike) -> FloatArray:
    array = nonnegative_array(argument, values)
    if array.size and array.max() == math.inf:
        raise InvalidInput(argument, math.inf, "finite throughout")
    return array


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
        high, low = split_one(scale)
        divisor_error = ((high * high - divisor) + 2.0 * high * low) + low * low
        square = x * x
        square_error = two_product_error(square, *(2 * split(x)))

        # One step of long division: c^2 / s^2 = quotient + correction, up to a relative 2**-100.
        quotient = square / divisor
        back = quotient * divisor
        residual = square - back
        residual -= two_product_error(back, *split(quotient), *split_one(divisor))
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
        up[unsure] = _exact_square_ratios(c[unsure], scale_given)
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
        error = two_product_error(product, *split_one(factor), *split(m))
        up: FloatArray = (product.view(np.int64) + (error > 0.0)).view(np.float64)
        outside = (m < _PRODUCT_LIMITS[0]) | (m > _PRODUCT_LIMITS[1])
        if scaled:
            up = np.ldexp(up, exponent)
            outside |= up < _PRODUCT_LIMITS[0]
    if outside.any():
        up[outside] = m[outside]  # 0 and infinity stay what they are
        outside &= (m != 0.0) & (m != math.inf)
        up[outside] = _exact_products(factor_given, m[outside])
    return up


def _exact_square_ratios(c: FloatArray, scale: float) -> FloatArray:
    """Return `square_ratio_up` for a flat array of numbers above 0."""
    tops, exponents = mantissas(c)
    bottoms, divisor_exponents = mantissas(np.full_like(c, scale))
    root = tops.astype(np.float64) / bottoms.astype(np.float64)
    square = root * root
    # As many digits as a mantissa has, or one more if rounding leaves open which of the two.
    digits = 51 + np.searchsorted([-2.0, -1.0, -0.5, -0.25], -square * (1.0 - _INTERVAL))
    quotient = wide.quotient_up(
        wide.shifted_left(wide.product(tops, tops), digits.astype(np.uint64)),
        wide.product(bottoms, bottoms),
        np.ldexp(square, digits).astype(np.int64),
    )
    quotient += (quotient > 2**_MANTISSA_BITS) & (quotient % 2 == 1)
    return _scaled_up(quotient, 2 * (exponents - divisor_exponents) - digits)


def _exact_products(factor: float, m: FloatArray) -> FloatArray:
    """Return `product_up` for a flat array of finite numbers above 0."""
    left, left_exponents = mantissas(m)
    right, right_exponents = mantissas(np.full_like(m, factor))
    product = wide.product(left, right)
    surplus = 52 + (product.high >= 2**41)  # digits that a mantissa has no room for
    digits = wide.shifted_right_up(product, surplus.astype(np.uint64))
    return _scaled_up(digits, left_exponents + right_exponents + surplus)


def _scaled_up(digits: npt.NDArray[np.integer], exponents: IntArray) -> FloatArray:
    """Return the smallest float64 >= digits 2**exponents; `digits` are exact in float64."""
    exact = digits.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        scaled = np.ldexp(exact, exponents)
        lost = np.ldexp(scaled, -exponents) < exact  # among subnormal numbers
        return moved(scaled, lost, UP)


def _in_blocks(
    values: FloatArray, kernel: Callable[[FloatArray], _Result], kind: type[np.generic]
) -> _Result:
    """Apply an elementwise kernel to flat blocks of `values`; the result has their shape."""
    flat = values.reshape(-1)
    results = np.empty(flat.size, dtype=kind)
    for start in range(0, flat.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        results[block] = kernel(flat[block])
    return cast(_Result, results.reshape(values.shape))


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


def mantissas(values: FloatArray) -> tuple[wide.UintArray, IntArray]:
    """Return (m, e) with values == m 2**e, m from 2**52 to 2**53 - 1, or 0; for values >= 0."""
    fractions, exponents = np.frexp(values)
    whole = np.ldexp(fractions, _MANTISSA_BITS).astype(np.uint64)
    return whole, exponents.astype(np.int64) - _MANTISSA_BITS
