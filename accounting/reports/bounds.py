"""The arguments and the result of every report: levels, counts of steps, bounds for each user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    known,
    simplified,
)
from accounting.exact.argument_checks import FloatArray, IntArray, whole_array
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.grid import MAX_COUNT

Mechanisms: TypeAlias = Mechanism | Sequence[Mechanism]


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


class LossParameters(NamedTuple):
    """The parameters that determine a step's loss; steps with equal parameters have equal losses.

    Attributes:
        kind: of the loss; "nothing" for sampling rate 0.
        size: c / s of Gaussian noise, or the epsilon of pure DP and of Laplace noise.
        sampling_rate: for "sampled", strictly between 0 and 1; otherwise 1.
    """

    kind: Literal["gaussian", "sampled", "laplace", "pure", "nothing"]
    size: float
    sampling_rate: float = 1.0


def step_of(mechanism: Mechanism, norm: float) -> LossParameters:
    """Return the loss parameters of a step for a user of this norm, > 0.

    Raises:
        InvalidInput: for `PoissonRecords`, of which only the Rényi divergence is known.
    """
    match simplified(mechanism):
        case Gaussian(noise_stddev):
            return LossParameters("gaussian", norm / noise_stddev)
        case PoissonGaussian(noise_stddev, 0.0):
            return LossParameters("nothing", norm / noise_stddev)
        case PoissonGaussian(noise_stddev, sampling_rate):
            return LossParameters("sampled", norm / noise_stddev, sampling_rate)
        case PoissonRecords():
            allowed = 'another one than PoissonRecords, or the method "renyi"'
            raise InvalidInput("mechanism", mechanism, allowed)
        case Laplace(scale):
            return LossParameters("laplace", norm / scale)
        case PureDP():
            return LossParameters("pure", norm)


def loss_parameters(mechanisms: Mechanisms, norms: FloatArray) -> list[LossParameters]:
    """Return `step_of` for each level; `norms`: shape (levels,), > 0."""
    each = per_level(mechanisms, norms.size)
    return [step_of(*pair) for pair in zip(each, norms.tolist(), strict=True)]


def per_level(mechanisms: Mechanisms, levels: int) -> list[Mechanism]:
    """Return the mechanism of each level, from one mechanism or one per level."""
    each = list(mechanisms) if isinstance(mechanisms, Sequence) else [mechanisms] * levels
    if len(each) != levels:
        allowed = f"one mechanism, or one for each of the {levels} norms"
        raise InvalidInput("mechanisms", len(each), allowed)
    return [known(mechanism) for mechanism in each]


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
