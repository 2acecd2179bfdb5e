"""Discretise the losses of one step on a lattice, from above and from below.

P against Q is a step of some mechanism, and l the loss of an outcome, log dP/dQ. Remove compares P
with Q; add compares Q with P, whose losses are -l. H(a) = P(l > log a) - a Q(l > log a), convex in
a, holds both directions, and both discretisations below keep the masses under P and under Q tied by
exp(loss), so one set of nodes serves both.

- Above: every outcome between two nodes is split over them so that its P and its Q mass are kept.
  H becomes the polygon through its own values at the nodes ("connect the dots", Doroshenko et al.
  2022), which dominates; the mean loss moves by a term of second order in the step only.
- Below: a polygon under the tangents of H, the loss of a pair that the step dominates. Between two
  nodes H is at least its tangent at any outcome between them, and at each node the polygon takes
  the lower one of the two tangents beside it. Where it is not convex, nodes are dropped, which
  lowers it further. A convex polygon between max(1 - a, 0) and H belongs to a pair of
  distributions, in both directions, whose losses are the nodes.

Every cell is split, or touched, by integrals of positive functions, so that masses have a small
relative error even where they are far below the rounding of 1. Nodes are multiples of one step,
dense around the bulk and then, outwards, at distances that grow with the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray
from accounting.exact.invalid_input import InvalidInput
from accounting.reports.pld.losses import StepSource

# Relative to the largest loss: nodes that are closer to each other coincide.
SMALLEST_STEP: Final = 2.0**-45
# Losses are computed to within this, relative to the largest loss of the step.
LOSS_ERROR: Final = 2.0**-47
_FAR_ERROR = 2.0**-40
# Masses of a discretisation that miss 1 by more than this have more than rounding errors.
_LARGEST_EXCESS = 2.0**-32
_DENSE = 128  # the step is at most this part of the distance from the bulk, and at least one
# A lattice for cumulants has this step, relative to the deviation of the losses, at least this.
_FINENESS, SMALLEST_DEVIATION = 2.0**-5, 2.0**-32
# Errors of the log of a sum over nodes, relative to 1, and to the magnitudes in it.
_STEP_ERROR, _ROUNDING = 2.0**-48, 2.0**-50
_OFFSETS = 5  # offsets tried for the bulk to be exactly at a node


@dataclass(frozen=True)
class Cells:
    """Integrals over the cells between `nodes`, `offset` + `indices` * `step`, ascending.

    `widths`: the cells' widths, shape (cells,). `mass`: Q mass of the two halves of each cell, and
    `moment`: |integral of (exp(l - node) - 1) dQ|, shape (cells, 2); the left half refers to the
    left node, the right half to the right one, and both are multiplied by exp(scale) of that node,
    scale = max(node, 0), so that neither small losses nor large ones underflow.
    """

    step: float
    offset: float
    indices: IntArray
    nodes: FloatArray
    widths: FloatArray
    scale: FloatArray
    mass: FloatArray
    moment: FloatArray


class Bins(NamedTuple):
    """Q mass and integral of (exp(l - node) - 1) dQ of the bin of each node, scaled, (nodes,).

    `hold`: whether the polygon of these bins is above max(1 - a, 0). If not, moving all nodes by
    `bulk_shift` may help: the bin of index 0 has its node in the right place then.
    """

    total: FloatArray
    excess: FloatArray
    hold: bool
    bulk_shift: float


@dataclass(frozen=True)
class LatticeLoss:
    """Masses at the losses `offset` + `indices` * `step`; -inf is no mass. Shape (nodes,).

    `log_removed`: log masses under P at that loss. `log_added`: under Q at minus that loss.
    """

    step: float
    offset: float
    indices: IntArray
    log_removed: FloatArray
    log_added: FloatArray

    def directed(self, added: bool) -> tuple[FloatArray, FloatArray]:
        """Return (losses, log masses) in one direction."""
        losses = self.offset + self.step * self.indices.astype(np.float64)
        return (-losses, self.log_added) if added else (losses, self.log_removed)


@dataclass(frozen=True)
class StepLoss:
    """The two discretisations of one step; `below` is None if the step counts as harmless.

    `largest`: the largest absolute loss among the nodes.
    `infinity_mass`: the mass, in either direction, beyond the cut; above, it counts as an infinite
    loss. `error`: what Gauss's rule and rounding keep the relative error of each mass within, and
    how far the masses of a discretisation are from adding up.
    """

    above: LatticeLoss
    below: LatticeLoss | None
    largest: float
    infinity_mass: float
    error: float


@lru_cache(maxsize=512)
def discretised(source: StepSource, step: float, cut: float) -> StepLoss:
    """Return both discretisations of a step on multiples of `step` plus an offset of its own.

    Only outcomes within `cut` are included. `step`: from the largest loss times
    `SMALLEST_STEP` to 2; others raise InvalidInput, because losses would coincide, or masses
    overflow.
    """
    if not max(abs(end) for end in source.extremes(cut)) * SMALLEST_STEP <= step <= 2.0:
        raise InvalidInput("step", step, f"a lattice step that resolves the losses of {source}")
    offset = source.bulk(step)
    cells = _cells(source, step, offset, cut)
    above = _connect_the_dots(cells)
    below = None
    lower_cells = cells
    for _ in range(_OFFSETS):
        bins = tangent_bins(lower_cells)
        if bins.hold:
            below = tangent_polygon(lower_cells, bins)
            break
        offset += bins.bulk_shift
        lower_cells = _cells(source, step, offset, cut)
    dominating = _lattice(cells, np.arange(above.size), above)
    dominated = None if below is None else _lattice(lower_cells, *below)
    infinity_mass = source.tail_mass(cut)
    missing = max(1.0 - min(_totals(dominating)) - infinity_mass, 0.0)
    excess = max(max(_totals(dominated)) - 1.0, 0.0) if dominated is not None else 0.0
    if excess > _LARGEST_EXCESS:
        dominated, excess = None, 0.0
    if missing > _LARGEST_EXCESS:
        infinity_mass, missing = 1.0, 0.0
    return StepLoss(
        above=dominating,
        below=dominated,
        largest=float(np.abs(cells.nodes).max()),
        infinity_mass=infinity_mass,
        error=2.0**-47 + cut * cut * 2.0**-51 + 2.0 * max(missing, excess),
    )


def base_step(source: StepSource, cut: float) -> float:
    """Return a lattice step at which cumulants are nearly exact, a power of two."""
    resolved = 2.0 * SMALLEST_STEP * max(abs(end) for end in source.extremes(cut))
    step = max(_FINENESS * max(source.deviation, SMALLEST_DEVIATION), resolved)
    return float(2.0 ** math.floor(math.log2(min(step, 1.0))))


def log_expectations(losses: StepLoss, added: bool, tilts: FloatArray) -> FloatArray:
    """Return upper bounds of log E exp(t L) at tilts t > 0, within the cut of the losses."""
    loss, log_mass = losses.above.directed(added)
    exponents = np.multiply.outer(tilts, loss) + log_mass
    top = exponents.max(axis=1)
    exponents -= top[:, np.newaxis]
    # Not below e^-700, because subnormal numbers are slow.
    np.exp(np.maximum(exponents, -700.0, out=exponents), out=exponents)
    found = top + np.log(exponents.sum(axis=1))
    # Errors of the masses, of the losses, and of the sum.
    found += 2.0 * losses.error + _STEP_ERROR + tilts * (LOSS_ERROR * losses.largest)
    return np.asarray(found + _ROUNDING * (np.abs(top) + tilts * losses.largest))


def _totals(lattice: LatticeLoss) -> tuple[float, float]:
    """Return the masses under P and under Q, whose powers are used."""
    with np.errstate(under="ignore"):
        return float(np.exp(lattice.log_removed).sum()), float(np.exp(lattice.log_added).sum())


def _lattice(cells: Cells, kept: IntArray, scaled: FloatArray) -> LatticeLoss:
    kept, scaled = kept[scaled > 0.0], scaled[scaled > 0.0]
    log_mass, at = np.log(scaled), cells.nodes[kept]
    return LatticeLoss(
        cells.step,
        cells.offset,
        cells.indices[kept],
        log_mass + np.minimum(at, 0.0),
        log_mass - np.maximum(at, 0.0),
    )


def _node_indices(lowest: int, highest: int, largest_step: int) -> IntArray:
    """Return ascending integers that cover the range, 0 included, growing in distance."""

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


def _cells(source: StepSource, step: float, offset: float, cut: float) -> Cells:
    lowest, highest = source.extremes(cut)
    indices = _node_indices(
        math.floor((lowest - offset) / step) - 1,
        math.ceil((highest - offset) / step) + 1,
        2 ** math.floor(math.log2(max(source.largest_step() / step, 1.0))),
    )
    nodes = offset + step * indices.astype(np.float64)
    widths = step * np.diff(indices).astype(np.float64)
    scale = np.maximum(nodes, 0.0)
    edges = np.empty(2 * nodes.size - 1)
    edges[::2], edges[1::2] = nodes, nodes[:-1] + 0.5 * widths
    mass, moment = source.integrals(edges, nodes, scale, cut)
    shape = (nodes.size - 1, 2)
    mass, moment = mass.reshape(shape), moment.reshape(shape)
    return Cells(step, offset, indices, nodes, widths, scale, mass, moment)


def _connect_the_dots(cells: Cells) -> FloatArray:
    """Return the scaled mass of each node, with each outcome split over its two neighbours."""
    mass, moment = cells.mass, cells.moment
    rise, fall, jump = np.expm1(cells.widths), -np.expm1(-cells.widths), np.diff(cells.scale)
    nodes = np.zeros(cells.nodes.size)
    nodes[:-1] += mass[:, 0] - moment[:, 0] / rise + moment[:, 1] / fall * np.exp(-jump)
    nodes[1:] += mass[:, 1] - moment[:, 1] / fall
    nodes[1:] += moment[:, 0] / fall * np.exp(jump - cells.widths)
    return np.maximum(nodes, 0.0)


def tangent_bins(cells: Cells) -> Bins:
    """Choose where in each cell the tangent touches; the bins of outcomes end there.

    In the middle of the cell, unless this tangent is below max(1 - a, 0) at a node of the cell:
    then at the node that is farther out, where the tangent has the height of H itself.
    """
    nowhere = np.zeros(cells.widths.size, dtype=np.bool_)
    at_left, at_right = _too_low(cells, *_binned(cells, nowhere, nowhere))
    total, excess = _binned(cells, at_left, at_right & ~at_left)
    low_left, low_right = _too_low(cells, total, excess)
    bulk = int(np.searchsorted(cells.indices, 0))
    shift = float(np.log1p(excess[bulk] / total[bulk])) if total[bulk] > 0.0 else 0.0
    return Bins(total, excess, not bool(np.any(low_left | low_right)), shift)


def _binned(cells: Cells, at_left: BoolArray, at_right: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return total and excess of the bins, whose ends are where the tangents touch."""
    (first, second), (above, below) = cells.mass.T, cells.moment.T
    jump = np.diff(cells.scale)
    total, excess = np.zeros(cells.nodes.size), np.zeros(cells.nodes.size)
    total[:-1] = np.where(at_left, 0.0, first) + np.where(at_right, second * np.exp(-jump), 0.0)
    total[1:] += np.where(at_right, 0.0, second) + np.where(at_left, first * np.exp(jump), 0.0)
    # Seen from the other node, exp(l - node) - 1 of a half is less or more.
    to_left = (second * -np.expm1(-cells.widths) - below) * np.exp(cells.widths - jump)
    to_right = (first * np.expm1(cells.widths) - above) * np.exp(jump - cells.widths)
    excess[:-1] = np.where(at_left, 0.0, above) + np.where(at_right, to_left, 0.0)
    excess[1:] -= np.where(at_right, 0.0, below) + np.where(at_left, to_right, 0.0)
    return total, excess


