"""The balances of a dataset whose users are charged by standing steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from accounting.exact.validation import IntArray
from accounting.rules.slot_map import Rows
from accounting.rules.terms import Balances, Terms

if TYPE_CHECKING:
    from accounting.rules.standing import Standing


class Account:
    """The balances of one dataset, and the rosters whose users they are.

    Between two steps balances are behind, for those who are charged in arrears. Before they are
    read, `settle` the rows; before they are written by anybody else, `take` them.

    Args:
        terms: budgets and odometer.
        balances: columns that the caller owns.
    """

    def __init__(self, terms: Terms, balances: Balances) -> None:
        self.terms = terms
        self.balances = balances
        self.standings: list[Standing] = []

    def settle(self, slots: Rows) -> None:
        """Bring the balances of these rows up to date; they may be repeated."""
        if self.standings:
            rows = _listed(slots)
            for standing in self.standings:
                standing.settle(standing.positions_of(self, rows))

    def take(self, slots: Rows, but: Standing | None = None) -> None:
        """Bring the balances of these rows up to date, to be written: rosters look at them anew.

        Args:
            slots: whose balances are about to be read and written.
            but: a roster that needs not look.
        """
        others = [standing for standing in self.standings if standing is not but]
        if others:
            rows = _listed(slots)
            for standing in others:
                standing.review(standing.positions_of(self, rows))

    def order(self, rows: Rows) -> IntArray | None:
        """Return the orders that these users are bound to, if they are bound to any."""
        if self.terms.orders != "own":
            return None
        # As places in an array, which numpy would make of it at every use.
        return self.balances.order[rows].astype(np.intp)


def _listed(slots: Rows) -> IntArray:
    return np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
