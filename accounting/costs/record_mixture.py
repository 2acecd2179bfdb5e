"""The output of a step in which each record of a user is drawn by a coin of its own.

With k records, a sampling rate q, and mu = norm / noise_stddev of one record, the number of records
drawn is J ~ Bin(k, q). The output with the user is the mixture M of N(j mu, 1) with the weights
P(J = j), and without the user it is P = N(0, 1). The likelihood ratio of M against P at y is

    w(y) = sum_j P(J = j) e^{j mu y - j^2 mu^2 / 2},

which rises in y, and log w is convex. One vector per record of norm at most mu, in any directions,
reveals no more (`docs/research/sampled-levels.md`).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from accounting.exact.argument_checks import FloatArray

# Terms that are below the largest one by more than this, in nats, are left out: all of them
# together are below its rounding.
_NEGLIGIBLE: Final = 50.0
_PLACES: Final = 256  # neighbouring places that share their terms


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
