"""Many rounded normal deviates at once, as exact as one by one.

`ExactNoise.rounded_normal` uses integers of any length and takes 20 µs per deviate. A model has a
million coordinates, so here most of the work is done on arrays, with the first digits of the same
kind of random numbers. Cases that these digits do not decide are decided one by one with more
digits. They are never redrawn, because that would change the distribution.

A deviate is a sign and a + d, a = i / 256 and d in [0, 1 / 256). Its density falls with
exp(-a^2 / 2) exp(-d (2 a + d) / 2), so:

1. i is drawn with probabilities proportional to exp(-i^2 / 2^17), by comparing a uniform number
   with their cumulative sums, as integers with as many digits as needed.
2. d is uniform.
3. It is accepted with probability exp(-t), t = d (2 a + d) / 2: if the number of successes in a
   row with probabilities t, t / 2, t / 3, ... is even (von Neumann). Otherwise all steps restart.
4. The deviate times the standard deviation is rounded to the nearest integer.

One word of 64 random bits starts all of it: 16 digits for i, 40 for d, 7 of the first number that
is compared with t, and the sign. This is enough for 98 of 100 deviates.

An array takes 0.02 µs per deviate. The notes about random bits in `exact_noise` apply, except that
the first bits of many deviates come from OpenSSL's generator (`ssl.RAND_bytes`), because the
operating system's takes longer than all other work. New bits of the operating system enter it
before each array. So a fork of the process, and a snapshot of it that is resumed twice, draw
independent noise.
"""

from __future__ import annotations

import os
import ssl
from bisect import bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import IntArray
from accounting.exact.invalid_input import InvalidInput
from accounting.release.exact_noise import DIGIT_BITS, ExactNoise, PartialUniform

LARGEST_STDDEV: Final = 2**40
"""Twenty such standard deviations fit in an int64."""

_Words = npt.NDArray[np.uint64]

_PER_UNIT: Final = 256  # bins from 0 to 1
_DIGITS: Final = 40  # binary digits of d that arrays carry
_SCALE: Final = float(_PER_UNIT * 2**_DIGITS)
_CELL: Final = 16  # digits of a word that select the bin, or show that several bins are possible
SEVERAL: Final = 2**16 - 1
_BLOCK: Final = 2**15
_GUARD: Final = 64
_MANY_BYTES: Final = 4096
_SEED_BYTES: Final = 48
# t is below (2 i + 1) / 2**17. So a number from u / 2**7 to (u + 1) / 2**7 is not below t if i is
# less than u times this.
SURE: Final = 512
# In a bin that 64 digits decide, a is below 16. The error of t is at most 2**-45 from the digits of
# d that are not drawn, and 2**-54 from rounding; that of a 53-digit uniform number is 2**-53.
OPEN_TRIAL: Final = 2.0**-40
# In standard deviations: 2**-49 for the digits of d, less than 2**-47 for rounding.
OPEN_ROUNDING: Final = 2.0**-45


