"""Rényi divergence of a step in which each record of a user is drawn by a coin of its own.

Notation and method are those of `accounting.costs.sampled_gaussian`, with w of
`accounting.costs.record_mixture` in place of 1 - q + q e^v, and t = k mu in place of mu where an
integrand's analyticity, width or reach is concerned:

- |w(y + ib)| <= w(y), and w has no zero for |b| < pi / t, because the arguments of all its terms
  are then in an open half-plane.
- For t |b| <= pi / 3, cos(j b mu) >= cos(t b)^{j / k}, because log cos is concave. So the real part
  of w(y + ib) is at least w at y + log(cos(t b)) / t.
- No term rises faster than e^{t y}.

Two bounds hold without quadrature:

- "remove": Minkowski's inequality, |w|_a <= sum_j P(J = j) e^{(a-1) j^2 mu^2 / 2};
- "add": Jensen's inequality, E_P[w^{1-a}] <= sum_j P(J = j) e^{a (a-1) j^2 mu^2 / 2}. The
  divergence is also at most -k log(1 - q).

Neither direction is proven to be the larger one at every order, so a charge is the larger of both.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import DIRECTIONS, Direction, PoissonRecords
from accounting.costs.record_mixture import RecordMixture, mixture
from accounting.costs.sampled_gaussian import (
    REACH,
    ROUNDING,
    ROUNDING_FLOOR,
    SMALLEST,
    Windows,
    equal_nodes,
    scaled_remainder,
)
from accounting.exact.argument_checks import FloatArray, norm_vector, renyi_orders
from accounting.exact.invalid_input import InvalidInput

_MOST_NODES: Final = 2**17
_FAR_MODE: Final = 24.0  # beyond it, e^{-mode^2 / 2} outweighs all other factors
_BISECTIONS: Final = 26  # leave the mode, never beyond -10^7, in an interval of 1/6
_TIGHT: Final = 1e-10  # Minkowski's bound is used where it exceeds the exact value by less
_LARGEST_RATIO: Final = 1e100  # of a record; squares do not overflow


def records_divergence(
    mechanism: PoissonRecords,
    norms: npt.ArrayLike,
    orders: npt.ArrayLike,
    direction: Direction = "remove",
) -> FloatArray:
    """Return the Rényi divergence of each user at each order, in nats, rounded up.

    An upper bound that exceeds the exact value by less than a relative 1e-9 in usual ranges. If the
    integral would need more than 2**17 nodes, it is Minkowski's or Jensen's bound.

    Args:
        mechanism: the step, at a sampling rate below 1.
        norms: of one record, shape (n,), L2, finite, >= 0.
        orders: shape (k,), > 1, at most 2**40.
        direction: "remove" for the mixture against the Gaussian, "add" for the reverse.

    Returns:
        Shape (n, k). Norm 0 and rate 0 cost nothing.
    """
    if not isinstance(mechanism, PoissonRecords) or mechanism.sampling_rate == 1.0:
        raise InvalidInput("mechanism", mechanism, "PoissonRecords at a rate below 1")
    if direction not in DIRECTIONS:
        raise InvalidInput("direction", direction, f"one of {', '.join(DIRECTIONS)}")
    alphas = renyi_orders("orders", orders)
    distinct, position = np.unique(norm_vector("norms", norms), return_inverse=True)
    table = np.zeros((distinct.size, alphas.size))
    if mechanism.sampling_rate > 0.0:
        drawn = mixture(max(mechanism.sampling_rate, SMALLEST), mechanism.records)
        divergence = _remove if direction == "remove" else _add
        for row in np.flatnonzero(distinct).tolist():
            with np.errstate(all="ignore"):
                ratio = max(float(distinct[row] / mechanism.noise_stddev), SMALLEST)
                for column, order in enumerate(alphas.tolist()):
                    infinite = not ratio <= _LARGEST_RATIO and direction == "remove"
                    cost = math.inf if infinite else divergence(drawn, ratio, order)
                    table[row, column] = cost
    return table[position]


def _remove(drawn: RecordMixture, mu: float, order: float) -> float:
    """Return the divergence of the mixture against the Gaussian, rounded up."""
    beta, reach = order - 1.0, drawn.records * mu
    exponents = 0.5 * beta * mu * mu * drawn.squares
    log_terms = drawn.log_weights + exponents
    log_norm = drawn.log_mean(exponents)
    slack = ROUNDING * (16.0 + float(np.abs(log_terms).max()) / max(log_norm, 1.0))
    bound = order / beta * log_norm * (1.0 + slack)
    # The norm is at least that of each of the terms.
    if log_norm - float(log_terms.max()) <= _TIGHT * log_norm:
        return bound
    windows = equal_nodes(*_arrays(-REACH, max(order, 2.0) * reach + REACH, math.pi / reach))
    return min(bound, _quadrature(drawn, mu, order, windows, 1.0))


def _add(drawn: RecordMixture, mu: float, order: float) -> float:
    """Return the divergence of the Gaussian against the mixture, rounded up."""
    beta, reach = order - 1.0, drawn.records * mu
    none = -drawn.records * math.log1p(-drawn.sampling_rate) * (1.0 + ROUNDING)
    if mu > _LARGEST_RATIO:
        return none
    exponents = 0.5 * order * beta * mu * mu * drawn.squares
    bound = min(none, drawn.log_mean(exponents) / beta * (1.0 + 1e-12))
    low = -min(beta * reach, math.sqrt(2.0 * beta * none))
    if low == 0.0 or not math.isfinite(beta * reach):
        return bound
    # The mode of e^{-(a-1) log w} P, below which the log of this density rises.
    left, right = low, 0.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (left + right)
        below = middle + beta * mu * drawn.mean_drawn(mu, middle) < 0.0
        left, right = (middle, right) if below else (left, middle)
    curvature = 1.0 + 1.3 * (2.0 - left) * reach
    last = (left if left < -_FAR_MODE else 2.0 * reach) + REACH
    windows = equal_nodes(*_arrays(left - REACH, last, math.pi / (3.0 * reach), curvature))
    return min(bound, _quadrature(drawn, mu, order, windows, -1.0))


def _arrays(*numbers: float) -> tuple[FloatArray, ...]:
    return tuple(np.array([number]) for number in numbers)


def _quadrature(
    drawn: RecordMixture, mu: float, order: float, windows: Windows, sign: float
) -> float:
    """Return the divergence by the trapezoidal rule, or infinity if it needs too many nodes.

    `sign`: of log w in the loss: 1 for "remove", -1 for "add".
    """
    low, high, nodes = (float(part[0]) for part in windows)
    if not nodes <= _MOST_NODES:
        return math.inf
    beta, step = order - 1.0, (high - low) / (nodes - 1.0)
    y = low + step * np.arange(nodes)
    log_ratio = drawn.log_ratio(mu, y)
    loss, exponent = sign * log_ratio, -0.5 * y * y
    if sign > 0.0:
        exponent += log_ratio  # the expectation is over the mixture
    growth = beta * loss
    largest = np.maximum(growth, 0.0)
    exponent += largest
    factor = scaled_remainder(growth, largest) + beta * scaled_remainder(-loss, largest)
    peak = float(exponent.max())
    total = float((np.exp(exponent - peak) * factor).sum())
    log_moment = peak + math.log(total * step / math.sqrt(2.0 * math.pi))
    farthest = max(-low, high)
    log_moment += ROUNDING * (farthest * farthest + ROUNDING_FLOOR + 16.0 * order)
    return float(np.logaddexp(0.0, log_moment)) / beta * (1.0 + ROUNDING)
