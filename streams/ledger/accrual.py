"""Accrued charges of rosters that share a budget.

A record that charges an account first charges what has accrued on it, and stores the new balance of
these users only. Charges of a user accrue on one roster at most (``accounting.filters.recurring``).
So what a record writes grows with its users, not with the rosters that they are on.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from accounting.filters.due_steps import NO_ROWS
from streams.ledger.accounts import Accounts
from streams.ledger.budgets import Budgets
from streams.ledger.state import State
from streams.ledger.tracked import Address
from streams.records import Reason, Rejection


def store_settled(state: State, charged: Collection[Accounts], but: Address | None = None) -> None:
    """Store the rosters' members whose accrued charges this record has charged.

    Also store their accounts in budgets that this record does not charge but the roster does.
    """
    alone = but is not None
    if all(len(accounts.account.recurring_charges) <= alone for accounts in charged):
        return
    for address, members in state.rosters.members.items():
        other = state.policies.budgets(address[0])
        if address == but or set(charged).isdisjoint(other.accounts):
            continue
        rows = members.recurring.take_settled()
        if not len(rows):
            continue
        state.note_members(address, members.rows.note(rows, "since"))
        for accounts, slots in zip(other.accounts, members.slots_of(rows), strict=True):
            if accounts not in charged:
                state.note(accounts.note(slots, NO_ROWS, NO_ROWS))


def count_rosters(state: State, budgets: Budgets) -> int:
    """Return the number of rosters that share a budget with these."""
    others = [state.policies.budgets(dataset) for dataset, _ in state.rosters.members]
    return sum(not set(budgets.accounts).isdisjoint(other.accounts) for other in others)


def drop_roster(state: State, address: Address) -> None:
    """Charge what its members have accrued, and drop the roster."""
    if address in state.rosters:
        members, budgets = state.rosters.members[address], state.policies.budgets(address[0])
        behind = members.recurring.accruing(np.arange(len(members)))
        members.recurring.close()
        if len(behind):
            for accounts, slots in zip(budgets.accounts, members.slots_of(behind), strict=True):
                state.note(accounts.note(slots, NO_ROWS, NO_ROWS))
        del state.rosters[address]


def budgets_of(state: State, dataset: str) -> Budgets:
    """Return every budget that a charge to this dataset draws on (UNKNOWN_DATASET)."""
    try:
        return state.policies.budgets(dataset)
    except KeyError:
        detail = f"dataset {dataset!r} does not exist: create it first"
        raise Rejection(Reason.UNKNOWN_DATASET, detail) from None


def open_budgets_of(state: State, dataset: str) -> Budgets:
    """Return every budget that a charge draws on (UNKNOWN_DATASET, DATASET_CLOSED)."""
    budgets = budgets_of(state, dataset)
    check_open(state, dataset)
    return budgets


def check_open(state: State, dataset: str) -> None:
    """Check that a dataset was not closed (DATASET_CLOSED)."""
    if (dataset,) in state.closed:
        detail = (
            f"dataset {dataset!r} is closed permanently: its charges stay, and its name cannot be "
            "used again"
        )
        raise Rejection(Reason.DATASET_CLOSED, detail)
