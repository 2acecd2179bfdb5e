"""Plans: the steps that a run's budget pays for, computed from public numbers.

The clip norm of a training is the largest norm that an unspent budget pays for in every planned
step. If the noise is too low for that, users are halted before the end, and the model follows noise
from then on. `check_plan` rejects such a plan before anything is charged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting import PoissonGaussian, best_order, steps_noise_multiplier
from accounting.exact.invalid_input import quoted
from streams.records import Policy
from streams.sdk.errors import InvalidRequest, invalid_requests

Units: TypeAlias = NDArray[np.int64]

Schedule: TypeAlias = float | Callable[[int], float]
"""A number, or a function of the step. It may depend on what was released, and on no other data.
In a planned training it is called for all steps before the first one is charged."""

Runs: TypeAlias = list[tuple[PoissonGaussian, int]]
"""The mechanisms of all planned steps, with the number of steps in a row that have each."""

_ACCURACY: Final = 1e-4
_LARGEST: Final = 1e9


class Plan:
    """Planned steps, and how long the clip norm lasts.

    Args:
        policies: the policies of the dataset and its parent datasets.
        runs: all planned steps, at least one.
        clip_norm: the largest norm that an unspent budget pays for in every planned step.
    """

    def __init__(self, policies: Sequence[Policy], runs: Runs, clip_norm: float) -> None:
        self.runs, self.steps = runs, sum(count for _, count in runs)
        self.clip_norm = clip_norm
        self._policies = policies

    def lasts(self) -> bool:
        """Return whether the clip norm can be paid for in every planned step."""
        return self.lasting_steps() == self.steps

    def lasting_steps(self) -> int:
        """Return the number of planned steps that the clip norm can be paid for.

        Raises:
            InvalidRequest: a measure cannot charge a mechanism.
        """
        # The sum of the steps can exceed int64, a sum of Python integers cannot.
        costs = {step: self._costs(step).astype(object) for step, _ in self.runs}
        budgets = [units for policy in self._policies for units in policy.budget]
        counted = self._counted(costs[self.runs[0][0]])
        made, left = 0, np.array(budgets, dtype=object)[counted]
        for step, count in self.runs:
            each = costs[step][counted]
            fits = [have // cost for have, cost in zip(left, each, strict=True) if cost]
            if (lasting := min(fits, default=count)) < count:
                return int(made + lasting)
            left, made = left - count * each, made + count
        return made

    def with_noise(self, factor: float) -> Plan:
        """Return the plan with the noise of every step multiplied by a factor."""
        scaled = [
            (PoissonGaussian(factor * step.noise_stddev, step.sampling_rate), count)
            for step, count in self.runs
        ]
        return Plan(self._policies, scaled, self.clip_norm)

    def _costs(self, mechanism: PoissonGaussian) -> Units:
        """Return the units of each budget that a step costs at the clip norm, (k,)."""
        with invalid_requests():
            tables = [
                policy.row.cost_table(mechanism, self.clip_norm, 1, policy.orders or None)
                for policy in self._policies
            ]
        return np.asarray(np.column_stack(tables)[-1])

    def _counted(self, first: Units) -> list[int]:
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
                costs = first[np.newaxis, begin:end].astype(np.int64)
                places.append(begin + int(best_order(costs, policy.budget)[0]))
            else:
                places += range(begin, end)
            begin = end
        return places


def check_plan(plan: Plan, noise: str = "noise_multiplier") -> None:
    """Check that the clip norm lasts for every planned step.

    Args:
        plan: of the training.
        noise: the name of the argument to raise.

    Raises:
        InvalidRequest: the budget is exhausted before the end.
    """
    if plan.lasts():
        return
    clip_norm = plan.clip_norm
    given = plan.runs[0][0].noise_stddev / clip_norm
    factor = lasting_factor(plan)
    if factor == math.inf:
        raise InvalidRequest(
            f"the budget is too small for {plan.steps} steps: a gradient of the clip norm "
            f"{clip_norm:.6g} lasts {plan.lasting_steps()} of them, whatever the noise, and the "
            "later ones would release noise alone. Plan fewer steps, or give a dataset with a "
            "larger budget"
        )
    enough = given * factor * (1.0 + 1e-5)  # not less when it is printed
    raise InvalidRequest(
        f"the noise is too low for {plan.steps} steps: at {noise} = {given:.6g} a "
        f"gradient of the clip norm {clip_norm:.6g} lasts {plan.lasting_steps()} of them, and the "
        f"later ones would release noise alone. Give {noise} = {enough:.6g}, which lasts, or "
        "fewer steps, a lower sampling rate, or a dataset with a larger budget"
    )


def lasting_factor(plan: Plan) -> float:
    """Return the smallest factor of the noise with which the clip norm lasts for every step.

    It is rounded up by a factor of at most 1 + 1e-4. It is infinite if no noise lasts.
    """

    def lasts(factor: float) -> bool:
        return plan.with_noise(factor).lasts()

    high = 1.0
    while not lasts(high):
        high *= 2.0
        if high > _LARGEST:
            return math.inf
    low = high / 2.0
    while lasts(low) and low > 1.0 / _LARGEST:
        low, high = low / 2.0, low
    while high - low > _ACCURACY * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return high


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
    if shape is not None:
        exact = shape.noise_multiplier
        if Plan(policies, planned(exact, sampling_rate, steps), 1.0).lasts():
            return exact
    plan = Plan(policies, planned(1.0, sampling_rate, steps), 1.0)
    factor = lasting_factor(plan)
    if factor == math.inf:
        raise InvalidRequest(
            f"no noise lasts for {steps} steps at this budget, which pays for "
            f"{plan.with_noise(_LARGEST).lasting_steps()}: plan fewer steps"
        )
    return factor


def noise_of(noise_multiplier: Schedule, clip_norm: float) -> Schedule:
    """Return the noise's standard deviation: the multiple of the clip norm."""
    if callable(noise_multiplier):
        return lambda step: noise_multiplier(step) * clip_norm
    return noise_multiplier * clip_norm


