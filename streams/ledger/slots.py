"""A hash table of slots by integer id, which is itself a numpy array.

Where an id is in the table depends on numbers that every process draws at random, as Python does
for strings, so a client cannot choose ids that collide. Slots do not depend on them.
"""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

UNKNOWN = -1
SEED = (secrets.randbits(64) | 1, secrets.randbits(64), secrets.randbits(64) | 1)
"""The random numbers of this process; the first and the last are odd."""
_HALF = np.uint64(32)
_MANY = 2**17
_BLOCK = 2**16
"""Users added at a time, so that temporaries do not grow with the table."""
_ROUNDS = 2
"""The places after the first that are searched one at a time."""
_AHEAD = np.arange(1, 9)
"""The places that are then searched together, relative to the last one."""


def homes(keys: NDArray[np.int64], seed: NDArray[np.uint64], places: np.int64) -> NDArray[np.int64]:
    """Return the first place where the search for each key looks, shape (n,).

    Args:
        seed: a factor, an offset and another factor, shape (3,); the factors are odd.
        places: the number of places of the table, below 2**32.
    """
    # Products alone would keep consecutive ids in sequence. The upper half, added to a secret
    # lower half, breaks sequences up.
    first, offset, second = seed
    mixed: NDArray[np.uint64] = keys.view(np.uint64) * first
    mixed += offset
    mixed ^= mixed >> _HALF
    mixed *= second
    # Scale to the number of places: the upper half is a fraction of them.
    mixed >>= _HALF
    mixed *= places.view(np.uint64)
    mixed >>= _HALF
    found: NDArray[np.int64] = mixed.view(np.int64)
    return found


class SlotTable:
    """Slots of integer users by id: open addressing with linear probing, at most a quarter full;
    with more than 131,072 users, for whom memory counts, at most half.

    A place holds only a slot, so that the table stays small; `ids` has the id of each slot.

    Attributes:
        expected: the number of users to come, if known.
    """

    def __init__(self) -> None:
        self.expected = 0
        self._seed = np.array(SEED, dtype=np.uint64)
        self._count = 0
        self._allocate(16)

    def _allocate(self, places: int) -> None:
        self._places = np.int64(places)
        self._slots = np.full(places, UNKNOWN, dtype=np.int32)  # UNKNOWN marks a free place

    def _home(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        return homes(keys, self._seed, self._places)

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
