"""What may be published of a query."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest


@dataclass(frozen=True, eq=False)
class Release:
    """What may be published of a query.

    Attributes:
        step: the step of the run; it depends on nothing but how many queries came before.
        value: the private sum, float64; shape () for numbers, (d,) for vectors.
        noise_stddev: standard deviation of the noise in each coordinate.
    """

    step: int
    value: NDArray[np.float64]
    noise_stddev: float

    def interval(
        self, confidence: float = 0.95, *, simultaneous: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Where the sum over the admitted lies, from the Gaussian noise alone: lower and upper.

        The noise of the coordinates is independent, so the intervals of all d coordinates hold
        together with this probability if each of them holds with its d-th root. What users who
        were halted or clipped would have added is not in it.

        Args:
            confidence: of all coordinates together; above 0 and below 1.
            simultaneous: False for intervals each of which has that probability by itself.

        Returns:
            Two arrays of the shape of ``value``.

        Raises:
            InvalidRequest: for another confidence.
        """
        if not 0.0 < confidence < 1.0:
            raise InvalidRequest(f"confidence is {confidence}; it must be above 0 and below 1")
        width = self.noise_stddev * quantile_of_noise(
            confidence, self.value.size if simultaneous else 1
        )
        return self.value - width, self.value + width


def quantile_of_noise(confidence: float, coordinates: int) -> float:
    """How many standard deviations hold the noise of all coordinates with this probability."""
    outside = -np.expm1(np.log(confidence) / max(coordinates, 1))  # of one coordinate
    return -NormalDist().inv_cdf(float(outside) / 2.0)