@lru_cache(maxsize=64)
def counted_noise(epsilon: float, delta: float, sampling_rate: float, steps: int) -> float:
    """Return the noise multiplier of a dataset that counts steps, which takes some seconds.

    It is the least that loss distributions certify for so many steps, up to a relative 1e-3.

    Raises:
        InvalidRequest: an argument is invalid.
    """
    with invalid_requests():
        return steps_noise_multiplier(epsilon, delta, sampling_rate, steps)


def planned(noise_stddev: Schedule, sampling_rate: Schedule, steps: int) -> Runs:
    """Return the mechanisms of all planned steps.

    Raises:
        InvalidRequest: the number of steps, or the noise or rate of a step is invalid.
    """
    if not isinstance(steps, int | np.integer) or isinstance(steps, bool) or steps < 1:
        raise InvalidRequest(f"steps is {quoted(steps)}; it must be a whole number, at least 1")
    if not callable(noise_stddev) and not callable(sampling_rate):
        return [(mechanism_of(noise_stddev, sampling_rate, 0), int(steps))]
    each = (mechanism_of(noise_stddev, sampling_rate, step) for step in range(steps))
    return [(mechanism, len(list(same))) for mechanism, same in groupby(each)]


def mechanism_of(noise_stddev: Schedule, sampling_rate: Schedule, step: int) -> PoissonGaussian:
    """Return the mechanism of one step.

    Raises:
        InvalidRequest: noise or rate is invalid.
    """
    noise, rate = (
        float(value(step) if callable(value) else value) for value in (noise_stddev, sampling_rate)
    )
    if not rate > 0.0:
        raise InvalidRequest(f"sampling_rate is {quoted(rate)} in step {step}; it must be above 0")
    with invalid_requests():
        return PoissonGaussian(noise, rate)
