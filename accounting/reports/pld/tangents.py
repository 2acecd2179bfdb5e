"""The lattice loss that a step dominates: a polygon under the tangents of its trade-off.

H(a) = P(l > log a) - a Q(l > log a) is convex. Between two nodes it is at least its tangent at any
outcome between them. At each node the polygon takes the lower one of the two tangents beside it, so
it is below H everywhere. Where it is not convex, nodes are dropped, which lowers it further. A
convex polygon between max(1 - a, 0) and H belongs to a pair of distributions, in both directions,
whose losses are the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from accounting.exact.validation import BoolArray, FloatArray, IntArray

# Losses are computed to within this, relative to the largest loss of the step.
LOSS_ERROR: Final = 2.0**-47
_FAR_ERROR = 2.0**-40


@dataclass(frozen=True)
class Cells:
    """Integrals over the cells between `nodes`, which are `offset` + `indices` * step, ascending.

    `widths`: of the cells, shape (cells,). `mass`: Q mass of the two halves of each cell, and
    `moment`: |integral of (exp(l - node) - 1) dQ|, shape (cells, 2); the left half refers to the
    left node, the right half to the right one, and both are multiplied by exp(scale) of that node,
    scale = max(node, 0), so that neither small losses nor large ones underflow.
    """

    offset: float
    indices: IntArray
    nodes: FloatArray
    widths: FloatArray
    scale: FloatArray
    mass: FloatArray
    moment: FloatArray


class Bins(NamedTuple):
    """Q mass and integral of (exp(l - node) - 1) dQ of the bin of each node, scaled, (nodes,).

    `hold`: whether the polygon of these bins lies above max(1 - a, 0). If not, moving all nodes by
    `bulk_shift` may help: the bin of index 0 has its node in the right place then.
    """

    total: FloatArray
    excess: FloatArray
    hold: bool
    bulk_shift: float


def tangent_bins(cells: Cells) -> Bins:
    """Choose where in each cell the tangent touches; the bins of outcomes end there.

    In the middle of the cell, unless this tangent is below max(1 - a, 0) at a node of the cell:
    then at the node that is farther out, where the tangent has the height of H itself.
    """
    mass, moment = cells.mass, cells.moment
    rise, fall, jump = np.expm1(cells.widths), -np.expm1(-cells.widths), np.diff(cells.scale)
    total, excess = np.zeros(cells.nodes.size), np.zeros(cells.nodes.size)
    total[:-1] += mass[:, 0]
    total[1:] += mass[:, 1]
    excess[:-1] += moment[:, 0]
    excess[1:] -= moment[:, 1]
    at_left, at_right = _too_low(cells, total, excess)
    at_right &= ~at_left
    # Second halves pass to the left node: exp(l - left) - 1 there is less, seen from the right.
    seen = (mass[:, 1] * fall - moment[:, 1]) * np.exp(cells.widths - jump)
    total[:-1] += np.where(at_right, mass[:, 1] * np.exp(-jump), 0.0)
    excess[:-1] += np.where(at_right, seen, 0.0)
    total[1:] -= np.where(at_right, mass[:, 1], 0.0)
    excess[1:] += np.where(at_right, moment[:, 1], 0.0)
    # First halves pass to the right node.
    seen = (mass[:, 0] * rise - moment[:, 0]) * np.exp(jump - cells.widths)
    total[1:] += np.where(at_left, mass[:, 0] * np.exp(jump), 0.0)
    excess[1:] -= np.where(at_left, seen, 0.0)
    total[:-1] -= np.where(at_left, mass[:, 0], 0.0)
    excess[:-1] -= np.where(at_left, moment[:, 0], 0.0)
    # A bin that gave both halves away has only rounding errors left.
    emptied = np.zeros(cells.nodes.size, dtype=np.bool_)
    emptied[1:-1] = at_right[:-1] & at_left[1:]
    total, excess = np.where(emptied, 0.0, total), np.where(emptied, 0.0, excess)
    low_left, low_right = _too_low(cells, total, excess)
    bulk = int(np.searchsorted(cells.indices, 0))
    shift = float(np.log1p(excess[bulk] / total[bulk])) if total[bulk] > 0.0 else 0.0
    return Bins(total, excess, not bool(np.any(low_left | low_right)), shift)


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
