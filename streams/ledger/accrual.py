"""Accrued charges of rosters that share a budget.

A record that charges an account first charges what has accrued on it, and stores the new balance of
these users only. Charges of a user accrue on one roster at most (``accounting.filters.recurring``).
So what a record writes grows with its users, not with the rosters that they are on.
"""

from __future__ import annotations

from collections.abc import Mapping

from streams.ledger.accrual_limits import Counted, most_accrued
from streams.ledger.budgets import Budgets
from streams.ledger.limits import count_of
from streams.ledger.rule import NOBODY
from streams.ledger.state import State
from streams.ledger.tracked import Address
from streams.schemas import Charge


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


def rosters_beside(state: State, budgets: Budgets, but: Address | None = None) -> list[Counted]:
    """Return the counts of all rosters that share a budget with these."""
    counted, orders = [], dict[str, Mapping[str, int] | None]()
    for (dataset, run), members in state.rosters.members.items():
        if dataset not in orders:
            other = state.policies.budgets(dataset)
            orders[dataset] = other.orders if other.outermost is budgets.outermost else None
        shared = orders[dataset]
        if shared is not None and (dataset, run) != but:
            ids = state.rosters[dataset, run].id_bytes
            counted.append(Counted(dataset, run, len(members), ids, shared))
    return counted


def accrued_beside(state: State, budgets: Budgets, charge: Charge) -> int:
    """How much a charge may write of accrued charges on rosters; 0 if there is none."""
    rosters = rosters_beside(state, budgets)
    return most_accrued(count_of(charge.users), budgets.orders, rosters) if rosters else 0


def drop_roster(state: State, address: Address) -> None:
    """Charge what its members have accrued, and drop the roster."""
    if address in state.rosters:
        members, budgets = state.rosters.members[address], state.policies.budgets(address[0])
        behind = members.close()
        if len(behind):
            for accounts, slots in zip(budgets.accounts, members.slots_of(behind), strict=True):
                state.note(accounts.note(slots, NOBODY, NOBODY))
        del state.rosters[address]
