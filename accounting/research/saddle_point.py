"""The first-order approximations of the saddle-point accountant (Asoodeh et al. 2022, slides).

Neither is a bound. `SaddlePointReport` has certified intervals; its bounds follow from the error of
delta_2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from accounting.costs.mechanisms import DIRECTIONS, Direction, Mechanism
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import nonnegative_finite, whole_number
from accounting.reports.histories import step_of
from accounting.reports.saddlepoint.saddlepoint_report import tilted_loss
from accounting.reports.saddlepoint.tilted_losses import TiltedLoss
from accounting.reports.saddlepoint.tilted_sums import log_delta_2

_SMALLEST_TILT = 1e-9


class EqualSteps(NamedTuple):
    """A number of equal steps: `norm` > 0 in the units of `mechanism`, `times` >= 1."""

    mechanism: Mechanism
    norm: float
    times: int


class SaddlePointDelta(NamedTuple):
    """Approximations of delta, of the larger direction. Neither is a bound."""

    delta_1: float
    delta_2: float


def saddle_point_delta(history: Sequence[EqualSteps], epsilon: float) -> SaddlePointDelta:
    """Return delta_1 and delta_2 of a history at `epsilon` >= 0, add/remove one user.

    With K the sum of the cumulant functions, F(z) = K(z) - z epsilon - log z - log(1 + z) and t the
    saddle point, K'(t) = epsilon + 1/t + 1/(t + 1):

        delta_1 = exp(F(t)) / sqrt(2 pi F''(t))
        delta_2 = exp(K(t) - epsilon t) E[e^{t (epsilon - Z)} (1 - e^{epsilon - Z})_+],
                  Z normal with mean K'(t) and variance K''(t).

    Raises:
        InvalidInput: the history is empty, or `epsilon` or a count is invalid.
    """
    if not history:
        raise InvalidInput("history", history, "at least one step")
    epsilon = nonnegative_finite("epsilon", epsilon)
    counts = [whole_number("times", steps.times, 1, 2**46) for steps in history]
    found = SaddlePointDelta(0.0, 0.0)
    for direction in DIRECTIONS:
        losses = [_loss_of(steps, direction) for steps in history]
        largest = sum(count * loss.largest for count, loss in zip(counts, losses, strict=True))
        if epsilon < largest:
            of_direction = _at_saddle(losses, counts, epsilon)
            found = SaddlePointDelta(*map(max, found, of_direction))
    return found


def _loss_of(steps: EqualSteps, direction: Direction) -> TiltedLoss:
    return tilted_loss(step_of(steps.mechanism, steps.norm), direction)


def _at_saddle(
    losses: Sequence[TiltedLoss], counts: Sequence[int], epsilon: float
) -> tuple[float, float]:
    def sums(t: float) -> tuple[float, float, float]:
        """Return K(t), K'(t) and K''(t)."""
        total = np.zeros(3)
        for count, loss in zip(counts, losses, strict=True):
            cumulants = loss.cumulants(np.array([t]))
            total += count * np.array([float(column[0]) for column in cumulants[:3]])
        return total[0], total[1], total[2]

    def excess(t: float) -> float:
        return sums(t)[1] - epsilon - 1.0 / t - 1.0 / (1.0 + t)

    high = min(loss.tilts[1] for loss in losses)
    t = high if excess(high) < 0.0 else brentq(excess, _SMALLEST_TILT, high, rtol=1e-12)
    cumulant, mean, variance = sums(t)
    curvature = variance + 1.0 / t**2 + 1.0 / (1.0 + t) ** 2
    log_1 = cumulant - t * epsilon - math.log(t) - math.log1p(t)
    log_1 -= 0.5 * math.log(2.0 * math.pi * curvature)
    arguments = (np.array([x]) for x in (t, cumulant, mean, variance, epsilon))
    return math.exp(log_1), math.exp(float(log_delta_2(*arguments)[0]))
