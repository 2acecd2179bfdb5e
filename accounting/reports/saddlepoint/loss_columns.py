"""The tilted losses of the columns of a histogram, in one direction, and tables made as needed.

A column is a mechanism and a norm; the loss of its steps is a `TiltedLoss`. The cumulants of
independent losses add, and so do the logarithms of their transforms: a history needs its counts
times a table, for any number of steps. The rows of a table are computed when a history first has
steps in their columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.saddlepoint.sampled_loss import TiltedLoss
from accounting.reports.saddlepoint.tilted_losses import ComplexArray

# Tilts to the octave: of the cumulants, and of the transforms.
_CUMULANTS, _LINES = 8, 2
_ENTRIES_KEPT = 2**23


class CumulantTable(NamedTuple):
    """`tilted_losses.Cumulants` at some tilts for each column, and the suprema of the losses.

    `tilts`: shape (k,), ascending; `largest`: shape (columns,); the others: shape (columns, k).
    """

    tilts: FloatArray
    cumulant: FloatArray
    mean: FloatArray
    variance: FloatArray
    third: FloatArray
    largest: FloatArray


class LossColumns:
    """Tables for counts with one column for each of `losses`.

    `tilts`: those of the cumulants, shape (k,), eighths of octaves, ascending; `line_places`: where
    among them those of the transforms are.
    """

    def __init__(self, losses: Sequence[TiltedLoss]) -> None:
        self._losses = tuple(losses)
        self._largest = np.array([loss.largest for loss in losses])
        lowest = math.floor(math.log2(min(loss.tilts[0] for loss in losses)))
        highest = math.ceil(math.log2(max(loss.tilts[1] for loss in losses)))
        exponents = np.arange(lowest * _CUMULANTS, highest * _CUMULANTS + 1) / _CUMULANTS
        self.tilts = np.exp2(exponents)
        self.line_places = np.arange(0, exponents.size, _CUMULANTS // _LINES)
        self._moments = np.zeros((4, len(losses), self.tilts.size))
        self._made = np.zeros(len(losses), dtype=np.bool_)
        self._lines: dict[tuple[int, float], ComplexArray] = {}

    def table(self, used: IntArray) -> CumulantTable:
        """Return the cumulants of the columns `used`."""
        for column in used[~self._made[used]].tolist():
            self._moments[:, column] = self._losses[column].cumulants(self.tilts)
            self._made[column] = True
        cumulant, mean, variance, third = self._moments[:, used]
        return CumulantTable(self.tilts, cumulant, mean, variance, third, self._largest[used])

    def log_transforms(self, used: IntArray, place: int, step: float, nodes: int) -> ComplexArray:
        """Return `GaussianLoss.log_transform` of the columns `used` at a tilt, shape (u, nodes).

        K is known there, and `table` has been asked for these columns.
        """
        key = place, step
        kept = self._lines.pop(key, None)
        if kept is None or kept.shape[1] < nodes:
            kept = np.full((len(self._losses), nodes), np.nan, dtype=np.complex128)
        self._lines[key] = kept  # last, so that the first is the one not used for longest
        while (
            len(self._lines) > 1 and sum(line.size for line in self._lines.values()) > _ENTRIES_KEPT
        ):
            del self._lines[next(iter(self._lines))]
        tilt, means = float(self.tilts[place]), self._moments[1, :, place]
        for column in used[np.isnan(kept[used, 0])].tolist():
            loss = self._losses[column]
            kept[column] = loss.log_transform(tilt, float(means[column]), step, kept.shape[1])
        return np.asarray(kept[used, :nodes])
