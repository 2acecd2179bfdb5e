"""Correlated noise on a grid: the rows W of C^-1 Z as integers, for steps that release x + W.

C is a lower triangular Toeplitz matrix. Its first column has b integers C_0, ..., C_{b-1}, in units
of 2^-q, with C_0 = 2^q. The sum x_t of step t is a vector of integers, in grid spacings u. Z_t has
independent normal deviates, each rounded to an integer, in units of 2^-q u.

    W_t = floor((Z_t - C_1 W_{t-1} - ... - C_{b-1} W_{t-b+1}) / 2^q + 1/2)

*The steps release C x + Z, post-processed.* Let y_t = x_t + W_t be what step t releases, and Y_t =
C_0 x_t + C_1 x_{t-1} + ... + Z_t, an integer. Then y_t is a function of Y_t and of earlier y:

    y_t = floor((Y_t - C_1 y_{t-1} - ... - C_{b-1} y_{t-b+1}) / 2^q + 1/2)

since the numerator is that of W_t plus 2^q x_t, and floor(a + n) = floor(a) + n for the integer
n = x_t. C x is an integer, so Y_t is C x plus a normal deviate that is not rounded, rounded: it is
post-processing of a Gaussian mechanism. So `accounting.costs.banded` prices exactly what is
released, for the entries C_k 2^-q. No float takes part.

*Rows may be missing.* If W_{t-k} is taken as 0 while x_{t-k} is released with another row, the
formula for y_t holds without the terms of lag k: C has a 0 in their place, and the column of step
t - k is shorter than was charged. If nothing of step t - k is released, x_{t-k} counts as 0, and so
does y_{t-k}. So a step that is given up needs no row, and a lost row costs accuracy only.

*No overflow.* Entries of C increase nowhere, so (1 - z) C(z) = 1 - d_1 z - ... - d_b z^b, where the
d_k are at least 0 and add up to 1. The coefficients of its inverse are renewal probabilities, from
0 to 1, so the entries of C^-1 are from -1 to 1. In up to 2^20 steps 2^q W_t has a standard
deviation of at most 2^10 times that of Z, which is below 2^40. Sums in between may wrap around
modulo 2^64.

W_t differs from the real (C^-1 Z)_t by at most half the sum of the entries of |C^-1|, in u. Rows
are as secret as the data: y_t - W_t is the sum without noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from accounting.exact.argument_checks import finite_numbers
from accounting.exact.invalid_input import InvalidInput
from streams.sdk.errors import InvalidRequest

_ROWS: Final = "correlated_noise"
_STEPS: Final = "correlated_noise_steps"


class CorrelatedNoise:
    """Correlates the noise of consecutive steps.

    Args:
        column: c_0 > 0, ..., c_{b-1} >= 0, the first column of C, nowhere increasing. C is scaled
            so that c_0 is 1, and its entries are rounded to multiples of 2**-bits.
        bits: q.

    Attributes:
        column: the entries of C, as rounded.

    Raises:
        InvalidInput: the column is invalid.
    """

    def __init__(self, column: ArrayLike, bits: int) -> None:
        entries = np.array([float(entry) for entry in finite_numbers("column", column)])
        falls = entries.size and entries[0] > 0.0 and (np.diff(entries, append=0.0) <= 0.0).all()
        if not falls:
            raise InvalidInput("column", column, "numbers above 0 that increase nowhere")
        self.column: NDArray[np.float64] = (
            np.rint(np.ldexp(entries / entries[0], bits)) * 2.0**-bits
        )
        self._bits = bits
        self._entries = np.ldexp(self.column, bits).astype(np.int64)
        self._rows: dict[int, NDArray[np.int64]] = {}  # by step

    def row(self, step: int, independent: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row W of the next step, (d,), once.

        Args:
            step: larger than that of any row before.
            independent: the row of Z, (d,), fresh.

        Raises:
            InvalidRequest: an earlier row has another length.
        """
        row = independent.copy()
        for lag, entry in enumerate(self._entries[1:], start=1):
            earlier = self._rows.get(step - lag)
            if earlier is None:
                continue
            if earlier.shape != row.shape:
                raise InvalidRequest(
                    f"the model has {len(row)} weights, and {len(earlier)} in the checkpoint: "
                    "restore the same model"
                )
            row -= entry * earlier
        row += 1 << self._bits >> 1
        row >>= self._bits  # rounds down
        self._rows = {
            at: kept for at, kept in self._rows.items() if at > step + 1 - len(self.column)
        }
        self._rows[step] = row
        return row

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """Return the rows that later steps need, for a checkpoint. They are secret."""
        rows = list(self._rows.values())
        return {
            _STEPS: np.array(list(self._rows), dtype=np.int64),
            _ROWS: np.stack(rows) if rows else np.zeros((0, 0), dtype=np.int64),
        }

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Restore the rows, if the checkpoint has any; return its other arrays."""
        rest = dict(arrays)
        if _ROWS in rest:
            self._rows = dict(zip(rest.pop(_STEPS).tolist(), rest.pop(_ROWS), strict=True))
        return rest