def tangent_polygon(cells: Cells, bins: Bins) -> tuple[IntArray, FloatArray]:
    """Return (positions of the nodes kept, their masses, scaled) of the convex polygon."""
    nodes, scale = cells.nodes, cells.scale
    rise, fall, jump = np.expm1(cells.widths), -np.expm1(-cells.widths), np.diff(scale)
    # Where the mean of a bin is beside its node, the tangents differ at the node by the excess.
    over, under = np.maximum(bins.excess, 0.0), np.maximum(-bins.excess, 0.0)
    mass = bins.total.copy()
    mass[1:] += over[1:] / fall
    mass[:-1] -= over[1:] / fall * np.exp(-jump)
    mass[:-1] += under[:-1] / rise
    mass[1:] -= under[:-1] / fall * np.exp(jump - cells.widths)
    kept = np.arange(nodes.size)
    while True:
        concave = np.flatnonzero(mass[1:-1] < 0.0) + 1
        if concave.size == 0:
            break
        stays = np.ones(kept.size, dtype=np.bool_)
        stays[concave] = False
        where = np.flatnonzero(stays)
        right = np.searchsorted(where, concave)
        # The chord past a node: its mass is split over its neighbours, kept under P and under Q.
        a, j, b = kept[where[right - 1]], kept[concave], kept[where[right]]
        span = -np.expm1(nodes[a] - nodes[b])
        to_a = -np.expm1(nodes[j] - nodes[b]) / span * np.exp(scale[a] - scale[j])
        shift = (nodes[j] - nodes[b]) + (scale[b] - scale[j])
        to_b = -np.expm1(nodes[a] - nodes[j]) / span * np.exp(shift)
        moved = mass[concave]
        mass, kept = mass[where], kept[where]
        np.add.at(mass, right - 1, moved * to_a)
        np.add.at(mass, right, moved * to_b)
    # The ends are negative only by rounding.
    return kept, np.maximum(mass, 0.0)


