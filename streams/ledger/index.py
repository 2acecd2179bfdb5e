"""User id -> slot of the user's numbers. Slots are numbered in the order of first use.

Integer ids, the fast path, are found 4,096 at a time in an open-addressing hash table that is
itself a numpy array; string ids in a dict. Where an id is in the table depends on numbers that
every process draws at random, as Python does for strings, so a client cannot choose ids that
collide.
Slots do not depend on them.
"""

from __future__ import annotations

import secrets
from typing import cast

import numpy as np
from numpy.typing import NDArray

from streams.records import ERASED_INTEGER, User
from streams.records.users import UserIds

UNKNOWN = -1
Seed = tuple[int, int, int]
_SEED: Seed = (secrets.randbits(64) | 1, secrets.randbits(64), secrets.randbits(64) | 1)
_HALF = np.uint64(32)
_MANY = 2**17
_BLOCK = 2**16
"""Users added at a time, so that temporaries do not grow with the table."""
_ROUNDS = 2
"""The places after the first that are searched one at a time."""
_AHEAD = np.arange(1, 9)
"""The places that are then searched together, relative to the last one."""


class UserIndex:
    """The users of one dataset in one partition. Slots are never reused."""

    def __init__(self) -> None:
        self._integers = _SlotTable()
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

    def users(self, start: int, stop: int) -> UserIds:
        """Return the ids in slots start to stop, in order."""
        return self.users_at(np.arange(start, min(stop, self._count)))

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


class _SlotTable:
    """Slots of integer users by id: open addressing with linear probing, at most a quarter full;
    with more than 131,072 users, for whom memory counts, at most half.

    A place holds only a slot, so that the table stays small; `ids` has the id of each slot.

    Attributes:
        expected: the number of users to come, if known.
    """

    def __init__(self, seed: Seed = _SEED) -> None:
        self.expected = 0
        self._seed = np.array(seed, dtype=np.uint64)
        self._count = 0
        self._allocate(16)

    def _allocate(self, places: int) -> None:
        self._places = np.int64(places)
        self._slots = np.full(places, UNKNOWN, dtype=np.int32)  # UNKNOWN marks a free place

    def _home(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        # Products alone would keep consecutive ids in sequence. The upper half, added to a secret
        # lower half, breaks sequences up.
        first, offset, second = self._seed
        mixed: NDArray[np.uint64] = keys.view(np.uint64) * first
        mixed += offset
        mixed ^= mixed >> _HALF
        mixed *= second
        # Scale to the number of places: the upper half is a fraction of them.
        mixed >>= _HALF
        mixed *= self._places.view(np.uint64)
        mixed >>= _HALF
        homes: NDArray[np.int64] = mixed.view(np.int64)
        return homes

    def find(self, keys: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot of each key, UNKNOWN if it has none."""
        keys = np.ascontiguousarray(keys)
        place = self._home(keys)
        # Only UNKNOWN, of free places, is clipped; the comparison is ignored there.
        found = self._slots.take(place, mode="clip").astype(np.int64)
        # Positions still searching: their place is taken by another user.
        pending = np.flatnonzero(ids.take(found, mode="clip") != keys)
        pending = pending[found.take(pending) != UNKNOWN]
        place, sought = place[pending], keys[pending]
        for _ in range(_ROUNDS):
            if not len(pending):
                break
            place += 1
            there = self._slots.take(place, mode="wrap")
            found[pending] = there
            missed = np.flatnonzero((ids.take(there) != sought) & (there != UNKNOWN))
            pending, place, sought = pending[missed], place[missed], sought[missed]
        while len(pending):
            # Few keys are left: a round costs more than the places that it searches.
            places = place[:, np.newaxis] + _AHEAD
            there = self._slots.take(places, mode="wrap")
            ends = (ids.take(there) == sought[:, np.newaxis]) | (there == UNKNOWN)
            first = ends.argmax(axis=1)
            found[pending] = there[np.arange(len(first)), first]
            missed = np.flatnonzero(~ends.any(axis=1))
            pending, place, sought = pending[missed], places[missed, -1], sought[missed]
        return found

    def add(self, slots: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        """Add the users of these slots; they must not be in the table."""
        self._count += len(slots)
        room = 2 if self._count > _MANY else 4  # places for each
        if room * self._count > len(self._slots):
            known = self._slots[self._slots != UNKNOWN]
            wanted = 3 if self._count > _MANY else 8
            expected = 2 if self.expected > _MANY else 4
            self._allocate(max(wanted * self._count, expected * self.expected))
            self._insert(known, ids)
        self._insert(slots, ids)

    def remove(self, slot: int, ids: NDArray[np.int64]) -> None:
        """Remove a slot, while `ids` still has its id.

        Later slots that may be in the freed place move there: no free place may lie between the
        first place of a user and the place of its slot.
        """
        count, slots = len(self._slots), self._slots
        place = self._first(slot, ids)
        while slots[place] != slot:
            place = (place + 1) % count
        gap = place
        while (other := int(slots[place := (place + 1) % count])) != UNKNOWN:
            if (place - self._first(other, ids)) % count >= (place - gap) % count:
                slots[gap], gap = other, place
        slots[gap] = UNKNOWN
        self._count -= 1

    def _first(self, slot: int, ids: NDArray[np.int64]) -> int:
        return int(self._home(ids[[slot]])[0])

    def _insert(self, slots: NDArray[np.integer], ids: NDArray[np.int64]) -> None:
        for start in range(0, len(slots), _BLOCK):
            self._insert_some(slots[start : start + _BLOCK].astype(np.int64), ids)

    def _insert_some(self, slots: NDArray[np.int64], ids: NDArray[np.int64]) -> None:
        place = self._home(ids[slots])
        while len(slots):
            free = self._slots[place] == UNKNOWN
            # Several slots may want one free place: the last write wins, the others go on.
            self._slots[place[free]] = slots[free]
            unsettled = self._slots[place] != slots
            slots, place = slots[unsettled], (place[unsettled] + 1) % self._places
