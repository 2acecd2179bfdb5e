"""The accounts of one dataset in one partition: who has spent what, and who is admitted.

The numbers stand in numpy arrays, one row a user:

    spent   units charged so far, per order for renyi     never above the budget
    base    units that were spent when the odometer last restarted
    rungs   how many odometer steps the bound has climbed

``charge`` checks everything before it changes anything; ``Refused`` leaves no trace. The rule
itself is in ``accounting``: here users become rows and back.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from accounting import charge_units
from accounting.odometers import advance_units
from streams.index import UNKNOWN, UserIndex
from streams.packing import pack_users, select_users, unpack_norms, unpack_users
from streams.partitioner import partitions_of
from streams.policies import bound_in_measure, filter_of, mechanism_of
from streams.schemas import (
    MAX_CHARGE_USERS,
    Charge,
    Policy,
    Reason,
    Refused,
    User,
    Users,
)

_PAGE_BITS = 12
PAGE_USERS = 1 << _PAGE_BITS
"""Users in one page of state."""


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive slots of one dataset as they are kept in Redis; little-endian arrays."""

    users: Users
    spent: bytes  # int64 (n,) or (n, orders)
    base: bytes  # int64 (n,) or (n, orders)
    rungs: bytes  # int64 (n,)


class AccountsDelta(msgspec.Struct, frozen=True, array_like=True):
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
class Outcome:
    """What a charge did; arrays in the order of its users."""

    users: NDArray[np.int64] | list[User]
    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: NDArray[np.int64]  # positions granted less than asked for
    granted: NDArray[np.float64]  # the granted norms of those positions
    raised: list[tuple[User, list[float]]]  # users whose odometer rose, with the new bound
    delta: AccountsDelta