def _too_low(cells: Cells, total: FloatArray, excess: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Return where the tangent of a cell is below 1 - a at its left node, below 0 at its right one.

    That is where the bins up to the left node have, together, a larger loss than this node, and
    those from the right node on a smaller one than that.
    """
    nodes, scale = cells.nodes, cells.scale
    near = np.abs(nodes) <= 1.0
    with np.errstate(divide="ignore", under="ignore", invalid="ignore"):
        log_q = np.log(np.maximum(total, 0.0)) - scale
        log_p = np.log(np.maximum(total + excess, 0.0)) + nodes - scale
        q, p = np.exp(log_q), np.exp(log_p)
        # P - Q is far smaller than either if the losses are small.
        close = np.clip(nodes, -1.0, 1.0)
        gain = np.where(near, np.exp(close - scale) * excess + q * np.expm1(close), p - q)

        def beside(order: slice) -> tuple[BoolArray, BoolArray]:
            """Return whether outcomes up to each node, in this order, have larger, smaller loss."""
            sum_q, sum_gain = np.cumsum(q[order])[order], np.cumsum(gain[order])[order]
            difference = sum_gain - np.expm1(close) * sum_q
            tolerance = LOSS_ERROR * min(float(np.abs(nodes).max()), 1.0) * sum_q
            log_sum_q = np.logaddexp.accumulate(log_q[order])[order]
            log_sum_p = np.logaddexp.accumulate(log_p[order])[order]
            distance = log_sum_p - log_sum_q - nodes
            larger: BoolArray = np.where(near, difference > tolerance, distance > _FAR_ERROR)
            smaller: BoolArray = np.where(near, difference < -tolerance, distance < -_FAR_ERROR)
            return larger, smaller

        left_larger, _ = beside(slice(None))
        _, right_smaller = beside(slice(None, None, -1))
    return (left_larger & (nodes < 0.0))[:-1], (right_smaller & (nodes > 0.0))[1:]
