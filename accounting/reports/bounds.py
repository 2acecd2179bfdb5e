"""The arguments and the result of every report: levels, counts of steps, bounds for each user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    simplified,
)
from accounting.exact.argument_checks import FloatArray, IntArray, whole_array
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.grid import MAX_COUNT


class Bounds(NamedTuple):
    """An interval for each user, shape (n,) each; lower <= exact <= upper, and the estimate inside.

    `lower` and `upper` hold in floating point: they include the errors of truncation, quadrature
    and rounding. `estimate` is the method's best guess and guarantees nothing.
    """

    lower: FloatArray
    estimate: FloatArray
    upper: FloatArray

    def at_most(self, upper: FloatArray) -> Bounds:
        """Return these bounds, with the smaller of two upper bounds, shape (n,)."""
        upper = np.minimum(self.upper, upper)
        lower = np.minimum(self.lower, upper)
        return Bounds(lower, np.clip(self.estimate, lower, upper), upper)


def step_sizes(
    mechanisms: Sequence[Mechanism], norms: FloatArray
) -> tuple[list[Mechanism], FloatArray]:
    """Return the simplified mechanism of each level, and the size of its loss, shape (levels,).

    The size is c / s of Gaussian noise, or the epsilon of pure DP and of Laplace noise.

    Raises:
        InvalidInput: for `PoissonRecords`, of which only the Rényi divergence is known.
    """
    each = [simplified(mechanism) for mechanism in mechanisms]
    scales = []
    for mechanism in each:
        match mechanism:
            case Gaussian(scale) | PoissonGaussian(scale, _) | Laplace(scale):
                scales.append(scale)
            case PoissonRecords():
                allowed = 'another one than PoissonRecords, or the method "renyi"'
                raise InvalidInput("mechanism", mechanism, allowed)
            case _:
                scales.append(1.0)
    with np.errstate(over="ignore", under="ignore"):
        return each, norms / np.array(scales)


def level_counts(counts: npt.ArrayLike, levels: int) -> IntArray:
    """Return `counts` as int64, shape (n, levels) or (levels,), each from 0 to `MAX_COUNT`."""
    allowed = f"one row per user, of shape (n, {levels}), or ({levels},) for one user"
    array = whole_array("counts", counts)
    if array.ndim not in (1, 2) or array.shape[-1] != levels:
        raise InvalidInput("counts", array.shape, allowed)
    if array.size:
        smallest, largest = int(array.min()), int(array.max())
        if smallest < 0 or largest > MAX_COUNT:
            bad = smallest if smallest < 0 else largest
            raise InvalidInput("counts", bad, f"between 0 and {MAX_COUNT} steps throughout")
    return array.astype(np.int64, copy=False)
