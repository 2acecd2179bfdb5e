"""In-memory indexes of what the portal shows: offsets of odometer records, and HALTs, by user.

**Odometer records.** `OdometerIndex` has 16 bytes per record: 48 bits of a hash of the user, 16
bits for the dataset, and the offset. The record is read from Kafka when its user opens the page.
The reader then compares the key, so two users with the same hash are distinguished. The topic is
compacted, and keeps some earlier records of a user for a while; so does the index. When the index
is full, it keeps only the newest offset of each user and dataset. When these fill it as well, it
accepts no more records and every query fails: a missing record could be one that reports more
spending. So the portal shows no data instead of incomplete data.

**HALTs.** For each run and halted user, `HaltIndex` has the number of HALTs, the first and the last
step with their times, and the reason of the last one: 47 bytes, regardless of the number of steps.
When the index is full, it drops the runs with the oldest last decision, and ``since`` says from
when on it is complete. The index has keyed hashes of ids, of 64 bits, so that constructing two ids
with the same hash is infeasible.
"""

from __future__ import annotations

import secrets
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streams.records import Decision, Halted, User, halt_reason
from streams.sdk.decisions import LeftOut, left_out_by, refusing_budget

MOST_OFFSETS = 2**24
"""Maximum number of offsets of all partitions: 256 MiB."""
_DATASETS = 2**16
_FULL_AGAIN = 7 / 8
"""Share of ``MOST_OFFSETS``. Above it, nearly every record would drop old offsets."""


class IndexFull(Exception):
    """There are more users than the index has room for; the text says what the operator can do."""


class OdometerIndex:
    """The offsets in all partitions. One thread adds records; any thread may query."""

    def __init__(self, most: int = MOST_OFFSETS) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._records: dict[int, _Records] = {}
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
            records = self._records.setdefault(partition, _Records(array("Q"), array("q")))
            records.users.append(who)
            records.offsets.append(offset)
            self._count += 1

    def clear(self) -> None:
        """Forget all offsets, before the topic is read again from its beginning."""
        with self._lock:
            self._records, self._count, self._full = {}, 0, False

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
        if partition not in self._records:
            return
        users, offsets = self._records[partition].columns()
        at = np.flatnonzero((users >> np.uint64(16)) == np.uint64(hashed >> 16))
        numbers = (users[at] & np.uint64(_DATASETS - 1)).tolist()
        yield from zip(numbers, offsets[at].tolist(), strict=True)

    def _keep_the_newest(self) -> None:
        for partition, records in self._records.items():
            users, offsets = records.columns()
            _, last = np.unique(users[::-1], return_index=True)
            kept = np.sort(len(users) - 1 - last)
            self._records[partition] = _Records(
                array("Q", users[kept].tobytes()), array("q", offsets[kept].tobytes())
            )
        self._count = sum(len(records.users) for records in self._records.values())
        self._full = self._count > _FULL_AGAIN * self._most


