"""The accounts of one dataset in one partition: who has spent what, and who is admitted.

``plan`` checks everything and changes nothing: a ``Rejection`` leaves no trace. ``carry_out`` does
what was planned. What a step comes to is said by ``rule``: here users become rows, and rows users.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from streams.ledger.charges import (
    check_charge,
    check_kinds,
    check_new_users,
    check_no_member,
    check_once,
)
from streams.ledger.columns import (
    PAGE_ROWS,
    PER_ORDER,
    Column,
    Columns,
    Numbers,
    RowChanges,
    joined,
    slots_of,
)
from streams.ledger.index import UNKNOWN, UserIndex
from streams.ledger.limits import ids_written
from streams.ledger.rule import NOBODY, Asked, ByNorm, Rule, Settled, positions
from streams.schemas import Charge, Policy, User, Users
from streams.wire.packing import pack_users, select_users, unpack_users

_Number = TypeVar("_Number", bound=np.generic)
_CHANGES_BYTES = 512
"""Of what surrounds the arrays of a change."""


class Balances(Columns):
    """The numbers of every user. A new one is one line here; ``columns`` does the rest."""

    spent: Annotated[Numbers, PER_ORDER]  # units charged so far: never above the budget
    base: Annotated[Numbers, PER_ORDER]  # units that were spent when the odometer last restarted
    rungs: Annotated[Numbers, Column(initial=1)]  # how many odometer steps the bound has climbed


class Page(msgspec.Struct, frozen=True, array_like=True):
    """The users and balances in consecutive slots of one dataset, as they are stored."""

    users: Users
    columns: dict[str, bytes]


class AccountsChanges(msgspec.Struct, frozen=True, array_like=True):
    """What one charge changed: new values, not increments, so applying it twice is harmless."""

    dataset: str
    new_users: Users  # they take the next slots
    first_new_slot: int
    rows: list[RowChanges]

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        rows = sum(changes.size for changes in self.rows)
        return ids_written(self.new_users) + rows + _CHANGES_BYTES


@dataclass(frozen=True)
class Plan:
    """A charge that has passed every check."""

    users: NDArray[np.int64] | list[User]
    asked: Asked
    slots: Numbers  # those of new users are the next ones
    new_users: NDArray[np.int64] | list[User]


@dataclass(frozen=True)
class Outcome:
    """What a charge did; arrays in the order of its users."""

    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: Numbers  # positions granted less than asked for
    granted: NDArray[np.float64]  # the norms, or levels, of those positions
    raised: Iterator[tuple[User, list[float]]]  # whose bound rose, with the new one
    changes: AccountsChanges


class Accounts:
    """All users of one dataset in one partition.

    Attributes:
        policy: under what they are charged.
        rule: what comes of it.
        exhausted_users: how many of them have nothing left.
    """

    def __init__(self, policy: Policy, partition: int) -> None:
        self.policy = policy
        self.exhausted_users = 0
        self._partition = partition
        self.rule = Rule(policy)
        self._index = UserIndex()
        self._rows = Balances(self.rule.orders)

    def __len__(self) -> int:
        return len(self._index)

    def plan(self, charge: Charge) -> Plan:
        """What one step asks for, if it can be charged; nothing has changed yet.

        Raises:
            Rejection: for the first reason that applies.
        """
        users, norms, mechanism = check_charge(charge, self.policy, self.first_user)
        slots, new_users = self.seek(users)
        return Plan(users, ByNorm(mechanism, norms), slots, new_users)

    @property
    def first_user(self) -> User | None:
        """Who was charged or enrolled first, if anybody was."""
        return self._index.user(0) if len(self._index) else None

    def seek(
        self, users: NDArray[np.int64] | list[User], members: Numbers = NOBODY
    ) -> tuple[Numbers, NDArray[np.int64] | list[User]]:
        """The slots of users who are all different, and who of them is new.

        Those of new users are the next ones, in their order.

        Args:
            users: who is sought.
            members: slots of users who may not be among them.

        Raises:
            Rejection: DUPLICATE_USER or WRONG_PARTITION.
        """
        slots = self._index.find(users)
        new = positions(slots == UNKNOWN)
        new_users = select_users(users, new)
        check_once(users, slots)
        if len(members):
            check_no_member(users, slots, members)
        if len(new):
            check_new_users(new_users, self._partition, self.policy.partitions)
            slots[new] = np.arange(len(self._index), len(self._index) + len(new))
        return slots, new_users

    def seek_allowed(
        self, users: NDArray[np.int64] | list[User], members: Numbers, version: int
    ) -> tuple[Numbers, NDArray[np.int64] | list[User]]:
        """As ``seek``, of users in a request of this version that brings nothing else.

        Raises:
            Rejection: MIXED_USERS, DUPLICATE_USER or WRONG_PARTITION.
        """
        check_kinds(self.policy, self.first_user, users, version)
        return self.seek(users, members)

    def users_at(self, slots: Numbers) -> NDArray[np.int64] | list[User]:
        """The ids in these slots."""
        return self._index.users_at(slots)

    def enrol(self, new_users: NDArray[np.int64] | list[User]) -> AccountsChanges:
        """Give users their slots before anything is charged to them."""
        first = len(self._index)
        self._enrol(new_users)
        return AccountsChanges(self.policy.dataset, pack_users(new_users), first, [])

    def measure(self, plan: Plan) -> tuple[int, int]:
        """How many users a plan would charge, and how many odometers it would raise."""
        self._rows.reserve(len(self._index) + len(plan.new_users))
        charged = raised = 0
        for block in self._blocks(plan.slots):
            settled = self._settle(plan.slots, plan.asked, block)
            charged += int(np.count_nonzero(settled.charged))
            raised += len(settled.raised)
        return charged, raised

    def carry_out(self, plan: Plan) -> Outcome:
        """Carry out a plan that was made of the accounts as they are."""
        return self.charge(plan.slots, plan.asked, plan.new_users)

    def charge(
        self,
        slots: Numbers,
        asked: Asked,
        new_users: NDArray[np.int64] | list[User] = NOBODY,
    ) -> Outcome:
        """Charge the users in these slots, after giving them to those who are new."""
        first_new_slot = len(self._index)
        if len(new_users):
            self._enrol(new_users)
        blocks = self._blocks(slots)
        settled: list[Settled] = []
        written: list[list[RowChanges]] = []
        for block in blocks:
            decided = self._settle(slots, asked, block)
            written.append(self._write(slots[block], decided))
            # What grows with the orders is kept once, as bytes.
            settled.append(decided._replace(spent=NOBODY, base=NOBODY))
        raised = _joined(slots[b][s.raised] for b, s in zip(blocks, settled, strict=True))
        changes = AccountsChanges(
            dataset=self.policy.dataset,
            new_users=pack_users(new_users),
            first_new_slot=first_new_slot,
            rows=[rows for parts in zip(*written, strict=True) if (rows := joined(parts)).slots],
        )
        return Outcome(
            admitted=_joined(s.admitted for s in settled),
            exhausted=_joined(s.exhausted for s in settled),
            clipped=_joined(b.start + s.clipped for b, s in zip(blocks, settled, strict=True)),
            granted=_joined(s.granted for s in settled),
            raised=self._bounds_raised(
                raised,
                _joined(s.rungs for s in settled),
                _joined(s.rungs_before for s in settled),
            ),
            changes=changes,
        )

    def put_back(self, changes: AccountsChanges) -> None:
        """Set the values that were decided before."""
        known = len(self._index) - changes.first_new_slot
        if known < 0:
            first = changes.first_new_slot
            raise ValueError(f"changes enrol from slot {first}: {-known} are missing")
        self._enrol(unpack_users(changes.new_users)[known:])  # a newer page may hold the first ones
        for rows in changes.rows:
            slots = slots_of(rows)
            self.exhausted_users -= self._count_exhausted(slots)
            self._rows.put_back(rows)
            self.exhausted_users += self._count_exhausted(slots)

    def changed_pages(self) -> list[int]:
        """The numbers of the pages that changed since they were last taken."""
        return self._rows.changed_pages()

    def take_page(self, number: int) -> Page:
        """A page as it is now; from here on it counts as written."""
        count = len(self._index)
        first, end = number * PAGE_ROWS, min((number + 1) * PAGE_ROWS, count)
        users = pack_users(self._index.users(first, end))
        return Page(users, self._rows.take_page(number, count))

    def load_page(self, number: int, page: Page) -> None:
        """Put a page back; pages come in the order of their numbers, from 0."""
        start = number * PAGE_ROWS
        if start != len(self._index):
            raise ValueError(f"page {number} follows {len(self._index)} users, not {start}")
        slots = self._enrol(unpack_users(page.users))
        self._rows.load_page(number, page.columns)
        self.exhausted_users += self._count_exhausted(slots)

    def spent_units(self) -> tuple[NDArray[np.int64] | list[User], Numbers]:
        """All users and their spent units, (n,) or (n, orders)."""
        count = len(self._index)
        return self._index.users(0, count), self._rows.spent[:count]

    def bounds(self) -> NDArray[np.float64]:
        """The odometer bound of every user in the policy's own measure, (n,) or (n, orders)."""
        return self.rule.bounds(self._rows.rungs[: len(self._index)])

    def _enrol(self, new_users: NDArray[np.int64] | list[User]) -> Numbers:
        slots = self._index.add(new_users)
        self._rows.reserve(len(self._index))
        self._rows.touch(slots)
        return slots

    def _blocks(self, slots: Numbers) -> list[slice]:
        users = self.rule.block_users
        return [slice(i, i + users) for i in range(0, max(1, len(slots)), users)]

    def _settle(self, slots: Numbers, asked: Asked, block: slice) -> Settled:
        """Decide about a block of users; writes nothing."""
        charged, rows = slots[block], self._rows
        return self.rule.settle(
            rows.spent.take(charged, axis=0),
            rows.base.take(charged, axis=0),
            rows.rungs.take(charged),
            asked.part(block),
        )

    def _write(self, slots: Numbers, settled: Settled) -> list[RowChanges]:
        """Move the rows of these slots to their new values."""
        rows = np.flatnonzero(settled.charged)
        # Only who spends something can become exhausted: nobody begins with a budget of nothing.
        self.exhausted_users += int(np.count_nonzero(settled.exhausted & settled.charged))
        spent = self._rows.write(slots.take(rows), spent=settled.spent.take(rows, axis=0))
        # Whose odometer rose has spent something.
        raised = self._rows.write(
            slots.take(settled.raised), touched=True, base=settled.base, rungs=settled.rungs
        )
        return [spent, raised]

    def _bounds_raised(
        self, slots: Numbers, rungs: Numbers, rungs_before: Numbers
    ) -> Iterator[tuple[User, list[float]]]:
        """Of those whose odometer rose, whose bound did, with the new one."""
        users = self.rule.block_users
        for start in range(0, len(slots), users):
            block = slice(start, start + users)
            bounds = self.rule.bounds(rungs[block])
            higher = bounds > self.rule.bounds(rungs_before[block])
            news = higher.any(axis=1) if higher.ndim == 2 else higher
            risen = [self._index.user(slot) for slot in slots[block][news].tolist()]
            yield from zip(risen, _lists(bounds[news]), strict=True)

    def _count_exhausted(self, slots: Numbers) -> int:
        return int(np.count_nonzero(self.rule.exhausted(self._rows.spent.take(slots, axis=0))))


def _joined(parts: Iterable[NDArray[_Number]]) -> NDArray[_Number]:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _lists(bounds: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = (bounds if bounds.ndim == 2 else bounds[:, np.newaxis]).tolist()
    return rows
