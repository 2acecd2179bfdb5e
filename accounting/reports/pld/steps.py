"""What one step at each level of a report loses: its mechanism and its norm."""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np

from accounting.costs.mechanisms import Gaussian, Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.exact.validation import BoolArray, FloatArray
from accounting.reports.histories import Mechanisms, per_level
from accounting.reports.pld.bounded_losses import LaplaceShift, RandomisedResponse
from accounting.reports.pld.losses import LARGEST_RATIO, SampledGaussian

Source: TypeAlias = SampledGaussian | LaplaceShift | RandomisedResponse
_SMALLEST: Final = 1e-150  # smaller sizes count as this


class Steps(NamedTuple):
    """Of each level: its losses, of shape (levels,).

    `unbounded`: whether the losses are only good as a lower bound; `free`: whether nothing is lost.
    """

    sources: tuple[Source, ...]
    unbounded: BoolArray
    free: BoolArray

    def mirrored(self) -> BoolArray:
        """Return which levels lose the same when a user is added as when one is removed."""
        return np.array([is_mirrored(source) for source in self.sources], dtype=np.bool_)


def is_mirrored(source: Source) -> bool:
    """Return whether the step loses the same in both directions."""
    return not isinstance(source, SampledGaussian) or source.sampling_rate == 1.0


def steps_of(mechanisms: Mechanisms, norms: FloatArray) -> Steps:
    """Return the steps of `norms`, shape (levels,), > 0."""
    each = per_level(mechanisms, norms.size)
    sizes = np.array([_size(*pair) for pair in zip(each, norms.tolist(), strict=True)])
    clipped = np.clip(sizes, _SMALLEST, LARGEST_RATIO)
    free = [isinstance(one, PoissonGaussian) and one.sampling_rate == 0.0 for one in each]
    return Steps(
        tuple(_source(one, size) for one, size in zip(each, clipped.tolist(), strict=True)),
        np.asarray(sizes > LARGEST_RATIO),
        np.array(free, dtype=np.bool_),
    )


def _size(mechanism: Mechanism, norm: float) -> float:
    match mechanism:
        case Gaussian(scale) | PoissonGaussian(scale, _) | Laplace(scale):
            with np.errstate(over="ignore", under="ignore"):
                return float(np.float64(norm) / scale)
        case PureDP():
            return norm


def _source(mechanism: Mechanism, size: float) -> Source:
    match mechanism:
        case Gaussian():
            return SampledGaussian(size, 1.0)
        case PoissonGaussian(_, rate):
            return SampledGaussian(size, rate if rate > 0.0 else 1.0)
        case Laplace():
            return LaplaceShift(size)
        case PureDP():
            return RandomisedResponse(size)
