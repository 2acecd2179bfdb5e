"""Directed rounding: the float64 next to a number, on the requested side.

Python and numpy convert to the nearest float64. If an exact comparison shows that it is on the
wrong side of the number, its neighbour is taken. So "up" is the smallest float64 at or above the
number, and "down" the largest at or below it.

Costs round up and budgets round down.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Toward: TypeAlias = Literal["up", "down"]
UP: Final = "up"
DOWN: Final = "down"

_Float = TypeVar("_Float", bound=np.floating[Any])
_ENDS: Final = {UP: math.inf, DOWN: -math.inf}


def float_toward(number: int | Fraction, toward: Toward) -> float:
    """Return the float64 next to `number`, up or down; beyond the range, infinity or largest."""
    try:
        nearest = float(number)
    except OverflowError:
        nearest = math.inf if number > 0 else -math.inf
    # Python compares an integer or a fraction with a float exactly.
    wrong = nearest < number if toward == UP else nearest > number
    return math.nextafter(nearest, _ENDS[toward]) if wrong else nearest


def floats_toward(whole: npt.NDArray[np.int64], toward: Toward) -> npt.NDArray[np.float64]:
    """Return whole numbers as float64, up or down; |whole| <= 2**62, any shape."""
    nearest = whole.astype(np.float64)
    back = nearest.astype(np.int64)
    return moved(nearest, back < whole if toward == UP else back > whole, toward)


def moved(
    nearest: npt.NDArray[_Float], wrong: npt.NDArray[np.bool_], toward: Toward
) -> npt.NDArray[_Float]:
    """Return `nearest`, replaced by its neighbour up or down where `wrong`; same shapes."""
    end = nearest.dtype.type(_ENDS[toward])
    return np.where(wrong, np.nextafter(nearest, end), nearest)


def root_toward(square: Fraction, toward: Toward) -> float:
    """Return the float64 next to the square root of `square`, up or down; `square` > 0."""
    # A whole number of 70 bits and more, so no float64 lies between it and its neighbours.
    exponent = (square.numerator.bit_length() - square.denominator.bit_length() - 140) // 2
    scaled = square / Fraction(4) ** exponent
    root = math.isqrt(scaled.numerator // scaled.denominator)
    if toward == UP and root * root < scaled:
        root += 1
    return float_toward(Fraction(root) * Fraction(2) ** exponent, toward)
