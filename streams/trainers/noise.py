"""Calibration of noise to a number of steps under an individual filter.

Accountants of a fixed number of steps (``accounting.noise_for_epsilon``) return slightly less noise
than a filter, which decides step by step, needs. With that noise a user who always has the largest
norm would be halted before the end, and the last steps would be mostly noise.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from accounting import InvalidInput, PoissonGaussian, candidate_orders, charge_units
from accounting.filters.per_user_order import PerUserOrderFilter
from streams.sdk.errors import InvalidRequest

_ACCURACY: Final = 1e-4
_LARGEST: Final = 1e9


def noise_for_steps(
    epsilon: float, delta: float, steps: int, *, sampling_rate: float = 1.0, clip_norm: float = 1.0
) -> float:
    """Return the noise with which a user of the largest norm is admitted to so many steps.

    The dataset has measure="renyi", epsilon and delta. Users with shorter norms are admitted to
    more steps. The result is rounded up by a factor of at most 1 + 1e-4.

    Raises:
        InvalidRequest: an argument is invalid.
    """
    if steps < 1:
        raise InvalidRequest(f"steps is {steps}; it must be at least 1")
    if not 0.0 < sampling_rate <= 1.0:
        raise InvalidRequest(f"sampling_rate is {sampling_rate}; it must be above 0, at most 1")
    if not 0.0 < clip_norm < math.inf:
        raise InvalidRequest(f"clip_norm is {clip_norm}; it must be finite and positive")
    try:
        ladder = candidate_orders(epsilon, delta)
        rule = PerUserOrderFilter(ladder.orders, ladder.budgets)
        budgets = np.array(rule.budget_units)

        def lasts(ratio: float) -> bool:
            mechanism = PoissonGaussian(ratio * clip_norm, sampling_rate)
            units = charge_units("renyi", mechanism, [clip_norm], orders=rule.orders)[0]
            return bool((budgets // np.maximum(units, 1) >= steps).any())

        high = 1.0
        while not lasts(high):
            high *= 2.0
            if high > _LARGEST:
                raise InvalidRequest(f"no noise lasts for {steps} steps at epsilon {epsilon}")
        low = high / 2.0
        while lasts(low) and low > 1.0 / _LARGEST:
            low, high = low / 2.0, low
        while high - low > _ACCURACY * high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if lasts(middle) else (middle, high)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from error
    return high * clip_norm
