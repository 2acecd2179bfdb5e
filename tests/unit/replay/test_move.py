"""A budget file becomes the log of a service, once, and is charged no more."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streams import FileProblem, Turnstile, Unusable, UnusableFile
from streams.answerer.file_journal import FileJournal, copy_answers
from streams.answerer.journal import JournalEntry
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.failures import Exit
from streams.records.digests import genesis
from streams.replay.archive import ArchivedRecord, BrokenLog, CannotMove, UnreadableService
from streams.replay.file import FileArchive
from streams.replay.move import MovedPartition, move
from streams.replay.verify import verify
from tests.integration.command import turnstile
from tests.unit.replay.service import Archived
from tests.unit.sdk import files

P = 2
OTHER = bytes(range(16))


class Service:
    """A service without a log, whose worker applies what is appended.

    Attributes:
        fails_after: the number of records after which the broker is gone.
        archive: its topics and its state.
        topics: those of answerers.
    """

    def __init__(self, partitions: int = P, **options: Any) -> None:
        self.archive = Archived(partitions, **options)
        self.fails_after = 10_000
        self.topics = MemoryTopics()

    def append(self, partition: int, records: Iterable[ArchivedRecord]) -> None:
        for record in records:
            if self.fails_after == 0:
                raise UnreadableService("gone")
            self.fails_after -= 1
            self.archive.apply(partition, record.value)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file in which everybody has spent half of the budget."""
    monkeypatch.setattr(sqlite3, "connect", files.connect)
    path = tmp_path / "budgets.db"
    with Turnstile.open(path, partitions=P) as t:
        t.create_dataset("d", measure="zcdp", budget=0.125)
        charge(t)
        charge(t)
    return path


def charge(t: Turnstile) -> bool:
    run = t.run("d", "r")
    return bool(run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all())


def moved(path: Path, service: Any, instead_of: bytes | None = None) -> list[MovedPartition]:
    with closing(FileArchive(str(path), 30.0, writable=True)) as file:
        copy = partial(copy_answers, file.file, partial(MemoryJournal, service.topics))
        options: Any = {"copy": copy, "instead_of": instead_of, "tell": lambda _: None}
        return move(file, service.archive, service.append, **options)


def assert_refuses(path: Path) -> None:
    """Assert that a file can be read and not be charged."""
    with Turnstile.open(path) as t:
        for call in (
            lambda: t.run("d", "r"),
            lambda: t.create_dataset("e", measure="zcdp", budget=1.0),
        ):
            with pytest.raises(UnusableFile) as raised:
                call()
            assert raised.value.problem is FileProblem.MOVED
        assert len(list(t.odometer(follow=False))) == 10
    environment = {"TURNSTILE_BUDGETS": str(path)}
    for command in (["balance", "d", "--user", "3"], ["gateway"]):
        done = turnstile(*command, environment=environment)
        assert done.code == Exit.UNAVAILABLE, "the service may have charged the user since"
    for words in ("show d", "list"):
        done = turnstile("dataset", *words.split(), environment=environment)
        assert (done.code, "use the service" in done.said) == (Exit.OK, True)
    done = turnstile("status", "--json", environment=environment)
    assert done.code == Exit.UNAVAILABLE
    assert [(line["state"], line["reason"]) for line in done.lines] == [("waiting", "moved")] * P


def assert_continues(service: Service) -> None:
    """Assert that the service has the log, and that half of each budget is left."""
    assert verify(service.archive).wrong == 0
    with Turnstile(connection=service.archive) as t:
        assert t.run("d", "r").step == 2
        assert [charge(t) for _ in range(3)] == [True, True, False]


def publish_answer(path: Path) -> None:
    with closing(FileJournal(str(path), 30.0, "d")) as journal:
        journal.append(JournalEntry("answered", "d", "r", 1, "owner", 0, answers_end=7))
        journal.publish(b"answer", "r")


def test_answers_and_journal_are_there_before_the_log(path: Path) -> None:
    publish_answer(path)
    service = Service()
    service.fails_after = 0
    with pytest.raises(UnreadableService):
        moved(path, service)
    assert service.topics.answers == [("d/r", b"answer")]
    assert service.topics.entries == [JournalEntry("answered", "d", "r", 1, "owner", 0)]
    service.fails_after = 10_000
    moved(path, service)
    assert_continues(service)
    with pytest.raises(UnusableFile) as raised:
        publish_answer(path)
    assert raised.value.problem is FileProblem.MOVED


