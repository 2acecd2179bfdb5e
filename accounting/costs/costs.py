"""The cost of one step for each user, rounded up.

Neighbouring datasets differ by adding or removing one user; both directions are covered. All
costs are deterministic functions of the norm, so a user who is left out (norm 0) costs nothing.

    mechanism         rho (zCDP)           mu squared (GDP)    Rényi divergence at order a
    Gaussian          c^2 / (2 s^2)        c^2 / s^2           a rho
    PoissonGaussian   -                    -                   `accounting.costs.sampled_gaussian`
    PoissonRecords    -                    -                   `accounting.costs.sampled_records`
    Laplace           eps^2 / 2            -                   `accounting.costs.pure`
    PureDP            eps^2 / 2            -                   `accounting.costs.pure`

Gaussian: Feldman and Zrnic Ex. 2.7, Koskela et al. App. C.2; exact. Laplace (eps = c / scale) and
PureDP: pure eps-DP is (eps^2 / 2)-zCDP, Feldman and Zrnic Thm 4.9; an upper bound.

Rényi divergences of sampled steps, Laplace and PureDP are computed with exp and log, so their
last digits may differ between machines. A ledger must decide the same on every machine, so
`renyi_units` charges Laplace and PureDP min(a eps^2 / 2, eps) instead, which is rational and not
less. All other costs are the same bits everywhere.

Costs are float64, in the unit of the measure, for callers that add them up. A charge is a whole
number of units (`accounting.measures.charge_units`).

Throughout, `mechanism` is the step and defines what the norms measure; `norms` has the shape (n,),
finite, >= 0; `orders` has the shape (k,), > 1, at most 2**40.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import (
    Laplace,
    Mechanism,
    PoissonGaussian,
    PoissonRecords,
    PureDP,
    noise_scale,
    simplified,
)
from accounting.costs.power_cost import GDP, PURE, ZCDP, units_at_orders
from accounting.costs.pure import renyi_of_pure
from accounting.costs.sampled_gaussian import poisson_gaussian_divergence
from accounting.costs.sampled_records import records_divergence
from accounting.exact.argument_checks import FloatArray, IntArray, norm_vector, renyi_orders
from accounting.exact.products import product_up, square_ratio_up
from accounting.exact.units import cost_units


def zcdp_cost(mechanism: Mechanism, norms: npt.ArrayLike) -> FloatArray:
    """Return rho of each user, in nats, shape (n,): the smallest float64 >= the formula above."""
    return square_ratio_up(norms, noise_scale(mechanism), halvings=1)


def gdp_cost(mechanism: Mechanism, norms: npt.ArrayLike) -> FloatArray:
    """Return mu squared of each user, shape (n,): the smallest float64 >= c^2 / s^2; `Gaussian`."""
    return square_ratio_up(norms, noise_scale(mechanism, GDP.kinds))


def renyi_cost(mechanism: Mechanism, norms: npt.ArrayLike, orders: npt.ArrayLike) -> FloatArray:
    """Return the Rényi divergence of each user at each order, in nats, shape (n, k).

    For `Laplace` and `PureDP` it is the divergence of the worst pair of outputs
    (`accounting.costs.pure.renyi_of_pure`). For `PoissonGaussian` it is
    `poisson_gaussian_divergence` in the larger direction, "remove", which exceeds the exact value
    by less than its rounding slack; at sampling rate 1 it is the cost of `Gaussian`. No entry
    exceeds that of `Gaussian`, the smallest float64 >= order times `zcdp_cost`. For
    `PoissonRecords`, whose norms are those of one record, it is the larger of both directions of
    `records_divergence`.
    """
    alphas, vector = renyi_orders("orders", orders), norm_vector("norms", norms)
    mechanism = simplified(mechanism)
    if isinstance(mechanism, PoissonGaussian):
        return poisson_gaussian_divergence(mechanism, vector, alphas)
    if isinstance(mechanism, PoissonRecords):
        removed = records_divergence(mechanism, vector, alphas, "remove")
        return np.maximum(removed, records_divergence(mechanism, vector, alphas, "add"))
    rho = zcdp_cost(mechanism, vector)
    costs = np.empty((rho.size, alphas.size))
    for column, order in enumerate(alphas.tolist()):
        costs[:, column] = product_up(order, rho)
    if isinstance(mechanism, Laplace | PureDP):
        exact = renyi_of_pure(mechanism, vector, alphas)
        np.minimum(costs, exact, out=costs)
    return costs


def renyi_units(mechanism: Mechanism, norms: npt.ArrayLike, orders: npt.ArrayLike) -> IntArray:
    """Return ceil(a ceil(rho 2**44)) of each user at each order a, exactly, shape (n, k).

    For `Laplace` and `PureDP`, the smaller of this and ceil(eps 2**44), exactly. For
    `PoissonGaussian` and `PoissonRecords`, at rates below 1, `renyi_cost` in units, rounded up.
    Units saturate at `MAX_COST_UNITS`.
    """
    mechanism = simplified(mechanism)
    if isinstance(mechanism, PoissonGaussian | PoissonRecords):
        return renyi_table_units(mechanism, norms, orders)
    units = units_at_orders(ZCDP.units(mechanism, norms), renyi_orders("orders", orders))
    if isinstance(mechanism, Laplace | PureDP):
        np.minimum(units, PURE.units(mechanism, norms)[:, np.newaxis], out=units)
    return units


def renyi_table_units(
    mechanism: Mechanism, norms: npt.ArrayLike, orders: npt.ArrayLike
) -> IntArray:
    """Return `renyi_cost` in units, rounded up, shape (n, k), for cost tables.

    The last digits may differ between machines, so a log must hold the integers.
    """
    return cost_units(renyi_cost(mechanism, norms, orders))
