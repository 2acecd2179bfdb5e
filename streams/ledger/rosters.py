"""Rosters: whom a run charges, by position, and at which level each of them is.

    (unknown) --enrol--> n members at the highest level, all of them admitted
    n members --enrol, users that follow--> more members
    n members --enrol, the same users at the same positions--> unchanged
    n members --charge-roster--> n members, other levels, some not admitted or admitted again
    n members --close-run--> (unknown)
    anything else is refused and changes nothing

What a step does to members is said in ``streams.ledger.members``.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from accounting import InvalidInput
from accounting.costs.norm_levels import grid_norms
from streams.ledger.accounts import Sought
from streams.ledger.budgets import Budgets
from streams.ledger.columns import PAGE_ROWS, Numbers
from streams.ledger.limits import check_balances, check_request, check_rosters
from streams.ledger.members import Bytes, Members, Pricing, Terms
from streams.ledger.policies import check_roster_mechanism
from streams.ledger.tracked import Address, Tracked
from streams.records import ChargeRoster, Enrol, Reason, Rejection
from streams.records.digests import cost_table_digest, page_digests
from streams.records.users import UserIds


class Rosters(Tracked[Terms]):
    """All rosters of one partition, by dataset and run.

    Attributes:
        members: (dataset, run) -> members.
        asleep: those rosters of which only what is stored is known yet.
        dropped: the pages of members that are not members any more, by roster and number.
    """

    def __init__(self) -> None:
        super().__init__("roster", Terms)
        self.members: dict[Address, Members] = {}
        self.asleep: set[Address] = set()
        self.dropped: set[tuple[Address, int]] = set()

    def _moves(self, address: Address, before: Terms | None, after: Terms | None) -> None:
        if after is None:
            pages = -(-len(self.members.pop(address)) // PAGE_ROWS)
            self.asleep.discard(address)
            self.dropped.update((address, number) for number in range(pages))
        elif before is None:
            # Changes may bring back for a while what is gone in the end: what is dropped stays so.
            self.members[address] = Members()
            self.asleep.add(address)


@dataclass(frozen=True)
class Enrolment:
    """Users who can be enrolled: who is not a member yet, and where they are in each budget."""

    terms: Terms
    sought: list[Sought]


def enrolment(
    request: Enrol,
    terms: Terms | None,
    members: Members,
    budgets: Budgets,
    beside: int,
) -> Enrolment:
    """Check an enrolment; nothing has changed yet.

    Args:
        request: the enrolment.
        terms: of the roster; None if there is none.
        members: of the roster.
        budgets: that it counts against.
        beside: the number of rosters that share one of these.

    Raises:
        Rejection: for the first reason that applies.
    """
    asked = Terms(float(request.clip_norm), request.levels)
    known = terms or asked
    if (known.clip_norm, known.levels) != (asked.clip_norm, asked.levels):
        detail = (
            f"the roster of run {request.run!r} has clip_norm {known.clip_norm} and {known.levels} "
            f"levels, not {asked.clip_norm} and {asked.levels}: charge another clip norm under "
            "another run"
        )
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    count = len(members)
    if request.first > count:
        detail = f"users from position {request.first} on do not follow {count} members"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    users = budgets.known_as(UserIds.unpack(request.users))
    overlap = min(count - request.first, len(users))
    there = budgets.own.users_at(members.slots[request.first : request.first + overlap])
    if page_digests(there) != page_digests(users[:overlap]):
        detail = (
            f"other users are enrolled at positions {request.first} to "
            f"{request.first + overlap - 1} than those sent: a roster can grow at its end alone"
        )
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    added = users[overlap:]
    check_request(len(users))
    check_balances(count + len(added), budgets.orders)
    if terms is None:
        check_rosters(beside)
    try:
        grid_norms(asked.clip_norm, asked.levels)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_LEVELS, str(error)) from error
    sought = budgets.enrolment(added, members.slots)
    return Enrolment(known, sought)


def pricing(charge: ChargeRoster, terms: Terms, count: int, budgets: Budgets) -> Pricing:
    """Check a step of a roster of so many members; nothing has changed yet.

    Raises:
        Rejection: for the first reason that applies.
    """
    if charge.members != count:
        detail = f"the roster has {count} members here, not {charge.members}"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    check_roster_mechanism(charge, *budgets.policies)
    cost_tables = None
    if charge.units:
        if cost_table_digest(charge.units) != charge.cost_table_digest:
            detail = "the digest of the cost table is not that of its units"
            raise Rejection(Reason.INVALID_COST_TABLE, detail)
        try:
            cost_tables = budgets.cost_tables(charge.units, terms.levels)
        except InvalidInput as error:
            raise Rejection(Reason.INVALID_COST_TABLE, str(error)) from error
        terms = msgspec.structs.replace(
            terms, units=charge.units, cost_table_digest=charge.cost_table_digest
        )
    elif charge.cost_table_digest != terms.cost_table_digest:
        detail = "this is not the cost table of the step before: send its units with the step"
        raise Rejection(Reason.INVALID_COST_TABLE, detail)
    return Pricing(terms, cost_tables, *_moved_levels(charge, count, terms.levels))


def _moved_levels(
    charge: ChargeRoster, count: int, highest: int
) -> tuple[Numbers | None, Bytes | None]:
    """Whose levels a step changes, and to what."""
    rows = np.frombuffer(charge.positions, dtype="<u4").astype(np.int64)
    levels = np.frombuffer(charge.levels, dtype=np.uint8)
    everybody = not len(rows) and len(levels)
    complaint = None
    if len(levels) != (count if everybody else len(rows)):
        complaint = f"{len(levels)} levels for {count if everybody else len(rows)} positions"
    elif len(rows) and (rows[-1] >= count or bool((np.diff(rows) <= 0).any())):
        complaint = f"positions have to increase, and to be below {count}"
    elif len(levels) and levels.max() > highest:
        at = int(levels.argmax())
        position = at if everybody else int(rows[at])
        complaint = f"level {levels.max()} at position {position} is above {highest}, the highest"
    if complaint:
        raise Rejection(Reason.INVALID_LEVELS, complaint)
    if not len(levels):
        return None, None
    return None if everybody else rows, levels
