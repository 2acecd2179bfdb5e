"""The bounded privacy losses of one pure DP step, the same in both directions.

Laplace noise, of L1 norm over scale m: one coordinate that is shifted by m. A vector that is
shifted by m altogether is no easier to tell apart: its coordinates, shifted one after the other,
are steps of a path, and the trade-offs of steps of a path compose to that of one shift (Dong, Roth
and Su 2022, Lemma A.5; for Laplace noise in one dimension an equation). Half of the mass under P
has the loss m, half of that under Q the loss -m, and in between there is a density.

Any epsilon-DP step is dominated by randomised response, of the losses epsilon and -epsilon alone
(Kairouz, Oh and Viswanath 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from accounting.exact.validation import FloatArray
from accounting.reports.pld.discretisation import integrated

_LARGEST_STEP: Final = 2.0
_PANELS: Final = 16


@dataclass(frozen=True)
class _Bounded:
    """Losses from `-size` to `size`, with some mass on either."""

    size: float

    def extremes(self, cut: float) -> tuple[float, float]:
        """Return the least and the largest loss; nothing is cut."""
        return -self.size, self.size

    def outside(self, cut: float) -> float:
        """Return 0: all outcomes are within the cut."""
        return 0.0

    def largest_step(self) -> float:
        """Return the largest allowed distance of nodes."""
        return min(_LARGEST_STEP, 0.25 * self.size)

    def bulk(self, step: float) -> float:
        """Return a loss that is a node, the least one."""
        return -math.fmod(self.size, step)


class LaplaceShift(_Bounded):
    """Laplace noise of scale 1, with and without a shift by `size`."""

    def cumulants(self, tilts: FloatArray) -> FloatArray:
        """Return log E exp(t l) under P at the tilts t > 0 (Mironov 2017, Prop. 6)."""
        m = self.size
        log_ahead = np.log1p(tilts) - np.log1p(2.0 * tilts) + tilts * m
        log_back = np.log(tilts) - np.log1p(2.0 * tilts) - (tilts + 1.0) * m
        return np.asarray(np.logaddexp(log_ahead, log_back))

    def integrals(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray, cut: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return mass and moment of each half of each cell."""
        m = self.size
        places = np.clip(0.5 * (edges + m), 0.0, m)
        panel = min(m / _PANELS, 0.5)
        log_half = -math.log(2.0)
        mass, moment = integrated(
            places, panel, nodes, scale, lambda z: log_half - z, lambda z: 2.0 * z - m
        )
        _add(mass, moment, edges, nodes, scale, -m, log_half)
        _add(mass, moment, edges, nodes, scale, m, log_half - m)
        return mass, moment


class RandomisedResponse(_Bounded):
    """Two outcomes, of the losses `size` and -`size`."""

    def cumulants(self, tilts: FloatArray) -> FloatArray:
        """Return log E exp(t l) under P at the tilts t > 0."""
        log_rest = -math.log1p(math.exp(-self.size))
        return np.asarray(log_rest + np.logaddexp(tilts * self.size, -(tilts + 1.0) * self.size))

    def integrals(
        self, edges: FloatArray, nodes: FloatArray, scale: FloatArray, cut: float
    ) -> tuple[FloatArray, FloatArray]:
        """Return mass and moment of each half of each cell."""
        mass, moment = np.zeros(edges.size - 1), np.zeros(edges.size - 1)
        log_rest = -math.log1p(math.exp(-self.size))
        _add(mass, moment, edges, nodes, scale, -self.size, log_rest)
        _add(mass, moment, edges, nodes, scale, self.size, log_rest - self.size)
        return mass, moment


def _add(
    mass: FloatArray,
    moment: FloatArray,
    edges: FloatArray,
    nodes: FloatArray,
    scale: FloatArray,
    at: float,
    log_mass: float,
) -> None:
    """Add an outcome of one loss to the half cell that it is in, in place."""
    owner = int(np.clip(np.searchsorted(edges, at, side="right") - 1, 0, edges.size - 2))
    node = (owner + 1) // 2
    weight = math.exp(float(scale[node]) + log_mass)
    mass[owner] += weight
    moment[owner] += weight * abs(math.expm1(at - float(nodes[node])))
