"""User ids in their order, as one type: packed integers, or integers and strings.

Most datasets have integer ids. They stay packed int64 numbers, and are never turned into Python
objects unless somebody iterates over them. Ids with at least one string are a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import final, overload

import numpy as np
from numpy.typing import NDArray

from streams.records import User, Users
from streams.records.partitioner import partitions_of

_NONE: NDArray[np.int64] = np.empty(0, dtype=np.int64)


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
        return self.tolist() == other.tolist()

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

    def replace(self, users: Mapping[int, User]) -> UserIds:
        """Return the ids with others at some positions."""
        if not users:
            return self
        replaced = self.tolist()
        for position, user in users.items():
            replaced[position] = user
        return UserIds(replaced)

    def has_duplicates(self) -> bool:
        """Return whether an id appears twice.

        Integers are sorted, not hashed: their hashes are known, so they could be made to collide.
        """
        integers = self.integers
        if not self.are_integers:
            names = [user for user in self._mixed if isinstance(user, str)]
            if len(set(names)) != len(names):
                return True
            integers = np.array([u for u in self._mixed if not isinstance(u, str)], dtype=np.int64)
        ordered = np.sort(integers)
        return bool((ordered[1:] == ordered[:-1]).any())

    def homes(self, partitions: int) -> NDArray[np.int64]:
        """Return the partition of each user, shape (n,).

        Args:
            partitions: P, the number of partitions of the topic.
        """
        return partitions_of(self.integers if self.are_integers else self.tolist(), partitions)
