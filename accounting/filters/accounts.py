"""The balances of a dataset whose users are charged by standing steps."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from accounting.exact.validation import IntArray
from accounting.filters.slot_map import Rows
from accounting.filters.terms import AccountTerms, BalanceColumns


class AccruingRoster(Protocol):
    """What a roster owes to the accounts of its users: steps that were charged and not counted."""

    def positions_of(self, account: BudgetAccount, slots: IntArray) -> IntArray:
        """Return the positions of those of these rows of an account that are on the roster."""

    def owed(self, account: BudgetAccount) -> tuple[IntArray, IntArray]:
        """Return rows of an account with what they would be charged by `settle`."""

    def settle(self, positions: IntArray) -> None:
        """Bring balances up to date; positions may be repeated."""

    def review(self, positions: IntArray) -> None:
        """As `settle`, for balances that are about to be written: the next step looks at them."""


class BudgetAccount:
    """The balances of one dataset, and the rosters whose users they are.

    Between two steps balances are behind, for those who are charged in arrears. Before they are
    read, `settle` the rows; before they are written by anybody else, `take` them.

    Args:
        terms: budgets and odometer.
        balances: columns that the caller owns.
    """

    def __init__(self, terms: AccountTerms, balances: BalanceColumns) -> None:
        self.terms = terms
        self.balances = balances
        self.recurring_charges: list[AccruingRoster] = []

    def settle(self, slots: Rows) -> None:
        """Bring the balances of these rows up to date; they may be repeated."""
        if self.recurring_charges:
            rows = _listed(slots)
            for recurring in self.recurring_charges:
                recurring.settle(recurring.positions_of(self, rows))

    def take(self, slots: Rows, but: AccruingRoster | None = None) -> None:
        """Bring the balances of these rows up to date, to be written: rosters look at them anew.

        Args:
            slots: whose balances are about to be read and written.
            but: a roster that needs not look.
        """
        others = [recurring for recurring in self.recurring_charges if recurring is not but]
        if others:
            rows = _listed(slots)
            for recurring in others:
                recurring.review(recurring.positions_of(self, rows))

    def order(self, rows: Rows) -> IntArray | None:
        """Return the orders that these users are bound to, if they are bound to any."""
        if self.terms.orders != "own":
            return None
        # As places in an array, which numpy would make of it at every use.
        return self.balances.order[rows].astype(np.intp)


def _listed(slots: Rows) -> IntArray:
    return np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
