"""The privacy losses of one step at each level of a report, for discretisation on a lattice.

P against Q is the step with and without the user, and l(x) the loss log dP/dQ of an outcome x.

- Poisson-sampled Gaussian, m = norm / noise: P = (1-q) N(0, 1) + q N(m, 1), Q = N(0, 1), and
  l(x) = log(1 - q + q exp(m x - m^2 / 2)), increasing in x.
- Laplace, m = L1 norm / scale: one coordinate that is shifted by m. A vector whose coordinates are
  shifted by m altogether is no easier to distinguish: shifted one after the other, they are steps
  of a path, and the trade-offs of steps of a path compose to that of one shift (Dong, Roth and Su
  2022, Lemma A.5; for Laplace noise in one dimension an equation). Half of the mass under P has the
  loss m, half of that under Q the loss -m, and in between there is a density.
- Pure DP: any epsilon-DP step is dominated by randomised response, with the losses epsilon and
  -epsilon alone (Kairouz, Oh and Viswanath 2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
from scipy.special import ndtr, ndtri

from accounting.costs.mechanisms import Laplace, Mechanism, PoissonGaussian, PureDP
from accounting.exact.argument_checks import BoolArray, FloatArray
from accounting.reports.bounds import step_sizes

# Larger norms, in noise standard deviations, are reported as an unbounded loss.
LARGEST_RATIO: Final = 128.0
_SMALLEST_SIZE: Final = 1e-150  # smaller sizes count as this
# The largest distance of nodes, in standard deviations of the unsampled loss and in nats, so that
# halves of cells are not of too different a scale.
_LARGEST_STEP, _LARGEST_WIDTH = 0.05, 2.0
_PANEL = 0.08  # in standard deviations of the noise
_LARGEST_BOUNDED_STEP, _BOUNDED_PANELS = 2.0, 16
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class SampledGaussian:
    """P = (1-q) N(0, 1) + q N(m, 1) against Q = N(0, 1): `ratio` m, `sampling_rate` q."""

    ratio: float
    sampling_rate: float

    @property
    def mirrored(self) -> bool:
        """True if the step loses the same when a user is added as when removed."""
        return self.sampling_rate == 1.0

    @property
    def deviation(self) -> float:
        """Roughly the root of the mean square of the loss, under Q."""
        x = np.linspace(-9.0, 9.0, 181)
        losses = self.loss(x)
        mean = float(np.exp(-0.5 * x * x) @ (losses * losses)) * 0.1 / math.sqrt(2.0 * math.pi)
        return math.sqrt(mean)

    @property
    def largest_added(self) -> float:
        """The largest loss when a user is added, rounded up."""
        rate = self.sampling_rate
        return -math.log1p(-rate) * (1.0 + 2.0**-50) if rate < 1.0 else math.inf

    def outcomes(self, cut: float) -> tuple[float, float]:
        """Return outcomes beyond each of which each distribution has a mass of about Phi(-cut)."""
        tail = float(ndtr(-cut)) / self.sampling_rate
        shifted = self.ratio - float(ndtri(tail)) if tail < 0.5 else self.ratio
        return -cut, max(cut, shifted)

    def loss(self, x: FloatArray) -> FloatArray:
        """Return the loss of outcomes, in standard deviations of the noise."""
        rate, exponent = self.sampling_rate, self.ratio * x - 0.5 * self.ratio * self.ratio
        if rate == 1.0:
            return exponent
        growth = rate * np.expm1(np.minimum(exponent, 30.0))
        near = np.log1p(np.maximum(growth, -0.5))
        far = np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)
        return np.where((growth > -0.5) & (exponent < 30.0), near, far)

    def outcomes_of(self, losses: FloatArray) -> FloatArray:
        """Return the outcomes with these losses; minus infinity if none has so small a loss."""
        exponent, rate = losses, self.sampling_rate
        if rate < 1.0:
            with np.errstate(divide="ignore", over="ignore"):
                growth = np.expm1(np.minimum(losses, 30.0)) / rate
                near = np.log1p(np.maximum(growth, -1.0))
            rest = np.log1p(-(1.0 - rate) * np.exp(-np.maximum(losses, 1.0)))
            exponent = np.where(losses < 30.0, near, losses - math.log(rate) + rest)
        return (exponent + 0.5 * self.ratio * self.ratio) / self.ratio

    def extremes(self, cut: float) -> tuple[float, float]:
        """Return the least and the largest loss of the outcomes within a cut."""
        lowest, highest = self.loss(np.array(self.outcomes(cut))).tolist()
        return lowest, highest

    def tail_mass(self, cut: float) -> float:
        """Return the larger of the masses under P and under Q beyond the cut, rounded up."""
        low, high = self.outcomes(cut)
        unshifted, shifted = float(ndtr(-high)), float(ndtr(self.ratio - high))
        above = (1.0 - self.sampling_rate) * unshifted + self.sampling_rate * shifted
        return (float(ndtr(low)) + max(above, unshifted)) * (1.0 + 2.0**-30)

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
            low, high = self.outcomes_of(edges).tolist()
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
        return _integrated(
            np.clip(self.outcomes_of(edges), *self.outcomes(cut)),
            min(_PANEL, 0.25 / self.ratio),
            nodes,
            scale,
            lambda x: -0.5 * x * x - _LOG_ROOT_2_PI,
            self.loss,
        )


@dataclass(frozen=True)
class _Bounded:
    """Losses from `size` to -`size`, with some mass on either, the same in both directions."""

    size: float
    mirrored: ClassVar = True

    @property
    def deviation(self) -> float:
        """The root of the mean square of the loss, at most."""
        return self.size

    @property
    def largest_added(self) -> float:
        """The largest loss when a user is added."""
        return self.size

    @property
    def log_mass(self) -> float:
        """The log of the mass under P at the loss `size`, which is that under Q at -`size`."""
        raise NotImplementedError

    def extremes(self, cut: float) -> tuple[float, float]:
        """Return the least and the largest loss; nothing is cut."""
        return -self.size, self.size

    def tail_mass(self, cut: float) -> float:
        """Return 0: all outcomes are within the cut."""
        return 0.0

    def largest_step(self) -> float:
        """Return the largest allowed distance of nodes."""
        return min(_LARGEST_BOUNDED_STEP, 0.25 * self.size)

    def bulk(self, step: float) -> float:
        """Return a loss that is a node, the least one."""
        return -math.fmod(self.size, step)

    def integrals(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray, cut: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return mass and moment of each half of each cell."""
        mass, moment = self._between(edges, nodes, scale)
        for at, log_mass in ((-self.size, self.log_mass), (self.size, self.log_mass - self.size)):
            owner = int(np.clip(np.searchsorted(edges, at, side="right") - 1, 0, edges.size - 2))
            node = (owner + 1) // 2
            weight = math.exp(float(scale[node]) + log_mass)
            mass[owner] += weight
            moment[owner] += weight * abs(math.expm1(at - float(nodes[node])))
        return mass, moment

    def _between(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return mass and moment of the losses between the largest and the least."""
        return np.zeros(edges.size - 1), np.zeros(edges.size - 1)


class LaplaceShift(_Bounded):
    """Laplace noise of scale 1, with and without a shift by `size`."""

    @property
    def log_mass(self) -> float:
        """Half of the noise is beyond the shift."""
        return -math.log(2.0)

    def _between(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        m, log_half = self.size, self.log_mass
        places = np.clip(0.5 * (edges + m), 0.0, m)
        panel = min(m / _BOUNDED_PANELS, 0.5)
        return _integrated(
            places, panel, nodes, scale, lambda z: log_half - z, lambda z: 2.0 * z - m
        )


class RandomisedResponse(_Bounded):
    """Two outcomes, of the losses `size` and -`size`."""

    @property
    def log_mass(self) -> float:
        """The probability of the likelier response."""
        return -math.log1p(math.exp(-self.size))


def _integrated(
    places: FloatArray,
    panel: float,
    nodes: FloatArray,
    scale: FloatArray,
    log_density: Callable[[FloatArray], FloatArray],
    loss_at: Callable[[FloatArray], FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """Return mass and moment of each half cell (`discretisation.Cells`), by a density under Q.

    `places`: the outcomes at the ends of the half cells, ascending; `panel`: what Gauss's rule is
    applied to, at most.
    """
    count = math.ceil((places[-1] - places[0]) / panel)
    breaks = np.unique(np.concatenate([places, np.linspace(places[0], places[-1], count + 1)]))
    half = 0.5 * np.diff(breaks)
    middle = breaks[:-1] + half
    owner = np.clip(np.searchsorted(places, middle, side="right") - 1, 0, places.size - 2)
    node = (owner + 1) // 2
    mass, moment = np.zeros(half.size), np.zeros(half.size)
    for point, weight in zip(_GAUSS_NODES.tolist(), _GAUSS_WEIGHTS.tolist(), strict=True):
        x = middle + half * point
        density = (weight * half) * np.exp(scale[node] + log_density(x))
        mass += density
        moment += density * np.abs(np.expm1(loss_at(x) - nodes[node]))

    def halves(panels: FloatArray) -> FloatArray:
        total = np.bincount(owner, weights=panels, minlength=places.size - 1)
        return total.astype(np.float64)

    return halves(mass), halves(moment)


StepSource: TypeAlias = SampledGaussian | LaplaceShift | RandomisedResponse


class Steps(NamedTuple):
    """The losses of the levels, shape (levels,).

    `unbounded`: whether the losses are only valid as a lower bound; `free`: whether nothing is
    lost.
    """

    sources: tuple[StepSource, ...]
    unbounded: BoolArray
    free: BoolArray


def steps_of(mechanisms: Sequence[Mechanism], norms: FloatArray) -> Steps:
    """Return the steps of `norms`, shape (levels,), > 0."""
    each, sizes = step_sizes(mechanisms, norms)
    clipped = np.clip(sizes, _SMALLEST_SIZE, LARGEST_RATIO).tolist()
    return Steps(
        tuple(_source(*pair) for pair in zip(each, clipped, strict=True)),
        np.asarray(sizes > LARGEST_RATIO),
        np.array([getattr(step, "sampling_rate", 1.0) == 0.0 for step in each]),
    )


def _source(step: Mechanism, size: float) -> StepSource:
    match step:
        case Laplace():
            return LaplaceShift(size)
        case PureDP():
            return RandomisedResponse(size)
        case PoissonGaussian(_, rate) if rate > 0.0:
            return SampledGaussian(size, rate)
    return SampledGaussian(size, 1.0)
