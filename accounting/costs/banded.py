"""The steps of a banded matrix mechanism (DP-FTRL), and the cost of one participation.

A run releases C x + Z row by row, or a function of it: x_t is the sum of the contributions of step
t, Z has independent normal entries of standard deviation s, and C is lower triangular with
b bands, C[r, t] = 0 unless t <= r < t + b. (The noise of the model updates is then C^-1 Z.)
Contributions may depend on all rows before (Denisov, McMahan, Rush, Smith and Thakurta 2022).

*Theorem.* Let a user participate in steps that are at least b apart, with norms c_t that may depend
on earlier releases. The run costs this user the sum of c_t^2 |column t of C|^2 / (2 s^2) in zCDP,
and costs of other mechanisms add to it in a filter that charges each participation in full when it
begins. *Proof.* Columns t and t' that are b or more apart have no row in common: each row of C x
depends on at most one participation, by C[r, t] x_t, known before the row is released. So row r is
a Gaussian step of norm C[r, t] c_t, and the rows t to t + b - 1 together cost the charge at t,
which precedes the first of them. Neighbouring datasets differ by adding or removing one user. The
selection of other users must not depend on this user's participations or halts; for example, no
cohort may consist of users who were not admitted recently (`docs/research/conditions.md`, A1).

So a participation in step t is a plain Gaussian step, of noise s / |column t|, for zCDP, Gaussian
DP and Rényi DP; no sampling is amplified, and the order of steps does not matter.
A run that is opened with `min_separation` enforces the separation.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.mechanisms import Gaussian
from accounting.exact.argument_checks import (
    FloatArray,
    as_float_array,
    finite_numbers,
    nonnegative_finite,
    positive_finite,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.rounding import DOWN, root_toward

_MOST_STEPS: Final = 2**20
_MOST_BANDS: Final = 2**14


def banded_step(column: npt.ArrayLike, noise_stddev: float) -> Gaussian:
    """Return the Gaussian step as which a participation is charged; norms are of contributions.

    Args:
        column: entries of column t of C, from the diagonal down; shape (b,), finite, not all 0.
        noise_stddev: s, the standard deviation of each entry of Z, absolute, in the units of the
            norms. Finite, > 0.

    Returns:
        `Gaussian` with the largest float64 noise <= s / |column|: each charge is that of
        c |column| / s, or a unit more.

    Raises:
        InvalidInput: for other arguments, or noise that float64 cannot hold.
    """
    stddev = positive_finite("noise_stddev", noise_stddev)
    entries = map(Fraction, finite_numbers("column", column))
    square = sum((entry * entry for entry in entries), Fraction(0))
    if square == 0:
        raise InvalidInput("column", column, "not 0 throughout")
    noise = root_toward(Fraction(stddev) ** 2 / square, DOWN)
    return Gaussian(positive_finite("noise_stddev / |column|", noise))


def square_root_column(bands: int, *, momentum: float = 0.0) -> FloatArray:
    """Return the first column of a Toeplitz matrix C that keeps the error of trained models small.

    C is the square root of the matrix that maps gradients to models, cut off after so many bands
    (Kalinin and Lampert 2024, Theorem 1, without weight decay): entry j is the sum over i <= j of
    r_i r_{j-i} momentum**i, where r_i = (2i choose i) / 4**i.

    Args:
        bands: the number of entries, 1 to 16384.
        momentum: of gradient descent, at least 0 and below 1.

    Returns:
        Shape (bands,), from 1 on decreasing.

    Raises:
        InvalidInput: for other arguments.
    """
    count = whole_number("bands", bands, 1, _MOST_BANDS)
    factor = nonnegative_finite("momentum", momentum)
    if factor >= 1.0:
        raise InvalidInput("momentum", momentum, "below 1")
    indices = np.arange(1, count)
    roots = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / indices]))
    return np.convolve(roots, roots * factor ** np.arange(count))[:count]


def banded_steps(
    matrix: npt.ArrayLike, noise_stddev: float, *, min_separation: int, steps: int | None = None
) -> list[Gaussian]:
    """Return, for each step of a run, the Gaussian step as which a participation is charged.

    Args:
        matrix: C, lower triangular, shape (steps, steps); or, if C is a Toeplitz matrix, the
            entries of its first column from the diagonal down, up to `steps` of them. Finite,
            without a column that is 0.
        noise_stddev: s, the standard deviation of each entry of Z, absolute, in the units of the
            norms.
        min_separation: b, the number of steps from a participation of a user to the next one.
        steps: the number of steps of the run, for a Toeplitz matrix.

    Returns:
        `banded_step` of each column, in the order of the steps.

    Raises:
        InvalidInput: if the matrix has more than `min_separation` bands, so that participations at
            that distance would cost more than their sum; and for other arguments.
    """
    separation = whole_number("min_separation", min_separation, 1, 2**61)
    entries = as_float_array("matrix", matrix)
    columns = _columns(entries, steps)
    bands = max((column.size for column in columns), default=0)
    if bands > separation:
        allowed = (
            f"at least {bands}, the number of bands of the matrix: participations that are closer "
            "have rows in common"
        )
        raise InvalidInput("min_separation", min_separation, allowed)
    if entries.ndim == 1:  # most columns are the same
        whole = {size: entries[:size] for size in {column.size for column in columns}}
        priced = {size: banded_step(column, noise_stddev) for size, column in whole.items()}
        return [priced[column.size] for column in columns]
    return [banded_step(column, noise_stddev) for column in columns]


def _columns(matrix: FloatArray, steps: int | None) -> list[FloatArray]:
    """Return the columns of C, each from the diagonal to its last nonzero entry."""
    if matrix.ndim == 1:
        if steps is None:
            raise InvalidInput("steps", steps, "given for the entries of a Toeplitz matrix")
        count = whole_number("steps", steps, 1, _MOST_STEPS)
        if not 1 <= matrix.size <= count:
            raise InvalidInput("matrix", matrix.shape, f"1 to {count} entries, one for each step")
        return [_cut(step, matrix[: count - step]) for step in range(count)]
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        allowed = "a square, or the first column of a Toeplitz matrix"
        raise InvalidInput("matrix", matrix.shape, allowed)
    if steps not in (None, len(matrix)):
        raise InvalidInput("steps", steps, f"{len(matrix)}, the size of the matrix, or omitted")
    above = np.argwhere(np.triu(matrix, 1) != 0.0)
    if len(above):
        row, column = above[0].tolist()
        allowed = (
            "0, because the matrix is lower triangular: no row has contributions of later steps"
        )
        raise InvalidInput(f"matrix[{row}, {column}]", float(matrix[row, column]), allowed)
    return [_cut(step, matrix[step:, step]) for step in range(len(matrix))]


def _cut(step: int, column: FloatArray) -> FloatArray:
    """Return the column of a step up to its last nonzero entry; NaN counts as nonzero."""
    entries = np.flatnonzero(column != 0.0)
    if not len(entries):
        raise InvalidInput(f"matrix[:, {step}]", 0.0, "not 0 throughout")
    return column[: entries[-1] + 1]