class _Records(NamedTuple):
    """The records of one partition, in the order of offsets."""

    users: array[int]  # 48 bits of a hash, and 16 of the dataset
    offsets: array[int]

    def columns(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return views of both columns. Records cannot be added while the views exist."""
        return np.frombuffer(self.users, np.uint64), np.frombuffer(self.offsets, np.int64)


def _hash(user: User) -> int:
    """Return a hash of 48 bits above 16 for the dataset. Python keys the hash of a string."""
    return (hash((type(user) is int, user)) & (2**48 - 1)) << 16


def some(offsets: Sequence[int], most: int) -> list[int]:
    """Return at most ``most`` of these offsets: the last one, and others evenly spread."""
    if len(offsets) <= most:
        return list(offsets)
    at = np.linspace(len(offsets) - 1, 0, most).round().astype(int)[::-1]
    return [offsets[place] for place in at.tolist()]


MOST_HALTS = 2**22
"""Maximum number of pairs of a run and a halted user: 184 MiB."""

_ENTRY = np.dtype(
    [
        ("user", "<i8"),
        ("first", "<i8"),
        ("last", "<i8"),
        ("began", "<f8"),
        ("times", "<u4"),
        ("reason", "u1"),
        ("exhausted", "?"),
        ("ended", "<f8"),
    ]
)


@dataclass(frozen=True)
class Episode:
    """The HALTs of one user in one run.

    Attributes:
        first: the first known step with a HALT; ``last`` is the last one.
        began: the time of the first decision, in seconds since 1970; ``ended`` is of the last one.
        times: the number of HALTs.
        is_roster: whether the user is halted from the last step on. A cheaper step may admit the
            user again, and no record reports that.
        reason: of the last HALT, as are ``exhausted`` and ``refused_by``; see ``Halt``.
    """

    dataset: str
    run: str
    first: int
    last: int
    began: float
    ended: float
    times: int
    is_roster: bool
    reason: str
    exhausted: bool
    refused_by: str | None


@dataclass
class _Run:
    """The halted users of one run in one partition."""

    is_roster: bool = False
    seen: tuple[int, int] = (-1, -1)  # step and part; repeated records are skipped
    ended: float = 0.0
    budgets: list[str] = field(default_factory=list)
    entries: NDArray[np.void] = field(default_factory=lambda: np.empty(0, dtype=_ENTRY))


class HaltIndex:
    """The halted users of all runs. One thread adds records; any thread may query.

    Attributes:
        since: no HALT after this time is missing, in seconds since 1970; None without a record.
    """

    def __init__(self, most: int = MOST_HALTS) -> None:
        self._most = most
        self._key = secrets.token_bytes(16)
        self._runs: OrderedDict[tuple[int, str, str], _Run] = OrderedDict()
        self._count = 0
        self._lock = Lock()
        self.since: float | None = None

    def clear(self) -> None:
        """Forget all records, before the topic is read again from its beginning."""
        with self._lock:
            self._runs.clear()
            self._count, self.since = 0, None

    def see(self, answer: Decision | Halted, written: float) -> None:
        """Add a record, in the order of the topic. A record may be published repeatedly."""
        name = answer.partition, answer.dataset, answer.run
        part = answer.part if isinstance(answer, Halted) else 0
        with self._lock:
            self.since = written if self.since is None else self.since
            run = self._runs.setdefault(name, _Run())
            self._runs.move_to_end(name)
            if (answer.step, part) <= run.seen:
                return
            run.seen, run.ended = (answer.step, part), written
            run.is_roster = isinstance(answer, Halted)
            before = len(run.entries)
            self._add(run, left_out_by(answer), answer.step, written)
            self._count += len(run.entries) - before
            while self._count > self._most:
                _, oldest = self._runs.popitem(last=False)
                self._count -= len(oldest.entries)
                self.since = max(self.since, oldest.ended)

    def of(self, partition: int, user: User) -> list[Episode]:
        """Return the HALTs of a user by run, the latest first."""
        episodes: list[Episode] = []
        key = self._keys([user])[0]
        with self._lock:
            for (where, dataset, name), run in self._runs.items():
                if where != partition:
                    continue
                at = int(np.searchsorted(run.entries["user"], key))
                if at < len(run.entries) and run.entries["user"][at] == key:
                    episodes.append(_episode(dataset, name, run, run.entries[at]))
        return sorted(episodes, key=lambda one: -one.ended)

    def _add(self, run: _Run, found: LeftOut, step: int, written: float) -> None:
        run.budgets = found.budgets
        entries = np.zeros(len(found.users), dtype=_ENTRY)
        entries["first"] = entries["last"] = step
        entries["began"] = entries["ended"] = written
        entries["times"] = 1
        entries["reason"], entries["exhausted"] = found.reasons, found.exhausted
        entries["user"] = self._keys(found.users)
        run.entries = _merged(run.entries, entries)

    def _keys(self, users: Iterable[User]) -> NDArray[np.int64]:
        texts = (f"string {u}" if isinstance(u, str) else f"integer {u}" for u in users)
        digests = (blake2b(t.encode(), digest_size=8, key=self._key).digest() for t in texts)
        return np.frombuffer(b"".join(digests), dtype="<i8")


def _merged(known: NDArray[np.void], entries: NDArray[np.void]) -> NDArray[np.void]:
    """Return the known entries, sorted by user, with those of one more step."""
    entries = entries[np.argsort(entries["user"], kind="stable")]
    at = np.searchsorted(known["user"], entries["user"])
    again = np.zeros(len(entries), dtype=np.bool_)
    inside = at < len(known)
    again[inside] = known["user"][at[inside]] == entries["user"][inside]
    places, repeated = at[again], entries[again]
    for name in ("last", "ended", "reason", "exhausted"):
        known[name][places] = repeated[name]
    known["times"][places] += 1
    if again.all():
        return known
    return np.insert(known, at[~again], entries[~again])


def _episode(dataset: str, name: str, run: _Run, entry: np.void) -> Episode:
    return Episode(
        dataset=dataset,
        run=name,
        **{name: entry[name].item() for name in ("first", "last", "began", "ended", "times")},
        is_roster=run.is_roster,
        reason=halt_reason(int(entry["reason"])),
        exhausted=bool(entry["exhausted"]),
        refused_by=refusing_budget(int(entry["reason"]), run.budgets),
    )
