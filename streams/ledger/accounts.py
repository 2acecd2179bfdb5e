"""The accounts of one dataset in one partition: who has spent what, and who is admitted.

The numbers stand in numpy arrays, one row a user:

    spent   units charged so far, per order for renyi     never above the budget
    base    units that were spent when the odometer last restarted
    rungs   how many odometer steps the bound has climbed

``plan`` checks everything and changes nothing: a ``Rejection`` leaves no trace. ``charge`` carries
the plan out. The rule itself is in ``accounting``: here users become rows and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import Mechanism, charge_units
from accounting.rules.odometers import advance_units
from streams.ledger.charge_checks import (
    check_distinct,
    check_homes,
    check_kinds,
    check_norms,
    plain,
)
from streams.ledger.index import UNKNOWN, UserIndex
from streams.ledger.policies import bound_in_measure, filter_of, mechanism_of
from streams.schemas import Charge, Policy, Reason, Rejection, User, Users
from streams.wire.packing import pack_users, select_users, unpack_norms, unpack_users

_Number = TypeVar("_Number", bound=np.generic)

_PAGE_BITS = 12
PAGE_USERS = 1 << _PAGE_BITS
"""Users in one page of state."""

_BLOCK_NUMBERS = 2**18
"""Users times orders that are charged at a time: the temporaries do not grow with the record."""


_NOBODY = np.empty(0, dtype=np.int64)


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive slots of one dataset as they are kept in Redis; little-endian arrays."""

    users: Users
    spent: bytes  # int64 (n,) or (n, orders)
    base: bytes  # int64 (n,) or (n, orders)
    rungs: bytes  # int64 (n,)


class AccountsChanges(msgspec.Struct, frozen=True, array_like=True):
    """What one charge changed: new values, not increments, so applying it twice is harmless."""

    dataset: str
    new_users: Users  # they take the next slots
    first_new_slot: int
    slots: bytes  # uint32: whose `spent` changed
    spent: bytes
    raised: bytes  # uint32: whose odometer rose
    base: bytes
    rungs: bytes


@dataclass(frozen=True)
class Plan:
    """A charge that has passed every check."""

    users: NDArray[np.int64] | list[User]
    norms: NDArray[np.float64]
    mechanism: Mechanism
    slots: NDArray[np.int64]  # those of new users are the next ones
    new_users: NDArray[np.int64] | list[User]


@dataclass(frozen=True)
class Outcome:
    """What a charge did; arrays in the order of its users."""

    users: NDArray[np.int64] | list[User]
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: NDArray[np.int64]  # positions granted less than asked for
    granted: NDArray[np.float64]  # the granted norms of those positions
    raised: Iterator[tuple[User, list[float]]]  # whose bound rose, with the new one
    delta: AccountsChanges


class _Settled(NamedTuple):
    """What a charge comes to for a block of its users; positions are those in the block."""

    spent: NDArray[np.int64]
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: NDArray[np.int64]  # positions, with the granted norms
    granted: NDArray[np.float64]
    changed: NDArray[np.bool_]  # who spent something
    raised: NDArray[np.int64]  # positions of those whose odometer rose, with what it is now
    base: NDArray[np.int64]
    rungs: NDArray[np.int64]
    rungs_before: NDArray[np.int64]


