"""Rényi divergence of a step in which each record of a user is drawn by a coin of its own.

With k records, a sampling rate q, and mu = norm / noise_stddev of one record, the number of records
drawn is J ~ Bin(k, q). The output with the user is the mixture M of N(j mu, 1) with the weights
P(J = j), and without the user it is P = N(0, 1). The likelihood ratio of M against P at y is

    w(y) = sum_j P(J = j) e^{j mu y - j^2 mu^2 / 2},

which rises in y, and log w is convex. One vector per record of norm at most mu, in any directions,
reveals no more (`docs/research/filters.md`).

Notation and method are those of `accounting.costs.sampled_gaussian`, with w in place of
1 - q + q e^v, and t = k mu in place of mu where an integrand's analyticity, width or reach is
concerned:

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
from functools import lru_cache
from typing import Final

import numpy as np

from accounting.costs.mechanisms import Direction, PoissonRecords
from accounting.costs.sampled_gaussian import (
    REACH,
    ROUNDING,
    ROUNDING_FLOOR,
    SMALLEST,
    Windows,
    equal_nodes,
    scaled_remainder,
)
from accounting.exact.argument_checks import FloatArray

_MOST_NODES: Final = 2**17
_FAR_MODE: Final = 24.0  # beyond it, e^{-mode^2 / 2} outweighs all other factors
_BISECTIONS: Final = 26  # leave the mode, never beyond -10^7, in an interval of 1/6
_TIGHT: Final = 1e-10  # Minkowski's bound is used where it exceeds the exact value by less
_LARGEST_RATIO: Final = 1e100  # of a record; squares do not overflow
# Terms that are below the largest one by more than this, in nats, are left out: all of them
# together are below its rounding.
_NEGLIGIBLE: Final = 50.0
_PLACES: Final = 256  # neighbouring places that share their terms


def records_divergence(
    mechanism: PoissonRecords, norms: FloatArray, orders: FloatArray, direction: Direction
) -> FloatArray:
    """Return the Rényi divergence of each user at each order, in nats, rounded up.

    An upper bound that exceeds the exact value by less than a relative 1e-9 in usual ranges. If the
    integral would need more than 2**17 nodes, it is Minkowski's or Jensen's bound.

    Args:
        mechanism: the step, at a sampling rate below 1.
        norms: L2 norms of one record of each user, shape (n,), finite, >= 0.
        orders: shape (k,), > 1, at most 2**40.
        direction: "remove" for the mixture against the Gaussian, "add" for the reverse.

    Returns:
        Shape (n, k). Norm 0 and rate 0 cost nothing.
    """
    distinct, position = np.unique(norms, return_inverse=True)
    table = np.zeros((distinct.size, orders.size))
    if mechanism.sampling_rate > 0.0:
        drawn = mixture(max(mechanism.sampling_rate, SMALLEST), mechanism.records)
        divergence = _remove if direction == "remove" else _add
        for row in np.flatnonzero(distinct).tolist():
            with np.errstate(all="ignore"):
                ratio = max(float(distinct[row] / mechanism.noise_stddev), SMALLEST)
                for column, order in enumerate(orders.tolist()):
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

    `sign`: the sign of log w in the loss: 1 for "remove", -1 for "add".
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


class RecordMixture:
    """The ratio w for k records at a rate q.

    Attributes:
        sampling_rate: q, 0 < q < 1.
        records: k, >= 1.
        log_weights: log P(J = j), j = 0 to k, shape (k + 1,), within a relative 2**-51 or 2**-52.
        squares: j squared, shape (k + 1,).
    """

    def __init__(self, sampling_rate: float, records: int) -> None:
        self.sampling_rate, self.records = sampling_rate, records
        self.log_weights = _log_weights(sampling_rate, records)
        with np.errstate(under="ignore"):
            self.weights = np.exp(self.log_weights)
        self._drawn = np.arange(records + 1, dtype=np.float64)
        self.squares = self._drawn * self._drawn

    def log_mean(self, exponents: FloatArray) -> float:
        """Return the log of the mean of e^x, with one x >= 0 for each j and 0 for j = 0."""
        terms = self.log_weights + exponents
        top = float(terms.max())
        if top > 0.0:
            return top + math.log(float(np.exp(terms - top).sum()))
        small = self.weights * np.expm1(np.minimum(exponents, 1.0))
        return math.log1p(
            float(np.where(exponents <= 1.0, small, np.exp(terms) - self.weights).sum())
        )

    def log_ratio(self, mu: float, y: FloatArray) -> FloatArray:
        """Return log w at ascending y, neighbours near one another, of the same shape (n,).

        Its error is a few 2**-53 times the largest of 1, the log weight and the exponent of the
        terms that matter.
        """
        ratio = np.empty_like(y)
        for start in range(0, y.size, _PLACES):
            block = slice(start, start + _PLACES)
            ratio[block] = self._block(mu, y[block])
        return ratio

    def mean_drawn(self, mu: float, y: float) -> float:
        """Return the mean of J given the output y, which rises in y; mu times it is (log w)'."""
        terms = self._terms(mu, y)
        shares = np.exp(terms - terms.max())
        return float(shares @ self._drawn / shares.sum())

    def _terms(self, mu: float, y: float) -> FloatArray:
        exponents = self._drawn * (mu * (y - 0.5 * mu * self._drawn))
        return np.asarray(self.log_weights + exponents)

    def _block(self, mu: float, y: FloatArray) -> FloatArray:
        # Given y, J is log-concave, and rises with y: the ends decide which terms matter beside the
        # largest one with a record drawn. The sum is taken around 1 where log w is near 0, so the
        # terms that matter without y do, too.
        ends = self._terms(mu, float(y.min())), self._terms(mu, float(y.max())), self.log_weights
        matter = np.flatnonzero(
            np.any([end >= end[1:].max() - _NEGLIGIBLE for end in ends], axis=0)
        )
        terms = slice(int(matter[0]), int(matter[-1]) + 1)
        j, weight = self._drawn[terms, np.newaxis], self.weights[terms, np.newaxis]
        exponents = j * (mu * (y - 0.5 * mu * j))
        scaled = exponents + self.log_weights[terms, np.newaxis]
        top = scaled.max(axis=0)
        ratio = np.asarray(top + np.log(np.exp(scaled - top).sum(axis=0)))
        near = np.flatnonzero(np.abs(ratio) < 1.0)
        if near.size:
            inner = exponents[:, near]
            small = weight * np.expm1(np.minimum(inner, 1.0))
            large = np.exp(np.minimum(scaled[:, near], 2.0)) - weight
            ratio[near] = np.log1p(np.where(inner <= 1.0, small, large).sum(axis=0))
        return ratio


@lru_cache(maxsize=64)
def mixture(sampling_rate: float, records: int) -> RecordMixture:
    """Return the mixture of these parameters, made once."""
    return RecordMixture(sampling_rate, records)


def binomial_weights(sampling_rate: float, records: int) -> tuple[list[int], int]:
    """Return the weights of Bin(k, q) as whole numbers, and their sum, a power of 2."""
    drawn, unit = sampling_rate.as_integer_ratio()
    rest = unit - drawn
    if rest == 0:
        return [0] * records + [1], 1
    weights = [rest**records]
    for j in range(records):
        weights.append(weights[-1] * ((records - j) * drawn) // ((j + 1) * rest))
    return weights, unit**records


def _log_weights(sampling_rate: float, records: int) -> FloatArray:
    """Return the logs of the binomial weights."""
    weights, whole = binomial_weights(sampling_rate, records)
    logs = np.empty(records + 1)
    for j, weight in enumerate(weights):
        bits = weight.bit_length()
        mantissa = math.ldexp(weight >> max(bits - 64, 0), -min(bits, 64))
        logs[j] = math.log(mantissa) + (bits - whole.bit_length() + 1) * math.log(2.0)
    return logs
