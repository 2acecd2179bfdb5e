"""An approximate Gaussian-DP parameter of a history, for reports (Koskela et al., sec. 5).

The service does not use it.

Koskela et al. replace the sum of mu^2 of a GDP filter by the mu whose Gaussian trade-off dominates
that of the composition, (5.1): the composition's delta is at most that of mu-GDP, at every epsilon.
The paper finds mu numerically, by bisection. For subsampled steps, no mu below that of the steps
without subsampling dominates at *every* epsilon, however far in the tail. After many steps the
composition resembles a Gaussian mechanism where delta is not astronomically small, and mu is
taken from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from accounting.conversions import gdp_tail
from accounting.exact.errors import InvalidInput
from accounting.exact.roots import bisected
from accounting.exact.validation import FloatArray, probability
from accounting.reports.accountant import Method, ReportAccountant

# From epsilon = 0 (total variation) into the tail.
DEFAULT_DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
# A larger total variation does not determine mu in float64.
_LARGEST_DELTA = 1.0 - 2.0**-20
_BISECTIONS = 60
_SMALLEST_LOG_MU = -80.0


def approximate_mu(
    accountant: ReportAccountant,
    counts: npt.ArrayLike,
    deltas: Sequence[float] = DEFAULT_DELTAS,
    method: Method = "saddlepoint",
) -> FloatArray:
    """Return the least mu whose GDP curve is above each user's estimated curve at given points.

    `accountant`: supplies the estimates of `method`, in the larger direction of adding or removing
    one user. `counts`: steps at each level,
    shape (n, levels), or (levels,) for one user. `deltas`: the points of the curve, each in (0, 1);
    epsilon = 0 is one more. Shape (n,) or (); 0 for a user without steps; infinite if the
    method has no bound. Raises `InvalidInput` for other arguments, or no deltas.

    This is an approximation for reports, not a bound: the curve is not dominated between or beyond
    the points, and estimates are not upper bounds. Never use it to admit: (5.1) would need
    domination at every epsilon, and Koskela et al. leave a filter for subsampled steps open. For
    unsampled Gaussian steps it is the root of the sum of c^2 / s^2, up to rounding.
    """
    if not isinstance(accountant, ReportAccountant):
        raise InvalidInput("accountant", accountant, "a ReportAccountant")
    levels = _checked_deltas(deltas)
    at_zero = np.asarray(accountant.delta(counts, 0.0, method).bounds.estimate)
    mu = np.zeros(at_zero.size)
    _raise_to(mu, np.zeros(at_zero.size), np.where(at_zero < _LARGEST_DELTA, at_zero, 0.0).ravel())
    for delta in levels:
        epsilon = np.asarray(accountant.epsilon(counts, delta, method).bounds.estimate).ravel()
        # If epsilon is 0, the curve is below (0, delta), and its point at 0 is already included.
        _raise_to(mu, epsilon, np.where(epsilon > 0.0, delta, 0.0))
    return mu.reshape(at_zero.shape)


def _checked_deltas(deltas: Iterable[float]) -> list[float]:
    allowed = "one or more numbers, strictly between 0 and 1"
    try:
        levels = list(deltas)
    except TypeError:  # one number
        raise InvalidInput("deltas", deltas, allowed) from None
    if not levels:
        raise InvalidInput("deltas", deltas, allowed)
    return [probability("deltas", delta) for delta in levels]


def _raise_to(mu: FloatArray, epsilon: FloatArray, delta: FloatArray) -> None:
    """Raise `mu` in place until delta of mu-GDP at `epsilon` is `delta`; ignore delta 0."""
    mu[epsilon == np.inf] = np.inf
    rows = np.flatnonzero((delta > 0.0) & np.isfinite(mu))
    eps, log_target = epsilon[rows], np.log(delta[rows])
    _, high = bisected(
        lambda log_mu: ~(gdp_tail.log_delta(np.exp(log_mu), eps) >= log_target),
        np.full(rows.size, _SMALLEST_LOG_MU),
        # At this mu, delta is at least Phi(10).
        np.log(np.sqrt(2.0 * eps) + 30.0),
        _BISECTIONS,
    )
    mu[rows] = np.maximum(mu[rows], np.exp(high))
