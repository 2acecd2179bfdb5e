"""Rosters: whom a run charges, by position, and at which level each of them is.

    (unknown) --enrol--> n members at the highest level, all of them admitted
    n members --enrol, users that follow--> more members
    n members --enrol, the same users at the same positions--> unchanged
    n members --charge-roster--> n members, other levels, some not admitted or admitted again
    n members --close-run--> (unknown)
    anything else is refused and changes nothing

Whether a member is admitted or exhausted is kept as it was told last, so that a decision can tell
what changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import InvalidInput
from accounting.costs.tariffs import grid_norms
from streams.ledger.accounts import Accounts
from streams.ledger.columns import PAGE_ROWS, Column, Columns, Numbers, RowChanges
from streams.ledger.limits import check_roster, id_bytes
from streams.ledger.policies import check_roster_mechanism
from streams.ledger.tracked import Address, Tracked
from streams.schemas import ChargeRoster, Enrol, Reason, Rejection, User
from streams.wire.packing import pack_users, page_digests, tariff_digest, unpack_users

_ADMITTED, _EXHAUSTED = np.uint8(1), np.uint8(2)

Bytes: TypeAlias = NDArray[np.uint8]


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """Under what a roster is charged."""

    clip_norm: float
    levels: int  # beside level 0
    units: bytes = b""  # the tariff of the last step, as the record brought it
    tariff: bytes = b""  # its digest
    id_bytes: int = 0  # of the ids that are strings, in UTF-8


class MemberChanges(msgspec.Struct, frozen=True, array_like=True):
    """New values of some members of one roster."""

    address: Address
    count: int  # of all members, after it
    rows: RowChanges


class _Rows(Columns):
    slot: Annotated[NDArray[np.uint32], Column(dtype="<u4")]  # in the accounts of the dataset
    level: Annotated[Bytes, Column(dtype="|u1")]
    told: Annotated[Bytes, Column(initial=int(_ADMITTED), dtype="|u1")]


@dataclass(frozen=True)
class Told:
    """Positions of members, all of them increasing."""

    halted: Numbers
    readmitted: Numbers
    exhausted: Numbers


class Members:
    """The members of one roster in one partition, by position."""

    def __init__(self) -> None:
        self._count = 0
        self._rows = _Rows()

    def __len__(self) -> int:
        return self._count

    @property
    def slots(self) -> Numbers:
        """Of all members, in the accounts of the dataset."""
        return self._rows.slot[: self._count].astype(np.int64)

    @property
    def levels(self) -> Bytes:
        """Of all members; not to be written to."""
        return self._rows.level[: self._count]

    @property
    def halted(self) -> Numbers:
        """Positions of those who were not admitted last."""
        return np.flatnonzero(self._told & _ADMITTED == 0)

    @property
    def exhausted(self) -> Numbers:
        """Positions of those who had nothing left after the last step."""
        return np.flatnonzero(self._told & _EXHAUSTED)

    def add(self, slots: Numbers, level: int) -> RowChanges:
        """Put users behind the last member, at a level."""
        rows = np.arange(self._count, self._count + len(slots))
        self._count += len(slots)
        self._rows.reserve(self._count)
        levels = np.full(len(slots), level, dtype=np.uint8)
        return self._rows.write(rows, slot=slots, level=levels)

    def set_levels(self, rows: Numbers, levels: Bytes) -> RowChanges:
        """Move members to other levels."""
        return self._rows.write(rows, level=levels)

    def tell(self, admitted: NDArray[np.bool_], exhausted: NDArray[np.bool_]) -> Told:
        """Compare a step with what was told last, which is not written."""
        was_admitted = self._told & _ADMITTED != 0
        return Told(
            halted=np.flatnonzero(was_admitted & ~admitted),
            readmitted=np.flatnonzero(~was_admitted & admitted),
            exhausted=np.flatnonzero(exhausted & (self._told & _EXHAUSTED == 0)),
        )

    def write_told(self, told: Told) -> RowChanges:
        """Keep what was told."""
        rows = np.unique(np.concatenate([told.halted, told.readmitted, told.exhausted]))
        state = self._rows.told
        state[told.halted] &= ~_ADMITTED
        state[told.readmitted] |= _ADMITTED
        state[told.exhausted] |= _EXHAUSTED
        return self._rows.write(rows, told=state[rows])

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
        self._count = start + len(page["level"])
        self._rows.reserve(self._count)
        self._rows.load_page(number, page)

    @property
    def _told(self) -> Bytes:
        return self._rows.told[: self._count]


class Rosters(Tracked[Terms]):
    """All rosters of one partition, by dataset and run.

    Attributes:
        members: (dataset, run) -> members.
        dropped: the pages of members that are not members any more, by roster and number.
    """

    def __init__(self) -> None:
        super().__init__("roster", Terms)
        self.members: dict[Address, Members] = {}
        self.dropped: set[tuple[Address, int]] = set()

    def _moves(self, address: Address, before: Terms | None, after: Terms | None) -> None:
        if after is None:
            pages = -(-len(self.members.pop(address)) // PAGE_ROWS)
            self.dropped.update((address, number) for number in range(pages))
        elif before is None:
            # Changes may bring back for a while what is gone in the end: what is dropped stays so.
            self.members[address] = Members()


@dataclass(frozen=True)
class Enrolment:
    """Users who can be enrolled: who is not a member yet."""

    terms: Terms
    slots: Numbers
    new_users: NDArray[np.int64] | list[User]


def enrolment(
    request: Enrol, terms: Terms | None, members: Members, accounts: Accounts
) -> Enrolment:
    """Check an enrolment; nothing has changed yet.

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
    users = unpack_users(request.users)
    overlap = min(count - request.first, len(users))
    there = accounts.users_at(members.slots[request.first : request.first + overlap])
    if page_digests(there) != page_digests(users[:overlap]):
        detail = (
            f"other users are enrolled at positions {request.first} to "
            f"{request.first + overlap - 1} than those sent: a roster can grow at its end alone"
        )
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    added = users[overlap:]
    written = known.id_bytes + id_bytes(pack_users(added))
    check_roster(request, count + len(added), written, len(accounts.policy.budget))
    try:
        grid_norms(asked.clip_norm, asked.levels)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_LEVELS, str(error)) from error
    slots, new_users = accounts.seek_allowed(added, members.slots, request.v)
    return Enrolment(msgspec.structs.replace(known, id_bytes=written), slots, new_users)


