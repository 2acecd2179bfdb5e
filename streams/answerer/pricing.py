"""The noise of a file's queries and corrections, and the budget of a worst-case user.

A worst-case user adds the most that the file allows to every window of every query. Accounting
without individual users has to assume that every user is one. The spending of a worst-case user is
public, because it follows from the file and the policies alone. No user spends more in this run.

A part of the budget is reserved for corrections: windows are charged with ``reserve``, and blocks
without it. A user can be left out only after the first window that a worst-case user cannot pay
for. So at most the n windows from there on are left out. In a block of B windows a user's part of
the correction is at most B times the bound of a window. So the squares of these parts add up to at
most n B, in squares of the bound. The noise of the correction is that for this sum: whatever users
do, the reserve pays for all of their corrections.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accounting import Gaussian, InvalidInput, noise_for_norm_budget
from streams.answerer.kinds import Kind
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.windows import Calendar
from streams.records import Policy


class Costs(NamedTuple):
    """The noise of all queries of a file under a policy.

    Attributes:
        noises: the standard deviation of each query's noise.
        corrections: of the noise of its corrections; 0 without any.
        reserve: the share of every budget that windows leave to corrections.
        worst_case: the spending of a worst-case user.
    """

    noises: list[float]
    corrections: list[float]
    reserve: float
    worst_case: WorstCase


def costs_of(query_file: QueryFile, policies: Sequence[Policy]) -> Costs:
    """Return the noise of all queries, and the reserve of their corrections.

    Args:
        query_file: the file of the queries.
        policies: of all budgets that a charge has to fit. The noise of answers follows from the
            first one, and that of corrections from the smallest, since each budget must pay for
            them.

    Raises:
        UnusableQueries: a policy cannot charge them, or no noise follows from its measure.
    """
    queries = list(zip(query_file.queries, query_file.shares, query_file.blocks, strict=True))
    reserve = sum(share * blocks.left_out for _, share, blocks in queries if blocks.size)
    noises = [
        query.noise
        or _noise(
            query,
            query.active_windows * query.bound**2,
            rho_of(policies[0]) * share * (1.0 - blocks.left_out),
        )
        for query, share, blocks in queries
    ]
    worst_case = WorstCase(query_file.queries, noises, policies, reserve)
    corrections, calendar = [0.0] * len(queries), Calendar(query_file)
    for number, (query, share, blocks) in enumerate(queries):
        if blocks.size:
            first = worst_case.exhaustible_since(calendar, number, blocks.windows - 1)
            missed = 1 if first is None else blocks.windows - first
            squares = missed * blocks.size * query.bound**2
            rho = min(map(rho_of, policies)) * share * blocks.left_out
            corrections[number] = _noise(query, squares, rho)
    return Costs(noises, corrections, reserve, worst_case)


def _noise(query: Kind, squares: float, rho: float) -> float:
    try:
        return noise_for_norm_budget(squares, rho)
    except InvalidInput as error:
        raise UnusableQueries(
            f"query {query.name!r}: no noise follows from active_windows = "
            f"{query.active_windows:g} and a share of rho = {rho:g}: {error}. Give fewer "
            "active_windows, or noise"
        ) from error


def rho_of(policy: Policy) -> float:
    """Return the budget of a policy as zCDP, rounded down."""
    rho = policy.row.gaussian_rho(policy.budget[0])
    if rho is None:
        raise UnusableQueries(
            f"active_windows and corrections need budgets in gdp or zcdp, and that of "
            f"dataset {policy.dataset!r} is in {policy.measure}: give noise instead"
        )
    return rho


class WorstCase:
    """The budget of a worst-case user, as far as this run charges it.

    Args:
        asked: the queries.
        stddevs: their noise.
        policies: of all budgets that a charge has to fit.
        reserve: the share of each budget that windows leave.

    Raises:
        UnusableQueries: a measure cannot charge Gaussian noise.
    """

    def __init__(
        self,
        asked: Sequence[Kind],
        stddevs: Sequence[float],
        policies: Sequence[Policy],
        reserve: float = 0.0,
    ) -> None:
        kept, pairs = Fraction(reserve), list(zip(asked, stddevs, strict=True))
        self._budgets = [
            _Budget(
                policy.per_user_order is True,
                _orders(policy),
                # Python's integers: sums of a million prices exceed 64 bits.
                np.array([units - math.ceil(units * kept) for units in policy.budget], object),
                np.array([_prices(policy, *pair) for pair in pairs], object),
            )
            for policy in policies
        ]

    def left(self, closed: Sequence[int], query: int) -> int:
        """Return how many more windows of a query a worst-case user can pay for.

        Args:
            closed: by query, the number of the next window.
            query: its index in the file.
        """
        found = []
        for has_own_order, _, limits, prices in self._budgets:
            more = np.maximum(limits - closed @ prices, 0) // np.maximum(prices[query], 1)
            # A user is charged at one order, its own, or at all of them.
            found.append(max(more) if has_own_order else min(more))
        return int(min(found))

    def exhaustible_since(self, calendar: Calendar, query: int, number: int) -> int | None:
        """Return the first window of a query of which a user could have been left out.

        In all earlier windows every user can pay whatever the query asks for, if nothing but this
        run charges the budgets, because the closed windows of all queries count as paid for. So no
        correction has charged a user by then. This depends on the file and the policies alone.

        Args:
            calendar: of the file.
            query: its index in the file.
            number: of the last window to consider.

        Returns:
            The number of a window, or None if there is no such window up to this one.
        """

        def is_out_of_reach(window: int) -> bool:
            return not self._can_pay(calendar.closed_before(query, window), query)

        # Costs only add up, so all windows after one that is out of reach are out of reach, too.
        first = bisect.bisect_left(range(number + 1), True, key=is_out_of_reach)
        return first if first <= number else None

    def _can_pay(self, closed: Sequence[int], query: int) -> bool:
        """Return whether a worst-case user can pay for one more window, at whichever order."""
        return all(
            bool((closed @ prices + prices[query] <= limits)[orders].all())
            for _, orders, limits, prices in self._budgets
        )


class _Budget(NamedTuple):
    """A budget that every charge has to fit, for a worst-case user.

    Attributes:
        has_own_order: whether each user is charged at one Rényi order.
        orders: the places of the orders at which a user can be charged.
        limits: (orders,) in units, without the reserve.
        prices: (queries, orders) of a window.
    """

    has_own_order: bool
    orders: list[int]
    limits: NDArray[np.object_]
    prices: NDArray[np.object_]


def _orders(policy: Policy) -> list[int]:
    """Return the places of the Rényi orders at which a user of this run can be charged.

    With per-user orders, each user is bound to the order a that admits most steps of that user's
    charge: budget[a] / ceil(a c) of them, if the charge is c units of zCDP. Let budget[b] / b be
    the largest of these quotients. If a user is bound to order a, then budget[a] / a is at least
    b c / (b c + 1) of it, and c is at least 1. So few orders besides b are possible.
    """
    places = list(range(len(policy.budget)))
    if policy.per_user_order is not True:
        return places
    quotients = [budget / order for budget, order in zip(policy.budget, policy.orders, strict=True)]
    best = max(places, key=quotients.__getitem__)
    order = policy.orders[best]
    least = quotients[best] * order / (order + 1.0) * (1.0 - 2.0**-30)  # below all roundings
    return [place for place in places if quotients[place] >= least]


def _prices(policy: Policy, asked: Kind, stddev: float) -> list[int]:
    """Return the cost of one window of a query for a worst-case user, by order."""
    measure = policy.row
    if not measure.covers(Gaussian(1.0)):
        raise UnusableQueries(
            f"dataset {policy.dataset!r} has the measure {measure.name}, which cannot charge the "
            "Gaussian noise of answers: use a dataset with gdp, zcdp or renyi"
        )
    units = measure.charge_units(Gaussian(stddev), [asked.bound], policy.orders or None)
    return [int(cost) for cost in units.reshape(-1)]
