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
        if recurring.cost_tables:
            number, members = recurring.accounts.index(account), np.arange(len(recurring))
            rows = recurring.rows(number, members)
            table, granted = recurring.cost_tables[number], recurring.column("granted", members)
            order = account.order_of(rows)
            charge = table[granted] if order is None else table[granted, order]
            elapsed = recurring.steps - recurring.column("since", members)
            spent[rows] += (charge.T * elapsed).T
    return accounts.users_at(np.arange(count)), spent
