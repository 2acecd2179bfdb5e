"""Independent coins of one probability, drawn exactly: which users take part in a sampled step.

A float64 rate is a binary fraction. A coin shows heads if a uniform number in [0, 1) is below the
rate. Both are compared 16 binary digits at a time, and random digits are drawn until they differ
from the rate's or the rate has no more digits. So the probability is the rate itself, without any
rounding. Nearly every coin is decided by its first two random bytes.

The bits come from the same source as those of `exact_normals`: for arrays from OpenSSL's generator,
which takes new bits of the operating system before each array, otherwise from the operating
system. The duration depends on the rate, on the number of coins, and slightly on the coins.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from accounting.exact.argument_checks import IntArray, sampling_probability
from accounting.release.exact_normals import strong_bytes

_DIGITS: Final = 16
_BLOCK: Final = 2**20


def heads(count: int, rate: float, generator: np.random.Generator | None = None) -> IntArray:
    """Return which of `count` independent coins show heads, in increasing order.

    Args:
        count: the number of coins, >= 0.
        rate: the probability of heads, from 0 to 1.
        generator: a source for tests and repeatable experiments: its seed reveals the coins.
            Without it, the bits are those of the operating system and of OpenSSL.

    Returns:
        int64, positions from 0 to `count` - 1.

    Raises:
        InvalidInput: `rate` is no probability.
    """
    whole = Fraction(sampling_probability("rate", rate))
    source = strong_bytes if generator is None else generator.bytes
    found = [np.zeros(0, dtype=np.int64)]
    for start in range(0, count, _BLOCK):
        undecided, left, block = np.arange(start, min(start + _BLOCK, count)), whole, []
        # A rate without further digits is not above a number that begins as it does: tails.
        while undecided.size and left:
            digits, left = divmod(left * 2**_DIGITS, 1)
            drawn = np.frombuffer(source(2 * undecided.size), dtype="<u2").astype(np.int64)
            block.append(undecided[drawn < digits])
            undecided = undecided[drawn == digits]
        found.append(np.sort(np.concatenate(block)) if block else undecided[:0])
    return np.concatenate(found)
