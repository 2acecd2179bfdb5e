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
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from accounting.costs.norm_levels import grid_norms
from accounting.filters.recurring import RecurringCharge, StepOutcome
from accounting.filters.roster_columns import RosterColumns
from streams.ledger.accounts import ByLevel, Sought
from streams.ledger.budgets import Budgets
from streams.ledger.columns import PAGE_ROWS, Column, Columns, Numbers, RowDelta, Rows
from streams.ledger.erasure import blanked
from streams.ledger.rule import NO_ROWS
from streams.ledger.tracked import Address, Tracked
from streams.ledger.validation import (
    check_balances,
    check_request,
    check_roster_mechanism,
    check_rosters,
)
from streams.records import ChargeRoster, Enrol, Reason, Rejection, RosterMechanism
from streams.records.digests import PAGE_DIGEST_BYTES, ROSTER_PAGE, cost_table_digest, page_digests
from streams.records.users import UserIds

Bytes: TypeAlias = NDArray[np.uint8]

_HALTED, _EXHAUSTED = np.uint8(1), np.uint8(2)  # in flags
_OWN = 0  # among the budgets of a roster, that of its dataset


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """The terms under which a roster is charged."""

    clip_norm: float
    levels: int  # without level 0
    units: bytes = b""  # the cost table of the last step, as the record brought it
    cost_table_digest: bytes = b""  # its digest


@dataclass(frozen=True)
class Pricing:
    """A step of a roster that can be charged."""

    terms: Terms  # from this step on
    cost_tables: Sequence[Numbers]  # of each budget, from this step on
    is_repriced: bool  # whether they differ from those of the step before, or may differ
    rows: Rows  # members whose levels change; a slice if they are all members
    levels: Bytes  # of these, from this step on


class MemberDelta(msgspec.Struct, frozen=True, array_like=True):
    """New values of some members of one roster."""

    address: Address
    count: int  # of all members, after it
    rows: RowDelta


@dataclass(frozen=True)
class Step:
    """The result of a roster step."""

    outcome: StepOutcome
    slots: list[Rows]  # in each budget: the accounts written
    charged: list[ByLevel | None]  # the same: the levels charged, if nothing else was charged
    bound: list[Numbers]  # the same: slots of users bound to an order
    noted: list[RowDelta]  # of members


class _Rows(Columns):
    """The stored columns of members; see ``accounting.filters.roster_columns.RosterColumns``.

    Pages and deltas are loaded into arrays. From ``hand_over`` on, the recurring charge owns all
    numbers, and the rows only pack them and record which pages changed.
    """

    recurring: RecurringCharge | None = None

    slot: Annotated[NDArray[np.uint32], Column(dtype="<u4")]  # in the accounts of the dataset
    level: Annotated[Bytes, Column(dtype="|u1")]
    granted: Annotated[Bytes, Column(dtype="|u1")]
    flags: Annotated[Bytes, Column(dtype="|u1")]
    since: Annotated[Numbers, Column()]

    def hand_over(self, recurring: RecurringCharge) -> None:
        """Read all numbers from a recurring charge from now on, and free the arrays."""
        self.recurring = recurring
        for name in self._columns:
            delattr(self, name)

    def numbers(self, name: str, rows: Rows) -> NDArray[np.integer]:
        if self.recurring is None:
            return super().numbers(name, rows)
        if name != "slot":
            return self.recurring.column(name, rows)
        slots = self.recurring.rows(_OWN, rows)
        listed = np.arange(slots.start, slots.stop) if isinstance(slots, slice) else slots
        return listed.astype(np.uint32)


