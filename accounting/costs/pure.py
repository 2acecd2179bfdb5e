"""The epsilon of a pure DP step, and its cost in pure DP, Rényi DP and Gaussian DP.

    mechanism   epsilon of a user with norm c    worst pair of outputs
    Laplace     c / scale, c an L1 norm          Laplace noise around 0 and c (Dong-Roth-Su 2022,
                                                 Lemma A.5: several coordinates are no worse)
    PureDP      c itself                         randomised response (Kairouz-Oh-Viswanath 2015)

**Pure DP.** Epsilons add up for any adaptive steps: given the earlier outputs, each outcome of a
step is at most e^eps times as likely with a user as without, and vice versa. So whole histories are
at most e^(sum of eps) times as likely. This holds on every path: the running sum is a bound at
every time. A step's charge is exact: a rational number, rounded up.

**Rényi DP.** At order a the divergence of the worst pair, in either direction, is

    PureDP      log((e^(a eps) + e^((1-a) eps)) / (1 + e^eps)) / (a - 1)
    Laplace     log(a / (2a-1) e^((a-1) eps) + (a-1) / (2a-1) e^(-a eps)) / (a - 1)

(Mironov 2017, Prop. 5 and 6). Both are at most a eps^2 / 2 and at most eps. The smaller of these
two bounds is rational; a ledger that computes the charge itself charges it. The closed forms need
exp and log, whose last digits differ between machines. They serve reports, the library, and cost
tables, which are stored as integers.

**Gaussian DP.** An eps-DP step is mu-GDP with

    mu = 2 Phi^-1(e^eps / (1 + e^eps)) = 2 sqrt(2) erfinv(tanh(eps / 2)),

and for no smaller mu if only epsilon is known (Liu, Sun, Kong and Jiang 2022, arXiv
2210.09269). Let f be the trade-off of randomised response; every eps-DP step is at least as hard
to test: two lines from (0, 1) and (1, 0) to the kink (a, a), a = 1 / (1 + e^eps). The trade-off
G of mu-GDP is convex, with G(0) = 1 and G(1) = 0, so it lies below f everywhere if it does at the
kink; and G(a) = Phi(Phi^-1(1 - a) - mu) <= a exactly if mu >= 2 Phi^-1(1 - a). Only cost tables
charge this, too.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import scipy

from accounting.costs.mechanisms import Laplace, Mechanism, PureDP, noise_scale
from accounting.exact.argument_checks import FloatArray, IntArray, nonnegative_array, norm_vector
from accounting.exact.units import cost_units

# Above, mu squared is bounded by 8 log((1 + e^eps) / 2), as Phi(-x) <= e^(-x^2 / 2) / 2.
_LARGEST_EPSILON: Final = 600.0
_SLACK: Final = 2.0**-44  # far above the relative error of erfinv, erfcinv, tanh and exp
_SMALL: Final = 2.0**-500  # its square does not underflow
_SUM_ERROR: Final = 2.0**-48  # of a divergence, relative to epsilon


def pure_to_gdp(epsilon: npt.ArrayLike) -> FloatArray:
    """Return the least mu such that every epsilon-DP step is mu-GDP, of the shape of `epsilon`.

    Rounded up, by at most a relative 2**-43, and above 600 nats by at most 1 %. Positive epsilons
    below 2**-500 count as 2**-500.

    Args:
        epsilon: nats, >= 0, any shape; infinity gives infinity.
    """
    return np.asarray(np.sqrt(_mu_squared(nonnegative_array("epsilon", epsilon))))[()]


def gdp_units_of_pure(mechanism: Mechanism, norms: npt.ArrayLike) -> IntArray:
    """Return mu squared of each norm in units, rounded up, shape (n,): for cost tables only."""
    return cost_units(_mu_squared(_epsilons_up(mechanism, norm_vector("norms", norms))))


def renyi_of_pure(mechanism: Mechanism, norms: FloatArray, orders: FloatArray) -> FloatArray:
    """Return the Rényi divergence of the worst pair of outputs, rounded up; shape (n, k), nats.

    It covers either direction, and exceeds the exact value by at most 2**-47 epsilon. `norms`:
    shape (n,), finite, >= 0; `orders`: shape (k,), > 1.
    """
    eps = _epsilons_up(mechanism, norms)[:, np.newaxis]
    # Both divergences are eps + log1p(w expm1(-b eps)) / (a - 1); only eps can cancel.
    a_minus_1 = orders - 1.0
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if isinstance(mechanism, Laplace):
            weight, rate = a_minus_1 / (2.0 * orders - 1.0), 2.0 * orders - 1.0
        else:
            weight, rate = 1.0 / (1.0 + np.exp(eps)), 2.0 * a_minus_1
        gain = np.log1p(weight * np.expm1(-rate * eps)) / a_minus_1
        divergences = eps + gain + _SUM_ERROR * eps
    return np.where(eps < np.inf, np.minimum(divergences, eps), np.inf)


def _epsilons_up(mechanism: Mechanism, norms: FloatArray) -> FloatArray:
    """Return the epsilon of each norm, rounded up."""
    with np.errstate(over="ignore", under="ignore"):
        quotients = norms / noise_scale(mechanism, (Laplace, PureDP))
    return np.where(norms > 0.0, np.nextafter(quotients, np.inf), 0.0)


def _mu_squared(epsilons: FloatArray) -> FloatArray:
    """Return mu squared, rounded up."""
    with np.errstate(over="ignore", under="ignore"):
        eps = np.clip(epsilons, _SMALL, _LARGEST_EPSILON)
        near = scipy.special.erfinv(np.tanh(0.5 * np.minimum(eps, 1.0)))
        far = scipy.special.erfcinv(2.0 / (1.0 + np.exp(np.maximum(eps, 1.0))))
        root = np.where(eps <= 1.0, near, far)
        exact = 8.0 * root * root
        # Slightly above the bound, because log((1 + e^eps) / 2) < eps.
        large = 8.0 * epsilons
        square = np.where(epsilons > _LARGEST_EPSILON, large, exact) * (1.0 + _SLACK)
    return np.where(epsilons > 0.0, square, 0.0)
