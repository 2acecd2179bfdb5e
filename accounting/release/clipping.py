"""Clipping to granted norms: a clipped contribution is never longer than the charged norm.

A filter charges each user for a norm. The charge is right only if the exact norm of the summed
contribution is at most this norm, in spite of floating point. So norms are rounded up, factors
down, and numbers too small for proportional rounding become 0. A step of a trainer or a query,
whose neighbouring datasets differ by one user:

    norms = row_norms(rows)                             # before the charge
    decision = run.charge(users, norms, ...)
    total = clip_rows(rows, decision.granted).sum(axis=0)
    total += noise                                      # as charged, drawn once

A user who is not admitted is granted 0 and contributes 0. Sums are computed in float64. To sum in
float32, charge the norms of the float32 rows and clip to `round_to(granted, np.float32, "down")`
with a margin of your own for the rounding of that type.

If rows are never materialised, such as the gradients x r^T of a linear layer, `norm_products`
bounds their norms, and `clip_factors` returns the number by which to multiply one factor of each.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import (
    FloatArray,
    as_float_array,
    choice,
    nonnegative_array,
    norm_vector,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, UP, Toward, moved

_ULP: Final = 2.0**-52
_IN_PROPORTION: Final = 2.0**-1021
"""Numbers above this, or one power of two below, are rounded in proportion to their size."""


def row_norms(rows: npt.ArrayLike) -> FloatArray:
    """Return L2 norms (n,) of numbers (n,), exactly, or of vectors (n, d), rounded up.

    At most a relative (d + 6) 2**-52 above the exact norm, or twice the smallest number.
    """
    array = _checked_rows(rows)
    if array.ndim == 1:
        return np.asarray(np.abs(array))
    # Scaled by the largest entry, squares do not overflow, and significant ones do not underflow.
    largest = np.abs(array).max(axis=1, initial=0.0)
    scaled = array / np.where(largest > 0.0, largest, 1.0)[:, np.newaxis]
    root = np.sqrt(np.square(scaled).sum(axis=1))
    # d entries, d squares, d - 1 sums and a root: a relative (d / 2 + 4) 2**-53 at most.
    with np.errstate(over="ignore"):
        norms = _above(largest * (root * (1.0 + (array.shape[1] + 4) * _ULP)))
    return _finite("rows", norms)


def norm_products(a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
    """Return a b, rounded up, (n,): the norms of outer products of vectors with norms a and b."""
    left, right = norm_vector("a", a), norm_vector("b", b)
    if left.shape != right.shape:
        raise InvalidInput("b", right.shape, f"of the shape of a, {left.shape}")
    with np.errstate(over="ignore", under="ignore"):
        product = left * right
    return _finite("a, b", np.where((left > 0.0) & (right > 0.0), _above(product, True), 0.0))


def clip_factors(norms: npt.ArrayLike, granted: npt.ArrayLike) -> FloatArray:
    """Return the factor for each contribution, (n,): 1 if its norm is granted, otherwise less.

    A contribution whose exact norm is at most `norms`, multiplied entry by entry by its factor and
    rounded to float64, has an exact norm of at most `granted`: if no entry of the product is below
    2**-1021, or such entries are set to 0 (as in `clip_rows`).

    Args:
        norms: shape (n,), finite.
        granted: shape (n,), >= 0, infinity included.
    """
    lengths = norm_vector("norms", norms)
    limits = nonnegative_array("granted", granted)
    if limits.shape != lengths.shape:
        raise InvalidInput("granted", limits.shape, f"of the shape of norms, {lengths.shape}")
    # Three roundings, each up by a relative 2**-53 at most: of the quotient, this product, and the
    # entries.
    with np.errstate(all="ignore"):  # contributions that are granted may have a norm of 0
        shorter = limits / lengths * (1.0 - 4.0 * _ULP)
    shorter = np.where(shorter < _IN_PROPORTION, 0.0, shorter)
    return np.where(lengths > limits, shorter, 1.0)


def clip_rows(rows: npt.ArrayLike, granted: npt.ArrayLike) -> FloatArray:
    """Return rows (n,) or (n, d), each scaled down to a norm of at most the granted one, (n,).

    The exact norm of each returned row is at most `granted`. Rows whose norm, as rounded up by
    `row_norms`, is granted are unchanged.

    Args:
        rows: finite contributions.
        granted: shape (n,), >= 0, infinity included.
    """
    array = _checked_rows(rows)
    factors = clip_factors(row_norms(array), granted)
    clipped = np.flatnonzero(factors < 1.0)
    by = factors[clipped]
    with np.errstate(under="ignore"):
        scaled = array[clipped] * (by if array.ndim == 1 else by[:, np.newaxis])
    result = array.copy()
    result[clipped] = np.where(np.abs(scaled) < _IN_PROPORTION, 0.0, scaled)
    return result


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
    """
    choice("toward", toward, (UP, DOWN))
    exact = as_float_array("values", values)
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


def _checked_rows(rows: npt.ArrayLike) -> FloatArray:
    array = as_float_array("rows", rows)
    if array.ndim not in (1, 2):
        raise InvalidInput("rows", array.shape, "numbers (n,) or vectors (n, d)")
    return _finite("rows", array)


def _finite(argument: str, values: FloatArray) -> FloatArray:
    if not bool(np.isfinite(values).all()):
        bad = values[~np.isfinite(values)].flat[0]
        raise InvalidInput(argument, float(bad), "finite throughout, norms included")
    return values


def _above(values: FloatArray, zeros_too: bool = False) -> FloatArray:
    """Return the next larger floats; for the smallest numbers a relative margin has no effect."""
    return np.where((values > 0.0) | zeros_too, np.nextafter(values, np.inf), 0.0)
