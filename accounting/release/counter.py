"""Continual counting: a running count, released after every step, for one charge.

For example, the number of users that a filter has *exhausted*: a user is exhausted once and
permanently, so each user adds 1 to the running count in one step, and the whole stream costs about
the logarithm of its length (Feldman and Zrnic, sec. 5, refer to this technique). Do not count
*halted* or *active* users: a halted user may be admitted again to a cheaper step, so one user may
change the count in many steps, each of which would have to be charged.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np

from accounting.costs.costs import StatedCost
from accounting.costs.power_cost import gaussian_for
from accounting.exact.argument_checks import whole_number
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import root_up
from accounting.release.exact_noise import ExactNoise
from accounting.release.factorisations import MAX_TOTAL, SquareRoot

_NOISE_BITS: Final = 24  # the grid is about this many bits finer than the noise


class ContinualCounter:
    """A running count with Gaussian noise, for up to `horizon` steps.

    Neighbours differ by adding or removing one user. Each user is counted in at most one step and
    adds at most `max_contribution` to its count. The step may depend on earlier releases, including
    the counter's answers. A user who is counted in k steps costs at most as much as a user with k
    times the norm. Charge `cost()` before the first step. The charge covers any number of steps up
    to the horizon.

    Args:
        horizon: the largest number of steps, from 1 to 2**22. Memory is O(horizon), and the time of
            step t is O(t).
        generator: a source of repeatable noise, for tests only: its seed reveals the noise. Without
            it, the operating system's source is used.
        noise_stddev: standard deviation of the noise z below, in the units of the counts.
        rho: instead of `noise_stddev`, the zCDP cost of a user with `max_contribution`, in nats.
        max_contribution: an integer, at least 1. The counter cannot see single contributions: the
            caller is responsible for this limit.

    With A = L R the matrix of running sums and L = R = A^(1/2) (`factorisations.SquareRoot`),
    R x + z is released, and L (R x + z) is the answer. A count in the first step costs the norm
    sqrt(sum of f_k^2, k < horizon), about sqrt(1.07 + log(horizon) / pi), and the standard error at
    step t is noise_stddev sqrt(sum of f_k^2, k < t).

    The noise is sampled exactly and R x is computed exactly (`exact_noise`), so the stated cost is
    that of a Gaussian mechanism in every measure, and floating point does not weaken it. The state
    contains the counts, and is as sensitive as they are. After the first answer, do not copy it or
    restore it to an earlier state: two answers to one step are two releases.
    """

    def __init__(
        self,
        horizon: int,
        *,
        generator: np.random.Generator | None = None,
        noise_stddev: float | None = None,
        rho: float | None = None,
        max_contribution: int = 1,
    ) -> None:
        contribution = whole_number("max_contribution", max_contribution, 1, MAX_TOTAL)
        self._noise = ExactNoise(generator)
        self._factors = SquareRoot(horizon)
        self.horizon = self._factors.horizon
        norm = root_up(contribution**2 * self._factors.squared_norm)
        mechanism = gaussian_for(norm, noise_stddev, rho)
        self._cost = StatedCost(mechanism, norm)
        self.noise_stddev = mechanism.noise_stddev
        # Noise and sums are whole multiples of 2**-grid_bits.
        finer = _NOISE_BITS - math.frexp(self.noise_stddev)[1]
        self._grid_bits = max(self._factors.grid_bits, finer)
        self._step = 0
        self._total = 0

    @property
    def step(self) -> int:
        """The number of steps answered."""
        return self._step

    def cost(self) -> StatedCost:
        """Return the cost of all steps to a user who adds `max_contribution` in the worst step."""
        return self._cost

    def add(self, count: int) -> float:
        """Take the next step and return the private count of all steps so far.

        The answer is unbiased, so it may be negative or fall.

        Args:
            count: an integer >= 0, the sum of the contributions in this step; the total stays
                below 2**36.

        Raises:
            InvalidInput: for other counts and after `horizon` steps; then nothing has been drawn or
                changed.
        """
        number = whole_number("count", count, 0, MAX_TOTAL - self._total)
        if self._step >= self.horizon:
            raise InvalidInput("step", self._step + 1, f"at most the horizon, {self.horizon}")
        step = self._step + 1
        exact = self._factors.encode(step, number) << (self._grid_bits - self._factors.grid_bits)
        scaled = Fraction(self.noise_stddev) * 2**self._grid_bits
        noisy = exact + self._noise.rounded_normal(scaled)
        self._step = step
        self._total += number
        value = float(Fraction(noisy, 1 << self._grid_bits))
        return self._factors.decode(step, number, value)

    def standard_error(self, step: int) -> float:
        """Return the standard deviation of the error of the answer of `step`, from 1 on.

        In the units of the counts; exact except for the rounding of the noise to the grid, a
        relative 2**-45.
        """
        position = whole_number("step", step, 1, self.horizon)
        return self.noise_stddev * self._factors.error_weight(position)
