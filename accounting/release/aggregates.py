"""Mean and quantiles of individual epsilons, released with Gaussian noise.

A user's epsilon depends on that user's data, so only that user may see it. Private aggregates may
describe the population (Yu et al., sec. 3.4 and Table 2); they are queries and are charged. Yu et
al. release the mean with the Gaussian mechanism and each quantile by 20 noisy gradient steps. Here
the number of users is private too, and all quantiles come from one noisy cumulative histogram,
which needs no step size and costs the same for one quantile as for many.

Neighbours differ by adding or removing one user and that user's value. This assumes that a user's
value depends on that user's data and on earlier releases, and not on other users' data in any other
way. Epsilons from a history of norms along a released trajectory are such values.

Charge `cost` before anything is published. Values are rounded to a grid and the noise is sampled
exactly (`exact_noise`), so floating point does not weaken the guarantee. Without a generator,
random bits come from the operating system.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt
import scipy

from accounting.costs.costs import StatedCost
from accounting.costs.power_cost import gaussian_for
from accounting.exact.argument_checks import (
    FloatArray,
    nonnegative_array,
    positive_finite,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.release.counter import ContinualCounter
from accounting.release.exact_noise import ExactNoise
from accounting.release.factorisations import MAX_TOTAL

_VALUE_BITS: Final = 31  # an upper bound is from 2**30 to 2**31 units of its grid
_LARGEST_SUM: Final = 2**63
_LARGEST_UPPER: Final = 2.0**300
_MAX_LEVELS: Final = 2**14


@dataclass(frozen=True)
class MeanRelease:
    """A private mean; all fields may be published.

    Attributes:
        estimate: between 0 and `upper`; NaN if the noise exceeds the number of users.
        standard_error: standard deviation of the noise in `estimate`, to first order, computed
            from the released numbers; infinite with NaN. It does not include clipping.
        count: the private number of users; may be negative.
        cost: the largest cost to any user.
    """

    estimate: float
    standard_error: float
    count: float
    cost: StatedCost


@dataclass(frozen=True, eq=False)
class QuantilesRelease:
    """Private quantiles; all fields may be published.

    Attributes:
        quantiles: the requested fractions, shape (k,).
        estimates: one value for each, non-decreasing in the fraction; NaN if the noise exceeds the
            number of users. Within a level, values are assumed to be spread evenly, so an estimate
            can be off by upper / levels even without noise.
        count: the private number of users; may be negative.
        cost: the largest cost to any user.
    """

    quantiles: FloatArray
    estimates: FloatArray
    count: float
    cost: StatedCost


def release_mean(
    values: npt.ArrayLike,
    upper: float,
    *,
    generator: np.random.Generator | None = None,
    noise_stddev: float | None = None,
    rho: float | None = None,
) -> MeanRelease:
    """Release the mean of `values` and the number of users.

    Each user adds the pair (v, upper - v). The two sums a and b get independent Gaussian noise of
    `noise_stddev` each; the mean is upper * a / (a + b), and the number of users (a + b) / upper.
    A pair has norm at most `upper`, and the standard error, noise_stddev
    sqrt(mean^2 + (upper - mean)^2) / (n upper), is at most noise_stddev / n, as if n were public.

    Args:
        values: shape (n,), >= 0; values above `upper`, including infinity, count as `upper`,
            which biases the mean down. Rounded to 2**-30 `upper` or finer.
        upper: > 0, at most 2**300; it must not depend on the values.
        generator: a source of repeatable noise, for tests only: its seed reveals the noise. Without
            it, the operating system's source is used.
        noise_stddev: absolute, in the units of the values.
        rho: instead of `noise_stddev`, the zCDP cost of a user at 0 or `upper`, in nats.

    Raises:
        InvalidInput: for other arguments; then nothing has been drawn.
    """
    bound = _checked_upper(upper)
    # Values are whole multiples of a power of two.
    exponent = math.frexp(bound)[1] - _VALUE_BITS
    upper_units = math.floor(math.ldexp(bound, -exponent))
    norm = math.ldexp(upper_units, exponent)
    array = _checked_values(values)
    if array.size * upper_units >= _LARGEST_SUM:
        raise InvalidInput("values", array.shape, "fewer than 2**32 users")
    units = np.rint(np.ldexp(np.minimum(array, norm), -exponent)).astype(np.int64)
    mechanism = gaussian_for(norm, noise_stddev, rho)
    noise = ExactNoise(generator)
    scaled = Fraction(mechanism.noise_stddev) / Fraction(2) ** exponent
    exact_sum = int(units.sum())
    a = exact_sum + noise.rounded_normal(scaled)
    b = units.size * upper_units - exact_sum + noise.rounded_normal(scaled)
    estimate, error = math.nan, math.inf
    if a + b > 0:
        estimate = norm * float(min(max(Fraction(a, a + b), Fraction(0)), Fraction(1)))
        slope = math.hypot(float(Fraction(a, a + b)), float(Fraction(b, a + b)))
        error = mechanism.noise_stddev * slope / float(Fraction(a + b, upper_units))
    count = float(Fraction(a + b, upper_units))
    return MeanRelease(estimate, error, count, StatedCost(mechanism, norm))


def release_quantiles(
    values: npt.ArrayLike,
    quantiles: npt.ArrayLike,
    upper: float,
    *,
    generator: np.random.Generator | None = None,
    noise_stddev: float | None = None,
    rho: float | None = None,
    levels: int = 1024,
) -> QuantilesRelease:
    """Release any number of quantiles of `values` for one charge.

    The number of users at or below each of `levels` evenly spaced values is a running count along
    the values, in which each user is counted once. A `ContinualCounter` releases it with the
    square-root factorisation, norm sqrt(sum of f_k^2, k < levels), 1.81 for 1,024 levels. The
    counts are made monotone (isotonic regression) and read off at each fraction of the last one,
    which is the private number of users; between levels by linear interpolation.

    Args:
        values: shape (n,), >= 0; values above `upper`, including infinity, count as `upper`.
        quantiles: fractions strictly between 0 and 1, shape (k,), k >= 1.
        upper: > 0, at most 2**300; it must not depend on the values.
        generator: a source of repeatable noise, for tests only: its seed reveals the noise. Without
            it, the operating system's source is used.
        noise_stddev: the counter's noise, in users.
        rho: instead of `noise_stddev`, the zCDP cost of a user in the lowest level, in nats.
        levels: their number, from 2 to 2**14; the resolution is upper / levels, and the cost grows
            with the logarithm.

    Raises:
        InvalidInput: for other arguments; then nothing has been drawn.
    """
    levels = whole_number("levels", levels, 2, _MAX_LEVELS)
    edges = np.linspace(0.0, _checked_upper(upper), levels + 1)
    array = _checked_values(values)
    if array.size > MAX_TOTAL:
        raise InvalidInput("values", array.shape, "at most 2**36 users")
    # Level j holds edges[j] < value <= edges[j + 1].
    position = np.searchsorted(edges[1:-1], array, side="left")
    fractions = nonnegative_array("quantiles", quantiles)
    if fractions.ndim != 1 or fractions.size == 0:
        raise InvalidInput("quantiles", fractions.shape, "one or more fractions, of shape (k,)")
    if not bool(np.all((fractions > 0.0) & (fractions < 1.0))):
        raise InvalidInput("quantiles", fractions.tolist(), "strictly between 0 and 1 throughout")
    counter = ContinualCounter(levels, generator=generator, noise_stddev=noise_stddev, rho=rho)
    histogram = np.bincount(position, minlength=levels)
    counts = np.array([counter.add(int(number)) for number in histogram])
    cumulative = np.maximum(scipy.optimize.isotonic_regression(counts).x, 0.0)
    estimates = np.full(fractions.size, math.nan)
    if cumulative[-1] > 0.0:
        estimates = _read_off(fractions, cumulative, edges)
    return QuantilesRelease(fractions, estimates, float(counts[-1]), counter.cost())


def _read_off(fractions: FloatArray, cumulative: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the value below which each fraction of the last cumulative count lies."""
    wanted = fractions * cumulative[-1]
    reached = np.minimum(np.searchsorted(cumulative, wanted, side="left"), cumulative.size - 1)
    high = cumulative[reached]
    low = np.where(reached > 0, cumulative[reached - 1], 0.0)
    # The first count to reach the wanted one exceeds the count before it, unless both are 0.
    rise = np.where(high > low, high - low, 1.0)
    part = np.clip((wanted - low) / rise, 0.0, 1.0)
    return np.asarray(edges[reached] + part * (edges[reached + 1] - edges[reached]))


def _checked_values(values: npt.ArrayLike) -> FloatArray:
    array = nonnegative_array("values", values)
    if array.ndim != 1:
        raise InvalidInput("values", array.shape, "one number per user, of shape (n,)")
    return array


def _checked_upper(upper: float) -> float:
    bound = positive_finite("upper", upper)
    if not 1.0 / _LARGEST_UPPER <= bound <= _LARGEST_UPPER:
        raise InvalidInput("upper", upper, "from 2**-300 to 2**300")
    return bound
