"""The cost of one step for each user, rounded up.

Neighbouring datasets differ by adding or removing one user; both directions are covered. All
costs are deterministic functions of the norm, so a user who is left out (norm 0) costs nothing.

    mechanism         rho (zCDP)           mu squared (GDP)    Rényi divergence at order a
    Gaussian          c^2 / (2 s^2)        c^2 / s^2           a rho
    PoissonGaussian   -                    -                   `accounting.costs.sampled_gaussian`
    Laplace           (c / scale)^2 / 2    -                   a rho  (bound)
    PureDP            eps^2 / 2            -                   a rho  (bound)

Gaussian: Feldman and Zrnic Ex. 2.7, Koskela et al. App. C.2; exact. Laplace and PureDP: pure
eps-DP is (eps^2 / 2)-zCDP, Feldman and Zrnic Thm 4.9; an upper bound. PoissonGaussian: computed
with exp and log, so that another machine may find a cost that differs in its last digits; all
other costs are the same bits everywhere. Norms that float64 cannot hold are rounded up.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    Gaussian,
    Mechanism,
    PoissonGaussian,
    noise_scale,
)
from accounting.costs.order_units import units_at_orders
from accounting.costs.sampled_gaussian import poisson_gaussian_divergence
from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import product_up, square_ratio_ceil, square_ratio_up
from accounting.exact.units import MAX_COST_UNITS, UNIT_BITS, cost_units
from accounting.exact.validation import FloatArray, IntArray, norm_vector, renyi_orders

Measure: TypeAlias = Literal["renyi", "zcdp", "gdp", "approx-dp"]
MEASURES: tuple[Measure, ...] = get_args(Measure)


def zcdp_cost(mechanism: Mechanism, norms: npt.ArrayLike) -> FloatArray:
    """Return rho of each user, in nats, shape (n,): the smallest float64 >= the formula above.

    `norms`: shape (n,), finite, >= 0; what they measure is said by the mechanism. Raises
    `InvalidInput` for other norms, another mechanism, or `PoissonGaussian`.
    """
    scale = noise_scale(_known(mechanism))
    return _half_square_ratio_up(norm_vector("norms", norms), scale)


def gdp_cost(mechanism: Mechanism, norms: npt.ArrayLike) -> FloatArray:
    """Return mu squared of each user, shape (n,): the smallest float64 >= c^2 / s^2.

    `norms`: shape (n,), finite, >= 0. Only `Gaussian` steps; Koskela et al. App. C.2. Raises
    `InvalidInput` for other norms or another mechanism.
    """
    gaussian = _gaussian_only(_known(mechanism))
    return square_ratio_up(norm_vector("norms", norms), gaussian.noise_stddev)


def renyi_cost(mechanism: Mechanism, norms: npt.ArrayLike, orders: npt.ArrayLike) -> FloatArray:
    """Return the Rényi divergence of each user at each order, in nats, shape (n, k).

    `norms`: shape (n,), finite, >= 0; `orders`: shape (k,), > 1, at most 2**40. Each entry is
    the smallest float64 >= order times `zcdp_cost`. For `Laplace` and `PureDP` this is the bound
    a eps^2 / 2. For `PoissonGaussian` it is `poisson_gaussian_divergence` in the direction
    "remove", the larger one, which is above the exact value by less than its rounding slack; at
    sampling rate 1 it is the cost of `Gaussian`. Raises `InvalidInput` for other norms, orders or
    mechanisms.
    """
    alphas = renyi_orders("orders", orders)
    mechanism = _simplified(_known(mechanism))
    if isinstance(mechanism, PoissonGaussian):
        return poisson_gaussian_divergence(mechanism, norms, alphas)
    rho = zcdp_cost(mechanism, norms)
    costs = np.empty((rho.size, alphas.size))
    for column, order in enumerate(alphas.tolist()):
        costs[:, column] = product_up(order, rho)
    return costs


def charge_units(
    measure: Measure,
    mechanism: Mechanism,
    norms: npt.ArrayLike,
    orders: npt.ArrayLike | None = None,
) -> IntArray:
    """Return what a step charges each user, in units of the measure (`accounting.exact.units`).

    - "zcdp", "approx-dp": ceil(c^2 / (2 s^2) 2**44), shape (n,). An (epsilon, delta) budget is
      spent in zCDP (Feldman and Zrnic Thm 4.9).
    - "gdp": ceil(c^2 / s^2 2**44), shape (n,). `Gaussian` only.
    - "renyi": ceil(a ceil(c^2 / (2 s^2) 2**44)), shape (n, k) for `orders` a of shape (k,). For
      `PoissonGaussian`, at rates below 1, `renyi_cost` in units, rounded up.

    All but the last are exact: rational arithmetic on the float64 inputs gives the same integers.
    They saturate at `MAX_COST_UNITS`, which no budget admits. `norms`: shape (n,), finite, >= 0.
    Raises `InvalidInput` for other norms or orders, an unknown measure, or a mechanism that the
    measure does not cover.
    """
    if measure not in MEASURES:
        raise InvalidInput("measure", measure, f"one of {', '.join(MEASURES)}")
    if (orders is not None) != (measure == "renyi"):
        raise InvalidInput("orders", orders, "given for the measure renyi, and for no other")
    mechanism = _known(mechanism) if orders is None else _simplified(_known(mechanism))
    if orders is not None and isinstance(mechanism, PoissonGaussian):
        return cost_units(renyi_cost(mechanism, norms, orders))
    scale, bits = _scale_and_bits(measure, mechanism)
    charges = square_ratio_ceil(norm_vector("norms", norms), scale, bits, MAX_COST_UNITS)
    if orders is None:
        return charges
    return units_at_orders(charges, renyi_orders("orders", orders))


def exact_units(measure: Measure, mechanism: Mechanism, norm: float) -> Fraction:
    """Return the number of units, not rounded, that a step of `norm` costs in a measure but renyi.

    `charge_units` is its ceiling, as far as it does not saturate. `norm`: finite, >= 0.
    """
    scale, bits = _scale_and_bits(measure, _known(mechanism))
    ratio = Fraction(norm) / Fraction(scale)
    return ratio * ratio * Fraction(2**bits)


def _scale_and_bits(measure: Measure, mechanism: Mechanism) -> tuple[float, int]:
    """Return (s, b) such that a norm c costs (c / s)^2 2**b units; of zCDP for renyi."""
    if measure == "gdp":
        return _gaussian_only(mechanism).noise_stddev, UNIT_BITS
    return noise_scale(mechanism), UNIT_BITS - 1


def _known(mechanism: Mechanism) -> Mechanism:
    if not isinstance(mechanism, Mechanism):
        allowed = "Gaussian, PoissonGaussian, Laplace or PureDP"
        raise InvalidInput("mechanism", mechanism, allowed)
    return mechanism


def _simplified(mechanism: Mechanism) -> Mechanism:
    """Return `Gaussian` for a sample of everybody, else the mechanism itself."""
    if isinstance(mechanism, PoissonGaussian) and mechanism.sampling_rate == 1.0:
        return Gaussian(mechanism.noise_stddev)
    return mechanism


def _gaussian_only(mechanism: Mechanism) -> Gaussian:
    if not isinstance(mechanism, Gaussian):
        raise InvalidInput(
            "mechanism",
            mechanism,
            "Gaussian for the measure gdp: pure DP does not imply Gaussian DP tightly; "
            "account such steps in zcdp, renyi or approx-dp, Poisson-sampled ones in renyi",
        )
    return mechanism


def _half_square_ratio_up(norms: FloatArray, scale: float) -> FloatArray:
    """Return the smallest float64 >= (norm / scale)^2 / 2.

    Halving a float64 is exact, except that odd multiples of the smallest one need rounding, and
    that the square may be above the largest float64 though its half is not.
    """
    squares = square_ratio_up(norms, scale)
    halves = 0.5 * squares
    halves[halves + halves < squares] += np.nextafter(0.0, 1.0)
    above = np.isinf(squares)
    if above.any():
        with np.errstate(over="ignore"):
            halves[above] = 2.0 * square_ratio_up(0.5 * norms[above], scale)
    return halves