class Accounts:
    """All users of one dataset in one partition."""

    def __init__(self, policy: Policy, partition: int) -> None:
        self.policy = policy
        self._partition = partition
        self._filter = filter_of(policy)
        self._index = UserIndex()
        self._budget = self._per_order(policy.budget)
        self._odometer_step = self._per_order(policy.odometer_step)
        orders = (len(policy.orders),) if policy.measure == "renyi" else ()
        self._orders = np.array(policy.orders) if orders else None
        self._spent = np.zeros((PAGE_USERS, *orders), dtype=np.int64)
        self._base = np.zeros((PAGE_USERS, *orders), dtype=np.int64)
        self._rungs = np.ones(PAGE_USERS, dtype=np.int64)
        self._mark = np.zeros(PAGE_USERS + 1, dtype=np.int64)  # scratch: finds duplicates
        self._dirty: set[int] = set()

    def __len__(self) -> int:
        return len(self._index)

    def charge(self, charge: Charge) -> Outcome:
        """Charge one step.

        Raises:
            Refused: for the first reason that applies; nothing has changed then.
        """
        users, norms = unpack_users(charge.users), unpack_norms(charge.norms)
        _check_lengths(len(users), len(norms))
        mechanism = mechanism_of(charge.mechanism, charge.scale, self.policy)
        _check_norms(norms, charge.clip_norm)
        slots = self._index.find(users)
        new = _positions(slots == UNKNOWN)
        new_users = select_users(users, new)
        self._check_users(users, slots, new, new_users)
        cost = charge_units(self.policy.measure, mechanism, norms, self._orders)

        first_new_slot = len(self._index)
        if len(new):
            slots[new] = self._enrol(new_users)
        before = self._spent.take(slots, axis=0)
        clipped = np.empty(0, dtype=np.int64)
        granted = np.empty(0)
        if self.policy.on_exhaustion == "halt":
            spent, admitted = self._filter.admit_units(before, cost)
        else:
            spent, norms_granted, _ = self._filter.grant_units(before, mechanism, norms)
            admitted = (norms_granted > 0) | (norms == 0)
            clipped = np.flatnonzero(admitted & (norms_granted < norms))
            granted = norms_granted[clipped]
        delta, raised = self._write(slots, before, spent)
        return Outcome(
            users=users,
            admitted=admitted,
            exhausted=self._filter.exhausted(spent),
            clipped=clipped,
            granted=granted,
            raised=raised,
            delta=AccountsDelta(self.policy.dataset, pack_users(new_users), first_new_slot, *delta),
        )

    def apply(self, delta: AccountsDelta) -> None:
        """Set the values of a delta that was decided before."""
        known = len(self._index) - delta.first_new_slot
        if known < 0:
            raise ValueError(f"a delta enrols from slot {delta.first_new_slot}: {-known} missing")
        self._enrol(unpack_users(delta.new_users)[known:])  # a newer page may hold the first ones
        changed = np.frombuffer(delta.slots, dtype="<u4").astype(np.int64)
        raised = np.frombuffer(delta.raised, dtype="<u4").astype(np.int64)
        self._spent[changed] = self._rows(delta.spent)
        self._base[raised] = self._rows(delta.base)
        self._rungs[raised] = np.frombuffer(delta.rungs, dtype="<i8")
        self._touch(changed)

    def dirty_pages(self) -> list[int]:
        """The numbers of the pages that changed since they were last taken."""
        return sorted(self._dirty)

    def take_page(self, number: int) -> Page:
        """A page as it stands now; from here on it counts as written."""
        self._dirty.discard(number)
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
        if len(self._index) != start:
            raise ValueError(f"page {number} follows {len(self._index)} users, not {start}")
        slots = self._enrol(unpack_users(page.users))
        self._spent[slots] = self._rows(page.spent)
        self._base[slots] = self._rows(page.base)
        self._rungs[slots] = np.frombuffer(page.rungs, dtype="<i8")
        self._dirty.discard(number)

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
        new: NDArray[np.int64],
        new_users: NDArray[np.int64] | list[User],
    ) -> None:
        positions = np.arange(len(slots))
        self._mark[slots] = positions  # UNKNOWN, -1, writes to the last row: it is no user's
        twice = self._mark.take(slots) != positions
        if len(new):
            twice &= slots != UNKNOWN
        if twice.any():
            user = users[int(np.flatnonzero(twice)[0])]
            raise Refused(Reason.DUPLICATE_USER, f"user {user!r} stands twice in one step")
        if not len(new):
            return
        distinct = set(new_users.tolist() if isinstance(new_users, np.ndarray) else new_users)
        if len(distinct) != len(new):
            raise Refused(Reason.DUPLICATE_USER, "a user stands twice in one step")
        # Users seen before were checked when they came; only new ones can be in the wrong place.
        homes = partitions_of(new_users, self.policy.partitions)
        strangers = np.flatnonzero(homes != self._partition)
        if len(strangers):
            first = int(strangers[0])
            detail = (
                f"user {new_users[first]!r} lives in partition {homes[first]} "
                f"of {self.policy.partitions}, not in {self._partition}"
            )
            raise Refused(Reason.WRONG_PARTITION, detail)

    def _enrol(self, new_users: NDArray[np.int64] | list[User]) -> NDArray[np.int64]:
        slots = self._index.add(new_users)
        while len(self._index) > len(self._spent):
            self._spent = np.concatenate([self._spent, np.zeros_like(self._spent)])
            self._base = np.concatenate([self._base, np.zeros_like(self._base)])
            self._rungs = np.concatenate([self._rungs, np.ones_like(self._rungs)])
            self._mark = np.zeros(len(self._spent) + 1, dtype=np.int64)
        self._touch(slots)
        return slots

    def _write(
        self, slots: NDArray[np.int64], before: NDArray[np.int64], spent: NDArray[np.int64]
    ) -> tuple[tuple[bytes, bytes, bytes, bytes, bytes], list[tuple[User, list[float]]]]:
        """Move the rows of these slots to their new values; returns what changed."""
        charged = spent - before
        changed = charged.any(axis=1) if charged.ndim == 2 else charged != 0
        base, rungs = self._base.take(slots, axis=0), self._rungs.take(slots)
        used, new_rungs = advance_units(before - base, rungs, charged, self._odometer_step)
        rows = np.flatnonzero(changed)
        changed_slots, changed_spent = slots.take(rows), spent.take(rows, axis=0)
        self._spent[changed_slots] = changed_spent
        self._touch(changed_slots)
        delta = changed_slots.astype("<u4").tobytes(), _packed(changed_spent)
        raised = _positions(new_rungs != rungs)
        if not len(raised):
            return (*delta, b"", b"", b""), []
        raised_slots, raised_base = slots[raised], (spent - used)[raised]
        self._base[raised_slots] = raised_base
        self._rungs[raised_slots] = new_rungs[raised]
        odometer = (
            raised_slots.astype("<u4").tobytes(),
            _packed(raised_base),
            _packed(new_rungs[raised]),
        )
        bound = self._bound(new_rungs[raised])
        # At the budget the bound stays where it is, however many rungs are climbed.
        higher = bound > self._bound(rungs[raised])
        news = higher.any(axis=1) if higher.ndim == 2 else higher
        users = [self._index.user(slot) for slot in raised_slots[news].tolist()]
        return (*delta, *odometer), list(zip(users, _lists(bound[news]), strict=True))

    def _bound(self, rungs: NDArray[np.int64]) -> NDArray[np.float64]:
        # The filter alone already promises that no user goes beyond the budget.
        most_rungs = -(-self._budget // self._odometer_step)
        rows = rungs if self._orders is None else rungs[:, np.newaxis]
        units = np.minimum(np.minimum(rows, most_rungs) * self._odometer_step, self._budget)
        return bound_in_measure(self.policy, units)

    def _rows(self, packed: bytes) -> NDArray[np.int64]:
        return np.frombuffer(packed, dtype="<i8").reshape(-1, *self._spent.shape[1:])

    def _touch(self, slots: NDArray[np.int64]) -> None:
        if not len(slots):
            return
        pages = np.zeros(len(self._index) // PAGE_USERS + 1, dtype=np.bool_)
        pages[slots >> _PAGE_BITS] = True
        self._dirty.update(np.flatnonzero(pages).tolist())

    def _per_order(self, units: list[int]) -> NDArray[np.int64]:
        numbers = np.array(units, dtype=np.int64)
        return numbers if self.policy.measure == "renyi" else numbers[0]


def _check_lengths(users: int, norms: int) -> None:
    if users > MAX_CHARGE_USERS:
        detail = f"{users} users; a charge has at most {MAX_CHARGE_USERS}: use more partitions"
        raise Refused(Reason.TOO_LARGE, detail)
    if norms != users:
        raise Refused(Reason.LENGTH_MISMATCH, f"{users} users, but {norms} norms")


def _check_norms(norms: NDArray[np.float64], clip_norm: float | None) -> None:
    if clip_norm is not None and not (0 <= clip_norm < np.inf):
        raise Refused(Reason.INVALID_NORM, f"clip_norm {clip_norm} is not a finite number >= 0")
    if not len(norms):
        return
    largest = norms.max()
    if not (norms.min() >= 0 and largest < np.inf):  # NaN propagates through both
        position = int(np.flatnonzero(~((norms >= 0) & (norms < np.inf)))[0])
        detail = f"norm {norms[position]} at position {position} is not a finite number >= 0"
        raise Refused(Reason.INVALID_NORM, detail)
    if clip_norm is not None and largest > clip_norm:
        position = int(norms.argmax())
        detail = (
            f"norm {norms[position]} at position {position} is above clip_norm {clip_norm}: "
            "clip the contribution before it is charged"
        )
        raise Refused(Reason.NORM_ABOVE_CLIP, detail)


def _positions(where: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where it is true: most often nowhere, which is found out faster than by numpy alone."""
    return np.flatnonzero(where) if where.any() else np.empty(0, dtype=np.int64)


def _lists(bound: NDArray[np.float64]) -> list[list[float]]:
    rows: list[list[float]] = (bound if bound.ndim == 2 else bound[:, np.newaxis]).tolist()
    return rows


def _packed(numbers: NDArray[np.int64]) -> bytes:
    return numbers.astype("<i8", copy=False).tobytes()
