"""A grid of norms: rounded up to it, a user's history becomes a histogram over its levels.

Yu et al., sec. 3.2, and Koskela et al., App. D.2. Rounding up makes every later result an upper
bound: a step of a larger norm dominates one of a smaller norm (Yu et al. round to the nearest
level, which may under-report).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.norm_levels import grid_norms
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_array,
    positive_finite,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput

MAX_LEVELS: Final = 2**16
# Steps of one user at one level: for any number of levels, a user's total fits in int64.
MAX_COUNT: Final = 2**46


@dataclass(frozen=True)
class NormGrid:
    """The norm levels clip_norm k / levels, k = 1 .. levels; norms are rounded up to a level.

    `clip_norm`: the largest norm a step may have, finite, > 0; `levels`: 1 to 65536. Level k,
    at index k - 1, is the smallest float64 >= clip_norm k / levels in exact arithmetic, and the
    last one is clip_norm itself. Rounding only compares float64 values, so a level is never below
    the norms that are rounded to it.

    Norms are finite, >= 0 and at most clip_norm; anything else raises `InvalidInput` and changes
    nothing. A zero norm has no level: a user who is left out of a step does not take it.
    """

    clip_norm: float
    levels: int = 100

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", positive_finite("clip_norm", self.clip_norm))
        object.__setattr__(self, "levels", whole_number("levels", self.levels, 1, MAX_LEVELS))
        _ = self.norms  # raises InvalidInput for a clip norm with equal levels

    @cached_property
    def norms(self) -> FloatArray:
        """The levels, shape (levels,), ascending, > 0, read-only."""
        norms = grid_norms(self.clip_norm, self.levels)[1:]
        norms.setflags(write=False)
        return norms

    def levels_of(self, norms: npt.ArrayLike) -> IntArray:
        """Return the index of the level of each norm, -1 for a zero norm; of the shape of `norms`.

        `norms[levels_of(x)]` is the smallest level >= x.
        """
        values = self._within(norms)
        indices = np.searchsorted(self.norms, values, side="left").astype(np.int64, copy=False)
        return np.where(values > 0.0, indices, -1)

    def counts(self, norms: npt.ArrayLike) -> IntArray:
        """Return each user's histogram: the steps at each level, int64, shape (n, levels).

        `norms`: shape (n, steps), one row per user; 0 where a user did not participate.
        """
        values = self._within(norms)
        if values.ndim != 2:
            raise InvalidInput("norms", values.shape, "one row of steps per user, (n, steps)")
        cells = np.searchsorted(self.norms, values, side="left")
        cells += np.arange(len(values))[:, np.newaxis] * self.levels
        histogram = np.bincount(cells[values > 0.0], minlength=len(values) * self.levels)
        return histogram.reshape(len(values), self.levels).astype(np.int64, copy=False)

    def _within(self, norms: npt.ArrayLike) -> FloatArray:
        values = nonnegative_array("norms", norms)
        if values.size and values.max() > self.clip_norm:
            allowed = f"at most the clip norm {self.clip_norm!r} throughout"
            raise InvalidInput("norms", float(values.max()), allowed)
        return values
