"""The records that the portal has read, by user: odometer records and HALTs, in a database.

SQLite keeps the database in a temporary file without a name, which ends with the process, and a
part of bounded size in memory. A user is a keyed hash there, and the key is in memory only.
A row takes about 100 bytes.

A table in memory would need as much memory as there are users. An index of offsets needs less, but
then each page fetches its records from Kafka one by one, and has to notice which ones compaction
deleted meanwhile.

Without room on the disk, reading fails, and the topics are read again from their beginning. No user
is shown anything until all records are there: a missing one could report more spending.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from math import ceil
from threading import Lock
from typing import Any, NamedTuple

import msgspec
from msgspec import UnsetType

from streams.ledger.outputs import Channel
from streams.records import (
    Decision,
    Halted,
    IntegerUser,
    OdometerRecord,
    StringUser,
    User,
    halt_reason,
)
from streams.records.json_outputs import to_msgpack
from streams.sdk.decisions import UNREADABLE, left_out_by, refusing_budget, whole_answer

logger = logging.getLogger("turnstile.portal")

MOST_POINTS = 64
"""Maximum number of odometer records of a user and dataset that are shown, with the newest."""
_CACHE_KIB = 64 * 1024
_UNKNOWN, _ERASED = -1, 2**63 - 1
"""Offsets before and after all others: an odometer record that counts for nothing, and a
tombstone."""
_KEY = msgspec.json.Decoder(tuple[str, IntegerUser | StringUser])
_TABLES = """
CREATE TABLE odometers (
    user BLOB, dataset TEXT, at INTEGER, time REAL, bound BLOB, own_order REAL,
    PRIMARY KEY (user, dataset, at)
) WITHOUT ROWID;
CREATE TABLE halts (
    user BLOB, dataset TEXT, run TEXT, first INTEGER, last INTEGER, began REAL, ended REAL,
    times INTEGER, is_roster INTEGER, reason TEXT, exhausted INTEGER, refused_by TEXT,
    PRIMARY KEY (user, dataset, run)
) WITHOUT ROWID;
"""
_HALT = """
INSERT INTO halts VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?)
ON CONFLICT (user, dataset, run) DO UPDATE SET
    last = excluded.last, ended = excluded.ended, times = times + 1,
    is_roster = excluded.is_roster, reason = excluded.reason,
    exhausted = excluded.exhausted, refused_by = excluded.refused_by
