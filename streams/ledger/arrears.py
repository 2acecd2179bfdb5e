"""What rosters do together that share a budget: whoever touches an account brings it up to date."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streams.ledger.budgets import Budgets
from streams.ledger.columns import Rows
from streams.ledger.rule import NOBODY
from streams.ledger.state import State
from streams.ledger.tracked import Address


def wake(state: State, budgets: Budgets) -> None:
    """Have all rosters that share a budget with these go on from what is stored of them."""
    for address in list(state.rosters.asleep):
        own = state.policies.budgets(address[0])
        if own.outermost is budgets.outermost:
            steps = state.runs[address].roster_steps
            state.rosters.members[address].wake(own, state.rosters[address], steps)
            state.rosters.asleep.discard(address)


def note_taken(
    state: State, budgets: Budgets, taken: Sequence[Rows], but: Address | None = None
) -> None:
    """Note what rosters know of these users, whose accounts were brought up to date.

    Those in budgets that are not charged now, too, where a roster charges both.
    """
    if len(budgets.outermost.account.standings) <= (but is not None):
        return
    for address, members in state.rosters.members.items():
        other = state.policies.budgets(address[0])
        if address == but or other.outermost is not budgets.outermost:
            continue
        accounts, slots = next(
            pair for pair in zip(budgets.accounts, taken, strict=True) if pair[0] in other.accounts
        )
        listed = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        rows = np.sort(members.rows_of(accounts, listed))
        state.note_members(address, members.note(rows))
        for accounts, slots in zip(other.accounts, members.slots_of(rows), strict=True):
            if len(slots) and accounts not in budgets.accounts:
                state.note(accounts.note(slots, NOBODY, NOBODY))


def drop_roster(state: State, address: Address) -> None:
    """Charge its members what is in arrears, and forget it."""
    if address in state.rosters:
        members, budgets = state.rosters.members[address], state.policies.budgets(address[0])
        members.close()
        everybody = np.arange(len(members))
        slots = members.slots_of(everybody)
        for accounts, rows in zip(budgets.accounts, slots, strict=True):
            state.note(accounts.note(rows, NOBODY, NOBODY))
        del state.rosters[address]
