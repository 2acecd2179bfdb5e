"""The public answer to a query."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from streams.sdk.errors import InvalidRequest


@dataclass(frozen=True, eq=False)
class Release:
    """The public answer to a query.

    Attributes:
        step: the step of the run; it depends only on the number of earlier queries.
        value: the private sum, float64; shape () for numbers, (d,) for vectors.
        noise_stddev: standard deviation of the noise in each coordinate.
    """

    step: int
    value: NDArray[np.float64]
    noise_stddev: float

    def interval(
        self, confidence: float = 0.95, *, simultaneous: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return lower and upper bounds of the sum over the admitted users.

        They follow from the Gaussian noise alone. The noise of the coordinates is independent, so
        the intervals of all d coordinates hold together with this probability if each holds with
        its d-th root. They do not cover the contributions of users who were halted or clipped.

        Args:
            confidence: of all coordinates together; above 0 and below 1.
            simultaneous: False for intervals that each have that probability by themselves.

        Returns:
            Two arrays of the shape of ``value``.

        Raises:
            InvalidRequest: the confidence is out of range.
        """
        if not 0.0 < confidence < 1.0:
            raise InvalidRequest(f"confidence is {confidence}; it must be above 0 and below 1")
        width = self.noise_stddev * quantile_of_noise(
            confidence, self.value.size if simultaneous else 1
        )
        return self.value - width, self.value + width


def quantile_of_noise(confidence: float, coordinates: int) -> float:
    """Return the number of standard deviations that holds all coordinates' noise with this
    probability.
    """
    outside = -np.expm1(np.log(confidence) / max(coordinates, 1))  # of one coordinate
    return -NormalDist().inv_cdf(float(outside) / 2.0)
