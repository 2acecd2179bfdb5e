"""Rosters: the users that a run charges, by position, and the norm level of each.

    (unknown) --enrol--> n members at the highest level, all of them admitted
    n members --enrol, users that follow--> more members
    n members --enrol, the same users at the same positions--> unchanged
    n members --charge-roster--> n members, other levels, some halted or admitted again
    n members --close-run--> (unknown)
    any other request is refused and changes nothing

A step does work only for members to whom something happens, and stores only their changes
(``accounting.filters.recurring``). The other members' charges accrue. A record that settles the
accrued charges of a member stores the member's ``since`` and its balances together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from accounting.costs.norm_levels import grid_norms
from accounting.filters.account_terms import AccountCostTable
from accounting.filters.due_steps import NO_ROWS, distinct
from accounting.filters.recurring import RecurringCharge, StepOutcome
from accounting.filters.roster_columns import EXHAUSTED, HALTED, SlotMap, listed_rows
from streams.ledger.accounts import AccountDelta, ByLevel, Sought
from streams.ledger.budgets import Budgets
from streams.ledger.columns import (
    PACKED,
    PAGE_ROWS,
    Column,
    Columns,
    Numbers,
    RowDelta,
    Rows,
    pack_numbers,
    unpack_numbers,
)
from streams.ledger.erasure import blanked
from streams.ledger.tracked import Address, Tracked
from streams.ledger.validation import (
    check_balances,
    check_mechanism,
    check_request,
    check_rosters,
)
from streams.records import ChargeRoster, Enrol, Reason, Rejection, RosterMechanism
from streams.records.digests import PAGE_DIGEST_BYTES, ROSTER_PAGE, cost_table_digest, page_digests
from streams.records.users import UserIds

Bytes: TypeAlias = NDArray[np.uint8]

_SLOT = "slot"


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """The terms under which a roster is charged."""

    clip_norm: float
    levels: int  # without level 0
    units: bytes = b""  # the cost table of the last step, as the record brought it
    cost_table_digest: bytes = b""  # its digest


class MemberDelta(msgspec.Struct, frozen=True, array_like=True):
    """New values of some members of one roster."""

    address: Address
    count: int  # of all members, after it
    rows: RowDelta


class MemberRows(Columns):
    """The stored columns of a roster's members, by position (``RosterColumns``).

    Pages and deltas also have each member's slot in the accounts of the dataset.

    Attributes:
        slots: these slots.
    """

    level: Annotated[Bytes, Column(dtype="|u1")]
    granted: Annotated[Bytes, Column(dtype="|u1")]
    flags: Annotated[Bytes, Column(dtype="|u1")]
    since: Annotated[NDArray[np.uint32], Column(dtype="<u4", stored="<i8")]

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotMap()

    def slots_at(self, rows: Rows) -> Numbers:
        """Return the slots of these members."""
        return listed_rows(self.slots.rows(rows))

    def note_added(self, first: int) -> RowDelta:
        """Return the changes of the members from a position on."""
        rows = np.arange(first, len(self))
        added = self.note(rows)
        added.values[_SLOT] = self.slots_at(rows).astype("<u4").tobytes()
        return added

    def apply_members(self, changes: MemberDelta) -> None:
        """Set the values of a delta again."""
        # Room also where pages are missing: then a later delta deletes the roster.
        self.reserve(changes.count)
        if (packed := changes.rows.values.pop(_SLOT, None)) is not None:
            slots = np.frombuffer(packed, dtype="<u4").astype(np.int64)
            first = changes.count - len(slots)
            # A newer page may hold the first ones.
            self.extend(slots[max(len(self) - first, 0) :])
        self.apply_delta(changes.rows)

    def take_page(self, number: int) -> dict[str, bytes]:
        """Return the rows of a page and their slots; from here on it counts as written."""
        rows = slice(number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, len(self)))
        slots = pack_numbers(self.slots_at(rows))
        return {_SLOT + PACKED: slots, **super().take_page(number)}

    def load_page(self, number: int, page: dict[str, bytes]) -> None:
        """Append the members of a page."""
        self.extend(unpack_numbers(page.pop(_SLOT + PACKED)))
        super().load_page(number, page)

    def extend(self, slots: Numbers) -> None:
        """Append members with these slots; their numbers are the initial ones."""
        self.slots.extend(slots)
        self.grow(len(self.slots))


class Members:
    """The members of one roster in one partition, by position; charged by every step.

    Every change is stored with the record that made it.

    Attributes:
        rows: their stored columns.
        recurring: charges the members.
        checked: mechanism, scale and sampling rate that were found valid for the clip norm and the
            policies, which stay the same as long as there is the roster.
    """

    def __init__(self, rows: MemberRows, budgets: Budgets, terms: Terms, steps: int) -> None:
        self.rows, self._budgets = rows, budgets
        self.checked: tuple[RosterMechanism, float, float] | None = None
        slots, outer = [rows.slots], budgets.accounts[1:]
        users = budgets.own.users_at(self.slots if outer else NO_ROWS)
        for accounts in outer:
            slots.append(SlotMap())
            slots[-1].extend(accounts.seek(users).slots)
        self.recurring = RecurringCharge(
            [accounts.account for accounts in budgets.accounts],
            slots,
            rows,
            steps=steps,
            tables=budgets.cost_tables(terms.units, terms.levels) if terms.units else (),
            clip=budgets.clips,
        )
        self._binds = any(accounts.rule.binds for accounts in budgets.accounts)
        self._unbound = self._binds  # whether a member may have no order yet
        self._found_unbound = False  # whether the last step charged all unbound members nothing
        self._digests = b""  # of the first full pages
        self._erased = 0  # the number of erased members at that time

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def slots(self) -> Numbers:
        """The slots of all members in the accounts of the dataset."""
        return self.rows.slots_at(slice(None))

    @property
    def levels(self) -> Bytes:
        """The levels of all members after the last step; read it before the next step."""
        return self.rows.level[: len(self)]

    @property
    def granted(self) -> Bytes:
        """The level that the last step granted each member, 0 if it did not admit the member."""
        return self.rows.granted[: len(self)]

    @property
    def halted(self) -> Numbers:
        """The positions of members that the last step did not admit."""
        return np.flatnonzero(self.rows.flags[: len(self)] & HALTED)

    @property
    def exhausted(self) -> Numbers:
        """The positions of members with nothing left after the last step."""
        return np.flatnonzero(self.rows.flags[: len(self)] & EXHAUSTED)

    def numbers(self, rows: Rows) -> dict[str, NDArray[np.integer]]:
        """Return all columns of these members, by name, after the last step."""
        return {_SLOT: self.rows.slots_at(rows), **self.rows.all_numbers(rows)}

    def is_exhausted(self, rows: Numbers) -> NDArray[np.bool_]:
        """Return which of these members had nothing left after the last step."""
        return np.asarray(self.rows.flags[rows] & EXHAUSTED != 0)

    def add(self, slots: Sequence[Numbers], level: int) -> RowDelta:
        """Append users at a level; ``slots`` are their slots in each budget."""
        first = len(self)
        self.rows.grow(first + len(slots[0]))
        self.recurring.enrol(slots, level)
        self._unbound, self._found_unbound = self._binds, False
        return self.rows.note_added(first)

    def step(
        self, tables: Sequence[AccountCostTable] | None, rows: Rows, levels: Bytes
    ) -> tuple[StepOutcome, list[RowDelta], list[AccountDelta]]:
        """Charge every member once.

        Args:
            tables: the cost table of each budget from this step on; None if they do not change.
            rows: members whose levels change, ascending; a slice if they are all members.
            levels: their levels, from this step on.

        Returns:
            What the step changed, for answers, and the changes of members and of accounts to store.
        """
        recurring, accounts = self.recurring, self._budgets.accounts
        bound = [NO_ROWS for _ in accounts]
        if self._unbound:
            bound = self._bind(tables, rows, levels)
        outcome = recurring.step(tables, rows, levels)
        by_level = isinstance(outcome.settled, slice) and not outcome.had_accrued
        changes = [
            each.note(
                known.rows(outcome.settled),
                listed_rows(known.rows(risen.positions)),
                newly_bound,
                ByLevel(table.units, self.granted) if by_level else None,
            )
            for each, known, table, risen, newly_bound in zip(
                accounts, recurring.slots, recurring.tables, outcome.raised, bound, strict=True
            )
        ]
        return outcome, self._note_step(outcome, rows), changes

    def _note_step(self, outcome: StepOutcome, listed: Rows) -> list[RowDelta]:
        """Return the changes of a step that set the levels of the listed members."""
        changed: dict[str, Rows] = {"since": outcome.settled}
        halted, readmitted = outcome.halted, outcome.readmitted
        noted = []
        if isinstance(listed, slice):
            noted.append(self.rows.note_alike(listed, "level", "granted"))
        else:
            changed["level"] = listed
            changed["granted"] = _union(listed, outcome.regranted, halted, readmitted)
        changed["flags"] = _union(outcome.exhausted, halted, readmitted)
        noted += [
            self.rows.note(rows, column)
            for column, rows in changed.items()
            if isinstance(rows, slice) or len(rows)
        ]
        return noted

    def slots_of(self, rows: Numbers) -> list[Numbers]:
        """Return the slots of these members in each budget."""
        return [listed_rows(known.rows(rows)) for known in self.recurring.slots]

    def digests(self, budgets: Budgets) -> tuple[bytes, Numbers]:
        """Return the digests of pages of members, and the positions of erased members.

        A full page is digested once, and again when a member is erased.
        """
        accounts, erased = budgets.own, budgets.erased_at(self.slots)
        if len(erased) != self._erased:
            self._digests, self._erased = b"", len(erased)
        full = len(self) // ROSTER_PAGE
        known = min(len(self._digests) // PAGE_DIGEST_BYTES, full)
        first = known * ROSTER_PAGE
        more = blanked(accounts.users_at(self.slots[first:]), erased[erased >= first] - first)
        digests = self._digests[: known * PAGE_DIGEST_BYTES] + page_digests(more)
        self._digests = digests[: full * PAGE_DIGEST_BYTES]
        return digests, erased

    def _bind(
        self, tables: Sequence[AccountCostTable] | None, rows: Rows, levels: Bytes
    ) -> list[Numbers]:
        """Bind members without an order whom this step charges; return their slots per budget.

        If the last step charged all unbound members nothing, only members with another level, or
        another cost table, can be charged something now.
        """
        binds_all = not self._found_unbound or tables is not None or isinstance(rows, slice)
        if binds_all:
            everybody = self.levels.copy()
            everybody[rows] = levels
            rows, levels = np.arange(len(self)), everybody
        elif not len(levels):
            return [NO_ROWS for _ in self._budgets.accounts]
        bound = [
            accounts.rule.bind(accounts.columns, slots, table.units, levels)
            for accounts, slots, table in zip(
                self._budgets.accounts,
                self.slots_of(listed_rows(rows)),
                tables or self.recurring.tables,
                strict=True,
            )
        ]
        if binds_all:
            self._unbound, self._found_unbound = any(unbound for _, unbound in bound), True
        return [slots for slots, _ in bound]


def _union(*parts: Numbers) -> Numbers:
    """Return all rows of these parts once; rows ascend, in each part and in the result."""
    found = [part for part in parts if len(part)]
    if len(found) < 2:
        return found[0] if found else NO_ROWS
    return distinct(np.concatenate(found))


class Rosters(Tracked[Terms]):
    """All rosters of one partition, by dataset and run.

    Attributes:
        rows: (dataset, run) -> the stored columns of its members.
        members: (dataset, run) -> its members, from ``start`` on.
        dropped: pages to delete, by roster and number.
    """

    def __init__(self) -> None:
        super().__init__("roster", Terms)
        self.rows: dict[Address, MemberRows] = {}
        self.members: dict[Address, Members] = {}
        self.dropped: set[tuple[Address, int]] = set()

    def start(self, address: Address, budgets: Budgets, steps: int = 0) -> Members:
        """Return the members of a roster that has taken this many steps, ready to be charged."""
        members = Members(self.rows[address], budgets, self[address], steps)
        self.members[address] = members
        return members

    def _moves(self, address: Address, before: Terms | None, after: Terms | None) -> None:
        if after is None:
            pages = -(-len(self.rows.pop(address)) // PAGE_ROWS)
            self.members.pop(address, None)
            self.dropped.update((address, number) for number in range(pages))
        elif before is None:
            # Deltas may create a roster that a later delta deletes: its dropped pages stay dropped.
            self.rows[address] = MemberRows()


def enrolment(
    request: Enrol,
    terms: Terms | None,
    rows: MemberRows,
    budgets: Budgets,
    beside: int,
) -> tuple[Terms, list[Sought]]:
    """Check an enrolment in a roster, whose terms are None if there is none yet; change nothing.

    ``beside`` is the number of other rosters that share one of these budgets.

    Returns:
        The roster's terms, and in each budget the slots of users who are not members yet.
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
    count, slots = len(rows), rows.slots_at(slice(None))
    if request.first > count:
        detail = f"users from position {request.first} on do not follow {count} members"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    users = budgets.known_as(UserIds.unpack(request.users))
    overlap = min(count - request.first, len(users))
    there = budgets.own.users_at(slots[request.first : request.first + overlap])
    if page_digests(there) != page_digests(users[:overlap]):
        detail = (
            f"other users are enrolled at positions {request.first} to "
            f"{request.first + overlap - 1} than those sent: a roster can only grow at its end"
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
    return known, budgets.enrolment(added, slots)


def cost_tables(
    charge: ChargeRoster, terms: Terms, members: Members, budgets: Budgets
) -> tuple[Terms, list[AccountCostTable] | None]:
    """Check a roster's step; return its terms, and each budget's cost table if it changes."""
    if charge.members != len(members):
        detail = f"the roster has {len(members)} members here, not {charge.members}"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    noise = charge.mechanism, charge.scale, charge.sampling_rate
    if noise != members.checked:
        check_mechanism(charge, terms.clip_norm, budgets.policies)
        members.checked = noise
    digest = charge.cost_table_digest
    if charge.units and cost_table_digest(charge.units) != digest:
        detail = "the digest of the cost table is not that of its units"
        raise Rejection(Reason.INVALID_COST_TABLE, detail)
    if digest == terms.cost_table_digest:
        return terms, None
    if not charge.units:
        detail = "this is not the cost table of the step before: send its units with the step"
        raise Rejection(Reason.INVALID_COST_TABLE, detail)
    try:
        tables = budgets.cost_tables(charge.units, terms.levels)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_COST_TABLE, str(error)) from error
    return msgspec.structs.replace(terms, units=charge.units, cost_table_digest=digest), tables


def changed_levels(charge: ChargeRoster, count: int, highest: int) -> tuple[Rows, Bytes]:
    """Return the positions (or a slice of all) and levels that a step changes (INVALID_LEVELS)."""
    rows = np.frombuffer(charge.positions, dtype="<u4").astype(np.int64)
    levels = np.frombuffer(charge.levels, dtype=np.uint8)
    all_levels = not len(rows) and len(levels)
    complaint = None
    if len(levels) != (count if all_levels else len(rows)):
        complaint = f"{len(levels)} levels for {count if all_levels else len(rows)} positions"
    elif len(rows) and (rows[-1] >= count or bool((np.diff(rows) <= 0).any())):
        complaint = f"positions must increase and be below {count}"
    elif len(levels) and levels.max() > highest:
        at = int(levels.argmax())
        position = at if all_levels else int(rows[at])
        complaint = f"level {levels.max()} at position {position} is above {highest}, the highest"
    if complaint:
        raise Rejection(Reason.INVALID_LEVELS, complaint)
    return slice(0, count) if all_levels else rows, levels
