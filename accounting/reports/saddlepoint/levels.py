"""The levels of a histogram as columns of tables; levels with equal losses share a column."""

from __future__ import annotations

import numpy as np

from accounting.costs.costs import renyi_cost
from accounting.costs.mechanisms import Direction, Mechanism
from accounting.exact.errors import InvalidInput
from accounting.exact.validation import FloatArray, IntArray
from accounting.reports.histories import (
    LossParameters,
    Mechanisms,
    level_counts,
    level_norms,
    per_level,
    step_of,
)
from accounting.reports.renyi import DEFAULT_ORDERS
from accounting.reports.saddlepoint.cumulants import SampledLoss
from accounting.reports.saddlepoint.loss_columns import LossColumns
from accounting.reports.saddlepoint.tilted_losses import (
    GaussianLoss,
    LaplaceLoss,
    PureLoss,
    TiltedLoss,
)

# Sums of 2**46 steps at each of 2**16 levels stay finite.
_LARGEST_DIVERGENCE = np.finfo(np.float64).max / 2.0**64
# Users at a time, and columns of which most may be unused.
_BLOCK, _MANY = 64, 1024


class Levels:
    """Levels of one mechanism, or of one for each, as columns of tables.

    `norms`: shape (levels,), > 0, in the norm of their mechanism. Levels that cost nothing have no
    column, and levels whose steps have equal losses share one. `normal`, `sampled`:
    which columns are unsampled Gaussian steps, and sampled ones; `smooth`: either; `sizes`: c / s,
    or epsilon; of shape (columns,). A ratio c / s is off by a rounding, for which the errors of the
    tables leave room.
    """

    def __init__(self, mechanisms: Mechanisms, norms: FloatArray) -> None:
        norms = level_norms(norms)
        each = per_level(mechanisms, norms.size)
        columns: dict[LossParameters, int] = {}
        self._column = np.full(norms.size, -1)
        self._sources: list[tuple[Mechanism, float]] = []
        for level, source in enumerate(zip(each, norms.tolist(), strict=True)):
            step = step_of(*source)
            if step.kind != "nothing":
                self._column[level] = columns.setdefault(step, len(columns))
                if len(columns) > len(self._sources):
                    self._sources.append(source)
        self._steps = tuple(columns)
        self.normal = np.array([step.kind == "gaussian" for step in self._steps], dtype=np.bool_)
        self.sampled = np.array([step.kind == "sampled" for step in self._steps], dtype=np.bool_)
        self.smooth = self.normal | self.sampled
        self.sizes = np.array([step.size for step in self._steps], dtype=np.float64)
        self._tables: dict[Direction, LossColumns] = {}
        self._divergences = np.zeros((len(self._steps), DEFAULT_ORDERS.size))
        self._divergences_made = np.zeros(len(self._steps), dtype=np.bool_)

    def steps(self, counts: IntArray) -> FloatArray:
        """Return the steps of each user in each column, (n, columns), from (n, levels)."""
        counts = level_counts(counts, self._column.size)
        if counts.ndim != 2:
            raise InvalidInput("counts", counts.shape, f"of shape (n, {self._column.size})")
        if np.array_equal(self._column, np.arange(len(self._steps))):
            return counts.astype(np.float64)
        total = np.zeros((counts.shape[0], len(self._steps)))
        for level in np.flatnonzero((self._column >= 0) & counts.any(axis=0)).tolist():
            total[:, self._column[level]] += counts[:, level]
        return total

    def columns(self, direction: Direction) -> LossColumns:
        """Return the tables of one direction, made as they are used."""
        if direction not in self._tables:
            losses = [_loss(step, direction) for step in self._steps]
            self._tables[direction] = LossColumns(losses)
        return self._tables[direction]

    def divergences(self, steps: FloatArray) -> FloatArray:
        """Return Rényi divergences at `DEFAULT_ORDERS`, (n, k), rounded up, either direction.

        Blocks have one shape, because the rounding of a matrix product depends on the shapes.
        """
        used = np.flatnonzero(steps.any(axis=0))
        missing = used[~self._divergences_made[used]]
        for mechanism in dict.fromkeys(self._sources[column][0] for column in missing):
            alike = [column for column in missing if self._sources[column][0] == mechanism]
            norms = np.array([self._sources[column][1] for column in alike])
            costs = renyi_cost(mechanism, norms, DEFAULT_ORDERS)
            self._divergences[alike] = np.minimum(costs, _LARGEST_DIVERGENCE)
        self._divergences_made[missing] = True
        users, columns = steps.shape
        total = np.empty((users, DEFAULT_ORDERS.size))
        taken = np.arange(columns) if columns <= _MANY else used
        table, padded = self._divergences[taken], np.zeros((_BLOCK, taken.size))
        for start in range(0, users, _BLOCK):
            block = slice(start, min(start + _BLOCK, users))
            padded[: block.stop - start], padded[block.stop - start :] = steps[block][:, taken], 0.0
            total[block] = (padded @ table)[: block.stop - start]
        return np.asarray(total * (1.0 + (columns + 4) * 2.0**-52))


def _loss(step: LossParameters, direction: Direction) -> TiltedLoss:
    match step.kind:
        case "gaussian":
            return GaussianLoss(step.size)
        case "sampled":
            return SampledLoss(step.size, step.sampling_rate, direction)
        case "laplace":
            return LaplaceLoss(step.size)
        case "pure":
            return PureLoss(step.size)
        case "nothing":
            raise AssertionError("a step with sampling rate 0 has no column")
