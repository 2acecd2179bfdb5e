"""The file of ``Turnstile.open``: an SQLite database that is both the log and the store.

    file      one row: the id of the log, P, and where the log was moved
    norms     the log, (partition, offset) -> request
    halts, rejects, odometer   what was published; odometer has the last record of each user only
    answers, answers_state     what an answerer published, and its journal, in files that have one
    state     partition -> the meta of its state, and that of its pages
    pages     policies, runs and pages of users, as they were after an earlier record

The state is the pages, with the rest of the log applied. SQLite does not notice a flipped bit, so
the rows of the first tables have digests, and metas and pages those of ``streams.store.layout``.
Damaged pages are replaced by the log, which is the source of truth, and the next call writes them
again. Any other damage is refused.

One call of a client is one transaction: its requests to all partitions, what they led to, and the
new state. The steps, which the code repeats:

1. Begin a transaction that no other process can have at the same time.
2. Apply what other processes have appended to the log since the last call. It must continue the log
   that this process knows.
3. Apply the requests; append them to the log, write their outputs and, periodically, the pages.
4. Commit. The client receives the outputs only after this.

A call that fails before step 4 has changed nothing. The ledgers may then be ahead of the file, so
the next call loads them again. If the commit fails, it has not taken place if the file was locked
or could not grow. Otherwise this is unknown: the file must be opened again, which shows it.

The journal is a rollback journal, although a write-ahead log needs fewer disk writes. With a
rollback journal, the file alone contains every decision that was delivered. With a write-ahead log,
a copy of the file without its second file would lack the last charges, and nothing would show it.
So opening the file ends the WAL mode that another program has set, or is refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import secrets
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import time
from typing import Any, Literal, NamedTuple
from urllib.parse import quote
from weakref import WeakSet

import msgspec

from accounting.exact.invalid_input import quoted
from streams.ledger.ledger import Ledger, UnknownState, ledger_of
from streams.ledger.outputs import Channel, Output
from streams.ledger.partition_errors import CannotVerify, PartitionError
from streams.records import tombstone_offset
from streams.records.digests import HashChain
from streams.sdk.connection import Deadline
from streams.sdk.errors import (
    DecisionTimeout,
    FileProblem,
    InvalidRequest,
    ServiceUnavailable,
    Unusable,
    UnusableFile,
)
from streams.store.layout import (
    LAYOUT,
    Damaged,
    Meta,
    chain_fields,
    digest_of,
    fields_of_nothing,
    hexadecimal,
    is_whole,
    pack_page,
    page_hash,
    with_meta_digest,
)
from streams.store.stored_state import StoredState, verified

logger = logging.getLogger("turnstile.sdk")

APPLICATION = 0x44505453
"""The application id in the header of a budget file: "DPTS"."""
VERSION = 200 + LAYOUT
"""The version in the header: that of the tables in hundreds, and that of what they contain."""
MOST_PARTITIONS = 1024
"""The maximum P: each call reads the meta of all partitions."""
NORMS = "norms"
ANSWERS, ANSWERS_STATE = "answers", "answers_state"

MERGE_RECORDS = 256
"""Pages are written after this many records: opening a file applies all that follow the pages."""
MERGE_BYTES = 16 * 1024 * 1024
"""Or when those have changed at least this many bytes and ``MERGE_BYTES_PER_USER`` per user."""
MERGE_BYTES_PER_USER = 32
NO_END = 1 << 62
"""Beyond the offset of every record."""
_LONGEST_WAIT = 2_000_000  # seconds; their milliseconds fit into 31 bits
_READ_BYTES, _READ_RECORDS = 8 * 1024 * 1024, 1024
"""The limits of one read: no commit can take place meanwhile."""

_SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
BEGIN;
CREATE TABLE file (topic BLOB, partitions INTEGER, moved_to BLOB, digest BLOB);
CREATE TABLE norms (partition INTEGER, offset INTEGER, written REAL, value BLOB, digest BLOB,
    PRIMARY KEY (partition, offset));
CREATE TABLE halts (offset INTEGER PRIMARY KEY, partition INTEGER, written REAL, key BLOB,
    value BLOB, digest BLOB);
CREATE TABLE rejects (offset INTEGER PRIMARY KEY, partition INTEGER, written REAL, key BLOB,
    value BLOB, digest BLOB);
CREATE TABLE odometer (offset INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER, written REAL,
    key BLOB UNIQUE, value BLOB, digest BLOB);
CREATE TABLE state (partition INTEGER PRIMARY KEY, meta TEXT, pages TEXT);
CREATE TABLE pages (partition INTEGER, name TEXT, hash BLOB, page BLOB,
    PRIMARY KEY (partition, name));
"""

