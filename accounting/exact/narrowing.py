"""Norms and clip norms in the narrower floating-point types of trainers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, UP, Toward, moved
from accounting.exact.validation import as_float_array


def round_to(
    values: npt.ArrayLike, kind: npt.DTypeLike, toward: Toward
) -> npt.NDArray[np.floating[Any]]:
    """Return `values` as float16, float32 or float64, each rounded to the requested side.

    For trainers that compute in a narrower type than the accounting. A norm that was clipped to
    0.1 in float32 is 0.1 rounded to float32, which is above 0.1. The clip norm that bounds such
    norms, to pass to a norm grid or to a check of norms, is

        clip = float(round_to(0.1, np.float32, "up"))

    A granted norm must not grow when it is converted to float32: clip to

        limits = round_to(granted, np.float32, "down")

    Args:
        values: real numbers of any shape.
        kind: the type.
        toward: "up" or "down".

    Raises:
        InvalidInput: for NaN, another type or side.
    """
    if toward not in (UP, DOWN):
        raise InvalidInput("toward", toward, "up or down")
    exact = as_float_array("values", values, toward)
    if np.isnan(exact).any():
        raise InvalidInput("values", math.nan, "numbers throughout")
    try:
        narrow = np.dtype(kind)
    except TypeError:
        raise InvalidInput("kind", kind, "float16, float32 or float64") from None
    if narrow.kind != "f" or narrow.itemsize > 8:
        raise InvalidInput("kind", kind, "float16, float32 or float64")
    with np.errstate(over="ignore", under="ignore"):
        nearest: npt.NDArray[np.floating[Any]] = exact.astype(narrow)
        wrong = nearest < exact if toward == UP else nearest > exact
        return moved(nearest, wrong, toward)
