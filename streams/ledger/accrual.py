"""Accrued charges of rosters that share a budget.

A record that charges an account first charges what has accrued on it, and stores the new balance of
these users only. Charges of a user accrue on one roster at most (``accounting.filters.recurring``).
So what a record writes grows with its users, not with the rosters that they are on.
"""

from __future__ import annotations

from streams.ledger.budgets import Budgets
from streams.ledger.rule import NOBODY
from streams.ledger.state import State
from streams.ledger.tracked import Address


def wake(state: State, budgets: Budgets) -> None:
    """Restore all rosters that share a budget with these from their stored state."""
    for address in list(state.rosters.asleep):
        own = state.policies.budgets(address[0])
        if own.outermost is budgets.outermost:
            steps = state.runs[address].roster_steps
            state.rosters.members[address].wake(own, state.rosters[address], steps)
            state.rosters.asleep.discard(address)


def note_taken(state: State, budgets: Budgets, but: Address | None = None) -> None:
    """Store the rosters' members whose accrued charges this record has charged.

    Also store their accounts in budgets that this record does not charge but the roster does.
    """
    if len(budgets.outermost.account.recurring_charges) <= (but is not None):
        return
    for address, members in state.rosters.members.items():
        other = state.policies.budgets(address[0])
        if address == but or other.outermost is not budgets.outermost:
            continue
        rows = members.take_taken()
        if not len(rows):
            continue
        state.note_members(address, members.note_settled(rows))
        for accounts, slots in zip(other.accounts, members.slots_of(rows), strict=True):
            if accounts not in budgets.accounts:
                state.note(accounts.note(slots, NOBODY, NOBODY))


def count_rosters(state: State, budgets: Budgets) -> int:
    """Return the number of rosters that share a budget with these."""
    datasets = [dataset for dataset, _ in state.rosters.members]
    return sum(state.policies.budgets(name).outermost is budgets.outermost for name in datasets)


def drop_roster(state: State, address: Address) -> None:
    """Charge what its members have accrued, and drop the roster."""
    if address in state.rosters:
        members, budgets = state.rosters.members[address], state.policies.budgets(address[0])
        behind = members.close()
        if len(behind):
            for accounts, slots in zip(budgets.accounts, members.slots_of(behind), strict=True):
                state.note(accounts.note(slots, NOBODY, NOBODY))
        del state.rosters[address]
