"""The public shape of a step: the sampling rate and the noise that a count of steps refers to."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    SMALLEST_RATE,
    Gaussian,
    Mechanism,
    PoissonGaussian,
    known,
)
from accounting.exact.argument_checks import (
    IntArray,
    norm_vector,
    positive_finite,
    real_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, float_toward
from accounting.exact.units import MAX_COST_UNITS, UNIT_BITS

ONE_STEP: Final = 2**UNIT_BITS
"""The units of one step."""

# A client computes the noise as multiplier * clip norm, rounded to float64 or float32. The shape is
# certified for a multiplier that is smaller by this part, so that rounding never costs a step.
_SLACK: Final = 1 - Fraction(1, 2**20)


@dataclass(frozen=True)
class StepShape:
    """A Poisson-sampled Gaussian step at the full clip norm, which counts as one step.

    A step that reveals less counts as one, too: at a lower rate (draw the sample, and keep each
    user with probability q' / q) or with more noise (add some). A user with norm 0 does not take
    part and is not charged.

    Attributes:
        sampling_rate: q, in (0, 1]. At 1, every user is in every sum.
        noise_multiplier: the noise's standard deviation divided by the clip norm, finite, > 0.
    """

    sampling_rate: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        rate = real_number("sampling_rate", self.sampling_rate)
        if not 0.0 < rate <= 1.0:
            raise InvalidInput("sampling_rate", self.sampling_rate, "above 0 and at most 1")
        object.__setattr__(self, "sampling_rate", max(rate, SMALLEST_RATE))
        noise = positive_finite("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", noise)

    @property
    def certified(self) -> PoissonGaussian:
        """The step at norm 1 whose copies dominate all steps that count as one.

        Its noise is below `noise_multiplier` by a relative 2**-20.
        """
        noise = float_toward(Fraction(self.noise_multiplier) * _SLACK, DOWN)
        return PoissonGaussian(noise, self.sampling_rate)

    def covers(self, mechanism: Mechanism) -> bool:
        """Return whether a step of this mechanism counts as one step, for a small enough norm."""
        return self.largest_norm(mechanism) > 0.0

    def largest_norm(self, mechanism: Mechanism) -> float:
        """Return the largest norm that counts as one step; 0 if no norm above 0 does."""
        return _largest_norm(self, known(mechanism))

    def units(self, mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
        """Return the charge of each norm: nothing for norm 0, or one step.

        A norm for which the noise is too low saturates at `MAX_COST_UNITS`, which no budget admits.

        Args:
            mechanism: `Gaussian` or `PoissonGaussian`, at a rate of at most `sampling_rate`.
            norms: shape (n,), finite, >= 0.

        Raises:
            InvalidInput: for another mechanism, or a higher rate.
        """
        vector, largest = norm_vector("norms", norms), self.largest_norm(mechanism)
        if largest == 0.0:
            allowed = f"Gaussian noise on a sample of rate {self.sampling_rate} at most, for steps"
            raise InvalidInput("mechanism", mechanism, allowed)
        charge = np.where(vector > largest, MAX_COST_UNITS, ONE_STEP)
        charge[vector == 0.0] = 0
        return charge


@lru_cache(maxsize=256)  # every step asks for it
def _largest_norm(shape: StepShape, mechanism: Mechanism) -> float:
    match mechanism:
        case Gaussian(noise_stddev):
            rate = 1.0
        case PoissonGaussian(noise_stddev, rate):
            pass
        case _:
            return 0.0
    if rate > shape.sampling_rate:
        return 0.0
    return float_toward(Fraction(noise_stddev) / Fraction(shape.certified.noise_stddev), DOWN)
