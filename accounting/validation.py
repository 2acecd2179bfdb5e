"""Checks shared by every public function: each returns its argument in one canonical form.

All raise `InvalidInput` and none changes its argument. Arrays come back as contiguous float64 or
int64; an argument that has this form already is returned as it is, not copied.
"""

from __future__ import annotations

import math
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from accounting.errors import InvalidInput

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_ORDER: Final = 2.0**40


def as_float_array(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return `values` as contiguous float64; integers must be exactly representable."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InvalidInput(argument, values, "an array of real numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise InvalidInput(argument, array.dtype, "of a type that float64 holds exactly")
    converted = np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and array.size:
        largest = max(abs(int(array.max())), abs(int(array.min())))
        if largest > 2**53:
            raise InvalidInput(argument, largest, "exact in float64: integers up to 2**53")
    return converted


def nonnegative_array(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return float64 values of any shape, each >= 0; infinity is allowed, NaN is not."""
    array = as_float_array(argument, values)
    if array.size and not array.min() >= 0.0:  # NaN propagates through min
        bad = array[~(array >= 0.0)].flat[0]
        raise InvalidInput(argument, float(bad), "at least 0 (and not NaN) throughout")
    return array


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
    """Return `value` as a float strictly between 0 and 1."""
    number = real_number(argument, value)
    if not (0.0 < number < 1.0):
        raise InvalidInput(argument, value, "strictly between 0 and 1")
    return number


def real_number(argument: str, value: float) -> float:
    """Return `value` as a float without change of value; booleans and text are refused."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise InvalidInput(argument, value, "a real number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(argument, value, "a real number") from None
    if isinstance(value, int) and int(number) != value:
        raise InvalidInput(argument, value, "exact in float64")
    return number


def user_count(argument: str, value: int) -> int:
    """Return `value` as an int >= 0."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < 0:
        raise InvalidInput(argument, value, "an integer, at least 0")
    return int(value)


def renyi_orders(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return Renyi orders, shape (k,), k >= 1, above 1, up to `MAX_ORDER`, all different."""
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
    """Return int64 units between 0 and `limit`, of any shape; other types are refused."""
    array = np.asarray(values)
    if array.dtype != np.int64:
        raise InvalidInput(argument, array.dtype, "an int64 array of units")
    # Seen as unsigned, a negative number is above every limit.
    if array.size and int(array.view(np.uint64).max()) > limit:
        smallest, largest = int(array.min()), int(array.max())
        bad = smallest if smallest < 0 else largest
        raise InvalidInput(argument, bad, f"between 0 and {limit} units throughout")
    return cast(IntArray, array)
