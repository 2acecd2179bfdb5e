"""Compute the noise for a given guarantee, and the guarantee of a given noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

from accounting.conversions.gdp import gdp_budget, gdp_to_delta, gdp_to_epsilon
from accounting.costs.mechanisms import SMALLEST_RATE, Mechanism, PoissonGaussian
from accounting.exact.argument_checks import (
    FloatArray,
    IntArray,
    nonnegative_finite,
    positive_finite,
    probability,
    real_number,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.accountant import ReportAccountant
from accounting.reports.grid import NormGrid
from accounting.reports.pld.losses import LARGEST_RATIO
from accounting.reports.pld.pld_report import PldReport

# Noise for sampled steps is clip_norm / LARGEST_RATIO times a power of 2**(1 / _FINENESS).
_FINENESS: Final = 2**13
_LARGEST_OCTAVES: Final = 60
_MAX_STEPS: Final = 10**9
_LARGEST_EPSILON: Final = 1e200
_ENOUGH: Final = 1e-30  # if epsilon or delta is at least this, `gdp_budget` is above 0


def noise_for_epsilon(
    epsilon: float,
    delta: float,
    steps: int,
    sampling_rate: float = 1.0,
    clip_norm: float = 1.0,
) -> float:
    """Return the least noise stddev at which the composition of all steps is (epsilon, delta)-DP.

    For `steps` Gaussian steps, each on a Poisson sample of rate `sampling_rate`, of a user whose
    norm is `clip_norm` in every step; neighbours add or remove one user. The standard deviation is
    absolute, in the units of the norm. `epsilon`: finite, >= 0; 0 < `delta` < 1; `steps`: from 1 to
    10**9; `sampling_rate`: in (0, 1]; `clip_norm`: finite, > 0.

    Rounded up. Without sampling, it is the noise that `gdp_budget` allows, exact except for
    rounding. With sampling, it is at most a relative 1e-4 above the least noise that the upper
    bound by loss distributions confirms, and at least clip_norm / 128. That bound is close for up
    to 10**7 steps; for 10**9 the noise is up to 6 % more than is needed. The number of steps is
    fixed; the result does not apply to a filter or an odometer.
    """
    target, tail = nonnegative_finite("epsilon", epsilon), probability("delta", delta)
    count = whole_number("steps", steps, 1, _MAX_STEPS)
    norm = positive_finite("clip_norm", clip_norm)
    rate = real_number("sampling_rate", sampling_rate)
    if not 0.0 < rate <= 1.0:
        raise InvalidInput("sampling_rate", sampling_rate, "greater than 0 and at most 1")
    rate = max(rate, SMALLEST_RATE)
    if rate == 1.0:
        return _gaussian_noise(target, tail, count, norm)
    counts = np.array([[count]], dtype=np.int64)

    def epsilon_at(multiplier: float) -> float:
        report = PldReport([PoissonGaussian(multiplier, rate)], np.ones(1))
        return float(report.epsilon(counts, tail).upper[0])

    least = _least(target, epsilon_at, _central_limit(gdp_budget(target, tail), rate, count))
    # Verify both conversions with the norm as given.
    for further in range(_FINENESS.bit_length()):
        noise = _multiplier(least + 2**further - 1) * norm * (1.0 + 2.0**-50)
        if not 0.0 < norm / LARGEST_RATIO < noise < math.inf:
            raise InvalidInput("clip_norm", clip_norm, "small or large enough for a finite noise")
        report = PldReport([PoissonGaussian(noise, rate)], np.array([norm]))
        # A smaller epsilon has a larger delta, and its products with tilts are finite.
        most = report.delta(counts, min(target, _LARGEST_EPSILON)).upper[0]
        known = report.epsilon(counts, tail).upper[0], most
        if known[0] <= target and known[1] <= tail:
            return noise
    raise InvalidInput("epsilon", epsilon, "an epsilon that the report can confirm")


def steps_for_epsilon(epsilon: float, delta: float, mechanism: PoissonGaussian, most: int) -> int:
    """Return the largest number of equal steps whose composition is certified (epsilon, delta)-DP.

    The steps are at norm 1. `most`: the largest result, >= 1.

    Returns:
        From 0 to `most`: `epsilon_of_steps` of the result is at most `epsilon`.
    """
    target = nonnegative_finite("epsilon", epsilon)

    def enough(steps: int) -> bool:
        return float(epsilon_of_steps(mechanism, np.array([steps]), delta)[0]) <= target

    low, high = 0, 1
    while high <= most and enough(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def epsilon_of_steps(mechanism: PoissonGaussian, steps: IntArray, delta: float) -> FloatArray:
    """Return the epsilon of several numbers of equal steps at norm 1; float64 of shape (n,).

    Args:
        mechanism: the mechanism of each step.
        steps: int64, shape (n,), 0 to 2**46.
        delta: strictly between 0 and 1.
    """
    return np.asarray(_unit_accountant(mechanism).epsilon(steps[:, np.newaxis], delta))


@lru_cache(maxsize=16)
def _unit_accountant(mechanism: Mechanism) -> ReportAccountant:
    """Return the accountant of steps at norm 1, which caches its tables."""
    return ReportAccountant(mechanism, NormGrid(1.0, 1))


def _central_limit(mu: float, rate: float, steps: int) -> float:
    """Return roughly the noise at which `steps` of norm 1 are mu-GDP (Bu et al. 2020)."""
    growth = (mu / rate) * (mu / rate) / steps
    noise = 1.0 / math.sqrt(math.log1p(growth)) if growth > 0.0 else math.inf
    return min(max(noise, 1.0 / LARGEST_RATIO), 2.0**_LARGEST_OCTAVES)


def _multiplier(point: int) -> float:
    """Return a noise for norm 1; the points tried are the same for every target."""
    return math.ldexp(2.0 ** (point % _FINENESS / _FINENESS), point // _FINENESS) / LARGEST_RATIO


def _least(target: float, epsilon_at: Callable[[float], float], start: float) -> int:
    """Return the least point whose epsilon is at most `target`.

    `epsilon_at`: the epsilon at a multiplier, falling; `start`: a multiplier near the result.
    """
    low, high = -1, _LARGEST_OCTAVES * _FINENESS + 1  # not enough, and enough
    above = below = math.nan  # log2 of epsilon over the target there, where it is known
    point, last, turn = round(math.log2(start * LARGEST_RATIO) * _FINENESS), high, 0
    while high - low > 1:
        point, turn = min(max(point, low + 1), high - 1), turn + 1
        epsilon = epsilon_at(_multiplier(point))
        usable = target > 0.0 and 0.0 < epsilon < math.inf
        # Not the log of the quotient, which is infinite for the smallest targets.
        excess = math.log2(epsilon) - math.log2(target) if usable else math.nan
        if epsilon <= target:
            high, below = point, excess
        else:
            low, above = point, excess
        if low >= 0 and high < last:
            share = above / (above - below) if above > below and turn % 4 else 0.5
            point = low + round((high - low) * share)
        else:
            # Epsilon falls at least about as fast as noise grows: the other end is just beyond.
            away = (1.0 + 0.25 * turn) * abs(excess) * _FINENESS + 1.0 if usable else 8.0**turn
            point += round(away if point == low else -away)
    if high == last:
        raise InvalidInput("epsilon", target, "large enough for a noise of 2**53 norms")
    return high


def _gaussian_noise(epsilon: float, delta: float, steps: int, clip_norm: float) -> float:
    """Return the noise at which Gaussian steps of this norm are (epsilon, delta)-DP."""
    norm = math.sqrt(steps) * clip_norm * (1.0 + 2.0**-50)
    budget = gdp_budget(epsilon, delta)
    if budget == 0.0:
        allowed = f"at least {_ENOUGH} at a delta of {delta}, or delta at least {_ENOUGH}"
        raise InvalidInput("epsilon", epsilon, allowed)
    noise = max(norm / budget, math.ulp(0.0))
    for _ in range(100):
        if noise == math.inf:
            allowed = "small or large enough for a finite noise"
            raise InvalidInput("clip_norm", clip_norm, allowed)
        mu = norm / noise * (1.0 + 2.0**-50)
        if gdp_to_epsilon(mu, delta) <= epsilon and gdp_to_delta(mu, epsilon) <= delta:
            return noise
        noise = max(noise * (1.0 + 2.0**-45), math.nextafter(noise, math.inf))
    raise InvalidInput("epsilon", epsilon, "large enough for a finite noise")
