"""The square root of the matrix of running sums A (lower triangular, all ones): A = R R.

R x + noise is released, and R times that is the answer: running sums, by post-processing. A user
who adds 1 to one entry of x costs the norm of one column of R, of which the first is the longest.
R is lower triangular, so each row is a Gaussian mechanism on the entries so far, which may depend
on earlier answers.
"""

from __future__ import annotations

from typing import Final

from accounting.exact.argument_checks import whole_number

ROOT_BITS: Final = 52
"""The entries of R are whole multiples of 2**-52, so that R x is exact for integers x."""
_MOST_STEPS: Final = 2**22
_GUARD_BITS: Final = 128  # the total rounding error is below 2**-100


def root_of_running_sums(steps: int) -> list[int]:
    """Return the first column of R in units of 2**-52; R is a Toeplitz matrix.

    The column is f_0 = 1, f_k = f_{k-1} (1 - 1/(2k)), the series of (1 - x)^(-1/2) (Fichtenberger,
    Henzinger and Upadhyay, "Constant matters", 2023; Henzinger, Upadhyay and Upadhyay, "Almost
    tight error bounds on differentially private continual counting", 2023). It is rounded to the
    nearest unit, a relative change of the answers below 2**-51 sqrt(steps).
    """
    column, value = [], 1 << (ROOT_BITS + _GUARD_BITS)
    for k in range(1, whole_number("steps", steps, 1, _MOST_STEPS) + 1):
        column.append((value + (1 << _GUARD_BITS - 1)) >> _GUARD_BITS)
        value = value * (2 * k - 1) // (2 * k)
    return column
