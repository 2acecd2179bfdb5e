"""One flipped bit in stored state: it is refused as damaged, or repaired to the same state.

``python -m tests.flips 10000`` flips as many bits, half of them in a service and half in a budget
file, and prints how many were refused and how many changed nothing that anybody sees.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from copy import deepcopy
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from streams import FileProblem, Turnstile, UnusableFile
from streams.answerer.file_journal import FileJournal
from streams.answerer.journal import JournalEntry, key_of
from streams.config import Unavailable
from streams.kafka.results import TopicsSeen
from streams.ledger.ledger import Ledger
from streams.operations.run_progress import runs_of
from streams.operations.status import datasets_of, overview_of
from streams.sdk import budget_file
from streams.store.snapshot import deletable
from streams.store.store_port import SuspensionReason
from streams.worker import processor
from tests.bits import flipped, flipped_text
from tests.doubles.memory_broker import MemoryBroker, last_snapshot
from tests.doubles.memory_store import Contents
from tests.spending import spent_units
from tests.unit.ledger.ledgers import Log
from tests.unit.sdk import files
from tests.unit.worker.processors import Ended, run_in_virtual_time
from tests.unit.worker.test_ownership import Cluster, Worker

REFUSED, SAME = "refused", "the same"
_DAMAGE = {SuspensionReason.DAMAGED, SuspensionReason.SNAPSHOT, SuspensionReason.LOG_BEGINS_LATE}


# --- a service ---


@dataclass
class Service:
    """A decided service: its topics, its store, and the ledger that a worker must find."""

    broker: MemoryBroker
    contents: Contents
    ledger: Ledger

    def cluster(self, contents: Contents) -> Any:
        """Return a copy whose store has these contents in partition 0."""
        cluster = Cluster()
        cluster.broker = deepcopy(self.broker)
        cluster.store.restore({0: contents})
        return cluster


def requests() -> Log:
    """Return a log with charges that halt some users, a closed run and an open one."""
    log = Log(partitions=2)
    log.create(budget=1.0)
    log.open()
    for step in range(9):
        log.charge(step, [f"user {n}" for n in range(12)], [0.2 + 0.11 * n for n in range(12)])
    log.close()
    log.open(run="q", request="another")
    log.charge(0, ["user 3", "user 99"], [0.5, 0.6], run="q")
    return log


async def decided(log: Log) -> Service:
    """Return a service with pages, deltas, an outbox, heartbeats and a snapshot before the end."""
    cluster: Any = Cluster()
    cluster.broker = MemoryBroker(2)
    for number, value in enumerate(log.records):
        with patch.object(processor, "FORGET_AFTER", 3600.0):
            cluster.broker.norms(0).append(value)
            if number in (6, len(log.records) - 1):
                worker: Any = Worker(cluster, f"worker {number}")
                await reached(worker)
                owned = worker.partitions.by_partition[0]
                if number == 6:
                    await owned.merge()
                    await owned.snapshot()
                await owned.heartbeat.beat(cluster.end(0))
                await worker.leave()
    ledger = worker_ledger(owned)
    await cluster.store.keep_suspension(0, "damaged", "a problem", "a remedy")
    return Service(cluster.broker, cluster.store.contents(0), ledger)


def worker_ledger(owned: Any) -> Ledger:
    ledger: Ledger = owned.ledger
    return ledger


async def reached(worker: Any) -> bool:
    """Let a worker decide partition 0; return whether it is not suspended."""
    await worker.acquire()
    if 0 not in worker.positions:
        return False
    await worker.deliver(0)
    while worker.partitions.by_partition[0].next < worker.cluster.end(0):
        worker.ends.refuse()
        await asyncio.sleep(0.01)
    return True


def content(ledger: Ledger) -> Any:
    """Return what every user has spent, and all runs, policies and erased users."""
    state, spent = ledger.state, {}
    for name, accounts in state.datasets.items():
        users, units = spent_units(accounts)
        spent[name] = list(zip(users, units.tolist(), strict=True))
    return spent, dict(state.runs), dict(state.policies), dict(state.erased)


def _flips_of_contents(contents: Contents, rng: Random) -> tuple[str, Contents]:
    """Return what was flipped, and contents with that bit flipped."""
    changed = contents.copy()
    name = rng.choice([f.name for f in fields(Contents) if getattr(contents, f.name)])
    kept = getattr(changed, name)
    if isinstance(kept, list):
        at = rng.randrange(len(kept))
        kept[at] = flipped(kept[at], rng)
        return name, changed
    entry = rng.choice(sorted(kept))
    value = kept.pop(entry)
    if rng.random() < 0.1 or not value:
        kept[flipped_text(entry, rng)] = value
        return f"the name of {entry} in {name}", changed
    kept[entry] = flipped_text(value, rng) if isinstance(value, str) else flipped(value, rng)
    return f"{name} {entry}", changed


def flip_in_store(service: Service, rng: Random) -> tuple[str, str]:
    """Flip one bit in Redis; return what it was in, and what came of it."""
    what, contents = _flips_of_contents(service.contents, rng)
    return what, run_in_virtual_time(_outcome(service, service.cluster(contents)))


def flip_in_snapshots(service: Service, rng: Random) -> tuple[str, str]:
    """Flip one bit in the topic ``snapshots``, after Redis was emptied or the log trimmed, too."""
    cluster = service.cluster(Contents())
    snapshot = last_snapshot(cluster.broker, 0)
    assert snapshot is not None
    if rng.random() < 0.5:
        cluster.broker.norms(0).delete_before(deletable(snapshot))
    records = cluster.broker.snapshots(0).records
    offset = rng.choice([n for n, (_, value) in records.items() if value])
    key, value = records[offset]
    if rng.random() < 0.1:
        records[offset] = flipped(key, rng), value
    else:
        records[offset] = key, flipped(value, rng)
    return f"snapshots {key!r}", run_in_virtual_time(_outcome(service, cluster))


async def _outcome(service: Service, cluster: Any) -> str:
    _look(service, await cluster.store.glance(0))
    worker: Any = Worker(cluster, "after")
    try:
        is_decided = await reached(worker)
        if not is_decided:
            reason = cluster.store.contents(0).suspended["reason"]
            assert reason in _DAMAGE, f"suspended because of {reason}"
            return REFUSED
        found = worker.partitions.by_partition[0].ledger
        assert content(found) == content(service.ledger)
        assert found.chain == service.ledger.chain
        return SAME
    finally:
        await worker.leave()


def _look(service: Service, glance: Any) -> None:
    """Read what ``status`` reads. Nothing in it may be an error without a name."""
    seen = TopicsSeen(service.broker.topic, 2, None)
    end = service.broker.norms(0).end
    overview_of("t.", seen, [(0, end)], [glance])
    datasets_of([glance])
    with suppress(Unavailable):  # it says that there is no summary yet
        runs_of([glance], [end])


# --- a budget file ---


@dataclass
class File:
    """A budget file, and what an intact one shows and decides."""

    path: Path
    shown: Any


def charged_file(folder: Path) -> File:
    """Return a file with pages, records after them, halts, a closed run, and answers."""
    path = folder / "intact.db"
    with (
        patch.object(budget_file, "MERGE_RECORDS", 4),
        Turnstile.open(path, partitions=2) as turnstile,
    ):
        turnstile.create_dataset("d", measure="zcdp", budget=0.3)
        run = turnstile.run("d", "r")
        for _ in range(7):
            run.charge(_USERS, _NORMS, noise_stddev=4.0)
        run.close()
        turnstile.run("d", "q").charge(_USERS, _NORMS, noise_stddev=9.0)
    with closing(FileJournal(str(path), 30.0, "d")) as journal:
        for step in range(4):
            journal.append(JournalEntry("closing", "d", "r", 1, "owner", step))
            journal.publish(b"answer %d" % step, "r")
    shutil.copy(path, folder / "shown.db")
    return File(path, shown(folder / "shown.db"))


_USERS = np.arange(14)
_NORMS = 0.3 + 0.1 * np.arange(14)


def shown(path: Path) -> Any:
    """Return what a client sees in a file, and what it decides next."""
    with Turnstile.open(path) as turnstile:
        halts = {(h.dataset, h.run, h.step, h.user) for h in turnstile.halts(follow=False)}
        spent = {(r.user, tuple(r.bound)) for r in turnstile.odometer(follow=False)}
        run = turnstile.run("d", "q", take_over=True)
        step = run.step
        decisions = [run.charge(_USERS, _NORMS, noise_stddev=5.0) for _ in range(3)]
    with closing(FileJournal(str(path), 30.0, "d")) as journal:
        entries, answers = set(map(key_of, journal.catch_up())), set(journal.published(0, "r"))
    return step, [list(d.admitted) for d in decisions], halts, spent, entries, answers


def _cells(path: Path) -> list[tuple[str, str, int]]:
    with sqlite3.connect(path) as database:
        tables = [n for (n,) in database.execute("SELECT name FROM sqlite_master WHERE sql > ''")]
        cells = [
            (table, column, rowid)
            for table in tables
            if not table.startswith("sqlite")
            for (_, column, *_) in database.execute(f"PRAGMA table_info({table})").fetchall()
            for (rowid,) in database.execute(
                f"SELECT rowid FROM {table} WHERE {column} IS NOT NULL"
            ).fetchall()
        ]
    database.close()
    return cells


def _flip_cell(path: Path, table: str, column: str, rowid: int, rng: Random) -> None:
    database = sqlite3.connect(path)
    try:
        where = f"FROM {table} WHERE rowid = {rowid}"
        ((value,),) = database.execute(f"SELECT {column} {where}").fetchall()
        changed, cast = value, "?"
        if isinstance(value, bytes):
            changed = flipped(value, rng) if value else b"\1"
        elif isinstance(value, str):
            changed, cast = flipped(value.encode(), rng), "CAST(? AS TEXT)"
        elif isinstance(value, float):
            (changed,) = struct.unpack(">d", flipped(struct.pack(">d", value), rng))
        else:
            changed = value ^ (1 << rng.randrange(40))
        database.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = {rowid}", (changed,))
        database.commit()
    except sqlite3.IntegrityError:
        pass  # another row has that key: no such damage can be made by a statement
    finally:
        database.close()


def flip_in_file(file: File, rng: Random) -> tuple[str, str]:
    """Flip one bit in a cell of a table, or anywhere in the file."""
    path = file.path.with_name("flipped.db")
    shutil.copy(file.path, path)
    problems = {FileProblem.DAMAGED}
    if rng.random() < 0.2:
        content = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        what = f"byte {bit // 8}"
        problems |= {FileProblem.FOREIGN, FileProblem.OTHER_LAYOUT}  # it was in the header
    else:
        cells = _cells(file.path)
        tables = sorted({table for table, _, _ in cells})
        table, column, rowid = rng.choice([c for c in cells if c[0] == rng.choice(tables)] or cells)
        _flip_cell(path, table, column, rowid, rng)
        what = f"{table}.{column}"
    try:
        found = shown(path)
    except UnusableFile as error:
        if error.problem not in problems:
            raise
        return what, REFUSED
    assert found[:2] == file.shown[:2]
    # A flipped bit in a page of SQLite can hide rows that nothing else refers to: ``verify`` misses
    # them. It cannot make other ones.
    for outputs, expected in zip(found[2:], file.shown[2:], strict=True):
        assert outputs == expected or (what.startswith("byte") and outputs < expected)
    return what, SAME


# --- both ---


def flips(count: int, seed: int) -> Iterator[tuple[str, Callable[[], tuple[str, str]]]]:
    """Yield a name and a flip, in turn in a store, in snapshots and in a budget file."""
    service = run_in_virtual_time(decided(requests()))
    with TemporaryDirectory() as folder, patch.object(sqlite3, "connect", files.connect):
        file = charged_file(Path(folder))
        for number in range(count):
            rng = Random(f"{seed} {number}")
            kind = (flip_in_store, flip_in_file, flip_in_store, flip_in_snapshots)[number % 4]
            target = file if kind is flip_in_file else service
            yield f"{seed}/{number}", lambda k=kind, t=target, r=rng: k(t, r)  # type: ignore[misc]


def main(count: int, seed: int = 0) -> int:
    """Flip bits, print what came of them, and return how many were wrong."""
    outcomes: Counter[str] = Counter()
    logging.disable()  # a line for each repair
    for name, flip in flips(count, seed):
        try:
            what, outcome = flip()
        except (Exception, Ended) as error:
            what, outcome = "?", f"WRONG: {type(error).__name__}"
            print(f"{name}: {error!r:.300}", flush=True)
        kind = what.split()[0].split(".")[0] if outcome in (REFUSED, SAME) else ""
        outcomes[f"{outcome} {kind}"] += 1
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:7} {outcome}")
    return sum(times for outcome, times in outcomes.items() if outcome.startswith("WRONG"))


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)))
