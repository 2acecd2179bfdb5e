"""Privacy losses of one Poisson-sampled Gaussian step.

With m = norm / noise the pair is P = (1-q) N(0, 1) + q N(m, 1) against Q = N(0, 1), and the loss of
an outcome x is l(x) = log(1 - q + q exp(m x - m^2 / 2)), increasing in x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from accounting.exact.validation import FloatArray
from accounting.reports.pld.discretisation import StepLoss, discretised, integrated

# Larger norms, in noise standard deviations, are reported as an unbounded loss.
LARGEST_RATIO: Final = 128.0
# In standard deviations of the loss of a step that is not sampled; and of the loss itself, so that
# halves of cells are not of too different a scale.
_LARGEST_STEP, _LARGEST_WIDTH = 0.05, 2.0
_PANEL = 0.08  # in standard deviations of the noise
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)


def outcome_range(ratio: float, sampling_rate: float, cut: float) -> tuple[float, float]:
    """Return outcomes beyond each of which each distribution has a mass of about Phi(-cut)."""
    tail = float(ndtr(-cut)) / sampling_rate
    shifted = ratio - float(ndtri(tail)) if tail < 0.5 else ratio
    return -cut, max(cut, shifted)


def outside_mass(ratio: float, sampling_rate: float, cut: float) -> float:
    """Return the larger of the masses under P and under Q outside of the range, rounded up."""
    low, high = outcome_range(ratio, sampling_rate, cut)
    above = (1.0 - sampling_rate) * float(ndtr(-high)) + sampling_rate * float(ndtr(ratio - high))
    return (float(ndtr(low)) + max(above, float(ndtr(-high)))) * (1.0 + 2.0**-30)


def loss(ratio: float, sampling_rate: float, x: FloatArray) -> FloatArray:
    """Return the loss of outcomes, in standard deviations of the noise, 0 < sampling_rate <= 1."""
    exponent = ratio * x - 0.5 * ratio * ratio
    if sampling_rate == 1.0:
        return exponent
    growth = sampling_rate * np.expm1(np.minimum(exponent, 30.0))
    near = np.log1p(np.maximum(growth, -0.5))
    far = np.logaddexp(math.log1p(-sampling_rate), math.log(sampling_rate) + exponent)
    return np.where((growth > -0.5) & (exponent < 30.0), near, far)


def outcome(ratio: float, sampling_rate: float, losses: FloatArray) -> FloatArray:
    """Return the outcomes with these losses; minus infinity if no outcome has so small a loss."""
    if sampling_rate == 1.0:
        exponent = losses
    else:
        with np.errstate(divide="ignore", over="ignore"):
            growth = np.expm1(np.minimum(losses, 30.0)) / sampling_rate
            near = np.log1p(np.maximum(growth, -1.0))
        rest = np.log1p(-(1.0 - sampling_rate) * np.exp(-np.maximum(losses, 1.0)))
        exponent = np.where(losses < 30.0, near, losses - math.log(sampling_rate) + rest)
    return (exponent + 0.5 * ratio * ratio) / ratio


@dataclass(frozen=True)
class SampledGaussian:
    """P = (1-q) N(0, 1) + q N(m, 1) against Q = N(0, 1): `ratio` m, `sampling_rate` q."""

    ratio: float
    sampling_rate: float

    def extremes(self, cut: float) -> tuple[float, float]:
        """Return the least and the largest loss of the outcomes within a cut."""
        ends = np.array(outcome_range(self.ratio, self.sampling_rate, cut))
        lowest, highest = loss(self.ratio, self.sampling_rate, ends).tolist()
        return lowest, highest

    def outside(self, cut: float) -> float:
        """Return the larger of the masses under P and under Q beyond the cut, rounded up."""
        return outside_mass(self.ratio, self.sampling_rate, cut)

    def largest_step(self) -> float:
        """Return the largest allowed distance of nodes."""
        return min(_LARGEST_STEP * self.ratio, _LARGEST_WIDTH)

    def bulk(self, step: float) -> float:
        """Return a loss such that the outcomes within half a step have this loss on average.

        A bulk that is much narrower than the step is then one node, without loss.
        """
        center = 0.0
        for _ in range(3):
            edges = np.array([center - 0.5 * step, center + 0.5 * step])
            low, high = outcome(self.ratio, self.sampling_rate, edges).tolist()
            unshifted = float(ndtr(high) - ndtr(low))
            shifted = float(ndtr(high - self.ratio) - ndtr(low - self.ratio))
            if not unshifted > 1e-3:
                return 0.0
            center = math.log1p(self.sampling_rate * (shifted / unshifted - 1.0))
            center = min(max(center, -step), 0.0)
        return center

    def integrals(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray, cut: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return mass and moment of each half of each cell."""
        ends = outcome_range(self.ratio, self.sampling_rate, cut)
        places = np.clip(outcome(self.ratio, self.sampling_rate, edges), *ends)
        return integrated(
            places,
            min(_PANEL, 0.25 / self.ratio),
            nodes,
            scale,
            lambda x: -0.5 * x * x - _LOG_ROOT_2_PI,
            lambda x: loss(self.ratio, self.sampling_rate, x),
        )


def step_loss(ratio: float, sampling_rate: float, step: float, cut: float) -> StepLoss:
    """Return `discretised` of a sampled Gaussian step.

    0 < `ratio` <= `LARGEST_RATIO`, 0 < `sampling_rate` <= 1.
    """
    return discretised(SampledGaussian(ratio, sampling_rate), step, cut)