_ANSWER_TABLES = tuple(
    f"CREATE TABLE IF NOT EXISTS {name} (offset INTEGER PRIMARY KEY AUTOINCREMENT, "
    "partition INTEGER, written REAL, key BLOB, value BLOB, digest BLOB)"
    for name in (ANSWERS, ANSWERS_STATE)
)

_UNLOADABLE = (
    *(Damaged, PartitionError, ValueError, LookupError, TypeError, AttributeError),
    msgspec.MsgspecError,
)
"""The errors of a stored state that is damaged; of the last two, a value has another type."""


def _digest(*row: Any) -> bytes:
    """Return the digest of a row, whose last value may be large."""
    *short, value = row
    digest = hashlib.sha256(repr((*short, type(value))).encode())
    digest.update(value if isinstance(value, bytes) else repr(value).encode())
    return digest.digest()[:16]


class FileRecord(NamedTuple):
    """A record of the log, or of a table whose records have keys."""

    partition: int
    offset: int  # in norms those of each partition rise by 1, elsewhere those of all rise together
    written: float  # seconds since 1970
    key: bytes | None
    value: bytes
    is_damaged: bool = False  # whether its digest is another; False where that is an error


def create_file(path: str, partitions: int) -> None:
    """Create a file in which nothing was charged, readable by its owner only, unless one exists.

    Raises:
        InvalidRequest: ``partitions`` is out of range.
        UnusableFile: the folder does not exist or cannot be written.
    """
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidRequest(
            f"partitions is {quoted(partitions)}; it must be 1 to {MOST_PARTITIONS}"
        )
    with suppress(ValueError, OSError):  # an impossible path is refused below
        if Path(path).exists():
            return
    topic = secrets.token_bytes(16)
    with suppress(FileExistsError), _new_database(path) as database:
        database.executescript(_SCHEMA)
        row = topic, partitions, None
        database.execute("INSERT INTO file VALUES (?, ?, ?, ?)", (*row, _digest(*row)))
        metas = (fields_of_nothing(topic, p, partitions) for p in range(partitions))
        rows = ((p, json.dumps(meta)) for p, meta in enumerate(metas))
        database.executemany("INSERT INTO state VALUES (?1, ?2, ?2)", rows)
        database.execute("COMMIT")


