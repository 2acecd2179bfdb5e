"""Checks shared by every public function: each returns its argument in one canonical form.

All raise `InvalidInput`, and none changes its argument. Arrays are returned as contiguous float64
or int64; an argument in this form already is returned without a copy.

A number may also be a `Fraction`, a `Decimal`, or of any numpy type. A number that float64 cannot
hold is rounded against the spender, or rejected:

    up       norms, epsilons and other costs of a step, divergences, values of rho and mu,
             sampling rates, norm budgets and clip norms that noise is calibrated to
    down     noise, budgets, the epsilon and the delta of a target
    rejected Rényi orders, because cost and budget must have the same order, and rounding it helps
             one and harms the other; whole numbers that float64 cannot hold, which are mostly in a
             unit that was not meant

Filter budgets and odometer tick sizes are not rounded here (`exact_number`): they become whole
units, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from numbers import Rational
from typing import Any, Final, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, UP, Toward, float_toward, moved

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Number: TypeAlias = float | Fraction | Decimal

MAX_ORDER: Final = 2.0**40
MAX_USERS: Final = 2**40

_REAL: Final = "a real number"
_LARGEST_WHOLE: Final = 2**53
_DECIMAL_EXPONENTS: Final = (
    400  # beyond, a Decimal is rounded first, to avoid integers of gigabytes
)


def as_float_array(
    argument: str, values: npt.ArrayLike, toward: Toward | None = None
) -> FloatArray:
    """Return `values` as contiguous float64, rounded `toward` (rejected if None and inexact)."""
    array = _plain_array(argument, values, "an array of real numbers")
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "O":
        numbers = [real_number(argument, value, toward) for value in array.reshape(-1).tolist()]
        return np.array(numbers, dtype=np.float64).reshape(array.shape)
    if kind not in "fiu":
        raise InvalidInput(argument, values, "an array of real numbers")
    if kind == "f" and size > 8:
        return _rounded_array(argument, array, toward)
    converted = np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    if kind in "iu" and size == 8 and array.size:
        largest = max(abs(int(array.max())), abs(int(array.min())))
        if largest > _LARGEST_WHOLE:
            raise InvalidInput(argument, largest, "exact in float64: integers up to 2**53")
    return converted


def nonnegative_array(
    argument: str, values: npt.ArrayLike, toward: Toward | None = UP
) -> FloatArray:
    """Return float64 values of any shape, each >= 0; infinity is allowed, NaN is not."""
    array = as_float_array(argument, values, toward)
    if array.size and not array.min() >= 0.0:  # NaN propagates through min
        bad = array[~(array >= 0.0)].flat[0]
        raise InvalidInput(argument, float(bad), "at least 0 (and not NaN) throughout")
    return array


def norm_vector(argument: str, values: npt.ArrayLike) -> FloatArray:
    """Return one finite norm >= 0 per user, rounded up, shape (n,)."""
    array = nonnegative_array(argument, values)
    if array.ndim != 1:
        raise InvalidInput(argument, array.shape, "one number per user, of shape (n,)")
    if array.size and array.max() == math.inf:
        raise InvalidInput(argument, math.inf, "finite throughout")
    return array


def positive_finite(argument: str, value: Number, toward: Toward | None = None) -> float:
    """Return `value` as a float, finite and > 0, rounded `toward` (None rejects inexact)."""
    number = real_number(argument, value, toward)
    if not (0.0 < number < math.inf):
        raise InvalidInput(argument, value, "finite and greater than 0")
    return number


def nonnegative_finite(argument: str, value: Number, toward: Toward | None = DOWN) -> float:
    """Return `value` as a float, finite and >= 0; rounded down by default, as for a target."""
    number = real_number(argument, value, toward)
    if not (0.0 <= number < math.inf):
        raise InvalidInput(argument, value, "finite and at least 0")
    return number


def probability(argument: str, value: Number) -> float:
    """Return `value` as a float strictly between 0 and 1, rounded down, for a delta."""
    number = real_number(argument, value, DOWN)
    if not (0.0 < number < 1.0):
        raise InvalidInput(argument, value, "strictly between 0 and 1")
    return number


def sampling_probability(argument: str, value: Number) -> float:
    """Return `value` as a float from 0 to 1, rounded up, because a higher rate costs more."""
    rate = real_number(argument, value, UP)
    if not (0.0 <= rate <= 1.0):
        raise InvalidInput(argument, value, "between 0 and 1")
    return rate


def real_number(argument: str, value: Number, toward: Toward | None = None) -> float:
    """Return `value` as the nearest float `toward` up or down; None rejects inexact values.

    Infinity and NaN pass. Booleans, text and types without an exact value are rejected.
    """
    if type(value) is float:
        return value
    number = _exact_scalar(argument, value)
    try:
        nearest = float_toward(number, UP if toward is None else toward)
    except ValueError:  # a signalling NaN
        raise InvalidInput(argument, value, _REAL) from None
    if toward is None or isinstance(number, int):
        held = Decimal(nearest) if isinstance(number, Decimal) else nearest
        if not math.isnan(nearest) and held != number:
            raise InvalidInput(argument, value, "exact in float64")
    return nearest


def exact_number(argument: str, value: Number) -> Fraction:
    """Return the value of a finite number as a fraction, without rounding.

    A `Decimal` outside the range of float64 is rounded down into it.
    """
    number = _exact_scalar(argument, value)
    finite = isinstance(number, Rational) or math.isfinite(real_number(argument, value, DOWN))
    if not finite:
        raise InvalidInput(argument, value, "finite")
    if isinstance(number, Decimal) and number and abs(number.adjusted()) > _DECIMAL_EXPONENTS:
        number = real_number(argument, value, DOWN)
    return Fraction(*number.as_integer_ratio())


def exact_numbers(argument: str, values: npt.ArrayLike) -> list[Fraction]:
    """Return every number of an array of any shape as a fraction, without rounding."""
    flat = _plain_array(argument, values, "an array of real numbers").reshape(-1)
    return [exact_number(argument, value) for value in flat.tolist()]


def user_count(argument: str, value: int) -> int:
    """Return `value` as an int >= 0, a number of rows."""
    return whole_number(argument, value, 0, MAX_USERS)


def whole_number(argument: str, value: int, least: int, most: int) -> int:
    """Return `value`, of any integer type but bool, as an int from `least` to `most`."""
    integer = isinstance(value, (int, np.integer))
    if not integer or isinstance(value, (bool, np.timedelta64)) or not least <= value <= most:
        raise InvalidInput(argument, value, f"an integer, from {least} to {most}")
    return int(value)


def whole_numbers(argument: str, values: Sequence[int], least: int, most: int) -> list[int]:
    """Return whole numbers as ints from `least` to `most`."""
    listed = isinstance(values, Sequence) and not isinstance(values, (str, bytes))
    if not listed and not (isinstance(values, np.ndarray) and values.ndim == 1):
        raise InvalidInput(argument, values, "a list of whole numbers")
    return [whole_number(argument, value, least, most) for value in values]


def whole_array(argument: str, values: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
    """Return an array of whole numbers, of any shape and integer type."""
    array = _plain_array(argument, values, "an array of whole numbers")
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
    array = _plain_array(argument, values, "an int64 array of units")
    if array.dtype != np.int64:
        raise InvalidInput(argument, array.dtype, "an int64 array of units")
    # As unsigned, a negative number is above every limit.
    if array.size and int(array.view(np.uint64).max()) > limit:
        smallest, largest = int(array.min()), int(array.max())
        bad = smallest if smallest < 0 else largest
        raise InvalidInput(argument, bad, f"between 0 and {limit} units throughout")
    return cast(IntArray, array)


def _plain_array(argument: str, values: npt.ArrayLike, allowed: str) -> npt.NDArray[Any]:
    """Return `values` as an array of any type, without masked entries."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise InvalidInput(argument, values, "without masked entries, whose values are unknown")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(argument, values, allowed) from None


def _exact_scalar(argument: str, value: object) -> Any:
    """Return `value` as a number that Python or numpy compares with a float without rounding."""
    if getattr(value, "ndim", None) == 0 and not isinstance(value, np.generic):
        value = cast(Any, value).item()
    if not isinstance(value, (bool, np.bool_, np.timedelta64)):
        if isinstance(value, (float, Decimal, np.longdouble)):
            return value
        if isinstance(value, np.floating):  # of fewer bits than float64
            return float(value)
        if isinstance(value, (int, np.integer)):
            return int(value)
        if isinstance(value, Rational):
            return Fraction(int(value.numerator), int(value.denominator))
    raise InvalidInput(argument, value, _REAL)


def _rounded_array(argument: str, array: npt.NDArray[Any], toward: Toward | None) -> FloatArray:
    """Return an array of a wider floating-point type as float64."""
    with np.errstate(over="ignore", under="ignore"):
        nearest: FloatArray = array.astype(np.float64)
        exact = (nearest == array) | np.isnan(array)
        if toward is None and not exact.all():
            raise InvalidInput(argument, array[~exact].flat[0], "exact in float64")
        wrong = nearest < array if toward == UP else nearest > array
        return moved(nearest, wrong, toward or DOWN)
