"""Steps of a banded matrix mechanism (DP-FTRL): what one participation costs.

A run releases C x + Z, row by row, or what is computed of it: x_t is the sum of the contributions
of step t, Z has independent normal entries of standard deviation s, and C is lower triangular with
b bands, C[r, t] = 0 unless t <= r < t + b. (The noise of the model updates is then C^-1 Z.)
Contributions may depend on all rows before (Denisov, McMahan, Rush, Smith and Thakurta 2022).

*Theorem.* Let a user take part in steps that are at least b apart, with norms c_t that may depend
on what was released before. The run costs this user sum of c_t^2 |column t of C|^2 / (2 s^2) in
zCDP, and costs of other mechanisms add to it in a filter that charges each participation whole when
it begins. *Proof.* Columns t and t' that are b or more apart have no row in common: each row of C x
moves with at most one participation, by C[r, t] x_t, known before the row is released. So row r is
a Gaussian step of norm C[r, t] c_t, and the rows t to t + b - 1 together cost what is charged at t,
before the first of them. Neighbouring datasets differ by adding or removing one user.

So a participation in step t is a plain Gaussian step, of noise s / |column t|, for zCDP, Gaussian
DP and Rényi DP; no sampling is amplified, and the order of steps does not matter.
`accounting.rules.separation` keeps participations apart.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy.typing as npt

from accounting.costs.mechanisms import Gaussian
from accounting.exact.errors import InvalidInput
from accounting.exact.rounding import DOWN, float_toward
from accounting.exact.validation import exact_numbers, positive_finite


def banded_step(column: npt.ArrayLike, noise_stddev: float) -> Gaussian:
    """Return the step that a participation is charged as: norms are those of contributions.

    Args:
        column: entries of column t of C, from the diagonal down; shape (b,), finite, not all 0.
        noise_stddev: s, of each entry of Z, absolute, in the units of the norms. Finite, > 0.

    Returns:
        `Gaussian` with the largest float64 noise <= s / |column|: each charge is that of
        c |column| / s, or a unit more.

    Raises:
        InvalidInput: for other arguments, or noise that float64 cannot hold.
    """
    stddev = positive_finite("noise_stddev", noise_stddev, DOWN)
    square = sum((entry * entry for entry in exact_numbers("column", column)), Fraction(0))
    if square == 0:
        raise InvalidInput("column", column, "not 0 throughout")
    noise = _root_down(Fraction(stddev) ** 2 / square)
    return Gaussian(positive_finite("noise_stddev / |column|", noise))


def _root_down(square: Fraction) -> float:
    """Return the largest float64 <= the square root of `square`, or infinity."""
    # As many digits as a float64 has, and some more, of a whole number.
    exponent = (square.numerator.bit_length() - square.denominator.bit_length() - 140) // 2
    scaled = square / Fraction(4) ** exponent
    root = math.isqrt(scaled.numerator // scaled.denominator)
    return float_toward(Fraction(root) * Fraction(2) ** exponent, DOWN)