@contextmanager
def _new_database(path: str) -> Iterator[sqlite3.Connection]:
    """Yield an empty database for its owner only, which gets its name once it is complete.

    Raises:
        FileExistsError: there is such a file now. It was not changed.
        UnusableFile: the file cannot be written.
    """
    target = Path(path)
    try:
        draft = target.with_name(f".{secrets.token_hex(16)}.draft")
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            with closing(sqlite3.connect(draft, isolation_level=None)) as database:
                yield database
            os.link(draft, target)
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(target.parent)
    except FileExistsError:
        raise
    except (OSError, ValueError, sqlite3.Error) as error:  # ValueError: no name of a file
        raise UnusableFile(path, _problem(error), f"creating it: {error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass
class _Partition:
    """A partition in memory.

    Attributes:
        ledger: in the state of the last record that was applied.
        pages: the meta of the pages in the file; empty if they are damaged, and the next write
            replaces all of them.
        unmerged: bytes that were changed since the pages, approximately.
    """

    ledger: Ledger
    pages: dict[str, str]
    unmerged: int = 0

    def apply(self, offset: int, request: bytes) -> list[Output]:
        """Apply a record of the log."""
        outputs = self.ledger.apply(offset, request)
        self.unmerged += self.ledger.state.unwritten_bytes
        self.ledger.state.take_delta()  # the log is stored instead
        return outputs

    @property
    def is_due(self) -> bool:
        """Return whether the pages have to be written."""
        users = sum(map(len, self.ledger.state.datasets.values()))
        if not self.pages or self.unmerged > max(MERGE_BYTES, MERGE_BYTES_PER_USER * users):
            return True
        return self.ledger.chain.last - int(self.pages["last"]) > MERGE_RECORDS


class BudgetFile:
    """An open file, and the ledgers of its partitions. Any thread of the process may use it.

    Args:
        path: the file, which must exist.
        timeout: seconds to wait for other processes, in calls without a deadline.
        writable: whether charges are possible.

    Attributes:
        topic: the id of the log, 16 bytes.

    Raises:
        UnusableFile: it is not a file of this release that can be used. Nothing was changed.
    """

    def __init__(self, path: str, timeout: float, *, writable: bool = True) -> None:
        self.path = path = os.path.abspath(path)  # the working folder may change
        self._timeout = timeout
        self._lock = threading.RLock()  # held while the database is used
        self._failure = ""  # why the file cannot be used any more
        self._partitions: dict[int, _Partition] = {}  # as far as they are loaded
        self._known: dict[int, HashChain] = {}  # what was committed here, also after a failed call
        self._opened, may_write = self._place(FileProblem.MISSING)
        if writable and not may_write:
            raise UnusableFile(path, FileProblem.READ_ONLY)
        # A reader that may write undoes what a killed process has left.
        name = f"file://{quote(os.fsencode(path))}?mode={'rw' if may_write else 'ro'}"
        try:
            self._database = sqlite3.connect(
                name, uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._problem(error) from error
        try:
            with self._reading():
                self._check_release()
                self.topic, self.partitions, _ = self._file()
            with self._held(Deadline.after(timeout)):
                if writable:
                    with suppress(sqlite3.OperationalError):  # WAL mode that others use stays
                        self._pragma("journal_mode = DELETE")
                    self._check_journal()
                else:
                    self._pragma("query_only = ON")
                self._pragma("synchronous = EXTRA")  # syncs the folder of the journal, too
        except BaseException:
            self._database.close()
            raise
        _open_files.add(self)

    def close(self) -> None:
        """Close the file, after a call in another thread has ended. Closing is idempotent."""
        with self._lock:
            self._failure = "this Turnstile is closed: open another one"
            self._database.close()

    def load(self) -> list[Ledger]:
        """Load the stored state of all partitions, as of one moment, and return their ledgers.

        Raises:
            UnusableFile: state and log are damaged, or another release wrote the state.
        """
        with self._reading():
            self._partitions = {p: self._loaded(p) for p in range(self.partitions)}
            return [partition.ledger for partition in self._partitions.values()]

    def stored(self, partition: int) -> StoredState:
        """Return the state of a partition.

        Raises:
            Damaged: pages, meta or log are not what was written.
        """
        with self._reading():
            try:
                stored = self._stored_pages(partition)
                state = self._continued(stored, partition).ledger.state
                meta = Meta.of(self.fields(partition))
            except (*_UNLOADABLE, UnusableFile) as error:
                raise Damaged(str(error)) from error
        changed = {name: state.take_page(name) for name in state.unmerged()}
        pages = {n: page for n, page in {**stored.pages, **changed}.items() if page is not None}
        return replace(stored, meta=meta, pages=pages)

    def fields(self, partition: int, meta: Literal["meta", "pages"] = "meta") -> dict[str, str]:
        """Return the stored meta of a partition, or of its pages, damaged or not.

        It is empty if it cannot be read.
        """
        with self._reading():
            rows = self._rows(f"SELECT {meta} FROM state WHERE partition = ?", partition)
        with suppress(ValueError, TypeError, LookupError):
            return dict(json.loads(rows[0][0]))
        return {}

    def end(self, table: str, partition: int | None = None) -> int:
        """Return the offset after the last record of a table; of norms in one partition."""
        with self._reading():
            query = f"SELECT max(offset) FROM {table} WHERE ?1 IS NULL OR partition = ?1"
            ((last,),) = self._rows(query, partition)
            return 0 if last is None else last + 1

    def read(
        self, table: str, begin: int, end: int, partition: int | None = None, checked: bool = True
    ) -> list[FileRecord]:
        """Return the first records of a stretch of a table with offsets.

        Args:
            partition: only this one's records; required for norms.
            checked: whether to compare the records with their digests.

        Raises:
            UnusableFile: a record is not what was written.
        """
        key = "NULL" if table == NORMS else "CAST(key AS BLOB)"
        query = f"SELECT partition, offset, CAST(written AS REAL), {key}, CAST(value AS BLOB), "
        query += f"digest FROM {table} "
        query += "WHERE offset >= ? AND offset < ?"
        given: tuple[int, ...] = (begin, end)
        if partition is not None:
            query, given = f"{query} AND partition = ?", (*given, partition)
        records: list[FileRecord] = []
        size = 0
        with (
            self._reading(),
            closing(self._database.execute(f"{query} ORDER BY offset", given)) as cursor,
        ):
            for *row, digest in cursor:
                record = FileRecord(*row)
                is_damaged = digest != _digest(table, *row)
                if checked and is_damaged:
                    detail = f"a record of {table} at offset {record.offset}"
                    raise UnusableFile(self.path, FileProblem.DAMAGED, detail)
                records.append(record._replace(is_damaged=is_damaged))
                size += len(record.value or b"")
                if len(records) >= _READ_RECORDS or size >= _READ_BYTES:
                    break
        return records

    def copy(self, path: str) -> None:
        """Write a new file with the contents of one moment, readable by its owner only.

        Raises:
            UnusableFile: this file cannot be read, or the new one exists or cannot be written.
        """
        with self._reading():
            self._file()  # from here on no commit of another process can take place
            self._check_journal()
            try:
                with _new_database(path) as copy:
                    self._database.backup(copy)
            except FileExistsError as error:
                raise UnusableFile(path, FileProblem.EXISTS) from error

    def freeze(self) -> None:
        """Read a private copy of this moment from now on, whatever other processes charge.

        Keeping the read transaction open instead would keep them from charging.
        """
        with self._reading():
            self._file()  # from here on no commit of another process can take place
            # Without a name, SQLite deletes the copy when it is closed.
            copy = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            try:
                self._database.backup(copy)
            except BaseException:
                copy.close()
                raise
        with self._lock:
            self._database.close()
            self._database = copy

    def moved_to(self) -> bytes | None:
        """Return the id of the log that continues this one; None if there is none."""
        with self._reading():
            return self._file()[2]

    def check_moved(self, *allowed: bytes | None) -> None:
        """Check that the log was not moved to another log than the allowed ones.

        Raises:
            UnusableFile: it was.
        """
        topic = self.moved_to()
        if topic is not None and topic not in allowed:
            detail = f"its log continues as {topic.hex()}"
            raise UnusableFile(self.path, FileProblem.MOVED, detail)

    def apply(
        self, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Sequence[Output]]:
        """Append requests to the log and return what they led to, after it is committed.

        Raises:
            DecisionTimeout: they did not finish before the deadline; nothing was changed.
            UnusableFile: the file cannot be used now; nothing was changed.
            ServiceUnavailable: the ledger cannot apply the requests here; nothing was changed.
            Unusable: an earlier commit failed, or this one did and may have taken place.
        """
        with self._writing(deadline):
            self.check_moved()
            written = time()
            try:
                return {
                    partition: self._append(partition, request, written)
                    for partition, request in requests.items()
                }
            except PartitionError as error:
                raise ServiceUnavailable(str(error)) from error

    def add_answer_tables(self) -> None:
        """Create the tables of answerers, unless the file has them.

        Raises:
            DecisionTimeout, UnusableFile, Unusable: as ``apply``.
        """
        with self._writing(Deadline.after(self._timeout)):
            self.check_moved()
            for statement in _ANSWER_TABLES:
                self._database.execute(statement)

    def has_answers(self) -> bool:
        """Return whether an answerer has used the file."""
        with self._reading():
            return bool(self._rows(f"SELECT 1 FROM sqlite_master WHERE name = '{ANSWERS}'"))

    def add(self, table: str, key: bytes, value: bytes, *, obsolete: Iterable[bytes] = ()) -> None:
        """Append a record to a table of answerers, and return after it is committed.

        Args:
            obsolete: the keys of entries of ``answers_state`` that are deleted together with this.

        Raises:
            DecisionTimeout, UnusableFile, Unusable: as ``apply``.
        """
        with self._writing(Deadline.after(self._timeout)):
            self.check_moved()
            self._insert(table, 0, time(), [(key, value)])
            self._delete(ANSWERS_STATE, obsolete)

    @contextmanager
    def moving(self, topic: bytes, instead_of: bytes | None = None) -> Iterator[None]:
        """Record that the log moves to another one, and keep other processes out meanwhile.

        Args:
            topic: the id of the other log.
            instead_of: the id of a log to which it was to be moved before.

        Raises:
            DecisionTimeout: other processes use the file; nothing was changed.
            UnusableFile: it was moved to another log before.
        """
        with self._writing(Deadline.after(self._timeout)):
            self.check_moved(topic, instead_of)
            self.load()
            row = topic, _digest(self.topic, self.partitions, topic)
            self._database.execute("UPDATE file SET moved_to = ?, digest = ?", row)
        with self._writing(Deadline.after(self._timeout)):
            self.check_moved(topic)
            yield

    # --- within a transaction ---

    def _append(self, partition: int, request: bytes, written: float) -> list[Output]:
        """Apply a request, and write it with its outputs, and the pages if they are due."""
        # Step 2.
        part = self._caught_up(partition)
        # Step 3.
        offset = part.ledger.chain.last + 1
        outputs = part.apply(offset, request)
        row = partition, offset, written, request
        digest = _digest(NORMS, partition, offset, written, None, request)
        self._database.execute("INSERT INTO norms VALUES (?, ?, ?, ?, ?)", (*row, digest))
        for channel in dict.fromkeys(output.channel for output in outputs):
            self._publish(channel, partition, outputs, written)
        if part.is_due:
            self._merge(part)
        meta = with_meta_digest(part.pages | _reached(part.ledger.chain))
        metas = partition, json.dumps(meta), json.dumps(part.pages)
        self._database.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", metas)
        return outputs

    def _publish(
        self, channel: Channel, partition: int, outputs: Sequence[Output], written: float
    ) -> None:
        records = [output for output in outputs if output.channel is channel]
        kept = [record for record in records if tombstone_offset(record.value) is None]
        self._insert(channel.value, partition, written, [(r.key, r.value) for r in kept])
        if len(kept) < len(records):
            erased = [r.key for r in records if tombstone_offset(r.value) is not None]
            self._delete(channel.value, erased)

    def _insert(
        self, table: str, partition: int, written: float, records: Sequence[tuple[Any, bytes]]
    ) -> None:
        """Append records, as pairs of a key and a value."""
        # Never an offset of a deleted record, either: a reader may be there.
        query = "SELECT max((SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = "
        query += f"'{table}'), (SELECT ifnull(max(offset), 0) FROM {table})) + 1"
        first = self._rows(query)[0][0] if records else 0
        rows = ((partition, n, written, *record) for n, record in enumerate(records, first))
        self._database.executemany(
            f"INSERT OR REPLACE INTO {table} (partition, offset, written, key, value, digest) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            ((*row, _digest(table, *row)) for row in rows),
        )

    def _delete(self, table: str, keys: Iterable[bytes | None]) -> None:
        statement = f"DELETE FROM {table} WHERE key = ?"
        self._database.executemany(statement, ((key,) for key in keys))

    def _merge(self, part: _Partition) -> None:
        """Write the pages that have changed."""
        state, chain = part.ledger.state, part.ledger.chain
        partition = state.partition
        if not part.pages:
            self._database.execute("DELETE FROM pages WHERE partition = ?", (partition,))
        elif not self._digest_of_pages(partition).items() <= part.pages.items():
            # The pages that are written below would get a digest without those that are gone.
            raise ServiceUnavailable(
                f"pages of partition {partition} in {self.path} are not those that were written. "
                "Nothing was charged. Repeat the call: the pages are rebuilt from the log"
            )
        for name in state.unmerged():
            page = state.take_page(name)
            if page is None:
                query = "DELETE FROM pages WHERE partition = ? AND name = ?"
                self._database.execute(query, (partition, name))
                continue
            packed = pack_page(chain.last + 1, page)
            row = partition, name, page_hash(name, packed).to_bytes(16, "big"), packed
            self._database.execute("INSERT OR REPLACE INTO pages VALUES (?, ?, ?, ?)", row)
        meta = fields_of_nothing(self.topic, partition, self.partitions) | _reached(chain)
        meta |= self._digest_of_pages(partition)
        part.pages = with_meta_digest(meta | {"since": meta["next"]})
        part.unmerged = 0

    def _digest_of_pages(self, partition: int) -> dict[str, str]:
        """Return the fields of a meta that say which pages there are."""
        query = "SELECT hash FROM pages WHERE partition = ?"
        hashes = [int.from_bytes(hashed, "big") for (hashed,) in self._rows(query, partition)]
        return {"pages": str(len(hashes)), "digest": hexadecimal(digest_of(hashes))}

    def _caught_up(self, partition: int) -> _Partition:
        """Return a partition in the state of the file.

        Records of other processes are applied. If another process has written pages, they are
        loaded: accrued charges are stored with the step up to which they are counted, so pages of
        two processes would not fit together.

        Raises:
            UnusableFile: the file was replaced, or is damaged.
        """
        part = self._partitions.get(partition)
        known = part.ledger.chain if part else self._known.get(partition)
        if part and part.pages in ({}, self.fields(partition, "pages")):
            with suppress(Damaged):  # ``_loaded`` says what is damaged
                return self._with_rest(part)
        part = self._partitions[partition] = self._loaded(partition)
        chain = known or part.ledger.chain
        while records := self.read(NORMS, chain.last + 1, part.ledger.chain.last + 1, partition):
            for record in records:
                chain = chain.after(record.offset, record.value)
        if chain != part.ledger.chain:
            detail = f"partition {partition} has another log than before"
            raise UnusableFile(self.path, FileProblem.REPLACED, detail)
        return part

    def _loaded(self, partition: int) -> _Partition:
        """Return a partition as the pages and the log have it, or the log if those are damaged.

        Raises:
            UnusableFile: the log is damaged, too, or another release wrote the state.
            ServiceUnavailable: the ledger cannot apply the log here.
        """
        try:
            return self._continued(self._stored_pages(partition), partition)
        except UnknownState as error:
            raise UnusableFile(self.path, FileProblem.OTHER_LAYOUT, str(error)) from error
        except CannotVerify as error:
            raise ServiceUnavailable(str(error)) from error
        except _UNLOADABLE as error:
            damage = error
        try:
            ledger = Ledger(partition, self.partitions, self.topic)
            part = self._with_rest(_Partition(ledger, {}))
        except (Damaged, PartitionError) as error:
            detail = f"partition {partition}: {damage}; {error}"
            raise UnusableFile(self.path, FileProblem.DAMAGED, detail) from error
        text = "%s: the state of partition %d is damaged (%s), and is rebuilt from the log"
        logger.warning(text, self.path, partition, damage)
        return part

    def _stored_pages(self, partition: int) -> StoredState:
        """Return the pages of a partition, which the log continues.

        Raises:
            Damaged: they are not what was written, or not of this log.
        """
        rows = self._rows("SELECT name, page FROM pages WHERE partition = ?", partition)
        stored = verified(self.fields(partition, "pages"), dict(rows), (), {})
        found, chain = stored.meta, stored.meta.chain
        if (found.topic, found.partitions) != (self.topic.hex(), self.partitions):
            raise Damaged("the state is of another log")
        last = self.read(NORMS, chain.last, chain.last + 1, partition)
        if [chain.ends_with(record.value) for record in last] != [True] * (chain.last >= 0):
            raise Damaged("the log does not have the last record of the pages")
        return stored

    def _continued(self, stored: StoredState, partition: int) -> _Partition:
        """Return a partition with the state of its pages and of the log after them."""
        place = partition, self.partitions, self.topic
        ledger = ledger_of(stored, *place, stored.meta.chain)
        return self._with_rest(_Partition(ledger, stored.fields))

    def _with_rest(self, part: _Partition) -> _Partition:
        """Apply the rest of the log.

        Raises:
            Damaged: a record is missing, or the last one is not the last one that was applied.
            PartitionError: the ledger cannot apply it.
        """
        partition, ledger = part.ledger.state.partition, part.ledger
        while records := self.read(NORMS, ledger.chain.last + 1, NO_END, partition):
            for record in records:
                if record.offset != ledger.chain.last + 1:
                    raise Damaged(f"the log has no record {ledger.chain.last + 1}")
                part.apply(record.offset, record.value)
        meta = self.fields(partition)
        log = {"topic": self.topic.hex(), **chain_fields(ledger.chain)}
        if is_whole(meta) and not log.items() <= meta.items():  # otherwise it proves nothing
            raise Damaged("the log does not end with the last applied record")
        return part

    # --- opening, locking and errors ---

    def _place(self, missing: FileProblem) -> tuple[tuple[int, int], bool]:
        """Return the device and the number of the file, and whether it can be written.

        Raises:
            UnusableFile: there is no such file, or it cannot be used.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            raise UnusableFile(self.path, missing) from None
        except (OSError, ValueError) as error:  # ValueError: no name of a file
            raise UnusableFile(self.path, FileProblem.UNREADABLE, str(error)) from error
        if not stat.S_ISREG(found.st_mode):
            raise UnusableFile(self.path, FileProblem.UNREADABLE, "it is not a file")
        if found.st_size == 0:
            raise UnusableFile(self.path, FileProblem.DAMAGED, "it is empty")
        may_write = all(os.access(p, os.W_OK) for p in (self.path, Path(self.path).parent))
        may_write &= bool(found.st_mode & stat.S_IWUSR)  # which root may write anyway
        return (found.st_dev, found.st_ino), may_write

    def _check_release(self) -> None:
        """Check that this release has written the file."""
        headers = ("application_id", "user_version")
        application, layout = (self._pragma(name) for name in headers)
        if application != APPLICATION:
            raise UnusableFile(self.path, FileProblem.FOREIGN)
        if layout != VERSION:
            detail = f"its layout is {layout}, and this release reads {VERSION}"
            raise UnusableFile(self.path, FileProblem.OTHER_LAYOUT, detail)

    def _check_journal(self) -> None:
        """Check that no charge would be in a second file only, which a copy would lack."""
        if self._pragma("journal_mode") == "wal":
            raise UnusableFile(self.path, FileProblem.WRITE_AHEAD)

    def _file(self) -> tuple[bytes, int, bytes | None]:
        """Return the id of the log, P, and the id of the log to which it was moved."""
        rows = self._rows("SELECT topic, partitions, moved_to, digest FROM file")
        if len(rows) != 1 or _digest(*rows[0][:3]) != rows[0][3]:
            raise UnusableFile(self.path, FileProblem.DAMAGED, "the table file")
        topic, partitions, moved_to, _ = rows[0]
        return topic, partitions, moved_to

    def _pragma(self, text: str) -> Any:
        rows = self._rows(f"PRAGMA {text}")
        return rows[0][0] if rows else None

    def _rows(self, query: str, *given: int | None) -> list[Any]:
        """Return all rows. A cursor that stays open would keep other processes from committing."""
        with closing(self._database.execute(query, given)) as cursor:
            return cursor.fetchall()

    @contextmanager
    def _held(self, deadline: Deadline) -> Iterator[None]:
        """Use the database in this thread only, and wait for other processes."""
        if not self._lock.acquire(timeout=deadline.left()):
            raise self._timed_out(deadline)
        try:
            if self._failure:
                raise Unusable(self._failure)
            self._wait_until(deadline)
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the second: in a message of SQLite
            raise self._problem(error) from error
        finally:
            self._lock.release()

    def _wait_until(self, deadline: Deadline) -> None:
        """Make SQLite wait for the locks of other processes until a deadline."""
        self._pragma(f"busy_timeout = {int(1000 * min(deadline.left(), _LONGEST_WAIT))}")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read the file as of one moment."""
        with self._held(Deadline.after(self._timeout)):
            if self._database.in_transaction:  # of this thread
                yield
                return
            self._database.execute("BEGIN")
            try:
                yield
            finally:
                self._database.rollback()

    @contextmanager
    def _writing(self, deadline: Deadline) -> Iterator[None]:
        """Hold the only write transaction on the file."""
        with self._held(deadline):
            if self._database.in_transaction:  # its rollback would undo half of the outer call
                raise InvalidRequest(
                    f"a signal handler changes {self.path} while a call of the same thread uses "
                    "it: let the handler set a flag, and do this after the call"
                )
            place, may_write = self._place(FileProblem.REPLACED)
            if place != self._opened:
                raise UnusableFile(self.path, FileProblem.REPLACED)
            if not may_write:
                raise UnusableFile(self.path, FileProblem.READ_ONLY)
            committing = False
            try:
                # Step 1.
                self._database.execute("BEGIN IMMEDIATE")
                self._check_journal()  # other programs cannot change the mode until the commit
                yield
                # Step 4.
                self._wait_until(deadline)
                committing = True
                self._database.execute("COMMIT")
                self._known |= {p: part.ledger.chain for p, part in self._partitions.items()}
            except BaseException as error:
                self._partitions = {}
                # Set first: an interrupt of the next lines leaves the state as uncertain.
                self._failure = (
                    f"writing {self.path} was interrupted ({error!r}), so it is unknown whether "
                    "the last step was charged. Release nothing. Open the file and the run again"
                )
                with suppress(sqlite3.Error):
                    self._database.rollback()
                is_known = not committing or _code(error) in _NOT_COMMITTED
                if is_known and not self._database.in_transaction:
                    self._failure = ""
                elif isinstance(error, sqlite3.Error):
                    raise Unusable(self._failure) from error
                if _code(error) in _BUSY:
                    raise self._timed_out(deadline) from error
                raise

    def _timed_out(self, deadline: Deadline) -> DecisionTimeout:
        return DecisionTimeout(
            f"other processes or threads used {self.path} for {deadline.seconds:g} s, so nothing "
            "was charged. Repeat exactly the same request"
        )

    def _problem(self, error: Exception) -> UnusableFile:
        return UnusableFile(self.path, _problem(error), str(error))


def _reached(chain: HashChain) -> dict[str, str]:
    """Return the fields of a meta that say up to which record it is."""
    following = str(chain.last + 1)
    return {"next": following, "version": following, **chain_fields(chain)}


_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)  # the second at a quota or size limit
_NOT_COMMITTED = (*_BUSY, *_FULL)
"""A commit that fails with these has not taken place: SQLite writes before it deletes the journal,
which is the commit."""
_PROBLEMS = {
    sqlite3.SQLITE_NOTADB: FileProblem.FOREIGN,
    sqlite3.SQLITE_READONLY: FileProblem.READ_ONLY,
    **dict.fromkeys(_FULL, FileProblem.FULL),
    **dict.fromkeys(_BUSY, FileProblem.BUSY),
    **dict.fromkeys(
        (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM),
        FileProblem.UNREADABLE,
    ),
}
"""The problem by the error code of SQLite; others mean that the contents are damaged."""


def _code(error: BaseException) -> int:
    """Return the primary error code of SQLite; for a failed write the extended one."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code if code == sqlite3.SQLITE_IOERR_WRITE else code & 0xFF


def _problem(error: Exception) -> FileProblem:
    if not isinstance(error, sqlite3.Error | UnicodeDecodeError):
        is_full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return FileProblem.FULL if is_full else FileProblem.UNREADABLE
    return _PROBLEMS.get(_code(error), FileProblem.DAMAGED)


_open_files: WeakSet[BudgetFile] = WeakSet()


def _before_fork() -> None:
    """Wait for all transactions: a copy of the process would undo one that it finds open."""
    for file in list(_open_files):
        file._lock.acquire()
        _held_by_fork.append(file)


def _after_fork() -> None:
    while _held_by_fork:
        _held_by_fork.pop()._lock.release()


_held_by_fork: list[BudgetFile] = []
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
