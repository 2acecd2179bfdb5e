"""Running totals: the sum of a query's answers since the first one.

A sum of answers is post-processing: it costs no user anything.

With noise s in each of n answers, the noise of their sum is s sqrt(n). The sum over blocks that are
corrected is that of the answers and of what the blocks left out, which has no bias: its noise is
that of both. It does not depend on how the correction divides a block among its windows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from streams.answerer.kinds import Floats
from streams.queries.continual_monitoring import quantile_of_noise


class NoisySum(NamedTuple):
    """A sum of answers.

    Attributes:
        start: the beginning of its first window, in ms since 1970.
        value: (d,).
        stddev: of the noise in each number.
    """

    start: int
    value: Floats
    stddev: float

    def interval(self, confidence: float) -> tuple[Floats, Floats]:
        """Return the ends of the interval of all numbers together."""
        width = self.stddev * quantile_of_noise(confidence, len(self.value))
        return self.value - width, self.value + width


class AnsweredSums(msgspec.Struct, frozen=True):
    """The sums of a query so far. Everything in them was published.

    Attributes:
        start: when the first window began, in ms since 1970.
        answers: packed little-endian float64, (d + 1,): the sum of the answers, and the variance of
            its noise; empty before the first one.
        blocks: as ``answers``, over the blocks that were corrected, for all users.
    """

    start: int
    answers: bytes = b""
    blocks: bytes = b""

    def after(self, value: Floats, stddev: float) -> AnsweredSums:
        """Return the sums with the answer (d,) of the next window, and its noise."""
        answers = _added(self.answers, value, stddev**2)
        return msgspec.structs.replace(self, answers=answers)

    def corrected_after(self, value: Floats, variance: float) -> AnsweredSums:
        """Return the sums with the sum (d,) over the next block, and the variance of its noise."""
        return msgspec.structs.replace(self, blocks=_added(self.blocks, value, variance))

    def of_answers(self) -> NoisySum:
        """Return the sum of all answers, of which there is at least one."""
        return self._sum(self.answers)

    def of_blocks(self) -> NoisySum:
        """Return the sum over all corrected blocks, of which there is at least one."""
        return self._sum(self.blocks)

    def _sum(self, packed: bytes) -> NoisySum:
        row = np.frombuffer(packed, dtype="<f8").astype(np.float64)
        return NoisySum(self.start, row[:-1], math.sqrt(row[-1]))


def _added(packed: bytes, value: Floats, variance: float) -> bytes:
    row = np.append(value, variance)
    return (row + np.frombuffer(packed, dtype="<f8") if packed else row).astype("<f8").tobytes()
