"""Publish statistics of the users' epsilons: private releases, each with a charge of its own.

    python private_statistics.py      # with this package alone

A user's epsilon depends on that user's data, so only that user may see it. Statistics may describe
the population (Yu et al., sec. 3.4 and Table 2; Feldman and Zrnic, sec. 5). They are releases like
any other: every user pays for them, whatever the user's epsilon is.

    release_mean         the mean and the number of users, from two noisy sums
    release_quantiles    any number of quantiles, from one noisy cumulative histogram
    ContinualCounter     a running count after every step, such as that of exhausted users
    SparseVector         which of many counts are above a threshold

Neighbours differ by adding or removing one user. A user's value depends on that user's data and on
earlier releases, and not on other users' data in any other way. The charge comes first: the first
three cost each user at most `rho` in zCDP, and the last one `epsilon` in pure DP. Values are
rounded to a grid and the noise is sampled exactly, so floating point does not weaken the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from operator import mul
from typing import NamedTuple

import numpy as np
from scipy.optimize import isotonic_regression

from accounting import (
    Gaussian,
    NormGrid,
    PoissonGaussian,
    PureDP,
    ReportAccountant,
    ZcdpFilter,
    noise_for_norm_budget,
    zcdp_budget,
)
from accounting.exact.argument_checks import (
    as_float_array,
    norm_vector,
    positive_finite,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import UP, float_toward, root_toward
from accounting.release import ExactNoise
from accounting.release.running_sums import ROOT_BITS, root_of_running_sums

USERS, STEPS, DELTA = 10_000, 300, 1e-5
UPPER = 2.0  # the epsilon of a user at the clip norm in every step is below it: public
QUANTILES = [0.1, 0.5, 0.9]


class Mean(NamedTuple):
    """A private mean; all fields may be published.

    Attributes:
        estimate: between 0 and the upper bound; NaN if the noise exceeds the number of users.
        standard_error: standard deviation of the noise in `estimate`, to first order, computed
            from the released numbers; infinite with NaN. It does not include clipping.
        count: the private number of users; may be negative.
    """

    estimate: float
    standard_error: float
    count: float


def release_mean(values: Sequence[float], upper: float, rho: float, noise: ExactNoise) -> Mean:
    """Release the mean of values >= 0, shape (n,), and the number of users.

    Each user adds the pair (v, upper - v), of norm at most `upper`. The two sums a and b get
    independent Gaussian noise s; the mean is upper a / (a + b), and the number of users is
    (a + b) / upper. The standard error is at most s / n, as if n were public.

    Args:
        values: those above `upper` count as `upper`, which biases the mean down.
        upper: > 0; it must not depend on the values.
        rho: the zCDP cost of a user at 0 or `upper`, in nats: of `Gaussian(s)` at the norm `upper`.
        noise: draws the noise.
    """
    bound = positive_finite("upper", upper)
    vector = norm_vector("values", np.minimum(as_float_array("values", values), bound))
    unit = 2.0 ** (math.frexp(bound)[1] - 31)
    whole = math.floor(bound / unit)  # from 2**30 to 2**31
    units = [round(min(value / unit, whole)) for value in vector.tolist()]
    stddev = noise_for_norm_budget(bound * bound, rho)
    scaled = Fraction(stddev) / Fraction(unit)
    a = sum(units) + noise.rounded_normal(scaled)
    b = len(units) * whole - sum(units) + noise.rounded_normal(scaled)
    count = (a + b) / whole
    if a + b <= 0:
        return Mean(math.nan, math.inf, count)
    part = min(max(a / (a + b), 0.0), 1.0)
    return Mean(bound * part, stddev * math.hypot(a, b) / (a + b) / count, count)


def release_quantiles(
    values: Sequence[float],
    quantiles: Sequence[float],
    upper: float,
    rho: float,
    noise: ExactNoise,
    levels: int = 1024,
) -> np.ndarray:
    """Release any number of quantiles of values >= 0, shape (n,), for one charge; shape (k,).

    The number of users at or below each of `levels` evenly spaced values is a running count along
    the values, in which each user is counted once: a `ContinualCounter`. The counts are made
    monotone and read off at each fraction of the last one, which is the private number of users;
    between levels by linear interpolation. So an estimate can be off by upper / levels even without
    noise. All are NaN if the noise exceeds the number of users.

    Args:
        values: those above `upper` count as `upper`.
        quantiles: fractions strictly between 0 and 1, shape (k,).
        upper: > 0; it must not depend on the values.
        rho: the zCDP cost of a user in the lowest level, in nats; it grows with log(levels).
        noise: draws the noise.
        levels: at least 2.
    """
    bound, fractions = positive_finite("upper", upper), norm_vector("quantiles", quantiles)
    vector = norm_vector("values", np.minimum(as_float_array("values", values), bound))
    whole_number("levels", levels, 2, 2**20)
    if not ((fractions > 0.0) & (fractions < 1.0)).all():
        raise InvalidInput("quantiles", quantiles, "strictly between 0 and 1 throughout")
    edges = np.linspace(0.0, bound, levels + 1)
    # Level j holds edges[j] < value <= edges[j + 1].
    histogram = np.bincount(np.searchsorted(edges[1:-1], vector), minlength=levels)
    counter = ContinualCounter(levels, rho, noise)
    counts = [counter.add(count) for count in histogram.tolist()]
    cumulative = np.maximum(isotonic_regression(counts).x, 0.0)
    if cumulative[-1] == 0.0:
        return np.full(fractions.size, math.nan)
    return np.interp(fractions * cumulative[-1], [0.0, *cumulative], edges)


class ContinualCounter:
    """A running count with Gaussian noise s, released after every step, for one charge.

    Each user adds at most 1 to the count of one step, which may depend on earlier answers. For
    example, a user is *exhausted* once and permanently. Do not count *halted* or *active* users: a
    halted user may be admitted again to a cheaper step, and would be counted in many steps.

    With A = R R the matrix of running sums, R x + z is released, and R (R x + z) is the answer.

    Args:
        horizon: the largest number of steps. Step t takes O(t) time.
        rho: the zCDP cost of a user in nats: of `Gaussian(s)` at the norm `norm`. Charge it before
            the first step.
        noise: draws the noise.

    Attributes:
        norm: the norm of the longest column of R, about sqrt(1.07 + log(horizon) / pi), rounded up.
        noise_stddev: s.

    The state contains the counts, and is as sensitive as they are. Do not copy it or restore it to
    an earlier state: two answers to one step are two releases.
    """

    def __init__(self, horizon: int, rho: float, noise: ExactNoise) -> None:
        self._column, self._noise = root_of_running_sums(horizon), noise
        squares = sum(entry * entry for entry in self._column)
        self.norm = root_toward(Fraction(squares, 4**ROOT_BITS), UP)
        self.noise_stddev = noise_for_norm_budget(self.norm**2, rho)
        self._counts: list[int] = []
        self._released: list[int] = []  # R x + z, in units of 2**-ROOT_BITS

    def add(self, count: int) -> float:
        """Take the next step and return the private count of all steps so far.

        The answer is unbiased, so it may be negative or fall.

        Raises:
            InvalidInput: the horizon is reached, or `count` is no integer >= 0; nothing was drawn.
        """
        whole_number("step", len(self._counts) + 1, 1, len(self._column))
        counts = [*self._counts, whole_number("count", count, 0, 2**53)]
        exact = sum(map(mul, self._column, reversed(counts)))
        drawn = self._noise.rounded_normal(Fraction(self.noise_stddev) * 2**ROOT_BITS)
        self._counts, self._released = counts, [*self._released, exact + drawn]
        return sum(map(mul, self._column, reversed(self._released))) / 4**ROOT_BITS

    def standard_error(self, step: int) -> float:
        """Return the standard deviation of the error of the answer of `step`, from 1 on."""
        squares = sum(entry * entry for entry in self._column[:step])
        return self.noise_stddev * math.sqrt(squares / 4**ROOT_BITS)


class SparseVector:
    """Compares counts with a threshold privately, until `positives` of them were above it.

    Algorithm 1 of Lyu, Su and Li ("Understanding the sparse vector technique for differential
    privacy", 2017). With sensitivity D, c positives and epsilon = epsilon_1 + epsilon_2, in the
    ratio 1 : (2 c)^(2/3):

    1. One noisy threshold for all queries: threshold + Laplace(D / epsilon_1).
    2. Each query gets its own noise, Laplace(2 c D / epsilon_2), or Laplace(c D / epsilon_2) if
       the queries are monotone, and is above if it is at least the noisy threshold.
    3. After c positives, all further queries are rejected.

    The charge does not depend on the number of queries, each of which may be chosen from earlier
    answers. Queries are integers and the noise is discrete: the proof (docs/research/release.md)
    shifts both by integers.

    Args:
        threshold: an integer, public. To learn when a count falls to t or below, ask for its
            negative with threshold -t.
        epsilon: the whole cost in nats. Charge it before the first query, as `PureDP`.
        noise: draws the noise.
        positives: c, at least 1.
        sensitivity: D, an integer >= 1: the most that one user changes any query.
        monotone: whether one more user changes all queries in the same direction, or not at all.
            True for the number of active users, or of users who left; not for their difference.

    Attributes:
        remaining: the number of positives left; it is public, because it follows from the answers.

    Do not copy the object or restore it to an earlier state: it counts what is paid for.
    """

    def __init__(
        self,
        threshold: int,
        epsilon: float,
        noise: ExactNoise,
        *,
        positives: int = 1,
        sensitivity: int = 1,
        monotone: bool = False,
    ) -> None:
        self._epsilon = Fraction(positive_finite("epsilon", epsilon))
        self.remaining = whole_number("positives", positives, 1, 2**53)
        self.sensitivity = whole_number("sensitivity", sensitivity, 1, 2**53)
        shift = positives if monotone else 2 * positives
        # As fractions, so that the two parts add up to exactly epsilon.
        first = Fraction(epsilon / (1.0 + shift ** (2.0 / 3.0)))
        self._scale = shift * self.sensitivity / (self._epsilon - first)
        self._noise = noise
        # Step 1.
        shifted = noise.laplace(self.sensitivity / first)
        self._noisy_threshold = whole_number("threshold", threshold, -(2**53), 2**53) + shifted

    def norms(self, contributions: Sequence[int]) -> list[float]:
        """Return the epsilon of each user, as a norm for `PureDP`, rounded up.

        Args:
            contributions: the most that each user changes any query, fixed before the first query.
        """
        each = [whole_number("contributions", most, 0, 2**53) for most in contributions]
        return [float_toward(self._epsilon * most / self.sensitivity, UP) for most in each]

    def above(self, value: int) -> bool:
        """Return whether the noisy value is at least the noisy threshold.

        Raises:
            InvalidInput: no positive is left, or `value` is no integer; nothing was drawn.
        """
        whole_number("remaining", self.remaining, 1, 2**53)
        number = whole_number("value", value, -(2**53), 2**53)
        # Step 2.
        above = number + self._noise.laplace(self._scale) >= self._noisy_threshold
        # Step 3.
        self.remaining -= above
        return above


def epsilons(random: np.random.Generator) -> np.ndarray:
    """Return what each user has lost in a training with norms of very different size."""
    grid = NormGrid(clip_norm=1.0, levels=20)
    typical = random.lognormal(-1.5, 0.6, (USERS, 1))
    norms = np.minimum(typical * random.lognormal(0.0, 0.3, (USERS, STEPS)), 1.0)
    report = ReportAccountant(PoissonGaussian(1.0, sampling_rate=0.01), grid)
    return np.asarray(report.epsilon(grid.counts(norms), DELTA, method="renyi"))


def main() -> None:
    """Charge each user for all releases before any is published."""
    lost, noise = epsilons(np.random.default_rng(0)), ExactNoise()
    rho = zcdp_budget(epsilon=0.3, delta=DELTA)  # of the statistics
    budget = ZcdpFilter(2.0 * rho)
    state = budget.initial_state(USERS)
    for part in (rho / 4, rho * 3 / 4, rho / 4):
        charged = Gaussian(noise_for_norm_budget(1.0, part))
        state, admitted = budget.admit_norms(state, charged, np.ones(USERS))
        assert admitted.all()
    mean = release_mean(lost, UPPER, rho / 4, noise)
    print(f"mean {mean.estimate:.3f} +- {mean.standard_error:.3f}, of {mean.count:.0f} users")
    for fraction, estimate in zip(
        QUANTILES, release_quantiles(lost, QUANTILES, UPPER, rho * 3 / 4, noise), strict=True
    ):
        print(f"{fraction:.0%} of the users have lost at most {estimate:.3f}")
    counter = ContinualCounter(4, rho / 4, noise)
    for limit, users in zip((0.5, 1.0, 1.5, 2.0), np.histogram(lost, 4, (0, 2))[0], strict=True):
        print(f"about {counter.add(int(users)):.0f} have lost at most {limit}")
    few = SparseVector(-100, 0.05, noise, monotone=True)
    state, admitted = budget.admit_norms(state, PureDP(), few.norms([1] * USERS))
    assert admitted.all()
    print("few users are below 1.0:", few.above(-int((lost < 1.0).sum())))


if __name__ == "__main__":
    main()
