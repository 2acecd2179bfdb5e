"""User id -> slot of the user's numbers. Slots are numbered in the order of first use.

Integer ids, the fast path, are found many at a time in a table of ``slots``; string ids in a dict.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

from streams.ledger.slots import UNKNOWN, SlotTable
from streams.records import ERASED_INTEGER, User
from streams.records.users import UserIds


class UserIndex:
    """The users of one dataset in one partition. Slots are never reused."""

    def __init__(self) -> None:
        self._integers = SlotTable()
        self._strings: dict[str, int] = {}
        self._integer_at = np.empty(64, dtype=np.int64)  # slot -> id, for integer users
        # Slot -> id, None for integer users; empty before the first string.
        self._string_at: list[str | None] = []
        self._erased: dict[int, str] = {}  # slot -> keyed hash, for erased integer users
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def expect(self, count: int) -> None:
        """Reserve room for this many users in all."""
        self._make_room(count)
        self._integers.expected = count

    def find(self, users: UserIds) -> NDArray[np.int64]:
        """Return the slot of each user, shape (n,); UNKNOWN for unknown users."""
        if users.are_integers:
            return self._integers.find(users.integers, self._integer_at)
        slots = np.full(len(users), UNKNOWN, dtype=np.int64)
        positions, integers = [], []
        for i, user in enumerate(users):
            if isinstance(user, str):
                slots[i] = self._strings.get(user, UNKNOWN)
            else:
                positions.append(i)
                integers.append(user)
        if positions:
            slots[positions] = self._integers.find(np.array(integers), self._integer_at)
        return slots

    def add(self, users: UserIds) -> NDArray[np.int64]:
        """Give unknown, distinct users the next slots; return the slots."""
        first = self._count
        slots = np.arange(first, first + len(users), dtype=np.int64)
        self._count += len(users)
        room = len(self._integer_at)
        if self._count > room:
            self._make_room(max(self._count, room + room // 8))
        if users.are_integers:
            self._integer_at[first : self._count] = users.integers
            self._integers.add(slots, self._integer_at)
            self._name([None] * len(users))
            return slots
        self._name([user if isinstance(user, str) and _is_string(user) else None for user in users])
        integer_slots = []
        for slot, user in enumerate(users, start=first):
            if isinstance(user, str):
                self._strings[user] = slot
                if not _is_string(user):
                    self._integer_at[slot], self._erased[slot] = 0, user
            else:
                self._integer_at[slot] = user
                integer_slots.append(slot)
        self._integers.add(np.array(integer_slots, dtype=np.int64), self._integer_at)
        return slots

    def erase(self, slot: int, name: str) -> None:
        """Replace the id in a slot by the keyed hash of an erased user."""
        if _is_string(name):
            del self._strings[cast(str, self._string_at[slot])]
            self._string_at[slot] = name
        else:
            self._integers.remove(slot, self._integer_at)
            self._integer_at[slot], self._erased[slot] = 0, name
        self._strings[name] = slot

    def users_at(self, slots: NDArray[np.int64]) -> UserIds:
        """Return the ids in these slots, or the keyed hashes of erased users."""
        integers = self._integer_at[slots]
        if not self._string_at and not self._erased:
            return UserIds(integers)
        blanks = np.flatnonzero(integers == 0).tolist() if self._erased else []
        erased = {
            at: self._erased[slot] for at in blanks if (slot := int(slots[at])) in self._erased
        }
        if not self._string_at and not erased:
            return UserIds(integers)
        names: list[str | None] = [None] * len(slots)
        if self._string_at:
            names = [self._string_at[slot] for slot in slots.tolist()]
        for at, name in erased.items():
            names[at] = name
        if not any(names):
            return UserIds(integers)
        if None not in names:
            return UserIds(cast(list[User], names))
        pairs = zip(names, integers.tolist(), strict=True)
        return UserIds([integer if name is None else name for name, integer in pairs])

    def user(self, slot: int) -> User:
        """Return the id in one slot."""
        name = self._string_at[slot] if self._string_at else None
        name = self._erased.get(slot, name)
        return int(self._integer_at[slot]) if name is None else name

    def _make_room(self, count: int) -> None:
        known = self._integer_at
        if count > len(known):
            self._integer_at = np.empty(count, dtype=np.int64)
            self._integer_at[: len(known)] = known

    def _name(self, names: list[str | None]) -> None:
        """Store the ids in the last slots if they are strings."""
        if self._string_at or any(names):
            before = self._count - len(names) - len(self._string_at)
            self._string_at += [None] * before + names


def _is_string(user: str) -> bool:
    """Return whether this is a string id, or the keyed hash of one."""
    return not user.startswith(ERASED_INTEGER)
