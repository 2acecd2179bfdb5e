"""Noise that is sampled exactly, in integer arithmetic.

Noise sampled in floating point does not have the distribution that the proofs assume, and the gaps
between doubles can reveal a sum (Mironov, "On significance of the least significant bits
for differential privacy", 2012). Here sums are integers, in units of a grid, and so is the noise:

- `ExactNoise.rounded_normal` is a normal deviate rounded to the nearest integer. An integer plus
  rounded noise is the sum plus unrounded noise, rounded: post-processing of a Gaussian mechanism.
  So all that is proven for `Gaussian` holds, in every measure. (A discrete Gaussian would cost the
  same in zCDP, but it is not Gaussian DP.)
- `ExactNoise.laplace` is the discrete Laplace distribution: P(x) in proportion to exp(-|x| / b).
- `ExactNoise.poisson` and `ExactNoise.below` are a Poisson count and a uniform integer.

The remaining assumption is that the random bits are independent and fair. They come
from the operating system (`os.urandom`, a cryptographic source), every one of them, unless a numpy
generator is given. A generator's seed reveals the noise, and so may enough exact outputs: use one
only for tests and for experiments that must be repeated.

The duration of a draw depends on its value, so an observer of the time learns something about it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeVar

import numpy as np

from accounting.exact.invalid_input import InvalidInput

_POOL_BYTES: Final = 512
_Size = TypeVar("_Size", Fraction, int)
DIGIT_BITS: Final = 32  # bits that refine a uniform deviate while a comparison is undecided


class ExactNoise:
    """A source of exact noise, from bits of the operating system or of a seeded `generator`.

    Bits are read in blocks. The unused bits of the operating system are discarded after each draw,
    even if it is interrupted. So a copy of this object, a fork of the process, and a snapshot of it
    that is resumed twice draw independent noise. Two objects draw different bits from one
    generator; a copy with its generator draws the same noise as the original. Not thread-safe: two
    threads could read the same bits.
    """

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        if not isinstance(generator, np.random.Generator | None):
            raise InvalidInput("generator", generator, "a numpy.random.Generator, or None")
        self._generator = generator
        self._pool = b""
        self._used = 0

    def rounded_normal(self, stddev: Fraction) -> int:
        """Return `stddev` times a standard normal deviate, rounded to the nearest integer.

        `stddev`: > 0. Exact (Karney, "Sampling exactly from the normal distribution", 2016,
        algorithm N): the deviate is k + x with a random sign, k an integer and x in [0, 1) known
        to as many bits as the comparisons and the rounding need.
        """
        return self._alone(self._rounded_normal, stddev)

    def laplace(self, scale: Fraction) -> int:
        """Return an integer x with probability in proportion to exp(-|x| / `scale`).

        `scale`: > 0. Exact (Canonne, Kamath and Steinke, "The discrete Gaussian for differential
        privacy", 2020, algorithm 2).
        """
        return self._alone(self._laplace, scale)

    def poisson(self, mean: Fraction) -> int:
        """Return an integer k >= 0 with probability in proportion to `mean`^k / k!.

        `mean`: above 0 and below 1. Exact: a geometric count k, kept with probability 1 / k!.
        """
        return self._alone(self._poisson, mean)

    def below(self, bound: int) -> int:
        """Return a uniform integer from 0 to `bound` - 1."""
        return self._alone(self._below, bound)

    def _alone(self, draw: Callable[[_Size], int], size: _Size) -> int:
        """Draw with fresh bits."""
        self._forget()
        try:
            return draw(size)
        finally:
            self._forget()

    def _rounded_normal(self, stddev: Fraction) -> int:
        while True:
            # The density of k + x is in proportion to
            # exp(-k / 2) exp(-k (k - 1) / 2) exp(-x (2 k + x) / 2).
            k = self._successes(self._exp_minus_half)
            if not all(self._exp_minus_half() for _ in range(k * (k - 1))):
                continue
            x = PartialUniform(self._bits(DIGIT_BITS), DIGIT_BITS)
            if all(self._exp_minus_part(x, k) for _ in range(k + 1)):
                break
        sign = 1 - 2 * self._bits(1)
        top, bottom = stddev.numerator, stddev.denominator
        while True:
            # x lies between digits / scale and (digits + 1) / scale.
            scale = 1 << x.bits
            low = (2 * top * (k * scale + x.digits) + bottom * scale) // (2 * bottom * scale)
            high = (2 * top * (k * scale + x.digits + 1) + bottom * scale) // (2 * bottom * scale)
            if low == high:
                break
            x.refine(self._bits(DIGIT_BITS))
        return sign * low

    def _laplace(self, scale: Fraction) -> int:
        top, bottom = scale.numerator, scale.denominator
        while True:
            # exp(-(remainder + top * whole) / top) is geometric in steps of exp(-1 / top).
            remainder = self._below(top)
            if not self._exp_minus(remainder, top):
                continue
            whole = self._successes(lambda: self._exp_minus(1, 1))
            magnitude = (remainder + top * whole) // bottom
            negative = self._bits(1)
            if not (negative and magnitude == 0):
                break
        return -magnitude if negative else magnitude

    def _poisson(self, mean: Fraction) -> int:
        while True:
            count = self._successes(lambda: self._below(mean.denominator) < mean.numerator)
            if all(self._below(number) == 0 for number in range(2, count + 1)):
                return count

    def _exp_minus_half(self) -> bool:
        return self._exp_minus(1, 2)

    def _exp_minus(self, top: int, bottom: int) -> bool:
        """Return True with probability exp(-top / bottom), 0 <= top <= bottom."""
        # The number of successes in a row of probabilities p, p / 2, p / 3, ... is even with
        # probability 1 - p + p^2 / 2 - ... = exp(-p).
        trials = 1
        while self._below(bottom * trials) < top:
            trials += 1
        return trials % 2 == 1

    def _exp_minus_part(self, x: PartialUniform, k: int) -> bool:
        """Return True with probability exp(-x (2 k + x) / (2 k + 2)), the exponent in [0, 1)."""
        trials = 1
        while self._uniform_below_part(x, k, (2 * k + 2) * trials):
            trials += 1
        return trials % 2 == 1

    def _uniform_below_part(self, x: PartialUniform, k: int, divisor: int) -> bool:
        """Return whether a new uniform deviate is below x (2 k + x) / divisor."""
        u = PartialUniform(self._bits(DIGIT_BITS), DIGIT_BITS)
        while True:
            while u.bits < x.bits:
                u.refine(self._bits(DIGIT_BITS))
            # Both sides times divisor * scale^2, at the two ends of the interval of x and of u.
            scale = 1 << x.bits
            if (u.digits + 1) * divisor * scale <= x.digits * (2 * k * scale + x.digits):
                return True
            if u.digits * divisor * scale >= (x.digits + 1) * (2 * k * scale + x.digits + 1):
                return False
            x.refine(self._bits(DIGIT_BITS))

    def _successes(self, trial: Callable[[], bool]) -> int:
        count = 0
        while trial():
            count += 1
        return count

    def _below(self, bound: int) -> int:
        """Return a uniform integer from 0 to bound - 1."""
        bits = (bound - 1).bit_length()
        while True:
            number = self._bits(bits)
            if number < bound:
                return number

    def _bits(self, bits: int) -> int:
        """Return a uniform integer of this many bits."""
        size = (bits + 7) // 8
        if self._used + size > len(self._pool):
            source = os.urandom if self._generator is None else self._generator.bytes
            self._pool = source(max(_POOL_BYTES, size))
            self._used = 0
        taken = self._pool[self._used : self._used + size]
        self._used += size
        return int.from_bytes(taken, "little") >> (8 * size - bits)

    def _forget(self) -> None:
        """Discard the unused bits of the operating system.

        This happens after a draw, so that they are not kept in memory, and before it, in case an
        earlier draw was interrupted while it discarded them.
        """
        if self._generator is None:
            self._pool = b""
            self._used = 0


@dataclass
class PartialUniform:
    """A uniform number in [0, 1) of which the first `bits` binary digits are known."""

    digits: int
    bits: int

    def ends(self) -> tuple[Fraction, Fraction]:
        """Return the ends of the interval that contains the number."""
        scale = 1 << self.bits
        return Fraction(self.digits, scale), Fraction(self.digits + 1, scale)

    def refine(self, more: int) -> None:
        """Append `DIGIT_BITS` more digits."""
        self.digits = (self.digits << DIGIT_BITS) | more
        self.bits += DIGIT_BITS
