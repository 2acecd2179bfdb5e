"""Histories of Gaussian steps that are not sampled: their loss is normal, and delta that of mu-GDP.

mu is the root of the sum of (c / s)^2, rounded: K C.2, gdp_tail.
"""

from __future__ import annotations

import numpy as np

from accounting.conversions import gdp_tail
from accounting.exact.validation import BoolArray, FloatArray
from accounting.reports.bounds import Bounds

# Of the root of a sum of squared ratios.
_ROOT_ERROR = 2.0**-44
# Ratios c / s are rounded up to the first. A mu from the second on has no lower bound, where
# `gdp_tail` does not say how exact it is, and one from the third on is not usable.
_SMALLEST_MU, _LARGEST_EXACT_MU, _LARGEST_MU = 1e-100, 1e3, 1e100
# Beyond this many standard deviations delta is taken to be that at them.
_FAR = 1e4
# The lower end, below the epsilon found.
_GAP = 2.0**-30


def summed_mu(steps: FloatArray, ratios: FloatArray) -> FloatArray:
    """Return mu of each history, shape (n,); `ratios`: c / s of the columns of `steps`."""
    usable = np.clip(ratios, _SMALLEST_MU, _LARGEST_MU)
    return np.sqrt(steps @ (usable * usable))


def log_delta_bounds(mu: FloatArray, epsilon: float) -> Bounds:
    """Return bounds of log delta at `epsilon`, for `mu` from `summed_mu`; exact up to rounding."""
    usable = np.minimum(mu * (1.0 + _ROOT_ERROR), _LARGEST_MU)
    eps = np.minimum(epsilon, usable * (_FAR + 0.5 * usable))
    upper = np.where(mu < _LARGEST_MU, np.minimum(gdp_tail.log_delta_up(usable, eps), 0.0), 0.0)
    estimate = np.minimum(gdp_tail.log_delta(usable, eps), upper)
    known = _exact(mu) & (eps == epsilon)
    lower = np.full_like(mu, -np.inf)
    lower[known] = np.minimum(_lower_log_delta(mu[known], eps[known]), estimate[known])
    return Bounds(lower, estimate, upper)


def epsilon_bounds(mu: FloatArray, log_delta: float) -> Bounds:
    """Return bounds of epsilon, for `mu` from `summed_mu`; the estimate is rounded up."""
    usable = np.minimum(mu * (1.0 + _ROOT_ERROR), _LARGEST_MU)
    upper = np.where(mu < _LARGEST_MU, gdp_tail.epsilon(usable, log_delta), np.inf)
    known = _exact(mu)
    lower = np.zeros_like(mu)
    below = np.maximum(upper[known] * (1.0 - _GAP) - _GAP * mu[known], 0.0)
    reached = _lower_log_delta(mu[known], below) >= log_delta
    lower[known] = np.where(reached, below, 0.0)
    return Bounds(lower, upper, upper)


def _lower_log_delta(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """Return a lower bound of log delta of mu-GDP, for mu the root of a rounded sum."""
    low = mu * (1.0 - _ROOT_ERROR)
    return np.asarray(2.0 * gdp_tail.log_delta(low, epsilon) - gdp_tail.log_delta_up(low, epsilon))


def _exact(mu: FloatArray) -> BoolArray:
    """Return where no ratio that matters was cut off, and the far tail is computed accurately."""
    return np.asarray((mu > _SMALLEST_MU / _ROOT_ERROR) & (mu < _LARGEST_EXACT_MU))