class Accounts:
    """All users of one dataset in one partition.

    Attributes:
        policy: under what they are charged.
        exhausted_users: how many of them have nothing left.
    """

    def __init__(self, policy: Policy, partition: int) -> None:
        self.policy = policy
        self.exhausted_users = 0
        self._partition = partition
        self._filter = filter_of(policy)
        self._index = UserIndex()
        self._budget = self._per_order(policy.budget)
        self._odometer_step = self._per_order(policy.odometer_step)
        orders = (len(policy.orders),) if policy.measure == "renyi" else ()
        self._orders = np.array(policy.orders) if orders else None
        self._spent = np.zeros((0, *orders), dtype=np.int64)
        self._base = np.zeros((0, *orders), dtype=np.int64)
        self._rungs = np.ones(0, dtype=np.int64)
        self._dirty = np.zeros(0, dtype=np.bool_)  # pages that changed since they were taken

    def __len__(self) -> int:
        return len(self._index)

    def plan(self, charge: Charge) -> Plan:
        """What one step asks for, if it can be charged; nothing has changed yet.

        Raises:
            Rejection: for the first reason that applies.
        """
        users, norms = unpack_users(charge.users), unpack_norms(charge.norms)
        if len(norms) != len(users):
            raise Rejection(Reason.LENGTH_MISMATCH, f"{len(users)} users, but {len(norms)} norms")
        mechanism = mechanism_of(charge.mechanism, charge.scale, self.policy)
        first = self._index.user(0) if len(self._index) else None
        check_kinds(self.policy, first, users, charge.v)
        check_norms(norms, charge.clip_norm)
        slots = self._index.find(users)
        new = _positions(slots == UNKNOWN)
        new_users = select_users(users, new)
        self._check_users(users, slots, new_users)
        if len(new):
            slots[new] = np.arange(len(self._index), len(self._index) + len(new))
        return Plan(users, norms, mechanism, slots, new_users)

    def measure(self, plan: Plan) -> tuple[int, int]:
        """How many users a plan would charge, and how many odometers it would raise."""
        self._reserve(len(self._index) + len(plan.new_users))
        charged = raised = 0
        for block in self._blocks(plan):
            settled = self._settle(plan, block)
            charged += int(np.count_nonzero(settled.changed))
            raised += len(settled.raised)
        return charged, raised

    def charge(self, plan: Plan) -> Outcome:
        """Carry out a plan that was made of the accounts as they are."""
        first_new_slot = len(self._index)
        if len(plan.new_users):
            self._enrol(plan.new_users)
        blocks = self._blocks(plan)
        settled: list[_Settled] = []
        written = []
        for block in blocks:
            decided = self._settle(plan, block)
            written.append(self._write(plan.slots[block], decided))
            # What grows with the orders is kept once, as bytes.
            settled.append(decided._replace(spent=_NOBODY, base=_NOBODY))
        slots, spent, base = (b"".join(parts) for parts in zip(*written, strict=True))
        raised = _joined(plan.slots[b][s.raised] for b, s in zip(blocks, settled, strict=True))
        rungs = _joined(s.rungs for s in settled)
        delta = AccountsChanges(
            dataset=self.policy.dataset,
            new_users=pack_users(plan.new_users),
            first_new_slot=first_new_slot,
            slots=slots,
            spent=spent,
            raised=raised.astype("<u4").tobytes(),
            base=base,
            rungs=_packed(rungs),
        )
        return Outcome(
            users=plan.users,
            admitted=_joined(s.admitted for s in settled),
            exhausted=_joined(s.exhausted for s in settled),
            clipped=_joined(b.start + s.clipped for b, s in zip(blocks, settled, strict=True)),
            granted=_joined(s.granted for s in settled),
            raised=self._bounds_raised(raised, rungs, _joined(s.rungs_before for s in settled)),
            delta=delta,
        )

    def apply(self, delta: AccountsChanges) -> None:
        """Set the values of a delta that was decided before."""
        known = len(self._index) - delta.first_new_slot
        if known < 0:
            raise ValueError(f"a delta enrols from slot {delta.first_new_slot}: {-known} missing")
        self._enrol(unpack_users(delta.new_users)[known:])  # a newer page may hold the first ones
        changed = np.frombuffer(delta.slots, dtype="<u4").astype(np.int64)
        raised = np.frombuffer(delta.raised, dtype="<u4").astype(np.int64)
        spent = self._rows(delta.spent)
        self.exhausted_users += self._count_exhausted(spent)
        self.exhausted_users -= self._count_exhausted(self._spent.take(changed, axis=0))
        self._spent[changed] = spent
        self._base[raised] = self._rows(delta.base)
        self._rungs[raised] = np.frombuffer(delta.rungs, dtype="<i8")
        self._touch(changed)

    def dirty_pages(self) -> list[int]:
        """The numbers of the pages that changed since they were last taken."""
        numbers: list[int] = np.flatnonzero(self._dirty).tolist()
        return numbers

    def take_page(self, number: int) -> Page:
        """A page as it stands now; from here on it counts as written."""
        self._dirty[number] = False
        start, stop = number * PAGE_USERS, min((number + 1) * PAGE_USERS, len(self._index))
        return Page(
            users=pack_users(self._index.users(start, stop)),
            spent=_packed(self._spent[start:stop]),
            base=_packed(self._base[start:stop]),
            rungs=_packed(self._rungs[start:stop]),
        )

    def load_page(self, number: int, page: Page) -> None:
        """Put a page back; pages come in the order of their numbers, from 0."""
        start = number * PAGE_USERS
        if start != len(self._index):
            raise ValueError(f"page {number} follows {len(self._index)} users, not {start}")
        slots = self._enrol(unpack_users(page.users))
        self._spent[slots] = self._rows(page.spent)
        self._base[slots] = self._rows(page.base)
        self._rungs[slots] = np.frombuffer(page.rungs, dtype="<i8")
        self.exhausted_users += self._count_exhausted(self._spent[slots])
        self._dirty[number] = False

    def spent_units(self) -> tuple[NDArray[np.int64] | list[User], NDArray[np.int64]]:
        """All users and their spent units, (n,) or (n, orders)."""
        count = len(self._index)
        return self._index.users(0, count), self._spent[:count]

    def bounds(self) -> NDArray[np.float64]:
        """The odometer bound of every user in the policy's own measure, (n,) or (n, orders)."""
        return self._bound(self._rungs[: len(self._index)])

    def exhausted(self) -> NDArray[np.bool_]:
        """Who has nothing left, (n,)."""
        return self._filter.exhausted(self._spent[: len(self._index)])

    def _check_users(
        self,
        users: NDArray[np.int64] | list[User],
        slots: NDArray[np.int64],
        new_users: NDArray[np.int64] | list[User],
    ) -> None:
        ordered = np.sort(slots.astype(np.int32))  # half as long, sorted in half the time
        twice = ordered[1:] == ordered[:-1]
        if len(new_users):
            twice &= ordered[1:] != UNKNOWN
        if twice.any():
            first = np.flatnonzero(np.isin(slots, ordered[1:][twice]))[0]
            user = plain(users[int(first)])
            raise Rejection(Reason.DUPLICATE_USER, f"user {user!r} stands twice in one step")
        if len(new_users):
            # Users seen before were checked when they came.
            check_distinct(new_users)
            check_homes(new_users, self._partition, self.policy.partitions)

    def _enrol(self, new_users: NDArray[np.int64] | list[User]) -> NDArray[np.int64]:
        slots = self._index.add(new_users)
        self._reserve(len(self._index))
        self._touch(slots)
        return slots

    def _reserve(self, count: int) -> None:
        """Make room for so many users; a row that is no user's yet is one of who spent nothing."""
        held = len(self._spent)
        if count <= held:
            return
        more = max(count, 2 * held) - held
        self._spent = np.concatenate([self._spent, _zeros_like(self._spent, more)])
        self._base = np.concatenate([self._base, _zeros_like(self._base, more)])
        self._rungs = np.concatenate([self._rungs, np.ones(more, dtype=np.int64)])
        pages = -(-len(self._spent) // PAGE_USERS)
        self._dirty = np.concatenate([self._dirty, np.zeros(pages - len(self._dirty), np.bool_)])

    def _blocks(self, plan: Plan) -> list[slice]:
        users = max(1, _BLOCK_NUMBERS // self._budget.size)
        return [slice(i, i + users) for i in range(0, max(1, len(plan.slots)), users)]

    def _settle(self, plan: Plan, block: slice) -> _Settled:
        """Decide about a block of users; writes nothing."""
        slots, norms, mechanism = plan.slots[block], plan.norms[block], plan.mechanism
        before = self._spent.take(slots, axis=0)
        clipped, granted = _NOBODY, np.empty(0)
        if self.policy.on_exhaustion == "halt":
            cost = charge_units(self.policy.measure, mechanism, norms, self._orders)
            spent, admitted = self._filter.admit_units(before, cost)
        else:
            spent, norms_granted, _ = self._filter.grant_units(before, mechanism, norms)
            admitted = (norms_granted > 0) | (norms == 0)
            clipped = np.flatnonzero(admitted & (norms_granted < norms))
            granted = norms_granted[clipped]
        charged = spent - before
        changed = np.asarray(charged.any(axis=1) if charged.ndim == 2 else charged != 0)
        base, rungs = self._base.take(slots, axis=0), self._rungs.take(slots)
        used, new_rungs = advance_units(before - base, rungs, charged, self._odometer_step)
        raised = _positions(new_rungs != rungs)
        return _Settled(
            spent=spent,
            admitted=admitted,
            exhausted=self._filter.exhausted(spent),
            clipped=clipped,
            granted=granted,
            changed=changed,
            raised=raised,
            base=spent[raised] - used[raised],
            rungs=new_rungs[raised],
            rungs_before=rungs[raised],
        )

    def _write(self, slots: NDArray[np.int64], settled: _Settled) -> tuple[bytes, bytes, bytes]:
        """Move the rows of these slots to their new values; returns slots, spent and base."""
        rows = np.flatnonzero(settled.changed)
        changed, spent = slots.take(rows), settled.spent.take(rows, axis=0)
        self._spent[changed] = spent
        self._touch(changed)
        # Only who spends something can become exhausted: nobody begins with a budget of nothing.
        self.exhausted_users += int(np.count_nonzero(settled.exhausted & settled.changed))
        if len(settled.raised):
            raised = slots[settled.raised]
            self._base[raised] = settled.base
            self._rungs[raised] = settled.rungs
        return changed.astype("<u4").tobytes(), _packed(spent), _packed(settled.base)

    def _bounds_raised(
        self,
        slots: NDArray[np.int64],
        rungs: NDArray[np.int64],
        rungs_before: NDArray[np.int64],
    ) -> Iterator[tuple[User, list[float]]]:
        """Of those whose odometer rose, whose bound did, with the new one.

        At the budget the bound stays where it is, however many rungs are climbed.
        """
        users = max(1, _BLOCK_NUMBERS // self._budget.size)
        for start in range(0, len(slots), users):
            block = slice(start, start + users)
            bound = self._bound(rungs[block])
            higher = bound > self._bound(rungs_before[block])
            news = higher.any(axis=1) if higher.ndim == 2 else higher
            risen = [self._index.user(slot) for slot in slots[block][news].tolist()]
            yield from zip(risen, _lists(bound[news]), strict=True)

    def _bound(self, rungs: NDArray[np.int64]) -> NDArray[np.float64]:
        # The filter alone already promises that no user goes beyond the budget.
        most_rungs = -(-self._budget // self._odometer_step)
        rows = rungs if self._orders is None else rungs[:, np.newaxis]
        units = np.minimum(np.minimum(rows, most_rungs) * self._odometer_step, self._budget)
        return bound_in_measure(self.policy, units)

    def _count_exhausted(self, spent: NDArray[np.int64]) -> int:
        full = spent >= self._budget
        return int(np.count_nonzero(full.any(axis=1) if full.ndim == 2 else full))

    def _rows(self, packed: bytes) -> NDArray[np.int64]:
        return np.frombuffer(packed, dtype="<i8").reshape(-1, *self._spent.shape[1:])

    def _touch(self, slots: NDArray[np.int64]) -> None:
        self._dirty[slots >> _PAGE_BITS] = True

    def _per_order(self, units: list[int]) -> NDArray[np.int64]:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self.policy.measure == "renyi" else numbers[0]


def _positions(where: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where it is true: most often nowhere, which is found out faster than by numpy alone."""
    return np.flatnonzero(where) if where.any() else _NOBODY


def _joined(parts: Iterable[NDArray[_Number]]) -> NDArray[_Number]:
    arrays = list(parts)
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _zeros_like(rows: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.zeros((count, *rows.shape[1:]), dtype=np.int64)


def _lists(bound: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = (bound if bound.ndim == 2 else bound[:, np.newaxis]).tolist()
    return rows


def _packed(numbers: NDArray[np.int64]) -> bytes:
    return numbers.astype("<i8", copy=False).tobytes()
