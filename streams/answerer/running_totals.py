"""Running totals: the sum of a query's answers since the first one.

A sum of answers is post-processing: it costs no user anything.

With noise s in each of n answers, the noise of their sum is s sqrt(n). The sum over blocks that are
corrected is that of the answers and of what the blocks left out, which has no bias: its noise is
that of both. It does not depend on how the correction divides a block among its windows.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np

from streams.answerer.kinds import Floats
from streams.queries.continual_monitoring import quantile_of_noise


class RunningTotal(msgspec.Struct, frozen=True):
    """The sum of a query's answers, or of its corrected blocks. Everything in it was published.

    Attributes:
        start: the beginning of its first window, in ms since 1970.
        value: one number, or one for each label.
        variance: of the noise in each.
    """

    start: int
    value: list[float]
    variance: float

    def plus(self, value: Floats, variance: float) -> RunningTotal:
        """Return the total with the next numbers (d,), and the variance of their noise."""
        total = (np.array(self.value) + value).tolist()
        return RunningTotal(self.start, total, self.variance + variance)

    def interval(self, confidence: float) -> tuple[Floats, Floats]:
        """Return the ends of the interval of all numbers together."""
        value = np.array(self.value)
        width = math.sqrt(self.variance) * quantile_of_noise(confidence, len(value))
        return value - width, value + width
