"""Privacy losses of one Poisson-sampled Gaussian step on a lattice, from above and from below.

With m = norm / noise the pair is P = (1-q) N(0, 1) + q N(m, 1) against Q = N(0, 1), and the loss of
an outcome x is l(x) = log(1 - q + q exp(m x - m^2 / 2)), increasing in x. Remove compares P with
Q; add compares Q with P, whose losses are -l. H(a) = P(l > log a) - a Q(l > log a), convex in a,
holds both directions, and both discretisations below keep the masses under P and under Q tied by
exp(loss), so one set of nodes serves both.

- Above: every outcome between two nodes is split over them so that its P and its Q mass are kept.
  H becomes the polygon through its own values at the nodes ("connect the dots", Doroshenko et al.
  2022), which dominates; the mean loss moves by a term of second order in the step only.
- Below: a polygon under the tangents of H (`tangents`), the loss of a pair that it dominates.

Every cell is split, or touched, by integrals of positive functions, so that masses have a small
relative error even where they are far below the rounding of 1. Nodes are multiples of one step,
dense around the bulk and then, outwards, at distances that grow with the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.tangents import Cells, tangent_bins, tangent_polygon

# Larger norms, in noise standard deviations, are reported as an unbounded loss.
LARGEST_RATIO: Final = 128.0
# Of the largest loss: nodes that are closer to each other are not told apart.
SMALLEST_STEP: Final = 2.0**-45
# Of the masses of a discretisation: what misses 1 by more is not rounding, and is not used.
_LARGEST_EXCESS = 2.0**-32
_DENSE = 128  # the step is at most this part of the distance from the bulk, and at least one
# In standard deviations of the loss of a step that is not sampled; and of the loss itself, so that
# halves of cells are not of too different a scale.
_LARGEST_STEP, _LARGEST_WIDTH = 0.05, 2.0
_PANEL = 0.08  # in standard deviations of the noise
_OFFSETS = 5  # offsets tried for the bulk to be exactly at a node
_GAUSS_NODES, _GAUSS_WEIGHTS = np.polynomial.legendre.leggauss(8)
_LOG_ROOT_2_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class LatticeLoss:
    """Masses at the losses `offset` + `indices` * step; -inf is no mass. All of shape (nodes,).

    `log_removed`: log masses under P at that loss. `log_added`: under Q at minus that loss.
    """

    offset: float
    indices: IntArray
    log_removed: FloatArray
    log_added: FloatArray


@dataclass(frozen=True)
class StepLoss:
    """The two discretisations of one step; `below` is None where the step is taken for harmless.

    `largest`: the largest absolute loss among the nodes. `outside`: the mass, in either direction,
    that is outside the range of outcomes; above, it must be taken for an infinite loss. `error`:
    what Gauss's rule and rounding keep the relative error of each mass within, and how far the
    masses of a discretisation are from adding up.
    """

    above: LatticeLoss
    below: LatticeLoss | None
    largest: float
    outside: float
    error: float


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
    """Return the outcomes with these losses; minus infinity where no outcome has so small a one."""
    if sampling_rate == 1.0:
        exponent = losses
    else:
        with np.errstate(divide="ignore", over="ignore"):
            growth = np.expm1(np.minimum(losses, 30.0)) / sampling_rate
            near = np.log1p(np.maximum(growth, -1.0))
        rest = np.log1p(-(1.0 - sampling_rate) * np.exp(-np.maximum(losses, 1.0)))
        exponent = np.where(losses < 30.0, near, losses - math.log(sampling_rate) + rest)
    return (exponent + 0.5 * ratio * ratio) / ratio


def step_loss(ratio: float, sampling_rate: float, step: float, cut: float) -> StepLoss:
    """Return both discretisations of a step on multiples of `step` plus an offset of its own.

    0 < `ratio` <= `LARGEST_RATIO`, 0 < `sampling_rate` <= 1; outcomes in the range of `cut` are
    taken into account. `step`: from the largest loss times `SMALLEST_STEP` to 2; others
    raise ValueError, for losses would not be told apart, or masses overflow.
    """
    ends = np.array(outcome_range(ratio, sampling_rate, cut))
    if not float(np.abs(loss(ratio, sampling_rate, ends)).max()) * SMALLEST_STEP <= step <= 2.0:
        raise ValueError(f"a lattice of {step} does not suit losses of {ratio}, {sampling_rate}")
    offset = _bulk_loss(ratio, sampling_rate, step)
    cells = _cells(ratio, sampling_rate, step, offset, cut)
    above = _connect_the_dots(cells)
    below = None
    lower_cells = cells
    for _ in range(_OFFSETS):
        bins = tangent_bins(lower_cells)
        if bins.hold:
            below = tangent_polygon(lower_cells, bins)
            break
        offset += bins.bulk_shift
        lower_cells = _cells(ratio, sampling_rate, step, offset, cut)
    dominating = _lattice(cells, np.arange(above.size), above)
    dominated = None if below is None else _lattice(lower_cells, *below)
    outside = outside_mass(ratio, sampling_rate, cut)
    missing = max(1.0 - min(_totals(dominating)) - outside, 0.0)
    excess = max(max(_totals(dominated)) - 1.0, 0.0) if dominated is not None else 0.0
    if excess > _LARGEST_EXCESS:
        dominated, excess = None, 0.0
    if missing > _LARGEST_EXCESS:
        outside, missing = 1.0, 0.0
    return StepLoss(
        above=dominating,
        below=dominated,
        largest=float(np.abs(cells.nodes).max()),
        outside=outside,
        error=2.0**-47 + cut * cut * 2.0**-51 + 2.0 * max(missing, excess),
    )


def _totals(lattice: LatticeLoss) -> tuple[float, float]:
    """Return the masses under P and under Q: the sums that powers of are taken of."""
    with np.errstate(under="ignore"):
        return float(np.exp(lattice.log_removed).sum()), float(np.exp(lattice.log_added).sum())


def _lattice(cells: Cells, kept: IntArray, scaled: FloatArray) -> LatticeLoss:
    kept, scaled = kept[scaled > 0.0], scaled[scaled > 0.0]
    log_mass, at = np.log(scaled), cells.nodes[kept]
    return LatticeLoss(
        cells.offset,
        cells.indices[kept],
        log_mass + np.minimum(at, 0.0),
        log_mass - np.maximum(at, 0.0),
    )


def _bulk_loss(ratio: float, sampling_rate: float, step: float) -> float:
    """Return a loss such that the outcomes within half a step of it have this loss on average.

    A bulk much narrower than the step is one node then, and loses nothing by it.
    """
    center = 0.0
    for _ in range(3):
        edges = np.array([center - 0.5 * step, center + 0.5 * step])
        low, high = outcome(ratio, sampling_rate, edges).tolist()
        unshifted = float(ndtr(high) - ndtr(low))
        shifted = float(ndtr(high - ratio) - ndtr(low - ratio))
        if not unshifted > 1e-3:
            return 0.0
        center = math.log1p(sampling_rate * (shifted / unshifted - 1.0))
        center = min(max(center, -step), 0.0)
    return center


def _node_indices(lowest: int, highest: int, largest_step: int) -> IntArray:
    """Return ascending integers that cover the range, 0 among them, growing apart outwards."""

    def side(reach: int) -> list[IntArray]:
        parts, start, step = [np.arange(2 * _DENSE)], 2 * _DENSE, 2
        while start <= reach:
            step = min(step, largest_step)
            end = 2 * start if step < largest_step else (reach // step + 2) * step
            end = max(end, start + step)
            parts.append(np.arange(start, end, step))
            start, step = end, 2 * step
        parts.append(np.array([start]))
        return parts

    right = np.concatenate(side(max(highest, 1)))
    left = np.concatenate(side(max(-lowest, 1)))
    right = right[: np.searchsorted(right, highest) + 1]
    left = left[: np.searchsorted(left, -lowest) + 1]
    return np.concatenate([-left[:0:-1], right]).astype(np.int64)


def _cells(ratio: float, sampling_rate: float, step: float, offset: float, cut: float) -> Cells:
    ends = np.array(outcome_range(ratio, sampling_rate, cut))
    lowest, highest = loss(ratio, sampling_rate, ends).tolist()
    indices = _node_indices(
        math.floor((lowest - offset) / step) - 1,
        math.ceil((highest - offset) / step) + 1,
        2 ** math.floor(math.log2(max(min(_LARGEST_STEP * ratio, _LARGEST_WIDTH) / step, 1.0))),
    )
    nodes = offset + step * indices.astype(np.float64)
    widths = step * np.diff(indices).astype(np.float64)
    scale = np.maximum(nodes, 0.0)
    edges = np.empty(2 * nodes.size - 1)
    edges[::2], edges[1::2] = nodes, nodes[:-1] + 0.5 * widths
    edges = np.clip(outcome(ratio, sampling_rate, edges), ends[0], ends[1])
    count = math.ceil((ends[1] - ends[0]) / min(_PANEL, 0.25 / ratio))
    breaks = np.unique(np.concatenate([edges, np.linspace(ends[0], ends[1], count + 1)]))
    half = 0.5 * np.diff(breaks)
    middle = breaks[:-1] + half
    owner = np.clip(np.searchsorted(edges, middle, side="right") - 1, 0, edges.size - 2)
    node = (owner + 1) // 2
    mass, moment = np.zeros(half.size), np.zeros(half.size)
    for point, weight in zip(_GAUSS_NODES.tolist(), _GAUSS_WEIGHTS.tolist(), strict=True):
        x = middle + half * point
        density = (weight * half) * np.exp(scale[node] - 0.5 * x * x - _LOG_ROOT_2_PI)
        mass += density
        moment += density * np.abs(np.expm1(loss(ratio, sampling_rate, x) - nodes[node]))
    shape = (nodes.size - 1, 2)

    def halves(panels: FloatArray) -> FloatArray:
        total = np.bincount(owner, weights=panels, minlength=edges.size - 1)
        return total.reshape(shape).astype(np.float64)

    return Cells(offset, indices, nodes, widths, scale, halves(mass), halves(moment))


def _connect_the_dots(cells: Cells) -> FloatArray:
    """Return the scaled mass of each node when each outcome is split over its two neighbours."""
    mass, moment = cells.mass, cells.moment
    rise, fall, jump = np.expm1(cells.widths), -np.expm1(-cells.widths), np.diff(cells.scale)
    nodes = np.zeros(cells.nodes.size)
    nodes[:-1] += mass[:, 0] - moment[:, 0] / rise + moment[:, 1] / fall * np.exp(-jump)
    nodes[1:] += mass[:, 1] - moment[:, 1] / fall
    nodes[1:] += moment[:, 0] / fall * np.exp(jump - cells.widths)
    return np.maximum(nodes, 0.0)
