"""User ids: one sequence type, the normal form of names, and the partition of each user.

**Sequence.** Most datasets have integer ids. `UserIds` keeps them as packed int64 numbers, and
makes Python objects of them only where a caller iterates. Ids with at least one string are a list.

**Normal form.** A name is written in Unicode's composed normal form, NFC, by the tables of Unicode
3.2. A log is replayed for years, on machines with other versions of Python, with the same result.
For characters that Unicode 3.2 knows, normalisation is stable. The normal form of later characters
depends on the tables of each Python version, even under ``unicodedata.ucd_3_2_0``. So these
characters are left as they are, and nothing is composed with them.

**Partition.** A user's partition is the result of Kafka's default partitioner for the user's key:
murmur2 of the key bytes, made positive, modulo P. The key of a string id is its UTF-8 form, that of
an integer id 8 bytes big-endian. So any Kafka client in any language finds the same partition.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import final, overload
from unicodedata import ucd_3_2_0

import numpy as np
from numpy.typing import NDArray

from streams.records.fields import User, Users

_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)
_UNASSIGNED = "Cn"
_SEED = np.uint32(0x9747B28C)
_MULTIPLIER = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_BLOCK_BYTES = 2**20


@final
class UserIds:
    """An immutable sequence of user ids.

    Attributes:
        are_integers: True if every id is an integer.
        integers: all ids, int64, shape (n,), if every id is an integer; otherwise empty.
    """

    __slots__ = ("_mixed", "are_integers", "integers")

    def __init__(self, users: NDArray[np.integer] | Sequence[User]) -> None:
        self._mixed: Sequence[User] = ()
        self.are_integers = True
        if isinstance(users, np.ndarray):
            self.integers = users.astype(np.int64, copy=False)
        elif any(type(user) is str for user in users):
            self.integers, self.are_integers, self._mixed = _NONE, False, users
        else:
            self.integers = np.array(users, dtype=np.int64)

    @classmethod
    def unpack(cls, packed: Users) -> UserIds:
        """Return the ids of a record: packed int64, little-endian, or a list."""
        return cls(np.frombuffer(packed, dtype="<i8") if isinstance(packed, bytes) else packed)

    def pack(self) -> Users:
        """Return the ids as a record has them."""
        if self.are_integers:
            return self.integers.astype("<i8", copy=False).tobytes()
        return list(self._mixed)

    def __len__(self) -> int:
        return len(self.integers) if self.are_integers else len(self._mixed)

    def __iter__(self) -> Iterator[User]:
        return iter(self.tolist())

    @overload
    def __getitem__(self, at: int) -> User: ...
    @overload
    def __getitem__(self, at: slice) -> UserIds: ...
    def __getitem__(self, at: int | slice) -> User | UserIds:
        found = self.integers[at] if self.are_integers else self._mixed[at]
        if isinstance(at, slice):
            return UserIds(found)  # type: ignore[arg-type]
        return found if isinstance(found, str) else int(found)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserIds):
            return NotImplemented
        if self.are_integers and other.are_integers:
            return np.array_equal(self.integers, other.integers)
        return self.are_integers == other.are_integers and list(self._mixed) == list(other._mixed)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"UserIds({self.tolist()})"

    def tolist(self) -> list[User]:
        """Return a new list of int and str."""
        return self.integers.tolist() if self.are_integers else list(self._mixed)

    def position(self, user: User) -> int | None:
        """Return the first position of an id; None if it is not there."""
        if not self.are_integers:
            return self._mixed.index(user) if user in self._mixed else None
        if isinstance(user, str):
            return None
        found = np.flatnonzero(self.integers == user)
        return int(found[0]) if len(found) else None

    def select(self, positions: NDArray[np.int64]) -> UserIds:
        """Return the ids at these positions."""
        if self.are_integers:
            return UserIds(self.integers[positions])
        return UserIds([self._mixed[position] for position in positions.tolist()])

    def join(self, more: UserIds) -> UserIds:
        """Return these ids, followed by others."""
        if self.are_integers and more.are_integers:
            return UserIds(np.concatenate([self.integers, more.integers]))
        return UserIds(self.tolist() + more.tolist())

    def replace(self, users: Mapping[int, User]) -> UserIds:
        """Return the ids with others at some positions."""
        if not users:
            return self
        replaced = self.tolist()
        for position, user in users.items():
            replaced[position] = user
        return UserIds(replaced)

    def distinct(self) -> tuple[UserIds, NDArray[np.int64]]:
        """Return the distinct ids, in order of their first positions, and each id's index, (n,)."""
        if not self.are_integers:
            known: dict[User, int] = {}
            places = [known.setdefault(user, len(known)) for user in self._mixed]
            return UserIds(list(known)), np.array(places, dtype=np.int64)
        found, first, inverse = np.unique(self.integers, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return UserIds(found[order]), rank[inverse]

    def duplicate(self) -> User | None:
        """Return an id that appears twice; None if all are distinct.

        Integers are sorted, not hashed: their hashes are known, so they could be made to collide.
        """
        integers = self.integers
        if not self.are_integers:
            names = [user for user in self._mixed if isinstance(user, str)]
            if len(set(names)) != len(names):
                return Counter(names).most_common(1)[0][0]
            integers = np.array([u for u in self._mixed if not isinstance(u, str)], dtype=np.int64)
        ordered = np.sort(integers)
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        return int(ordered[twice[0]]) if len(twice) else None

    def homes(self, partitions: int) -> NDArray[np.int64]:
        """Return the partition of each user, shape (n,), in a topic with P partitions."""
        return partitions_of(self.integers if self.are_integers else self.tolist(), partitions)


# --- normal form ---


def normal_form(name: str) -> str:
    """Return the normal form of a name, which is its own normal form."""
    if name.isascii():
        return name
    later = _later_characters(name)
    if not later:
        return ucd_3_2_0.normalize("NFC", name)
    runs = ((known, "".join(run)) for known, run in groupby(name, lambda c: c not in later))
    return "".join(ucd_3_2_0.normalize("NFC", run) if known else run for known, run in runs)


def first_irregular(ids: Iterable[int | str]) -> str | None:
    """Return the first string that is not in normal form, if any; in time linear in the length.

    Integers are skipped.
    """
    names = [name for name in ids if isinstance(name, str) and not name.isascii()]
    if not names or is_regular("\n".join(names)):  # nothing is composed over the end of a line
        return None
    while len(names) > 1:  # by halves: one by one, a million names took seconds
        half = len(names) // 2
        names = names[half:] if is_regular("\n".join(names[:half])) else names[:half]
    return names[0]


def is_regular(text: str) -> bool:
    """Return whether a text is its own normal form, without computing the normal form.

    Newer tables agree about the characters that Unicode 3.2 knows, except for the normal form of
    five ideographs, which was corrected later. None of the five is its own normal form by any
    table.
    """
    ends = dict.fromkeys(map(ord, _later_characters(text)), "\n")
    return unicodedata.is_normalized("NFC", text.translate(ends) if ends else text)


def _later_characters(text: str) -> set[str]:
    return {character for character in set(text) if ucd_3_2_0.category(character) == _UNASSIGNED}


# --- partitions ---


def user_key(user: User) -> bytes:
    """Return the Kafka key of a user; ``OverflowError`` for an integer beyond 64 bits."""
    return user.encode() if isinstance(user, str) else int(user).to_bytes(8, "big", signed=True)


def partitions_of(users: NDArray[np.int64] | list[User], partitions: int) -> NDArray[np.int64]:
    """Return the partition of each user, shape (n,), in a topic with P partitions."""
    if isinstance(users, np.ndarray):
        octets = users.astype(">i8").view(np.uint8).reshape(-1, 8)
        hashes = _murmur2(octets, np.full(len(users), 8, dtype=np.uint32))
    else:
        hashes = _murmur2_of([user_key(user) for user in users])
    return (hashes & _POSITIVE).astype(np.int64) % partitions


def _murmur2_of(keys: list[bytes]) -> NDArray[np.uint32]:
    """Return murmur2 of keys of any lengths.

    Keys are padded in blocks of similar lengths, from the longest down: a block is as wide as its
    first key and no larger than ``_BLOCK_BYTES``.
    """
    lengths = np.fromiter(map(len, keys), dtype=np.uint32, count=len(keys))
    order = np.argsort(lengths, kind="stable")[::-1]
    hashes = np.empty(len(keys), dtype=np.uint32)
    start = 0
    while start < len(keys):
        width = -(-int(lengths[order[start]]) // 4) * 4
        block = order[start : start + max(1, _BLOCK_BYTES // max(1, width))]
        rows = b"".join([keys[position].ljust(width, b"\0") for position in block.tolist()])
        octets = np.frombuffer(rows, dtype=np.uint8).reshape(len(block), width)
        hashes[block] = _murmur2(octets, lengths[block])
        start += len(block)
    return hashes


def _murmur2(octets: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return murmur2 of every row; uint32 arithmetic wraps, as murmur2 requires."""
    words = np.ascontiguousarray(octets).view("<u4")
    state = _SEED ^ lengths
    for column in range(words.shape[1]):
        word = words[:, column].astype(np.uint32)
        mixed = word * _MULTIPLIER
        mixed = (mixed ^ (mixed >> np.uint32(24))) * _MULTIPLIER
        whole = (state * _MULTIPLIER) ^ mixed
        tail = (state ^ word) * _MULTIPLIER  # the last one to three bytes, zeros behind them
        remaining = lengths - np.minimum(lengths, np.uint32(4 * column))
        state = np.where(remaining >= 4, whole, np.where(remaining > 0, tail, state))
    state = (state ^ (state >> np.uint32(13))) * _MULTIPLIER
    return state ^ (state >> np.uint32(15))
