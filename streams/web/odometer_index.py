"""Where in the topic odometer the checkpoints of each user are: a small index, in memory.

A record of the topic takes 16 bytes here: 48 bits of a hash of the user, 16 bits that say which
dataset, and the offset. What a record says is read from Kafka when its owner asks; then its key is
compared, so that two users with one hash are told apart.

The topic is compacted: of earlier checkpoints it keeps some for a while. So does the index. When it
is full, only the newest place of each user and dataset stays; when it is full of those, it takes no
more and says so. Then nobody is shown anything: a checkpoint that is not in it might be one that
says more was spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from streams.schemas import User

MOST = 2**24
"""Places that are kept, of all partitions: 256 MiB."""
_CHUNK = 2**16
_DATASETS = 2**16
_FULL_AGAIN = 7 / 8
"""Of ``MOST``: with more left when the older ones went, nearly every record would make them go."""


class IndexFull(Exception):
    """There are more users than there is room for; the text says what an operator can do."""


class Places:
    """Of all partitions; one thread adds, any may ask."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._chunks: dict[int, list[_Chunk]] = {}
        self._count = 0
        self._full = False
        self._lock = Lock()

    def __len__(self) -> int:
        """How many places there are."""
        return self._count

    def add(self, partition: int, dataset: str, user: User, offset: int) -> None:
        """A record of the topic, or a tombstone; offsets of a partition rise."""
        who = _hash(user) | self._numbers.setdefault(dataset, len(self._numbers))
        with self._lock:
            if self._full:
                return
            if self._count >= self._most:
                self._keep_the_newest()
            if self._full or len(self._numbers) > _DATASETS:
                self._full = True
                return
            chunks = self._chunks.setdefault(partition, [])
            if not chunks or chunks[-1].is_full:
                chunks.append(_Chunk())
            chunks[-1].add(who, offset)
            self._count += 1

    def clear(self) -> None:
        """Begin anew, as the topic is read from its beginning."""
        with self._lock:
            self._chunks, self._count, self._full = {}, 0, False

    def of(self, partition: int, user: User) -> dict[str, list[int]]:
        """Dataset -> the offsets of what may be checkpoints of a user, rising.

        Raises:
            IndexFull: not all of them are known.
        """
        with self._lock:
            if self._full:
                raise IndexFull(
                    f"the index has room for {self._most:,} checkpoints, and there are more users "
                    "than that: start `turnstile portal` with a larger --most"
                )
            found = list(self._found(partition, _hash(user)))
        names = list(self._numbers)
        places: dict[str, list[int]] = {}
        for number, offset in found:
            places.setdefault(names[number], []).append(offset)
        return places

    def _found(self, partition: int, hashed: int) -> Iterator[tuple[int, int]]:
        for chunk in self._chunks.get(partition, ()):
            at = np.flatnonzero((chunk.users >> np.uint64(16)) == np.uint64(hashed >> 16))
            numbers = (chunk.users[at] & np.uint64(_DATASETS - 1)).tolist()
            yield from zip(numbers, chunk.offsets[at].tolist(), strict=True)

    def _keep_the_newest(self) -> None:
        for partition, chunks in self._chunks.items():
            users = np.concatenate([chunk.users for chunk in chunks])
            offsets = np.concatenate([chunk.offsets for chunk in chunks])
            _, last = np.unique(users[::-1], return_index=True)
            kept = np.sort(len(users) - 1 - last)
            self._chunks[partition] = list(_cut(users[kept], offsets[kept]))
        self._count = sum(chunk.count for chunks in self._chunks.values() for chunk in chunks)
        self._full = self._count > _FULL_AGAIN * self._most


class _Chunk:
    def __init__(self) -> None:
        self._users = np.empty(_CHUNK, dtype=np.uint64)
        self._offsets = np.empty(_CHUNK, dtype=np.int64)
        self.count = 0

    @property
    def is_full(self) -> bool:
        return self.count == _CHUNK

    @property
    def users(self) -> NDArray[np.uint64]:
        return self._users[: self.count]

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self._offsets[: self.count]

    def add(self, who: int, offset: int) -> None:
        self._users[self.count], self._offsets[self.count] = who, offset
        self.count += 1

    def fill(self, users: NDArray[np.uint64], offsets: NDArray[np.int64]) -> None:
        self.count = len(users)
        self._users[: self.count], self._offsets[: self.count] = users, offsets


def _cut(users: NDArray[np.uint64], offsets: NDArray[np.int64]) -> Iterator[_Chunk]:
    for start in range(0, len(users), _CHUNK):
        chunk = _Chunk()
        chunk.fill(users[start : start + _CHUNK], offsets[start : start + _CHUNK])
        yield chunk


def _hash(user: User) -> int:
    """48 bits, above 16 for the dataset. Strings are hashed with a key of this process."""
    return (hash((type(user) is int, user)) & (2**48 - 1)) << 16


def some(offsets: Sequence[int], most: int) -> list[int]:
    """At most so many of these, the last one and others evenly over all of them."""
    if len(offsets) <= most:
        return list(offsets)
    at = np.linspace(len(offsets) - 1, 0, most).round().astype(int)[::-1]
    return [offsets[place] for place in at.tolist()]
