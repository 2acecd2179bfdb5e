"""Plans: the steps that a run's budget pays for, computed from public numbers.

The clip norm of a training is the largest norm that an unspent budget pays for in every planned
step. If the noise is too low for that, users are halted before the end, and the model follows noise
from then on. `Plan.check` rejects such a plan before anything is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import (
    InvalidInput,
    Measure,
    PoissonGaussian,
    best_order,
    steps_noise_multiplier,
)
from accounting.exact.argument_checks import positive_finite, whole_number
from accounting.exact.invalid_input import quoted
from streams.ledger.validation import check_covered
from streams.records import Policy
from streams.sdk.errors import InvalidRequest, invalid_requests

Schedule: TypeAlias = float | Callable[[int], float]
"""A number, or a function of the step. It may depend on what was released, and on no other data.
In a planned training it is called for all steps before the first one is charged."""

MOST_STEPS: Final = 2**31
_ACCURACY: Final = 1e-4
_LARGEST: Final = 1e9


def value_at(schedule: Schedule, step: int) -> float:
    """Return the value of a schedule in one step."""
    return float(schedule(step) if callable(schedule) else schedule)


def mechanism_of(
    noise_multiplier: Schedule, sampling_rate: Schedule, clip_norm: float, step: int
) -> PoissonGaussian:
    """Return the mechanism of one step.

    Raises:
        InvalidRequest: noise or rate is invalid.
    """
    rate = value_at(sampling_rate, step)
    if not rate > 0.0:
        raise InvalidRequest(f"sampling_rate is {quoted(rate)} in step {step}; it must be above 0")
    return _sampled_gaussian(value_at(noise_multiplier, step) * clip_norm, rate)


@lru_cache(maxsize=64)
def _sampled_gaussian(noise_stddev: float, sampling_rate: float) -> PoissonGaussian:
    # Cached: without a schedule, every step asks for the same mechanism.
    with invalid_requests():
        return PoissonGaussian(noise_stddev, sampling_rate)


class Plan:
    """Planned steps, and how long the clip norm lasts.

    Args:
        policies: the policies of the dataset and its parent datasets.
        noise_multiplier: the noise, as a multiple of the clip norm; may be a schedule.
        sampling_rate: the probability with which each user is drawn; may be a schedule.
        steps: the number of steps, at least one.
        clip_norm: the largest norm that an unspent budget pays for in every planned step.

    Raises:
        InvalidRequest: the number of steps, or the noise or rate of a step is invalid.
    """

    def __init__(
        self,
        policies: Sequence[Policy],
        noise_multiplier: Schedule,
        sampling_rate: Schedule,
        steps: int,
        clip_norm: float = 1.0,
    ) -> None:
        with invalid_requests():
            self.steps = whole_number("steps", steps, 1, MOST_STEPS)
        self._policies, self._clip_norm = policies, clip_norm

        def at(step: int) -> PoissonGaussian:
            return mechanism_of(noise_multiplier, sampling_rate, clip_norm, step)

        self._runs = [(at(0), self.steps)]  # mechanisms, with the number of steps in a row of each
        if callable(noise_multiplier) or callable(sampling_rate):
            each = groupby(map(at, range(self.steps)))
            self._runs = [(mechanism, len(list(same))) for mechanism, same in each]

    def lasting_steps(self, factor: float = 1.0) -> int:
        """Return the number of planned steps that the clip norm can be paid for.

        Args:
            factor: multiplies the noise of every step.

        Raises:
            InvalidRequest: a measure cannot charge a mechanism.
        """
        # The sum of the steps can exceed int64, a sum of Python integers cannot.
        costs = {  # once for each mechanism, since schedules repeat them
            step: self._costs(PoissonGaussian(factor * step.noise_stddev, step.sampling_rate))
            for step in {step for step, _ in self._runs}
        }
        counted = self._counted(costs[self._runs[0][0]])
        budgets = [units for policy in self._policies for units in policy.budget]
        made, left = 0, np.array(budgets, dtype=object)[counted]
        for step, count in self._runs:
            each = costs[step].astype(object)[counted]
            fits = [have // cost for have, cost in zip(left, each, strict=True) if cost]
            if (lasting := min(fits, default=count)) < count:
                return int(made + lasting)
            left, made = left - count * each, made + count
        return made

    def lasts(self, factor: float = 1.0) -> bool:
        """Return whether the clip norm can be paid for in every planned step."""
        return self.lasting_steps(factor) == self.steps

    def lasting_factor(self) -> float:
        """Return the smallest factor of the noise with which the clip norm lasts for every step.

        It is rounded up by a factor of at most 1 + 1e-4. It is infinite if no noise lasts.
        """
        high = 1.0
        while not self.lasts(high):
            high *= 2.0
            if high > _LARGEST:
                return math.inf
        low = high / 2.0
        while self.lasts(low) and low > 1.0 / _LARGEST:
            low, high = low / 2.0, low
        while high - low > _ACCURACY * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self.lasts(middle) else (middle, high)
        return high

    def check(self, unit: str = "steps") -> None:
        """Check that the clip norm lasts for every planned step.

        Args:
            unit: the name of a step in the error.

        Raises:
            InvalidRequest: the budget is exhausted before the end.
        """
        if self.lasts():
            return
        factor = self.lasting_factor()
        given = self._runs[0][0].noise_stddev / self._clip_norm
        remedy = f"No noise lasts: plan fewer {unit}, or give a dataset with a larger budget"
        if factor < math.inf:
            enough = given * factor * (1.0 + 1e-5)  # not less when it is printed
            remedy = (
                f"Give noise_multiplier = {enough:.6g}, which lasts, or fewer {unit}, a lower "
                "sampling rate, or a dataset with a larger budget"
            )
        raise InvalidRequest(
            f"the noise is too low for {self.steps} {unit}: at noise_multiplier = {given:.6g} a "
            f"gradient of the clip norm {self._clip_norm:.6g} lasts {self.lasting_steps()} of "
            f"them, and the later ones would release noise alone. {remedy}"
        )

    def _costs(self, mechanism: PoissonGaussian) -> NDArray[np.int64]:
        """Return the units of each budget that a step costs at the clip norm, (k,)."""
        with invalid_requests():
            check_covered(mechanism, self._policies, Measure.covers_by_table)
            tables = [
                policy.row.cost_table(mechanism, self._clip_norm, 1, policy.orders or None)
                for policy in self._policies
            ]
        return np.asarray(np.column_stack(tables)[-1])

    def _counted(self, first: NDArray[np.int64]) -> list[int]:
        """Return the budgets that count: of per-user orders only the one that is bound.

        The first charge binds each user to an order; its level is that of the clip norm.

        Args:
            first: the costs of the first step.
        """
        places: list[int] = []
        begin = 0
        for policy in self._policies:
            end = begin + len(policy.budget)
            if policy.per_user_order is True:
                costs = first[np.newaxis, begin:end]
                places.append(begin + int(best_order(costs, policy.budget)[0]))
            else:
                places += range(begin, end)
            begin = end
        return places


def noise_for_steps(
    policies: Sequence[Policy], steps: int, *, sampling_rate: Schedule = 1.0
) -> float:
    """Return the noise multiplier with which the clip norm lasts for so many steps.

    It is rounded up by a factor of at most 1 + 1e-4. If the dataset counts steps, it is the noise
    multiplier of its policy.

    Args:
        policies: the policies of the dataset and its parent datasets: ``[run.policy, *run.outer]``.
        steps: the number of steps of the training.
        sampling_rate: the probability with which each user is drawn; may be a schedule.

    Raises:
        InvalidRequest: an argument is invalid, or no noise lasts.
    """
    shape = policies[0].row.shape
    plan = Plan(policies, 1.0, sampling_rate, steps)
    if shape is not None and plan.lasts(shape.noise_multiplier):
        return shape.noise_multiplier
    factor = plan.lasting_factor()
    if factor == math.inf:
        raise InvalidRequest(
            f"no noise lasts for {steps} steps at this budget, which pays for "
            f"{plan.lasting_steps(_LARGEST)}: plan fewer steps"
        )
    return factor


@lru_cache(maxsize=64)
def counted_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return the noise multiplier of a dataset that counts steps, which takes some seconds.

    Raises:
        InvalidRequest: an argument is invalid.
    """
    with invalid_requests():
        return steps_noise_multiplier(epsilon, delta, sampling_rate, steps)


def public_population(population: float) -> float:
    """Return the number of users that sets the denominator of every step.

    Raises:
        InvalidRequest: it is not a positive number.
    """
    try:
        return positive_finite("population", population)
    except InvalidInput as error:
        raise InvalidRequest(
            f"population is {quoted(population)}; give a public number of users: a round figure, "
            "or a count that was released privately. It sets the denominator of every step, which "
            "would reveal the number of users in the data"
        ) from error
