"""Gradients as outer products of a linear layer's inputs and backpropagated outputs, never written
out. Their norms and their clipped sum are exact, as those of written rows are.

This is ghost clipping with a bound that holds. Opacus computes norms and sums in float32, where one
user's part of the sum depends, by rounding, on which other users were drawn. Here the sum is one
product of integer matrices, which float64 holds exactly. For a user with the gradient l r^T, l (q,)
and r (p,), and a grid of spacing u:

1. N >= |l| |r| is rounded up (``norm_products``): one part of the norm of the whole gradient.
2. f is the factor of ``clip_factors`` for that norm and the user's level c. Let l' = f l in
   float64; then |l'| |r| is no more than this part's share of c, as exact numbers: as is proven
   there for rows, since each entry of l' is rounded once.
3. 2^e is a power of two with max|r| in [2^(e-1), 2^e). R = trunc(r 2^(b-e)), b = ``_BITS``, and
   L = trunc(l' 2^(e-b) / u): scaling by powers of two is exact, both are integers.
4. The sum adds L R^T. Entry by entry u |L_j R_k| <= |l'_j r_k|, since truncation makes no number
   longer. So u |L R^T| <= |l'| |r|, and all parts together are no longer than c.
5. |L_j R_k| <= c / u. With k users at a time such that k c / u < 2^50, every partial sum of the
   product of the matrices is an integer that float64 holds, in whatever order it is computed (with
   a factor of 8 to spare, for algorithms that add terms which are subtracted again).

L and R depend on this user's data and level alone. The error of an entry is less than
2^(2-b) c + 2^b u: the grid has to be finer than that of written rows, by ``FINER_BITS``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from accounting.release.clipping import norm_products, row_norms

Floats: TypeAlias = NDArray[np.float64]

FINER_BITS: Final = 12
_BITS: Final = 18
_EXACT: Final = 2.0**50


@dataclass(frozen=True, eq=False)
class Outer:
    """Rows (k, q p), each an outer product that is not written out.

    Attributes:
        left: float32 (k, q), the backpropagated outputs of a layer.
        right: float32 (k, p), its inputs.
    """

    left: NDArray[np.float32]
    right: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.left)

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the rows."""
        return len(self.left), self.left.shape[1] * self.right.shape[1]

    def norms(self) -> Floats:
        """Return the norms of the rows, rounded up; infinite where a row is not finite."""
        finite = np.isfinite(np.hstack([self.left, self.right])).all(axis=1)
        usable = self.only(np.asarray(finite))
        norms = norm_products(row_norms(usable.left), row_norms(usable.right))
        return np.where(finite, norms, np.inf)

    def only(self, usable: NDArray[np.bool_]) -> Outer:
        """Return the rows with those that are not usable set to zero."""
        kept = usable[:, np.newaxis]
        return Outer(
            np.where(kept, self.left, np.float32(0)), np.where(kept, self.right, np.float32(0))
        )

    def clipped_sum(self, factors: Floats, exponent: int, units: float) -> NDArray[np.int64]:
        """Return the sum (q p,) of rows times their factors, in multiples of 2**exponent.

        Args:
            factors: (k,), from ``clip_factors``.
            exponent: from -120 to 120.
            units: an upper bound on a row times its factor, in grid spacings; below 2**50.
        """
        total = np.zeros(self.shape[1], dtype=np.int64)
        at_once = max(1, int(_EXACT / (units + 1.0)) - 1)
        for start in range(0, len(self), at_once):
            left, right = self._integers(slice(start, start + at_once), factors, exponent)
            total += (left.T @ right).astype(np.int64).ravel()  # Step 5.
        return total

    def _integers(self, rows: slice, factors: Floats, exponent: int) -> tuple[Floats, Floats]:
        """Do steps 2 and 3."""
        right = self.right[rows].astype(np.float64)
        largest = np.abs(right).max(axis=1, initial=0.0)
        power = np.frexp(largest)[1][:, np.newaxis]
        left = np.multiply(self.left[rows], factors[rows, np.newaxis], dtype=np.float64)
        left[largest == 0.0] = 0.0  # such a row is zero, but its left side has no bound
        return (
            np.trunc(np.ldexp(left, power - (_BITS + exponent))),
            np.trunc(np.ldexp(right, _BITS - power)),
        )


def check_grid(largest: float, exponent: int) -> bool:
    """Return whether sums on this grid are exact, for contributions of up to so many spacings."""
    return -120 <= exponent <= 120 and math.isfinite(largest) and largest < _EXACT / 4.0