class ExactNormals:
    """A source of rounded normal deviates, from the operating system or a seeded `generator`."""

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        self._one_by_one = ExactNoise(generator)
        self._source = strong_bytes if generator is None else generator.bytes

    def draw(self, stddev: Fraction, count: int) -> IntArray:
        """Return `count` independent numbers: `stddev` times a standard normal, rounded.

        Raises:
            InvalidInput: for a `stddev` that is not positive or above `LARGEST_STDDEV`.
        """
        if not isinstance(stddev, Fraction) or not 0 < stddev <= LARGEST_STDDEV:
            allowed = f"a Fraction above 0 and at most {LARGEST_STDDEV}"
            raise InvalidInput("stddev", stddev, allowed)
        result = np.empty(count, dtype=np.int64)
        for start in range(0, count, _BLOCK):
            self._fill(result[start : start + _BLOCK], stddev)
        return result

    def _fill(self, result: IntArray, stddev: Fraction) -> None:
        """Fill `result`; a few extra deviates replace those that are rejected."""
        while result.size:
            accepted = self._attempt(result.size + result.size // 256 + 4, stddev)[: result.size]
            result[: accepted.size] = accepted
            result = result[accepted.size :]

    def _attempt(self, count: int, stddev: Fraction) -> IntArray:
        """Draw this many times, and return the deviates that were accepted."""
        words, scale = self._words(count), float(stddev)
        bits = words.view(np.int64)
        decided: dict[int, int] = {}  # values decided one by one, by place
        # Step 1.
        bins = cells().take((words >> np.uint64(64 - _CELL)).view(np.int64)).astype(np.int64)
        several = np.flatnonzero(bins == SEVERAL)
        further = words[several] >> np.uint64(64 - _CELL) << np.uint64(64 - _CELL)
        further |= self._words(several.size) >> np.uint64(_CELL)
        bins[several] = np.searchsorted(thresholds(), further, side="right") - 1
        for at in np.flatnonzero(thresholds()[bins[several]] == further):
            deviate, place = _Deviate(self.bin_beyond(int(further[at])), 0, 0), several[at]
            decided[int(place)] = self._finished(deviate, 1, None, stddev)
            bins[place] = -1  # skipped from here on
        # Step 2.
        digits = bits >> 8 & (1 << _DIGITS) - 1
        # Step 3.
        begun = bits >> 1 & 127
        pending = np.flatnonzero(bins >= begun * SURE)
        tries = begun[pending] << 46 | (self._words(pending.size) >> np.uint64(18)).view(np.int64)
        d = (digits[pending] + 0.5) / _SCALE
        t = d * (bins[pending] * (2.0 / _PER_UNIT) + d) / 2.0
        is_rejected, trial = np.zeros(count, dtype=np.bool_), 1
        while pending.size:
            above = tries * 2.0**-53 - t / trial
            for at in np.flatnonzero(np.abs(above) < OPEN_TRIAL):
                place = int(pending[at])
                deviate = _Deviate(int(bins[place]), int(digits[place]), _DIGITS)
                uniform = PartialUniform(int(tries[at]), 53)
                decided[place] = self._finished(deviate, trial, uniform, stddev)
            if trial % 2 == 0:
                is_rejected[pending[above >= OPEN_TRIAL]] = True
            goes_on = above <= -OPEN_TRIAL
            pending, t, trial = pending[goes_on], t[goes_on], trial + 1
            tries = (self._words(pending.size) >> np.uint64(11)).view(np.int64)
        # Step 4.
        magnitude = ((bins << _DIGITS | digits) + 0.5) * (scale / _SCALE) + 0.5
        off = np.abs(magnitude - np.rint(magnitude))
        result = magnitude.astype(np.int64)
        for place in np.flatnonzero(off < scale * OPEN_ROUNDING).tolist():
            deviate = _Deviate(int(bins[place]), int(digits[place]), _DIGITS)
            result[place] = self._rounded(deviate, stddev)
        result *= 1 - ((bits & 1) << 1)
        for place, value in decided.items():
            result[place] = value
        return result[~is_rejected]

    def _finished(
        self, deviate: _Deviate, trial: int, uniform: PartialUniform | None, stddev: Fraction
    ) -> int:
        """Continue with step 3 from this trial, and complete all later steps."""
        while self._is_below(uniform or PartialUniform(0, 0), deviate, trial):
            trial, uniform = trial + 1, None
        if trial % 2 == 0:
            return self._one_by_one.rounded_normal(stddev)
        rounded = self._rounded(deviate, stddev)
        return rounded if self._bits(1) else -rounded

    def _is_below(self, uniform: PartialUniform, deviate: _Deviate, trial: int) -> bool:
        """Return whether a uniform number is below t / trial."""
        while True:
            low, high = (exponent(deviate.bin, d) / trial for d in deviate.ends())
            if uniform.ends()[1] <= low:
                return True
            if uniform.ends()[0] >= high:
                return False
            uniform.refine(self._bits(DIGIT_BITS))
            deviate.refine(self._bits(DIGIT_BITS))

    def _rounded(self, deviate: _Deviate, stddev: Fraction) -> int:
        top, bottom = 2 * stddev.numerator, 2 * stddev.denominator
        while True:
            # The deviate lies between units / scale and (units + 1) / scale.
            units, scale = deviate.in_units()
            low, high = (
                (top * end + stddev.denominator * scale) // (bottom * scale)
                for end in (units, units + 1)
            )
            if low == high:
                return low
            deviate.refine(self._bits(DIGIT_BITS))

    def bin_beyond(self, word: int) -> int:
        """Return the bin of a uniform number whose first 64 digits do not decide it."""
        digits = 64
        while True:
            word = (word << digits) | self._bits(digits)
            digits *= 2
            sums = cumulative(digits)
            found = bisect_right(sums, word) - 1
            if found + 1 < len(sums) and sums[found] + 1 <= word <= sums[found + 1] - 2:
                return found

    def _words(self, count: int) -> _Words:
        return np.frombuffer(self._source(8 * count), dtype="<u8").astype(np.uint64, copy=False)

    def _bits(self, bits: int) -> int:
        size = (bits + 7) // 8
        return int.from_bytes(self._source(size), "little") >> (8 * size - bits)


def strong_bytes(count: int) -> bytes:
    """Return random bytes from OpenSSL's generator, if many, or from the operating system."""
    if count < _MANY_BYTES:
        return os.urandom(count)
    ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
    return ssl.RAND_bytes(count)


class _Deviate:
    """A bin and the known digits of d."""

    def __init__(self, bin_: int, digits: int, bits: int) -> None:
        self.bin = bin_
        self._within = PartialUniform(digits, bits)
        self.refine = self._within.refine

    def ends(self) -> tuple[Fraction, Fraction]:
        """Return the ends of the interval that contains d."""
        low, high = self._within.ends()
        return low / _PER_UNIT, high / _PER_UNIT

    def in_units(self) -> tuple[int, int]:
        """Return a + d in units, rounded down, and the number of units in 1."""
        digits, bits = self._within.digits, self._within.bits
        return self.bin << bits | digits, _PER_UNIT << bits


def exponent(bin_: int, d: Fraction) -> Fraction:
    """Return t, so that a deviate of this bin and d is accepted with probability exp(-t)."""
    return d * (Fraction(2 * bin_, _PER_UNIT) + d) / 2


@lru_cache(maxsize=4)
def cumulative(bits: int) -> tuple[int, ...]:
    """Return the cumulative probability before each bin, times 2**bits, each within 1.

    Each weight is the previous one times a ratio, and each ratio the previous one times
    exp(-2**-16), in integers rounded down. After i products the error of a weight is below 2 i^2
    units; that of the sums and of the mass beyond the last weight is below 2**50 for the 10,000
    bins of up to 512 digits.
    """
    digits = bits + _GUARD
    one = 1 << digits
    with localcontext() as context:
        context.prec = digits // 3 + 20
        ratio = int(Decimal(-(2.0**-17)).exp() * one)
        step = int(Decimal(-(2.0**-16)).exp() * one)
    sums, weight = [0], one
    while weight:
        sums.append(sums[-1] + weight)
        weight = weight * ratio >> digits
        ratio = ratio * step >> digits
    return tuple((partial << bits) // sums[-1] for partial in sums)


@lru_cache(maxsize=1)
def cells() -> npt.NDArray[np.uint16]:
    """Return the bin of all numbers with the same first digits, or `SEVERAL`; (2**_CELL,)."""
    first = np.arange(2**_CELL, dtype=np.uint64) << np.uint64(64 - _CELL)
    last = first + np.uint64(2 ** (64 - _CELL) - 1)
    below = np.searchsorted(thresholds(), first, side="left")
    upper = np.searchsorted(thresholds(), last, side="right")
    return np.where(below == upper, upper - 1, SEVERAL).astype(np.uint16)


@lru_cache(maxsize=1)
def thresholds() -> _Words:
    """Return the first 64 binary digits of the cumulative sums, up to 2**64 - 1.

    A number that is equal to a threshold may be on either side of it. Thresholds below 2**64 - 1
    are below a = 16.
    """
    sums = cumulative(128)
    first = [value >> 64 for value in sums]
    return np.array(first[: first.index(2**64 - 1) + 1], dtype=np.uint64)
