"""An in-memory index of the topic odometer: the offsets of each user's records.

It takes 16 bytes per record: 48 bits of a hash of the user, 16 bits for the dataset, and the
offset. The record is read from Kafka when its user opens the page. The reader then compares the
key, so two users with the same hash are distinguished.

The topic is compacted, and keeps some earlier records of a user for a while. So does the index.
When the index is full, it keeps only the newest offset of each user and dataset. When these fill it
as well, it accepts no more records and every query fails: a missing record could be one that
reports more spending. So the portal shows no data instead of incomplete data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from streams.records import User

MOST = 2**24
"""Maximum number of offsets of all partitions: 256 MiB."""
_CHUNK = 2**16
_DATASETS = 2**16
_FULL_AGAIN = 7 / 8
"""Share of ``MOST``. If dropping old offsets leaves more, nearly every record would drop some."""


class IndexFull(Exception):
    """There are more users than the index has room for; the text says what the operator can do."""


class OdometerIndex:
    """The offsets in all partitions. One thread adds records; any thread may query."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._chunks: dict[int, list[_Chunk]] = {}
        self._count = 0
        self._full = False
        self._lock = Lock()

    def __len__(self) -> int:
        """The number of offsets."""
        return self._count

    def add(self, partition: int, dataset: str, user: User, offset: int) -> None:
        """Add a record of the topic, or a tombstone, in the order of offsets of its partition."""
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
        """Forget all offsets, before the topic is read again from its beginning."""
        with self._lock:
            self._chunks, self._count, self._full = {}, 0, False

    def of(self, partition: int, user: User) -> dict[str, list[int]]:
        """Return the ascending offsets of a user's records by dataset.

        They may include records of other users with the same hash.

        Raises:
            IndexFull: the index is incomplete.
        """
        with self._lock:
            if self._full:
                raise IndexFull(
                    f"the index has room for {self._most:,} odometer records, and there are more "
                    "users than that: start `turnstile portal` with a larger --most"
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
    """Return a hash of 48 bits above 16 for the dataset. Python keys the hash of a string."""
    return (hash((type(user) is int, user)) & (2**48 - 1)) << 16


def some(offsets: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of these offsets: the last one, and others evenly spread."""
    if len(offsets) <= most:
        return list(offsets)
    at = np.linspace(len(offsets) - 1, 0, most).round().astype(int)[::-1]
    return [offsets[place] for place in at.tolist()]
