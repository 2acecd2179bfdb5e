"""The balances of a ledger, with the charges that rosters have accrued."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streams.ledger.accounts import Accounts
from streams.records.users import UserIds


def spent_units(accounts: Accounts) -> tuple[UserIds, NDArray[np.int64]]:
    """Return all users and their spent units, (n,), or (n, orders) if all orders have to hold."""
    account, count = accounts.account, len(accounts)
    spent = account.balances.spent[:count].copy()
    for recurring in account.recurring_charges:
        if recurring.tables:
            number, members = recurring.accounts.index(account), np.arange(len(recurring))
            rows = recurring.slots[number].rows(members)
            table, granted = recurring.tables[number].units, recurring.columns.granted[members]
            order = account.order_of(rows)
            charge = table[granted] if order is None else table[granted, order]
            elapsed = recurring.steps - recurring.columns.since[members].astype(np.int64)
            spent[rows] += (charge.T * elapsed).T
    return accounts.users_at(np.arange(count)), spent
