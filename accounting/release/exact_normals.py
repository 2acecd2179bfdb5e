"""Many rounded normal deviates at once, as exact as one by one.

`ExactNoise.rounded_normal` uses integers of any length and takes 20 µs per deviate. A model has
millions of coordinates, so here nearly all of the work is done on arrays. The method is that of
rectangles, wedges and tails (Marsaglia, MacLaren and Bray, "A fast procedure for generating normal
random variables", 1964), with exact comparisons:

1. The line is cut into bins, such that all points of a bin are rounded to one of 2**bits integers
   in a row. So if a deviate is uniform in a bin, its rounded value is uniform on these integers.
   No number is multiplied or rounded.
2. The bin has a rectangle below the normal density. Its area is a whole number of slots, each of
   them 2**-16. One of 2**16 slots is drawn. If it is in a rectangle, the deviate is uniform in the
   bin. This decides about 99 of 100 deviates.
3. The other slots stand for the density above the rectangles. Points are drawn from boxes of equal
   area that contain it, one per bin, until one is below the density. Beyond 6 standard deviations
   there are no bins: the boxes become lower by half with every 16 widths of a bin.

Points are compared with the density in float64. If a point is within `MARGIN` of the density, more
digits of both decide. Such a point is never redrawn, because that would change the distribution.

The duration depends on the deviates. The notes about random bits in `exact_noise` apply, except
that many bits come from OpenSSL's generator (`ssl.RAND_bytes`), because the operating system's
takes longer than all other work. New bits of the operating system enter it before each block of
deviates. So a fork of the process, and a snapshot of it that is resumed twice, draw independent
noise.
"""

from __future__ import annotations

import math
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from decimal import MIN_EMIN, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from accounting.exact.argument_checks import FloatArray, IntArray
from accounting.exact.invalid_input import InvalidInput
from accounting.release.exact_noise import DIGIT_BITS, PartialUniform

LARGEST_STDDEV: Final = 2**40
"""Twenty such standard deviations fit in an int64."""

SLOT_BITS: Final = 16
_WIDTH_BITS: Final = 6  # the width of a bin is from 2**-7 to 2**-6 standard deviations
_REACH: Final = 6  # standard deviations to each side that have bins
_BEYOND_BITS: Final = 10  # the boxes beyond all bins have together 2**-10 of the area of a bin's
_HALVED_BITS: Final = 4  # beyond all bins, boxes become lower by half with every 2**4 of them
# In slots. The density is below 2**9 per bin, and its slope below 2**8 per standard deviation.
# Places are sums of numbers below 2**4 with five roundings of at most 2**-49: their error is below
# 2**-46. Even if the error of `np.exp` were 2**-32 of its value, the error of the density would be
# below 2**-22. All other roundings, and the digits of a point that are not drawn, are worth less
# than 2**-40.
MARGIN: Final = 2.0**-20
_BLOCK: Final = 2**14  # arrays of this size stay in the cache
_PER_THREAD: Final = 2**18
_MANY_BYTES: Final = 4096
_SEED_BYTES: Final = 48