@pytest.mark.parametrize("table", ["answers", "answers_state"])
def test_file_with_a_damaged_answer_is_not_moved(path: Path, table: str) -> None:
    publish_answer(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE {table} SET value = zeroblob(9)")
    service = Service()
    with pytest.raises(BrokenLog):
        moved(path, service)
    assert service.topics.answers == []
    with Turnstile.open(path) as t:
        assert charge(t)


def test_moved_file_continues_in_the_service_and_nowhere_else(path: Path) -> None:
    service = Service()
    parts = moved(path, service)
    assert_refuses(path)
    with closing(FileArchive(str(path), 30.0)) as file:
        for partition, part in enumerate(parts):
            records = list(file.read("norms", partition, file.extent("norms", partition)))
            chain = genesis(service.archive.topic, partition, P)
            for record in records:
                chain = chain.after(record.offset, record.value)
            (stored,) = file.heads(partition)
            assert part == (partition, len(records), stored.head, chain.head)
            assert chain == service.archive.ledgers[partition].chain
    assert moved(path, service) == parts, "the same command again changes nothing"
    assert_continues(service)
    assert moved(path, service) == parts, "also behind later records"
    service.archive.trim("norms", 0, 1)
    with pytest.raises(CannotMove):
        moved(path, service)
    with pytest.raises(UnusableFile):
        moved(path, Service(topic=OTHER))


@pytest.mark.parametrize("count", [0, 1, 5, 9])
def test_interrupted_move_is_continued(path: Path, count: int) -> None:
    service = Service()
    service.fails_after = count
    with pytest.raises(UnreadableService):
        moved(path, service)
    assert_refuses(path)
    service.fails_after = 10_000
    moved(path, service)
    assert_continues(service)


@pytest.mark.parametrize("statement", ["UPDATE file SET moved_to", "COMMIT"])
def test_move_that_cannot_be_recorded_appends_nothing(path: Path, statement: str) -> None:
    service = Service()
    failing = files.failing(files.error_of(sqlite3.SQLITE_IOERR), before=statement)
    with failing, pytest.raises((Unusable, UnusableFile)):
        moved(path, service)
    assert service.archive.topics == {}
    with Turnstile.open(path) as t:
        assert charge(t)


def test_used_service_is_rejected_and_the_file_stays_usable(path: Path) -> None:
    service = Service()
    service.archive.apply(1, b"garbage")
    with pytest.raises(CannotMove):
        moved(path, service)
    with pytest.raises(CannotMove):
        moved(path, Service(partitions=3))
    with Turnstile.open(path) as t:
        assert charge(t)


def test_service_with_other_writers_is_given_up(path: Path) -> None:
    service = Service()
    service.fails_after = 1
    with pytest.raises(UnreadableService):
        moved(path, service)
    service.fails_after = 10_000
    service.archive.apply(0, b"garbage")
    with pytest.raises(CannotMove):
        moved(path, service)
    assert_refuses(path)
    other = Service(topic=OTHER)
    with pytest.raises(UnusableFile):
        moved(path, other)
    assert other.archive.topics == {}
    moved(path, other, instead_of=service.archive.topic)
    assert_continues(other)
    with pytest.raises(CannotMove):
        moved(path, service)


def test_log_that_was_changed_in_the_file_is_not_moved(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("UPDATE norms SET value = zeroblob(9) WHERE offset = 1")
    database.close()
    service = Service()
    with pytest.raises(BrokenLog):
        moved(path, service)
    assert service.archive.topics == {}
    with closing(FileArchive(str(path), 30.0)) as file:
        assert file.file.moved_to() is None


def test_charge_while_the_file_is_checked_is_moved_as_well(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = FileArchive.heads

    def charged(file: FileArchive, partition: int) -> Any:
        monkeypatch.setattr(FileArchive, "heads", heads)
        found = heads(file, partition)
        with Turnstile.open(path) as t:
            assert charge(t)
        return found

    monkeypatch.setattr(FileArchive, "heads", charged)
    service = Service()
    moved(path, service)
    with Turnstile(connection=service.archive) as t:
        assert t.run("d", "r").step == 3


def test_charge_while_the_file_is_verified_is_no_finding(path: Path) -> None:
    with closing(FileArchive(str(path), 30.0)) as file:
        extents = [file.extent("odometer", p) for p in range(P)]
        with Turnstile.open(path) as t:
            assert charge(t)
        last = [r for p, e in enumerate(extents) for r in file.read("odometer", p, e)]
        assert len(last) == 10
        assert verify(file).fits


@pytest.mark.parametrize("column", ["written", "digest"])
@pytest.mark.parametrize("table", ["norms", "halts", "odometer"])
def test_damage_that_no_output_depends_on_is_found(path: Path, table: str, column: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            f"UPDATE {table} SET {column} = 7 WHERE rowid = (SELECT min(rowid) FROM {table})"
        )
    with closing(FileArchive(str(path), 30.0)) as file:
        assert verify(file).wrong
