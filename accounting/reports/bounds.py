"""The result of a report for each user: (lower, estimate, upper)."""

from __future__ import annotations

from typing import NamedTuple

from accounting.exact.validation import FloatArray


class Bounds(NamedTuple):
    """An interval for each user, shape (n,) each; lower <= exact <= upper, and the estimate inside.

    `lower` and `upper` hold in floating point: they include truncation, quadrature and rounding
    errors.
    `estimate` is the method's best guess and guarantees nothing.
    """

    lower: FloatArray
    estimate: FloatArray
    upper: FloatArray
