"""The sparse vector technique: find which of many counts are above a threshold, for one charge.

The charge does not depend on the number of comparisons, only on the number of positive answers.
Feldman and Zrnic (sec. 5) suggest it to check whether there are still enough active users.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from accounting.costs.costs import StatedCost
from accounting.costs.mechanisms import PureDP
from accounting.exact.argument_checks import (
    FloatArray,
    norm_vector,
    positive_finite,
    whole_number,
)
from accounting.exact.invalid_input import InvalidInput
from accounting.exact.products import product_up
from accounting.exact.rounding import UP, float_toward
from accounting.release.exact_noise import ExactNoise

_LARGEST_COUNT: Final = 2**53
_EPSILONS: Final = (2.0**-40, 2.0**40)


class SparseVector:
    """Compares counts with a threshold privately, until `positives` of them were above it.

    Algorithm 1 of Lyu, Su and Li ("Understanding the sparse vector technique for differential
    privacy", 2017). With sensitivity D, c positives and epsilon = epsilon_1 + epsilon_2:

    1. One noisy threshold for all queries: threshold + Laplace(D / epsilon_1).
    2. Each query gets its own noise, Laplace(2 c D / epsilon_2), or Laplace(c D / epsilon_2) if
       the queries are monotone, and is above if it is at least the noisy threshold.
    3. After c positives, all further queries are rejected.

    Only the comparisons are released; the values themselves need another release and charge. The
    object is epsilon-DP for any number of queries, each chosen from earlier answers; neighbours
    differ by adding or removing one user. Queries are integers and the noise is the discrete
    Laplace distribution, sampled exactly (`exact_noise`): the proof shifts the threshold by D and
    the positive queries by up to 2 D, which are integers. Scale and round other queries, and let
    `sensitivity` cover the rounding.

    The epsilons are in the ratio 1 : (2 c)^(2/3), for monotone queries 1 : c^(2/3), at which the
    variance of the compared difference is least (Lyu et al.).

    Args:
        threshold: an integer, public. To learn when a count falls to t or below, ask for its
            negative with threshold -t.
        epsilon: the whole cost in nats, from 2**-40 to 2**40.
        generator: a source of repeatable noise, for tests only: its seed reveals the noise. Without
            it, the operating system's source is used.
        positives: c, at least 1.
        sensitivity: D, an integer >= 1: the most that one user changes any query.
        monotone: whether one more user changes all queries in the same direction, or not at all.
            True for the number of active users, or of users who left; not for their difference, or
            for a mix of a count and its negative. Half the noise then has the same cost: towards a
            neighbour with lower queries the proof shifts the positive queries by D only; towards
            one with higher queries it shifts the threshold by D and the positives by at most D.

    The cost is fixed when the object is created: charge it before the first query. Do not copy the
    object or restore it to an earlier state: it counts the positives that are still paid for.
    """

    def __init__(
        self,
        threshold: int,
        epsilon: float,
        *,
        generator: np.random.Generator | None = None,
        positives: int = 1,
        sensitivity: int = 1,
        monotone: bool = False,
    ) -> None:
        self.threshold = whole_number("threshold", threshold, -_LARGEST_COUNT, _LARGEST_COUNT)
        self.epsilon = positive_finite("epsilon", epsilon)
        if not _EPSILONS[0] <= self.epsilon <= _EPSILONS[1]:
            raise InvalidInput("epsilon", epsilon, "from 2**-40 to 2**40")
        self.positives = whole_number("positives", positives, 1, _LARGEST_COUNT)
        self.sensitivity = whole_number("sensitivity", sensitivity, 1, _LARGEST_COUNT)
        if not isinstance(monotone, bool):
            raise InvalidInput("monotone", monotone, "True or False")
        self.monotone = monotone
        self._noise = ExactNoise(generator)
        # As fractions, so that the two parts add up to exactly epsilon.
        shift = self.positives if monotone else 2 * self.positives
        first = Fraction(self.epsilon / (1.0 + shift ** (2.0 / 3.0)))
        self._threshold_scale = self.sensitivity / first
        self._query_scale = shift * self.sensitivity / (Fraction(self.epsilon) - first)
        # Step 1.
        self._noisy_threshold = self.threshold + self._noise.laplace(self._threshold_scale)
        self._remaining = self.positives

    @property
    def remaining(self) -> int:
        """The number of positives left; it is public, because it follows from the answers."""
        return self._remaining

    def cost(self) -> StatedCost:
        """Return the cost of all answers to a user who changes a query by `sensitivity`."""
        return StatedCost(PureDP(), self.epsilon)

    def norms(self, contributions: npt.ArrayLike) -> FloatArray:
        """Return the epsilon of each user, for `PureDP`, shape (n,), rounded up.

        Epsilon is proportional to the contribution, by which the proof shifts the queries.

        Args:
            contributions: the most that each user changes any query, whole numbers >= 0, shape
                (n,); fixed before the first query.
        """
        amounts = norm_vector("contributions", contributions)
        if not bool(np.all(amounts == np.floor(amounts))):
            raise InvalidInput("contributions", amounts.tolist(), "whole numbers throughout")
        per_one = float_toward(Fraction(self.epsilon) / self.sensitivity, UP)
        return product_up(per_one, amounts)

    def above(self, value: int) -> bool:
        """Return whether the noisy value is at least the noisy threshold.

        Args:
            value: an integer within 2**53.

        Raises:
            InvalidInput: for other values, and after `positives` answers were True; then nothing
                has been drawn.
        """
        number = whole_number("value", value, -_LARGEST_COUNT, _LARGEST_COUNT)
        if self._remaining == 0:
            allowed = f"fewer than {self.positives}: the charge covers no further answer"
            raise InvalidInput("positives", self.positives, allowed)
        # Step 2.
        above = number + self._noise.laplace(self._query_scale) >= self._noisy_threshold
        # Step 3.
        self._remaining -= above
        return above
