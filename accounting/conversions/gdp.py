"""Convert Gaussian DP to (epsilon, delta), and (epsilon, delta) to the largest mu."""

from __future__ import annotations

import math
from typing import overload

import numpy as np
import numpy.typing as npt

from accounting.conversions import gdp_tail
from accounting.conversions.amounts import (
    known_amounts,
    probability_up,
    restored,
    rising_root,
    shaved,
    target_epsilon,
)
from accounting.exact.argument_checks import (
    FloatArray,
    probability,
)


@overload
def gdp_to_epsilon(mu: float, delta: float) -> float: ...
@overload
def gdp_to_epsilon(mu: FloatArray, delta: float) -> FloatArray: ...
def gdp_to_epsilon(mu: npt.ArrayLike, delta: float) -> float | FloatArray:
    """Return the epsilon that mu-GDP implies at `delta`, of the shape of `mu`.

    The inverse of `gdp_to_delta`, approached from above.

    Args:
        mu: >= 0, of any shape; infinity gives infinity.
        delta: strictly between 0 and 1.
    """
    mus, known = known_amounts("mu", mu)
    log_delta = math.log(probability("delta", delta))
    return restored(known, gdp_tail.epsilon(mus, log_delta), infinite=math.inf)


@overload
def gdp_to_delta(mu: float, epsilon: float) -> float: ...
@overload
def gdp_to_delta(mu: FloatArray, epsilon: float) -> FloatArray: ...
def gdp_to_delta(mu: npt.ArrayLike, epsilon: float) -> float | FloatArray:
    """Return the delta that mu-GDP implies at `epsilon`, of the shape of `mu`.

    Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (Koskela et al., sec. 2), stable in
    the far tail.

    Args:
        mu: >= 0, of any shape; infinity gives 1.
        epsilon: finite, >= 0.
    """
    mus, known = known_amounts("mu", mu)
    eps = np.full_like(mus, target_epsilon(epsilon))
    delta = probability_up(gdp_tail.log_delta_up(mus, eps))
    return restored(known, delta, infinite=1.0)


def gdp_budget(epsilon: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies (epsilon, delta), or just below.

    Never above the true budget.

    Args:
        epsilon: finite, >= 0.
        delta: strictly between 0 and 1.
    """
    eps = target_epsilon(epsilon)
    tail = probability("delta", delta)
    target, point = math.log(tail), np.array([eps])
    log_mu = rising_root(
        lambda u: gdp_tail.log_delta_up(np.exp(u), point) - target,
        np.array([-80.0]),
        # At this mu, delta is at least Phi(10) for any epsilon.
        np.log(np.sqrt(2.0 * point) + 30.0),
    )
    return shaved(
        math.exp(float(log_mu[0])),
        lambda mu: gdp_to_epsilon(mu, tail) <= eps and gdp_to_delta(mu, eps) <= tail,
    )
