"""Whole numbers of 128 bits, modulo 2**128, as pairs of uint64: exact where int64 and float64 end.

Rounding decisions that float64 leaves open are about the sign of a difference of two products. Its
true size is far below 2**127, so its last 128 bits are enough, however large the products are; and
all values of an array are decided together, in a time that does not depend on what they are.

Arrays are of one shape, not 0-d (numpy lets arrays wrap around, and warns of scalars).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray

UintArray = npt.NDArray[np.uint64]

_HALF: Final = np.uint64(32)
_LOW_HALF: Final = np.uint64(2**32 - 1)
_WORD: Final = np.uint64(64)
_ONE: Final = np.uint64(1)


class Wide(NamedTuple):
    """high 2**64 + low."""

    high: UintArray
    low: UintArray


def product(a: UintArray, b: UintArray) -> Wide:
    """Return a b, exactly."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW_HALF, b >> _HALF, b & _LOW_HALF
    low = a_low * b_low
    middle = a_high * b_low + (low >> _HALF)  # below 2**64, as are all sums here
    other = a_low * b_high + (middle & _LOW_HALF)
    high = a_high * b_high + (middle >> _HALF) + (other >> _HALF)
    return Wide(high, (other << _HALF) | (low & _LOW_HALF))


def times(number: Wide, factor: UintArray) -> Wide:
    """Return number factor, modulo 2**128."""
    high, low = product(number.low, factor)
    return Wide(high + number.high * factor, low)


def minus(a: Wide, b: Wide) -> Wide:
    """Return a - b, modulo 2**128; see `is_negative`."""
    return Wide(a.high - b.high - (a.low < b.low), a.low - b.low)


def is_negative(number: Wide) -> BoolArray:
    """Return whether a number from -2**127 to 2**127 - 1, kept modulo 2**128, is below 0."""
    return np.asarray(number.high.view(np.int64) < 0)


def shifted_left(number: Wide, bits: UintArray) -> Wide:
    """Return number 2**bits, modulo 2**128; `bits`: 0 to 127."""
    far = bits >= _WORD
    near = np.minimum(bits, _WORD)
    # numpy returns 0 for a shift by all bits.
    high = (number.high << near) | (number.low >> (_WORD - near))
    return Wide(np.where(far, number.low << (bits - far * _WORD), high), number.low << near)


def shifted_right_up(number: Wide, bits: UintArray) -> UintArray:
    """Return ceil(number / 2**bits) if this is below 2**64; `bits`: 0 to 64."""
    whole: UintArray = (number.high << (_WORD - bits)) | (number.low >> bits)
    whole += (number.low << (_WORD - bits)) != 0
    return whole


def quotient_up(top: Wide, bottom: Wide, estimate: IntArray) -> IntArray:
    """Return ceil(top / bottom), exactly.

    `top`: known modulo 2**128; `bottom`: 1 to 2**110; `estimate`: within 2**15 of the result, both
    from 0 to 2**63 - 1.
    """
    # q is the ceiling if and only if 0 <= q bottom - top < bottom.
    excess = minus(times(bottom, estimate.view(np.uint64)), top)
    steps = np.floor(_as_float(excess) / _as_float(bottom))
    result: IntArray = estimate - steps.astype(np.int64)
    # The division was rounded: the result is off by one at most.
    excess = minus(times(bottom, result.view(np.uint64)), top)
    result += is_negative(excess)
    result -= ~is_negative(minus(excess, bottom)) & ~is_negative(excess)
    return result


def _as_float(number: Wide) -> FloatArray:
    """Return a signed number as float64, to a relative 2**-51."""
    high = np.ldexp(number.high.view(np.int64).astype(np.float64), 64)
    # A small negative number is -2**64 and almost as much again: without this they cancel.
    small = (number.high == ~np.uint64(0)) & (number.low >= _ONE << np.uint64(63))
    return np.where(
        small, number.low.view(np.int64).astype(np.float64), high + number.low.astype(np.float64)
    )
