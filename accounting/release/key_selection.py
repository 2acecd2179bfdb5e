"""Key selection: publish which keys users have, for the cost of Gaussian noise and without a delta.

A key that only one user has must not be published, and one that many users have should be. A noisy
count with a threshold alone needs a delta, because a key appears with some probability if one user
has it, and never if no user has it (Korolova et al. 2009; Desfontaines, Voss, Gipson and Mandayam
2022). Here any key of a finite universe may appear, as in Cormode, Procopiuc, Srivastava and Tran,
"Differentially private summaries for sparse data" (2012):

1. A key that users have is published if the sum of their contributions, plus Gaussian noise, is
   above the threshold.
2. A Poisson number of marks, each a uniform key of the universe, is drawn. A marked key that no
   user has is published, too. So each of these keys appears independently, with one probability.
3. Each published key gets a value: the sum of its users' values, or 0, plus fresh Gaussian noise.

The threshold is such that noise alone is above it with at most the probability of a mark. A user
with a contribution a and a value v to each of some keys then loses no more than by adding a vector
of the norm sqrt(sum of a^2 + v^2) to a Gaussian sum, in every measure (proof in
`docs/research/theorems.tex`). The step is charged for that norm. The price of having no delta
is a larger threshold: it grows with the square root of the logarithm of the size of the universe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

import scipy

from accounting.exact.argument_checks import positive_finite, whole_number
from accounting.exact.invalid_input import InvalidInput
from accounting.release.exact_noise import ExactNoise

MARKS: Final = Fraction(1, 1024)
"""The mean number of marks in a step: of keys that are published although no user has them."""
_MARGIN: Final = 2.0**-30
"""The threshold is larger by this factor than the quantile, which covers every rounding."""
_LEAST: Final = 2.0**-20
"""The smallest contribution, in standard deviations of the noise: twice the margin at least."""
_LEAST_UNITS: Final = 2**36
"""The least noise in units, so that the margin covers the rounding to units."""
_LARGEST_UNIVERSE: Final = (256**65 - 256) // 255
"""The number of strings of 1 to 64 bytes."""


class KeySelection:
    """Selects keys of a universe by the contributions of their users.

    A user either contributes `contribution` to a key or nothing. Neighbouring datasets differ by
    adding or removing one user.

    Args:
        universe: the number of possible keys, at least 2.
        contribution: what each user adds to each of the user's keys, > 0.
        noise_stddev: standard deviation of the noise in each sum of contributions, > 0.

    Attributes:
        threshold: keys with a noisy sum above it are published; in the unit of contributions.

    Raises:
        InvalidInput: for other arguments, or a contribution below 2**-20 of the noise.
    """

    def __init__(self, universe: int, contribution: float, noise_stddev: float) -> None:
        self.universe = whole_number("universe", universe, 2, _LARGEST_UNIVERSE)
        self.contribution = positive_finite("contribution", contribution)
        self.noise_stddev = positive_finite("noise_stddev", noise_stddev)
        if self.contribution < _LEAST * self.noise_stddev:
            raise InvalidInput("contribution", contribution, "at least 2**-20 of noise_stddev")
        # A key is marked with probability 1 - exp(-rate), which is at least rate - rate^2 / 2.
        rate = math.log(MARKS) - math.log(self.universe)
        self._log_marked = rate + math.log1p(-math.exp(rate) / 2.0)
        quantile = -float(scipy.special.ndtri_exp(self._log_marked))
        self.threshold = quantile * (1.0 + _MARGIN) * self.noise_stddev

    def selected(self, sums: Mapping[int, int], exponent: int, noise: ExactNoise) -> list[int]:
        """Return the published keys, sorted.

        Args:
            sums: by the number of each key that users have, the sum of their contributions in units
                of 2**exponent. A contribution is rounded towards zero, and is at least 2**-20 of
                the noise.
            exponent: the unit's; the noise is at least 2**36 units.
            noise: draws the noise.

        Raises:
            InvalidInput: the unit is too coarse; nothing was drawn.
        """
        unit = Fraction(2) ** exponent
        stddev = Fraction(self.noise_stddev) / unit
        if stddev < _LEAST_UNITS:
            raise InvalidInput(
                "exponent", exponent, "such that noise_stddev is 2**36 units or more"
            )
        limit = math.ceil(Fraction(self.threshold) / unit)
        # Step 1.
        found = {key for key in sorted(sums) if sums[key] + noise.rounded_normal(stddev) > limit}
        # Step 2.
        marked = {noise.below(self.universe) for _ in range(noise.poisson(MARKS))}
        return sorted(found | (marked - sums.keys()))

    def chance(self, users: int) -> float:
        """Return the probability that a key with so many users is published, about."""
        if users == 0:
            return math.exp(self._log_marked)
        shift = users * self.contribution - self.threshold
        return math.exp(float(scipy.special.log_ndtr(shift / self.noise_stddev)))
