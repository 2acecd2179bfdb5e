"""The Rényi report: a table of levels x orders, a matrix product, and each user's best order.

The Rényi divergence of a composition is at most the sum of those of its steps, at every order
(Yu et al., Alg. 2), so a history is counts x table. Any order gives a valid (epsilon, delta)
(Canonne-Kamath-Steinke; Koskela et al., Lemma C.4); a finite set of orders costs tightness only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.conversions.renyi import renyi_to_delta, renyi_to_epsilon
from accounting.costs.costs import renyi_cost
from accounting.costs.mechanisms import Mechanism
from accounting.exact.argument_checks import BoolArray, FloatArray, IntArray, renyi_orders
from accounting.reports.bounds import Bounds


def _default_orders() -> FloatArray:
    """Return orders whose distance t from 1 grows by a constant factor.

    32 per octave from t = 1 to 1024, and 8 per octave below, from 0.01, and above, to 131072.
    Missing the best t by a factor f costs about (log f)^2 / 2 of epsilon if the divergence is
    linear in the order: at most 0.01 % and 0.1 %. Above some order, the divergence of sampled steps
    explodes; if the best order is just below, the cost is up to log f, 1 % and 4 %.
    """
    fine, coarse = np.arange(0, 321) / 32.0, np.arange(-53, 137) / 8.0
    return np.exp2(np.union1d(fine, coarse)) + 1.0


DEFAULT_ORDERS: Final = _default_orders()
DEFAULT_ORDERS.setflags(write=False)
_MOST_ROWS, _MOST_ENTRIES = 256, 2**22  # users at a time; counts of users x levels at a time


class RenyiReport:
    """Upper bounds of one user's realised loss, from Rényi divergences at a set of orders.

    `mechanisms`: that of each level; `norms`: the levels, shape (levels,), > 0, in the norm of
    their mechanism; `orders`: shape (k,), > 1 and finite, `DEFAULT_ORDERS` if not given. The
    divergences of a level are computed when a history first has steps there.

    The method has an upper bound only: the estimate equals it, and the lower bound is 0. The
    conversion makes it looser than the exact epsilon, by about 10 % for many steps, and by more if
    epsilon is small; epsilon is never below about log(1/delta) / (largest order).
    """

    def __init__(
        self,
        mechanisms: Sequence[Mechanism],
        norms: FloatArray,
        orders: npt.ArrayLike | None = None,
    ) -> None:
        chosen = DEFAULT_ORDERS if orders is None else orders
        self.orders = renyi_orders("orders", chosen)
        self._mechanisms, self._norms = mechanisms, norms
        self._table = np.zeros((norms.size, self.orders.size))
        self._infinite = np.zeros(self._table.shape, dtype=np.bool_)
        self._filled = np.zeros(norms.size, dtype=np.bool_)

    def divergences(self, counts: IntArray) -> FloatArray:
        """Return each user's summed divergence at each order, nats, rounded up; shape (n, k)."""
        total = np.empty((counts.shape[0], self.orders.size))
        for block, part in self._blocks(counts):
            total[block] = part
        return total

    def epsilon(self, counts: IntArray, delta: float) -> Bounds:
        """Return bounds of epsilon at `delta`; `counts`: int64, >= 0, shape (n, levels)."""
        return self._bounds(counts, lambda rdp: renyi_to_epsilon(self.orders, rdp, delta))

    def delta(self, counts: IntArray, epsilon: float) -> Bounds:
        """Return bounds of delta at `epsilon`; `counts`: int64, >= 0, shape (n, levels)."""
        return self._bounds(counts, lambda rdp: renyi_to_delta(self.orders, rdp, epsilon))

    def _bounds(self, counts: IntArray, convert: Callable[[FloatArray], FloatArray]) -> Bounds:
        upper = np.empty(counts.shape[0])
        for block, divergences in self._blocks(counts):
            upper[block] = convert(divergences)
        return Bounds(np.zeros_like(upper), upper, upper)

    def _blocks(self, counts: IntArray) -> Iterator[tuple[slice, FloatArray]]:
        """Yield (rows, their divergences at each order), one block of users at a time.

        Blocks are padded to one shape: the rounding of a matrix product depends on the shapes of
        its factors, and a user's result must not depend on the other users of a batch.
        """
        self._fill(np.asarray(counts.any(axis=0)))
        levels = self._table.shape[0]
        rows = max(8, min(_MOST_ROWS, _MOST_ENTRIES // levels))
        steps = np.zeros((rows, levels))
        # One rounding per product and per sum, in any order.
        slack = 1.0 + (levels + 4) * 2.0**-52
        for start in range(0, counts.shape[0], rows):
            block = slice(start, min(start + rows, counts.shape[0]))
            used = block.stop - start
            steps[:used], steps[used:] = counts[block], 0.0
            total: FloatArray = (steps @ self._table)[:used] * slack
            if self._infinite.any():
                total[(steps @ self._infinite)[:used] > 0.0] = np.inf
            yield block, total

    def _fill(self, used: BoolArray) -> None:
        """Compute the rows of the levels among `used`, shape (levels,), that have none yet."""
        missing = np.flatnonzero(used & ~self._filled).tolist()
        for mechanism in dict.fromkeys(self._mechanisms[level] for level in missing):
            alike = [level for level in missing if self._mechanisms[level] == mechanism]
            costs = renyi_cost(mechanism, self._norms[alike], self.orders)
            self._infinite[alike] = np.isinf(costs)
            self._table[alike] = np.where(np.isinf(costs), 0.0, costs)  # 0 x infinity is NaN
        self._filled |= used
