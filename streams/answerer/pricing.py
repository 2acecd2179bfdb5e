"""What the queries of a file cost: their noise, and how many answers the worst case allows.

The worst case is a user who adds as much as is allowed to every window of every query. It is what
accounting without individual users has to assume of everybody, and it is public: it follows from
the file and the policy. Individual budgets last longer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from accounting import Gaussian, InvalidInput, noise_for_norm_budget
from accounting.exact.units import from_units_down
from accounting.measures import MEASURES
from streams.answerer.kinds import Asked
from streams.answerer.questions import UnusableQueries
from streams.ledger.policies import measure_of
from streams.schemas import Policy


def noises(asked: Sequence[Asked], policy: Policy) -> list[float]:
    """The standard deviation of the noise of each query.

    Raises:
        UnusableQueries: the budget of this measure is not one that noise follows from.
    """
    open_shares = [a.query for a in asked if not a.query.noise and not a.query.share]
    left = 1.0 - sum(a.query.share for a in asked)
    found = []
    for one in asked:
        query = one.query
        if query.noise:
            found.append(query.noise)
            continue
        share = query.share or left / len(open_shares)
        rho = _rho(policy) * share
        try:
            found.append(noise_for_norm_budget(query.active_windows * one.bound**2, rho))
        except InvalidInput as error:
            raise UnusableQueries(
                f"query {query.name!r}: active_windows is {query.active_windows:g}, and its share "
                f"of the budget is a rho of {rho:g}, from which no noise follows: {error}. Give "
                "fewer active_windows, or noise"
            ) from error
    return found


def _rho(policy: Policy) -> float:
    """The budget of a policy as zCDP, rounded down."""
    budget = float(from_units_down(policy.budget[0]))
    match policy.measure:
        case "zcdp" | "approx-dp":
            return budget
        case "gdp":
            return budget / 2.0  # budgets of gdp are mu squared
    raise UnusableQueries(
        f"active_windows cannot be had from a budget in {policy.measure}: give noise instead"
    )


class WorstCase:
    """How many answers are left to a user who adds as much as is allowed to every window.

    Args:
        asked: the queries.
        stddevs: their noise.
        policies: of all budgets that count.

    Raises:
        UnusableQueries: a measure that cannot charge Gaussian noise.
    """

    def __init__(
        self, asked: Sequence[Asked], stddevs: Sequence[float], policies: Sequence[Policy]
    ) -> None:
        self._policies = policies
        self._costs: list[list[np.ndarray[tuple[int], np.dtype[np.int64]]]] = []
        for policy in policies:
            measure = measure_of(policy)
            if not measure.covers(Gaussian(1.0)):
                raise UnusableQueries(
                    f"dataset {policy.dataset!r} has the measure {measure.name}, which cannot "
                    "charge the Gaussian noise of answers: use a dataset with zcdp, gdp, renyi or "
                    "approx-dp"
                )
            orders = policy.orders or None
            self._costs.append(
                [
                    np.atleast_1d(
                        MEASURES[measure.name]
                        .charge_units(Gaussian(stddev), [one.bound], orders)
                        .reshape(-1)
                    )
                    for one, stddev in zip(asked, stddevs, strict=True)
                ]
            )

    def left(self, closed: Sequence[int], query: int) -> int:
        """How many more answers to this query the budgets allow after so many of each."""
        return min(
            self._left_of(policy, costs, closed, query)
            for policy, costs in zip(self._policies, self._costs, strict=True)
        )

    def _left_of(
        self,
        policy: Policy,
        costs: Sequence[np.ndarray[tuple[int], np.dtype[np.int64]]],
        closed: Sequence[int],
        query: int,
    ) -> int:
        more = []
        for order in range(len(policy.budget)):
            spent = sum(int(c[order]) * n for c, n in zip(costs, closed, strict=True))
            more.append(max(0, policy.budget[order] - spent) // max(1, int(costs[query][order])))
        # Each user is held to one order, its own, or to all.
        return max(more) if policy.own_order is True else min(more)