@dataclass(frozen=True)
class Pricing:
    """A step of a roster that can be charged."""

    terms: Terms  # from this step on
    tariff: Numbers
    rows: Numbers  # whose levels change
    row_levels: Bytes
    levels: Bytes  # of all members


def pricing(charge: ChargeRoster, terms: Terms, members: Members, accounts: Accounts) -> Pricing:
    """Check a step of a roster; nothing has changed yet.

    Raises:
        Rejection: for the first reason that applies.
    """
    count = len(members)
    if charge.members != count:
        detail = f"the roster has {count} members here, not {charge.members}"
        raise Rejection(Reason.ROSTER_CHANGED, detail)
    check_roster_mechanism(charge, accounts.policy)
    if charge.units:
        if tariff_digest(charge.units) != charge.tariff:
            detail = "the digest of the tariff is not that of its units"
            raise Rejection(Reason.INVALID_TARIFF, detail)
        terms = msgspec.structs.replace(terms, units=charge.units, tariff=charge.tariff)
    elif charge.tariff != terms.tariff:
        detail = "this is not the tariff of the step before: send its units with the step"
        raise Rejection(Reason.INVALID_TARIFF, detail)
    try:
        tariff = accounts.rule.tariff(terms.units, terms.levels)
    except InvalidInput as error:
        raise Rejection(Reason.INVALID_TARIFF, str(error)) from error
    rows, row_levels = _moved_levels(charge, count, terms.levels)
    levels = members.levels
    if len(rows):
        levels = levels.copy()
        levels[rows] = row_levels
    return Pricing(terms, tariff, rows, row_levels, levels)


def _moved_levels(charge: ChargeRoster, count: int, highest: int) -> tuple[Numbers, Bytes]:
    """Whose levels a step changes, and to what."""
    rows = np.frombuffer(charge.positions, dtype="<u4").astype(np.int64)
    levels = np.frombuffer(charge.levels, dtype=np.uint8)
    if not len(rows) and len(levels):
        rows = np.arange(count)
    complaint = None
    if len(rows) != len(levels):
        complaint = f"{len(levels)} levels for {len(rows)} positions"
    elif len(rows) and (rows[-1] >= count or bool((np.diff(rows) <= 0).any())):
        complaint = f"positions have to increase, and to be below {count}"
    elif len(levels) and levels.max() > highest:
        position = int(rows[levels.argmax()])
        complaint = f"level {levels.max()} at position {position} is above {highest}, the highest"
    if complaint:
        raise Rejection(Reason.INVALID_LEVELS, complaint)
    return rows, levels