WHERE excluded.last > halts.last -- else the record was published again
"""


class Point(NamedTuple):
    """An odometer record: a bound on the spending at a time."""

    offset: int  # in norms; a later record has a higher one
    time: float  # seconds since 1970
    bound: tuple[float, ...]
    order: float | None


@dataclass(frozen=True)
class Account:
    """The account of a user in a dataset.

    Attributes:
        points: the odometer records in order; none until the bound exceeds the first tick.
        is_erased: whether the user was erased; then there are no points.
        is_doubtful: whether the only odometer record is unreadable or has no valid signature, so
            that the bound is unknown.
    """

    points: tuple[Point, ...] = ()
    is_erased: bool = False
    is_doubtful: bool = False


class Episode(msgspec.Struct, frozen=True, array_like=True):
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
class UserRecords:
    """The records of one user: the accounts by dataset, and the HALTs by run, the latest first."""

    accounts: dict[str, Account] = field(default_factory=dict)
    episodes: list[Episode] = field(default_factory=list)


class RecordDatabase:
    """The records of all users. One thread adds records; any thread may query.

    Attributes:
        done: the share of the topics that was read, 0 to 1; until 1, nothing is shown.
        halts_since: no HALT after this time is missing, in seconds since 1970; None without any.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._lock = Lock()
        self._database = sqlite3.connect("", check_same_thread=False)
        self._database.executescript(f"PRAGMA cache_size = -{_CACHE_KIB};{_TABLES}")
        self.done = 0.0
        self.halts_since: float | None = None
        self._begun: set[int] = set()

    def clear(self) -> None:
        """Delete all records, before the topics are read again from their beginning."""
        with self._lock, self._database:
            self.done, self.halts_since = 0.0, None
            self._begun.clear()
            for table in ("odometers", "halts"):
                self._database.execute(f"DELETE FROM {table}")

    def close(self) -> None:
        """Delete the database."""
        with self._lock:
            self.done = 0.0
            self._database.close()

    def add(
        self, channel: Channel, records: Iterable[Any], is_believed: Callable[[Any], bool]
    ) -> None:
        """Add records of the topic odometer or halts, in the order of their partition.

        Args:
            records: of Kafka. A record may be published repeatedly.
        """
        with self._lock, self._database:
            for record in records:
                if channel is Channel.ODOMETER:
                    self._add_odometer(record, is_believed(record))
                elif record.value is not None and is_believed(record):
                    self._add_halts(record)

    def of(self, user: User) -> UserRecords | None:
        """Return the records of a user; None unless all records are known."""
        name = self._hash(user)
        with self._lock:
            if self.done < 1.0:
                return None
            odometers, halts = (
                self._database.execute(f"SELECT * FROM {table} WHERE user = ?", (name,)).fetchall()
                for table in ("odometers", "halts")
            )
        accounts = groupby(sorted(odometers), lambda row: row[1])
        # SQLite has no bool, so 0 and 1 are converted.
        episodes = msgspec.convert([row[1:] for row in halts], list[Episode], strict=False)
        return UserRecords(
            {dataset: _account_of([row[2:] for row in rows]) for dataset, rows in accounts},
            sorted(episodes, key=lambda one: -one.ended),
        )

    def _add_odometer(self, record: Any, is_believed: bool) -> None:
        try:
            dataset, user = _KEY.decode(record.key or b"")
        except UNREADABLE:
            return  # no worker wrote this record
        name = self._hash(user), dataset
        point: tuple[int, float, bytes | None, float | None] = (_UNKNOWN, 0.0, None, None)
        if is_believed and record.value is None:
            # No record follows, and the earlier ones are of an erased user.
            self._database.execute("DELETE FROM odometers WHERE user = ? AND dataset = ?", name)
            point = (_ERASED, 0.0, None, None)
        elif is_believed:
            with suppress(*UNREADABLE):
                read = msgspec.msgpack.decode(to_msgpack(record.value), type=OdometerRecord)
                order = None if isinstance(read.order, UnsetType) else read.order
                bound = msgspec.msgpack.encode(read.bound)
                if _UNKNOWN < read.offset < _ERASED:
                    point = (read.offset, record.timestamp / 1000, bound, order)
        self._database.execute(
            "INSERT OR IGNORE INTO odometers VALUES (?, ?, ?, ?, ?, ?)", (*name, *point)
        )

    def _add_halts(self, record: Any) -> None:
        written = record.timestamp / 1000
        try:
            answer = whole_answer(to_msgpack(record.value))
            if isinstance(answer, Decision | Halted):
                self._database.executemany(_HALT, self._halts_of(answer, written))
        except (*UNREADABLE, OverflowError) as error:  # a step of more than 64 bits
            logger.warning("skipped a record of partition %s: %s", record.partition, error)
        else:
            # Kafka deletes the oldest records of each partition by itself.
            if record.partition not in self._begun:
                self._begun.add(record.partition)
                self.halts_since = max(written, self.halts_since or 0.0)

    def _halts_of(self, answer: Decision | Halted, written: float) -> Iterator[tuple[Any, ...]]:
        left_out = left_out_by(answer)
        step, is_roster = answer.step, isinstance(answer, Halted)
        columns = left_out.exhausted.tolist(), left_out.reasons.tolist()
        for user, exhausted, code in zip(left_out.users, *columns, strict=True):
            name = self._hash(user), answer.dataset, answer.run
            reason = halt_reason(code), exhausted, refusing_budget(code, left_out.budgets)
            yield *name, step, step, written, written, is_roster, *reason

    def _hash(self, user: User) -> bytes:
        """Return a keyed hash of an id and its type, for which no one can find two equal ids."""
        return blake2b(msgspec.msgpack.encode(user), digest_size=16, key=self._key).digest()


def _account_of(rows: list[tuple[int, float, bytes, float | None]]) -> Account:
    """Return the account of all known records of a user and dataset, in the order of offsets."""
    if rows[-1][0] == _ERASED:
        return Account(is_erased=True)
    known = [row for row in rows if row[0] != _UNKNOWN]
    if not known:
        return Account(is_doubtful=True)
    every = ceil(len(known) / MOST_POINTS)
    return Account(
        tuple(
            Point(at, time, tuple(msgspec.msgpack.decode(bound)), order)
            for at, time, bound, order in known[::-every][::-1]  # the newest one is among them
        )
    )
