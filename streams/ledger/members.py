"""The members of one roster in one partition: at which level each of them is charged, and how far.

A step does work for those to whom something happens, and says nothing of the others
(``accounting.filters.recurring``). Charges of members accrue: what is stored of them and of
their accounts goes together, and whatever brings the one up to date notes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting.filters.recurring import RecurringCharge, StepOutcome
from accounting.filters.roster import RosterColumns
from streams.ledger.balances import ByLevel
from streams.ledger.budgets import Budgets
from streams.ledger.columns import PAGE_ROWS, Column, Columns, Numbers, RowChanges, Rows
from streams.ledger.erasure import blanked
from streams.ledger.rule import NOBODY
from streams.ledger.tracked import Address
from streams.records.digests import PAGE_DIGEST_BYTES, ROSTER_PAGE, page_digests

Bytes: TypeAlias = NDArray[np.uint8]

_HALTED, _EXHAUSTED = np.uint8(1), np.uint8(2)  # in flags
_OWN = 0  # among the budgets of a roster, that of its dataset


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """Under what a roster is charged."""

    clip_norm: float
    levels: int  # beside level 0
    units: bytes = b""  # the cost table of the last step, as the record brought it
    cost_table_digest: bytes = b""  # its digest


@dataclass(frozen=True)
class Pricing:
    """A step of a roster that can be charged."""

    terms: Terms  # from this step on
    cost_tables: list[Numbers] | None  # of each budget; None: those of the step before
    rows: Numbers | None  # whose levels change; None: those of all, or of nobody
    row_levels: Bytes | None  # None: of nobody


class MemberChanges(msgspec.Struct, frozen=True, array_like=True):
    """New values of some members of one roster."""

    address: Address
    count: int  # of all members, after it
    rows: RowChanges


@dataclass(frozen=True)
class Step:
    """What a step of a roster did."""

    outcome: StepOutcome
    slots: list[Rows]  # in each budget: whose accounts it has written
    charged: list[ByLevel | None]  # the same: at which levels of what, if that is all it did
    bound: list[Numbers]  # the same: slots of those who were bound to an order
    noted: list[RowChanges]  # of members


class _Rows(Columns):
    """What is stored of members; what it means is said in ``accounting.filters.recurring``.

    Once a roster can be charged, it keeps all of this.
    """

    recurring: RecurringCharge | None = None

    slot: Annotated[NDArray[np.uint32], Column(dtype="<u4")]  # in the accounts of the dataset
    level: Annotated[Bytes, Column(dtype="|u1")]
    granted: Annotated[Bytes, Column(dtype="|u1")]
    flags: Annotated[Bytes, Column(dtype="|u1")]
    since: Annotated[Numbers, Column()]

    def live_in(self, recurring: RecurringCharge) -> None:
        """From now on a roster keeps what it knows."""
        self.recurring = recurring
        for name in self._columns:
            setattr(self, name, getattr(self, name)[:0].copy())

    def is_elsewhere(self, name: str) -> bool:
        return self.recurring is not None

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

    What is stored of them is put back first; ``wake`` makes a roster of it that can be charged.
    Whatever it changes is noted with the record that did so.
    """

    def __init__(self) -> None:
        self.recurring: RecurringCharge | None = None
        self._count = 0
        self._rows = _Rows()
        self._budgets: Budgets
        self._unbound = False  # whether somebody may have no order yet
        self._looked = False  # whether all of these were charged nothing by the last step
        self._digests = b""  # of the first pages, as far as they were asked for
        self._erased = 0  # so many had been, by then

    def __len__(self) -> int:
        return self._count

    @property
    def slots(self) -> Numbers:
        """Of all members, in the accounts of the dataset."""
        return self._rows.numbers("slot", slice(0, self._count)).astype(np.int64)

    @property
    def levels(self) -> Bytes:
        """Of all members, as the last step left them."""
        return self._bytes("level")

    @property
    def granted(self) -> Bytes:
        """What the last step granted to each, 0 to those who were not admitted."""
        return self._bytes("granted")

    @property
    def halted(self) -> Numbers:
        """Positions of those who were not admitted last."""
        return np.flatnonzero(self._bytes("flags") & _HALTED)

    @property
    def exhausted(self) -> Numbers:
        """Positions of those who had nothing left after the last step."""
        return np.flatnonzero(self._bytes("flags") & _EXHAUSTED)

    def numbers(self, rows: Rows) -> dict[str, NDArray[np.integer]]:
        """All numbers of these members, by name, as the last step left them."""
        return self._rows.all_numbers(rows)

    def is_halted(self, rows: Numbers) -> NDArray[np.bool_]:
        """Who of these members was not admitted last."""
        return np.asarray(self._rows.numbers("flags", rows) & _HALTED != 0)

    def is_exhausted(self, rows: Numbers) -> NDArray[np.bool_]:
        """Who of these members had nothing left after the last step."""
        return np.asarray(self._rows.numbers("flags", rows) & _EXHAUSTED != 0)

    def wake(self, budgets: Budgets, terms: Terms, steps: int) -> None:
        """Go on from what is stored, after so many steps."""
        rows, count = self._rows, self._count
        columns = RosterColumns(
            rows.level[:count], rows.granted[:count], rows.flags[:count], rows.since[:count]
        )
        self._budgets = budgets
        self._unbound, self._looked = self._binds, False
        outer = budgets.accounts[1:]
        users = budgets.own.users_at(self.slots if outer else NOBODY)
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
        rows.live_in(self.recurring)

    def add(self, slots: Sequence[Numbers], level: int) -> RowChanges:
        """Put users behind the last member, at a level; these are their slots in each budget."""
        own = slots[0]
        rows = np.arange(self._count, self._count + len(own))
        self._count += len(own)
        self._rows.reserve(self._count)
        self._awake.enrol(slots, np.full(len(own), level, dtype=np.uint8))
        self._unbound, self._looked = self._binds, False
        return self._rows.note(rows)

    def step(self, priced: Pricing) -> Step:
        """Charge everybody once, which has to be noted."""
        bound = [NOBODY for _ in self._budgets.accounts]
        if self._unbound:
            bound = self._bind(priced)
        outcome = self._awake.step(priced.cost_tables, priced.rows, priced.row_levels)
        everybody = slice(0, self._count)
        settled: Rows = everybody if outcome.settled is None else outcome.settled
        listed: Rows = NOBODY
        if priced.row_levels is not None:
            listed = everybody if priced.rows is None else priced.rows
        news = np.concatenate([outcome.halted, outcome.readmitted])
        granted = listed
        if not isinstance(listed, slice):
            granted = np.unique(np.concatenate([listed, outcome.regranted, news]))
        flagged = np.unique(np.concatenate([outcome.exhausted, news]))
        written = {"since": settled, "level": listed, "granted": granted, "flags": flagged}
        noted = []
        if isinstance(listed, slice):
            noted.append(self._rows.note_alike(listed, "level", "granted"))
            del written["level"], written["granted"]
        if isinstance(settled, slice):  # all of them after the same step
            noted.append(self._rows.say_same(settled, "since", self._awake.steps))
            del written["since"]
        noted += [
            self._rows.note(rows, column)
            for column, rows in written.items()
            if isinstance(rows, slice) or len(rows)
        ]
        slots = [self._awake.rows(number, settled) for number in range(len(bound))]
        charged: list[ByLevel | None] = [None for _ in bound]
        if outcome.settled is None and not outcome.had_accrued:
            levels = self._rows.numbers("granted", everybody).tobytes()
            charged = [
                ByLevel(cost_table.astype("<i8").tobytes(), levels)
                for cost_table in self._awake.cost_tables
            ]
        return Step(outcome, slots, charged, bound, noted)

    def slots_of(self, rows: Numbers) -> list[Numbers]:
        """Of these members, in each budget."""
        count = len(self._budgets.accounts)
        return [np.asarray(self._awake.rows(number, rows)) for number in range(count)]

    def digests(self, budgets: Budgets) -> tuple[bytes, Numbers]:
        """By what these members are recognised, and positions of those who were erased.

        A page that is full is looked at once, and again when somebody is erased.
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

    def take_taken(self) -> Numbers:
        """Positions of those whose accrued charges other records have charged since the
        last call, ascending.
        """
        taken = self._awake.settled_by_others
        self._awake.settled_by_others = []
        return np.sort(np.concatenate(taken)) if taken else NOBODY

    def note_settled(self, rows: Numbers) -> RowChanges:
        """What says that the accounts of these members were brought up to date, and no more."""
        return self._rows.note(rows, "since")

    def _bytes(self, name: str) -> Bytes:
        """A column of bytes, of all members; to be read at once."""
        return self._rows.numbers(name, slice(0, self._count)).view(np.uint8)

    def close(self) -> Numbers:
        """Charge what has accrued, and say to whom; nobody is charged as a member any more."""
        behind = self._awake.accruing(np.arange(self._count))
        self._awake.close()
        return behind

    def put_back(self, changes: MemberChanges) -> None:
        """Set what was set before."""
        self._count = max(self._count, changes.count)
        self._rows.reserve(self._count)
        self._rows.put_back(changes.rows)

    def changed_pages(self) -> list[int]:
        """The numbers of the pages that changed since they were last taken."""
        return self._rows.changed_pages()

    def take_page(self, number: int) -> dict[str, bytes]:
        """A page as it is now; from here on it counts as written."""
        return self._rows.take_page(number, self._count)

    def load_page(self, number: int, page: dict[str, bytes]) -> None:
        """Put a page back; pages come in the order of their numbers, from 0."""
        start = number * PAGE_ROWS
        if start != self._count:
            raise ValueError(f"page {number} follows {self._count} members, not {start}")
        self._count = start + self._rows.rows_in(page)
        self._rows.reserve(self._count)
        self._rows.load_page(number, page)

    @property
    def _awake(self) -> RecurringCharge:
        assert self.recurring is not None
        return self.recurring

    @property
    def _binds(self) -> bool:
        return any(accounts.rule.binds for accounts in self._budgets.accounts)

    def _bind(self, priced: Pricing) -> list[Numbers]:
        """Bind to an order whoever has none, and is charged something now; their slots.

        Whom the step before charged nothing, this one does only at another level or price.
        """
        if self._looked and priced.cost_tables is None and priced.row_levels is None:
            return [NOBODY for _ in self._budgets.accounts]
        rows, levels = priced.rows, priced.row_levels
        everybody = not self._looked or priced.cost_tables is not None or rows is None
        if everybody:
            levels = self.levels
            if priced.row_levels is not None:
                levels = levels.copy()
                levels[slice(None) if rows is None else rows] = priced.row_levels
            rows = np.arange(self._count)
        assert rows is not None
        assert levels is not None
        cost_tables = self._awake.cost_tables if priced.cost_tables is None else priced.cost_tables
        bound = [
            accounts.bind(slots, cost_table, levels)
            for accounts, slots, cost_table in zip(
                self._budgets.accounts, self.slots_of(rows), cost_tables, strict=True
            )
        ]
        if everybody:
            self._unbound, self._looked = any(unbound for _, unbound in bound), True
        return [slots for slots, _ in bound]
