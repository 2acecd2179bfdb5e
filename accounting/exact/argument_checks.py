"""Checks shared by every public function: each returns its argument in one canonical form.

All raise `InvalidInput`, and none changes its argument. Arrays are returned as contiguous float64
or int64; an argument in this form already is returned without a copy.

Numbers are ints and floats of Python and NumPy of at most 64 bits, and arrays hold such numbers.
Other types are rejected instead of being converted: a conversion rounds to the nearest float64,
which may be in the spender's favour, and drops the mask of a masked array.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from accounting.exact.invalid_input import InvalidInput

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_ORDER: Final = 2.0**40
MAX_USERS: Final = 2**40

_LARGEST_WHOLE: Final = 2**53
_Text = TypeVar("_Text", bound=str)


def as_float_array(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as contiguous float64."""
    array = _plain_array(argument, values)
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "fiu" or size > 8:
        allowed = f"floats or integers of at most 64 bits, not {array.dtype}"
        raise InvalidInput(argument, values, f"{allowed}: convert to float")
    converted = np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    # An integer that float64 cannot hold is mostly in a unit that was not meant.
    if kind in "iu" and size == 8 and array.size:
        largest = max(abs(int(array.max())), abs(int(array.min())))
        if largest > _LARGEST_WHOLE:
            raise InvalidInput(argument, largest, "exact in float64: integers up to 2**53")
    return converted


def nonnegative_array(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return float64 values of any shape, each >= 0; infinity is allowed, NaN is not."""
    array = as_float_array(argument, values)
    if array.size and not array.min() >= 0.0:  # NaN propagates through min
        bad = array[~(array >= 0.0)].flat[0]
        raise InvalidInput(argument, float(bad), "at least 0 (and not NaN) throughout")
    return array


def finite_numbers(argument: str, values: npt.ArrayLike) -> list[float]:
    """Return every number of an array of any shape; infinity and NaN are rejected."""
    numbers = as_float_array(argument, values).reshape(-1).tolist()
    if not all(map(math.isfinite, numbers)):
        raise InvalidInput(argument, values, "finite throughout")
    return numbers


def norm_vector(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return one finite norm >= 0 per user, shape (n,)."""
    array = nonnegative_array(argument, values)
    if array.ndim != 1:
        raise InvalidInput(argument, array.shape, "one number per user, of shape (n,)")
    if array.size and array.max() == math.inf:
        raise InvalidInput(argument, math.inf, "finite throughout")
    return array


def positive_finite(argument: str, value: float) -> float:
    """Return `value` as a float, finite and > 0."""
    number = real_number(argument, value)
    if not (0.0 < number < math.inf):
        raise InvalidInput(argument, value, "finite and greater than 0")
    return number


def nonnegative_finite(argument: str, value: float) -> float:
    """Return `value` as a float, finite and >= 0."""
    number = real_number(argument, value)
    if not (0.0 <= number < math.inf):
        raise InvalidInput(argument, value, "finite and at least 0")
    return number


def probability(argument: str, value: float) -> float:
    """Return `value` as a float strictly between 0 and 1, for a delta."""
    number = real_number(argument, value)
    if not (0.0 < number < 1.0):
        raise InvalidInput(argument, value, "strictly between 0 and 1")
    return number


def sampling_probability(argument: str, value: float) -> float:
    """Return `value` as a float from 0 to 1."""
    rate = real_number(argument, value)
    if not (0.0 <= rate <= 1.0):
        raise InvalidInput(argument, value, "between 0 and 1")
    return rate


def real_number(argument: str, value: float) -> float:
    """Return `value` as a float. Infinity and NaN pass; a bool is no number."""
    if type(value) is float:
        return value
    array = as_float_array(argument, value)
    if array.ndim:
        raise InvalidInput(argument, value, "one number")
    return float(array)


def exact_number(argument: str, value: float) -> Fraction:
    """Return the value of a finite number as a fraction."""
    number = real_number(argument, value)
    if not math.isfinite(number):
        raise InvalidInput(argument, value, "finite")
    return Fraction(number)


def choice(argument: str, value: _Text, choices: Sequence[_Text]) -> _Text:
    """Return `value`, one of some texts."""
    if not isinstance(value, str) or value not in choices:  # an array equals a text in each entry
        raise InvalidInput(argument, value, f"one of {', '.join(choices)}")
    return value


def user_count(argument: str, value: int) -> int:
    """Return `value` as an int >= 0, a number of rows."""
    return whole_number(argument, value, 0, MAX_USERS)


def whole_number(argument: str, value: int, least: int, most: int) -> int:
    """Return `value`, of any integer type but bool, as an int from `least` to `most`."""
    integer = isinstance(value, (int, np.integer))
    if not integer or isinstance(value, (bool, np.timedelta64)) or not least <= value <= most:
        raise InvalidInput(argument, value, f"an integer, from {least} to {most}")
    return int(value)


def whole_array(argument: str, values: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
    """Return an array of whole numbers, of any shape and integer type."""
    array = _plain_array(argument, values)
    if array.size and array.dtype.kind not in "iu":
        raise InvalidInput(argument, array.dtype, "an array of whole numbers")
    return array if array.dtype.kind in "iu" else array.astype(np.int64)  # an empty list is float64


def renyi_orders(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return Rényi orders, shape (k,), k >= 1, above 1, up to `MAX_ORDER`, all different."""
    array = as_float_array(argument, values)
    if array.ndim != 1 or array.size == 0:
        raise InvalidInput(argument, array.shape, "one or more orders, of shape (k,)")
    if not bool(np.all((array > 1.0) & (array <= MAX_ORDER))):
        allowed = "greater than 1 and at most 2**40 throughout (an infinite order is not usable)"
        raise InvalidInput(argument, array.tolist(), allowed)
    if len(set(array.tolist())) != array.size:
        raise InvalidInput(argument, array.tolist(), "different from one another")
    return array


def unit_array(argument: str, values: npt.ArrayLike, limit: int) -> IntArray:
    """Return int64 units between 0 and `limit`, of any shape; other types are rejected."""
    array = _plain_array(argument, values)
    if array.dtype != np.int64:
        raise InvalidInput(argument, array.dtype, "an int64 array of units")
    # As unsigned, a negative number is above every limit.
    if array.size and int(array.view(np.uint64).max()) > limit:
        smallest, largest = int(array.min()), int(array.max())
        bad = smallest if smallest < 0 else largest
        raise InvalidInput(argument, bad, f"between 0 and {limit} units throughout")
    return cast(IntArray, array)


def _plain_array(argument: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return `values` as an array of any type."""
    if isinstance(values, np.ma.MaskedArray):
        allowed = "an array without a mask: leave masked values out with compressed()"
        raise InvalidInput(argument, values, allowed)
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        kind = type(values).__name__
        raise InvalidInput(argument, values, f"an array of numbers, not {kind}") from None