class Members:
    """The members of one roster in one partition, by position.

    Pages and deltas are loaded first; ``restore`` turns them into a roster that can be charged.
    Every change is stored with the record that made it.

    Attributes:
        recurring: charges the members.
        checked: mechanism, scale and sampling rate that were found valid for the clip norm and the
            policies, which stay the same as long as there is the roster.
    """

    def __init__(self) -> None:
        self.recurring: RecurringCharge | None = None
        self.checked: tuple[RosterMechanism, float, float] | None = None
        self._count = 0
        self._rows = _Rows()
        self._budgets: Budgets
        self._unbound = False  # whether a member may have no order yet
        self._found_unbound = False  # whether the last step charged all unbound members nothing
        self._digests = b""  # of the first full pages
        self._erased = 0  # the number of erased members at that time

    def __len__(self) -> int:
        return self._count

    @property
    def slots(self) -> Numbers:
        """The slots of all members in the accounts of the dataset."""
        return self._rows.numbers("slot", slice(0, self._count)).astype(np.int64)

    @property
    def cost_tables(self) -> tuple[Numbers, ...]:
        """The cost table of each budget at the last step; empty before the first."""
        return self._recurring.cost_tables

    @property
    def levels(self) -> Bytes:
        """The levels of all members after the last step."""
        return self._bytes("level")

    @property
    def granted(self) -> Bytes:
        """The level that the last step granted each member, 0 if it did not admit the member."""
        return self._bytes("granted")

    @property
    def halted(self) -> Numbers:
        """The positions of members that the last step did not admit."""
        return np.flatnonzero(self._bytes("flags") & _HALTED)

    @property
    def exhausted(self) -> Numbers:
        """The positions of members with nothing left after the last step."""
        return np.flatnonzero(self._bytes("flags") & _EXHAUSTED)

    def numbers(self, rows: Rows) -> dict[str, NDArray[np.integer]]:
        """Return all columns of these members, by name, after the last step."""
        return self._rows.all_numbers(rows)

    def is_halted(self, rows: Numbers) -> NDArray[np.bool_]:
        """Return which of these members the last step did not admit."""
        return np.asarray(self._rows.numbers("flags", rows) & _HALTED != 0)

    def is_exhausted(self, rows: Numbers) -> NDArray[np.bool_]:
        """Return which of these members had nothing left after the last step."""
        return np.asarray(self._rows.numbers("flags", rows) & _EXHAUSTED != 0)

    def restore(self, budgets: Budgets, terms: Terms, steps: int) -> None:
        """Turn the loaded columns into a roster that has taken this many steps."""
        rows, count = self._rows, self._count
        columns = RosterColumns(
            rows.level[:count], rows.granted[:count], rows.flags[:count], rows.since[:count]
        )
        self._budgets = budgets
        self._unbound, self._found_unbound = self._binds, False
        outer = budgets.accounts[1:]
        users = budgets.own.users_at(self.slots if outer else NO_ROWS)
        self.recurring = RecurringCharge.restored(
            [accounts.account for accounts in budgets.accounts],
            [self.slots, *(accounts.seek(users).slots for accounts in outer)],
            columns,
            terms.levels,
            steps=steps,
            cost_tables=budgets.cost_tables(terms.units, terms.levels) if terms.units else [],
            clip=budgets.clips,
        )
        self.recurring.settled_by_others = []
        rows.hand_over(self.recurring)

    def add(self, slots: Sequence[Numbers], level: int) -> RowDelta:
        """Append users at a level; ``slots`` are their slots in each budget."""
        own = slots[0]
        rows = np.arange(self._count, self._count + len(own))
        self._count += len(own)
        self._rows.reserve_pages(self._count)
        self._recurring.enrol(slots, np.full(len(own), level, dtype=np.uint8))
        self._unbound, self._found_unbound = self._binds, False
        return self._rows.note(rows)

    def step(self, priced: Pricing) -> Step:
        """Charge every member once; the caller stores the changes."""
        bound = [NO_ROWS for _ in self._budgets.accounts]
        if self._unbound:
            bound = self._bind(priced)
        listed = priced.rows
        outcome = self._recurring.step(
            priced.cost_tables, None if isinstance(listed, slice) else listed, priced.levels
        )
        settled = outcome.settled
        slots = [self._recurring.rows(number, settled) for number in range(len(bound))]
        charged: list[ByLevel | None] = [None for _ in bound]
        if isinstance(settled, slice) and not outcome.had_accrued:
            levels = self.granted.tobytes()
            charged = [
                ByLevel(cost_table.astype("<i8").tobytes(), levels)
                for cost_table in self._recurring.cost_tables
            ]
        return Step(outcome, slots, charged, bound, self._note_step(outcome, listed))

    def _note_step(self, outcome: StepOutcome, listed: Rows) -> list[RowDelta]:
        """Return the changes of a step that set the levels of the listed members."""
        noted, changed = [], {}
        halted, readmitted = outcome.halted, outcome.readmitted
        if isinstance(listed, slice):
            noted.append(self._rows.note_alike(listed, "level", "granted"))
        if isinstance(outcome.settled, slice):
            noted.append(self._rows.note_equal(outcome.settled, "since", self._recurring.steps))
        else:
            changed["since"] = outcome.settled
        if not isinstance(listed, slice):
            changed["level"] = listed
            changed["granted"] = _union(listed, outcome.regranted, halted, readmitted)
        changed["flags"] = _union(outcome.exhausted, halted, readmitted)
        noted += [self._rows.note(rows, column) for column, rows in changed.items() if len(rows)]
        return noted

    def slots_of(self, rows: Numbers) -> list[Numbers]:
        """Return the slots of these members in each budget."""
        count = len(self._budgets.accounts)
        return [np.asarray(self._recurring.rows(number, rows)) for number in range(count)]

    def digests(self, budgets: Budgets) -> tuple[bytes, Numbers]:
        """Return the digests of pages of members, and the positions of erased members.

        A full page is digested once, and again when a member is erased.
        """
        accounts, erased = budgets.own, budgets.erased_at(self.slots)
        if len(erased) != self._erased:
            self._digests, self._erased = b"", len(erased)
        full = self._count // ROSTER_PAGE
        known = min(len(self._digests) // PAGE_DIGEST_BYTES, full)
        first = known * ROSTER_PAGE
        more = blanked(accounts.users_at(self.slots[first:]), erased[erased >= first] - first)
        digests = self._digests[: known * PAGE_DIGEST_BYTES] + page_digests(more)
        self._digests = digests[: full * PAGE_DIGEST_BYTES]
        return digests, erased

    def take_settled(self) -> Numbers:
        """Return the positions that other records have settled since the last call, ascending."""
        taken = self._recurring.settled_by_others
        self._recurring.settled_by_others = []
        return np.sort(np.concatenate(taken)) if taken else NO_ROWS

    def note_settled(self, rows: Numbers) -> RowDelta:
        """Return the changes of members whose accrued charges were settled."""
        return self._rows.note(rows, "since")

    def _bytes(self, name: str) -> Bytes:
        """Return a column of bytes for all members; read it before the next step."""
        return self._rows.numbers(name, slice(0, self._count)).view(np.uint8)

    def close(self) -> Numbers:
        """Charge what has accrued, return the members concerned, and end the roster."""
        behind = self._recurring.accruing(np.arange(self._count))
        self._recurring.close()
        return behind

    def apply_delta(self, changes: MemberDelta) -> None:
        """Set the values of a delta again."""
        self._count = max(self._count, changes.count)
        self._rows.reserve(self._count)
        self._rows.apply_delta(changes.rows)

    def changed_pages(self) -> list[int]:
        """Return the numbers of the pages that changed since they were last taken."""
        return self._rows.changed_pages()

    def take_page(self, number: int) -> dict[str, bytes]:
        """Return a page; from here on it counts as written."""
        return self._rows.take_page(number, self._count)

    def load_page(self, number: int, page: dict[str, bytes]) -> None:
        """Load a page; pages come in the order of their numbers, from 0."""
        start = number * PAGE_ROWS
        if start != self._count:
            raise ValueError(f"page {number} follows {self._count} members, not {start}")
        self._count = start + self._rows.rows_in(page)
        self._rows.reserve(self._count)
        self._rows.load_page(number, page)

    @property
    def _recurring(self) -> RecurringCharge:
        assert self.recurring is not None
        return self.recurring

    @property
    def _binds(self) -> bool:
        return any(accounts.rule.binds for accounts in self._budgets.accounts)

    def _bind(self, priced: Pricing) -> list[Numbers]:
        """Bind members without an order whom this step charges; return their slots per budget.

        If the last step charged all unbound members nothing, only members with another level, or
        another cost table, can be charged something now.
        """
        rows, levels = priced.rows, priced.levels
        binds_all = not self._found_unbound or priced.is_repriced
        if binds_all or isinstance(rows, slice):
            binds_all = True
            levels = self.levels.copy()
            levels[rows] = priced.levels
            rows = np.arange(self._count)
        elif not len(levels):
            return [NO_ROWS for _ in self._budgets.accounts]
        bound = [
            accounts.bind(slots, cost_table, levels)
            for accounts, slots, cost_table in zip(
                self._budgets.accounts, self.slots_of(rows), priced.cost_tables, strict=True
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
    return np.unique(np.concatenate(found))


class Rosters(Tracked[Terms]):
    """All rosters of one partition, by dataset and run.

    Attributes:
        members: (dataset, run) -> members.
        not_restored: rosters whose pages and deltas are loaded, but that cannot be charged yet.
        dropped: pages to delete, by roster and number.
    """

    def __init__(self) -> None:
        super().__init__("roster", Terms)
        self.members: dict[Address, Members] = {}
        self.not_restored: set[Address] = set()
        self.dropped: set[tuple[Address, int]] = set()

    def _moves(self, address: Address, before: Terms | None, after: Terms | None) -> None:
        if after is None:
            pages = -(-len(self.members.pop(address)) // PAGE_ROWS)
            self.not_restored.discard(address)
            self.dropped.update((address, number) for number in range(pages))
        elif before is None:
            # Deltas may create a roster that a later delta deletes: its dropped pages stay dropped.
            self.members[address] = Members()
            self.not_restored.add(address)


def enrolment(
    request: Enrol,
    terms: Terms | None,
    members: Members,
    budgets: Budgets,
    beside: int,
) -> tuple[Terms, list[Sought]]:
    """Check an enrolment; nothing has changed yet.

    Args:
        request: the enrolment.
        terms: of the roster; None if there is none.
        members: of the roster.
        budgets: of the run's dataset.
        beside: the number of other rosters that share one of these budgets.

    Returns:
        The roster's terms, and in each budget the slots of users who are not members yet.

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
    return known, budgets.enrolment(added, members.slots)


def pricing(charge: ChargeRoster, terms: Terms, members: Members, budgets: Budgets) -> Pricing:
    """Check a step of a roster; nothing has changed yet.

    Raises:
        Rejection: for the first reason that applies.
    """
    count = len(members)
    if charge.members != count:
        detail = f"the roster has {count} members here, not {charge.members}"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    noise = charge.mechanism, charge.scale, charge.sampling_rate
    if noise != members.checked:
        check_roster_mechanism(charge, terms.clip_norm, budgets.policies)
        members.checked = noise
    cost_tables: Sequence[Numbers] = members.cost_tables
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
    rows, levels = _changed_levels(charge, count, terms.levels)
    return Pricing(terms, cost_tables, bool(charge.units), rows, levels)


def _changed_levels(charge: ChargeRoster, count: int, highest: int) -> tuple[Rows, Bytes]:
    """Return the positions whose levels a step changes (a slice of all), and the new levels."""
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