class ExactNormals:
    """A source of rounded normal deviates, from the operating system or a seeded `generator`.

    One thread per core draws a large array, except from a generator.
    """

    def __init__(self, generator: np.random.Generator | None = None) -> None:
        if not isinstance(generator, np.random.Generator | None):
            raise InvalidInput("generator", generator, "a numpy.random.Generator, or None")
        self._source = strong_bytes if generator is None else generator.bytes
        self._threads = _cores() if generator is None else 1

    def draw(self, stddev: Fraction, count: int) -> IntArray:
        """Return `count` independent numbers: `stddev` times a standard normal, rounded.

        Raises:
            InvalidInput: for a `stddev` that is not positive or above `LARGEST_STDDEV`.
        """
        if not isinstance(stddev, Fraction) or not 0 < stddev <= LARGEST_STDDEV:
            allowed = f"a Fraction above 0 and at most {LARGEST_STDDEV}"
            raise InvalidInput("stddev", stddev, allowed)
        bins, result = bins_of(stddev), np.empty(count, dtype=np.int64)
        threads = min(self._threads, count // _PER_THREAD)
        if threads > 1:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(partial(self._fill, bins), np.array_split(result, threads)))
        else:
            self._fill(bins, result)
        return result

    def _fill(self, bins: NormalBins, result: IntArray) -> None:
        """Fill `result` with independent deviates."""
        above = [np.zeros(0, dtype=np.int64)]
        for start in range(0, result.size, _BLOCK):
            block = result[start : start + _BLOCK]
            words = self._words(block.size)
            np.bitwise_and(words.view(np.int64), (1 << bins.digits) - 1, out=block)
            block += bins.first_of_slot.take((words >> 64 - SLOT_BITS).view(np.int64))
            above.append(np.flatnonzero(words >= bins.filled << 64 - SLOT_BITS) + start)
        places, done = np.concatenate(above), 0
        while done < places.size:
            drawn = self._above_rectangles(bins, places.size - done)
            result[places[done : done + drawn.size]] = drawn
            done += drawn.size

    def _above_rectangles(self, bins: NormalBins, most: int) -> IntArray:
        """Return at most so many deviates from the density above the rectangles."""
        words = self._words(min(int(bins.tries * most) + 64, _BLOCK))
        words = words[words < bins.end]
        heights = self._words(words.size)
        box = (words >> bins.place_digits).view(np.int64)
        below = bins.density(bins.places(words))
        below -= bins.rectangles.take(box)
        below -= heights * (bins.box * 2.0**-64)
        kept = np.flatnonzero(~(below <= -MARGIN))
        words, box, is_below = words[kept], box[kept], below[kept] >= MARGIN
        places = (words & (1 << bins.place_digits) - 1).view(np.int64)
        values: IntArray = bins.rounded(box, places)
        for at in np.flatnonzero(~is_below).tolist():
            value = self.decide(bins, int(box[at]), int(places[at]), int(heights[kept[at]]))
            values[at], is_below[at] = value or 0, value is not None
        return values[is_below][:most]

    def decide(self, bins: NormalBins, box: int, place: int, height: int) -> int | None:
        """Return the rounded value of a point, or None if the point is not below the density.

        Args:
            bins: those of the standard deviation.
            box: the index of the bin, or `bins.count` for a point beyond all bins.
            place: the first `bins.place_digits` of the place in the bin; unused beyond all bins.
            height: the first 64 binary digits of the height in the box.
        """
        area = Fraction(bins.box)
        if box == bins.count:
            halvings = 0
            while self._bits(1):
                halvings += 1
            beyond = halvings << _HALVED_BITS | self._bits(_HALVED_BITS)
            box = -1 - beyond if self._bits(1) else bins.count + beyond
            place = self._bits(bins.place_digits)
            # The factors are the probabilities of: these boxes, the side, halvings, the box.
            area /= 1 << _BEYOND_BITS + 1 + (halvings + 1) + _HALVED_BITS
        point, level = PartialUniform(place, bins.place_digits), PartialUniform(height, 64)
        rectangle = int(bins.rectangles[box]) if 0 <= box < bins.count else 0
        while True:
            least, most = bins.density_bounds(box, point)
            low, high = (rectangle + area * end for end in level.ends())
            if high <= least:
                return int(bins.rounded(box, place))
            if low >= most:
                return None
            point.refine(self._bits(DIGIT_BITS))
            level.refine(self._bits(DIGIT_BITS))

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
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


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class NormalBins:
    """The bins and rectangles of one standard deviation.

    Attributes:
        count: the number of bins.
        width: the width of each bin, in standard deviations.
        start: the lower end of the first bin, in widths; exact.
        digits: binary digits that select one of the rounded values of a bin.
        rectangles: the area of each rectangle in slots, (count + 1,). The last one is NaN, so that
            float64 decides no point beyond all bins.
        filled: the number of slots in rectangles.
        first_of_slot: the first rounded value of each slot's bin, (2**SLOT_BITS,).
        box: the area of each box in slots. A box is as wide as its bin.
        place_digits: binary digits of a word after those that select its box.
        end: words from here on select no box.
        tries: words per deviate above the rectangles, on average.
    """

    def __init__(self, stddev: Fraction) -> None:
        exponent = stddev.numerator.bit_length() - stddev.denominator.bit_length()
        exponent -= stddev < Fraction(2) ** exponent  # now 2**exponent <= stddev < twice that
        self._bits = exponent - _WIDTH_BITS
        self.digits = max(self._bits, 0)
        self.width = Fraction(2) ** self._bits / stddev
        self._half = math.ceil(_REACH / self.width)
        self.count = 2 * self._half
        # Rounded values change at halves: a bin with several values begins at one.
        self.start = -self._half - (2.0 ** -(self._bits + 1) if self._bits >= 0 else 0.0)
        self.place_digits = 64 - self.count.bit_length()
        self.end = (self.count << self.place_digits) + (1 << self.place_digits - _BEYOND_BITS)

        self._rounded_width = float(self.width)
        self._peak = 2.0**SLOT_BITS * self._rounded_width / math.sqrt(2.0 * math.pi)
        at_ends = self.density(
            (np.arange(self.count + 1, dtype=np.float64) + self.start) * self._rounded_width
        )
        lowest = np.minimum(at_ends[:-1], at_ends[1:])
        highest = np.maximum(at_ends[:-1], at_ends[1:])
        highest[self._half] = self._peak  # 0 is in this bin
        areas = np.maximum(np.floor(lowest - MARGIN), 0.0)
        self.rectangles = np.append(areas, np.nan)
        self.box = float(np.max(highest - areas)) + MARGIN
        self.filled = int(areas.sum())
        rest = 2**SLOT_BITS - self.filled
        self.tries = 2.0 ** (64 - self.place_digits) * self.box / rest
        firsts = np.append(self.rounded(np.arange(self.count), 0), 0)
        self.first_of_slot = firsts.repeat(np.append(areas, rest).astype(np.int64))

    def places(self, words: npt.NDArray[np.uint64]) -> FloatArray:
        """Return the places of the points of these words, in standard deviations, rounded."""
        unit = self._rounded_width * 2.0**-self.place_digits
        return np.multiply(words, unit, dtype=np.float64) + self.start * self._rounded_width

    def density(self, places: FloatArray) -> FloatArray:
        """Return the normal density at these places, in slots per bin, rounded."""
        density: FloatArray = np.exp(-0.5 * places * places)
        return density * self._peak

    def density_bounds(self, bin_: int, point: PartialUniform) -> tuple[Fraction, Fraction]:
        """Return bounds of the density at a point of a bin, in slots per bin."""
        low, high = ((Fraction(self.start) + bin_ + end) * self.width for end in point.ends())
        nearest, farthest = max(low, -high, Fraction(0)), max(-low, high)
        unit, digits = 2**SLOT_BITS * self.width, point.bits // 3 + 3
        return (
            unit * normal_density(farthest, digits)[0],
            unit * normal_density(nearest, digits)[1],
        )

    def rounded(self, bin_: Any, place: Any) -> Any:
        """Return the rounded values of points in bins, by the first digits of their places."""
        index = bin_ - self._half
        if self._bits >= 0:
            return (index << self._bits) + (place >> self.place_digits - self._bits)
        shift = min(-self._bits, 62)  # of narrower bins, all are rounded to 0
        return (index + (1 << shift - 1)) >> shift


bins_of = lru_cache(maxsize=8)(NormalBins)


def normal_density(place: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Return bounds of the standard normal density, within 10**-digits of it on each side."""
    square = place**2
    # Decimal operations err by at most 10**(1 - precision) of their result. There are two before
    # the exponential, which multiplies their error by the exponent, and at most six others.
    precision = digits + len(str(int(square))) + 3
    with localcontext(prec=precision, Emin=MIN_EMIN):
        exponent = Decimal(square.numerator) / (2 * square.denominator)
        density = Fraction((-exponent).exp() / (2 * pi(precision)).sqrt())
    return density * (1 - Fraction(1, 10**digits)), density * (1 + Fraction(1, 10**digits))


@lru_cache(maxsize=4)
def pi(digits: int) -> Decimal:
    """Return pi within 10**-digits (Machin's formula)."""
    one = 10 ** (digits + 10)

    def arctan_of_inverse(number: int) -> int:
        power, total, odd = one // number, 0, 1
        while power:
            total += power // odd if odd % 4 == 1 else -(power // odd)
            power, odd = power // number**2, odd + 2
        return total

    # There are fewer than 2 * digits + 20 terms, each of them within 2.
    return Decimal(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239)).scaleb(-digits - 10)
