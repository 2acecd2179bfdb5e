"""Answers in a budget file: every window is charged and answered once, wherever a life ends."""

from __future__ import annotations

import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from streams import FileProblem, Turnstile, UnusableFile
from streams.answerer.file_journal import FileJournal, copy_answers, published_in
from streams.answerer.journal import JournalEntry, Superseded, key_of
from streams.answerer.memory_journal import MemoryJournal, MemoryTopics
from streams.answerer.published_answers import AnswerRecord
from streams.answerer.window_answering import AlreadyAnswered, Answering, opener
from streams.failures import Exit
from streams.records import Charge, decode_request
from streams.records.digests import charge_digest
from streams.sdk.budget_file import NORMS, BudgetFile
from streams.sdk.errors import Fenced
from tests.audit.budget_file import audit_file, records
from tests.bits import flipped
from tests.integration.command import Done, turnstile
from tests.unit.answerer.asking import asked_of, event, read
from tests.unit.answerer.blocks import EVENTS, TWO
from tests.unit.answerer.lives import Killed, by_step
from tests.unit.sdk import files

QUERIES = asked_of(TWO)
INPUT = [event(user, time) for user, time in EVENTS[:45]]
PARTITIONS = 2
COMMIT, WRITES = ("COMMIT",), ("BEGIN IMMEDIATE", "INSERT", "DELETE", "COMMIT")
POINTS = 2000  # more than a life passes


@dataclass
class Budgets:
    """A budget file, and the records that lives have announced."""

    path: Path
    announced: dict[int, set[bytes]] = field(default_factory=lambda: defaultdict(set))

    def create(self) -> None:
        with Turnstile.open(self.path, partitions=PARTITIONS) as t:
            t.create_dataset("d", measure="zcdp", budget=1000.0, user_ids="integer")

    def live(self) -> None:
        """Answer the whole input."""

        def announce(record: AnswerRecord) -> None:
            self.announced[record.step].add(msgspec.json.encode(record))

        with (
            Turnstile.open(self.path) as t,
            closing(FileJournal(str(self.path), 30.0, "d")) as journal,
        ):
            read(Answering(QUERIES, "x", opener(t, QUERIES), journal, announce), INPUT)

    def live_until(self, point: int, writes: tuple[str, ...], *, is_after: bool) -> bool:
        """Answer until killed before or after one of these statements; return whether it was."""
        passed = 0

        def around(sql: str) -> Iterator[None]:
            nonlocal passed
            passed += sql.startswith(writes)
            is_hit = passed == point and sql.startswith(writes)
            if is_hit and not is_after:
                raise Killed
            yield
            if is_hit and is_after:
                raise Killed

        try:
            with patch.object(files.Database, "around", staticmethod(around)):
                self.live()
        except Killed:
            return True
        return False

    def answers(self) -> dict[int, set[bytes]]:
        """Return the published answers by step."""
        with closing(BudgetFile(str(self.path), 30.0, writable=False)) as file:
            return by_step(published_in(file))

    def charges(self) -> dict[tuple[int, int], set[bytes]]:
        """Return the contents with which each step was charged, by partition and step."""
        found: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        with closing(BudgetFile(str(self.path), 30.0, writable=False)) as file:
            for partition in range(PARTITIONS):
                for record in records(file, NORMS, partition):
                    request = decode_request(record.value)
                    if isinstance(request, Charge):
                        found[partition, request.step].add(charge_digest(request))
        return dict(found)

    def spent(self) -> Any:
        with Turnstile.open(self.path) as t:
            return {(r.user, tuple(r.bound)) for r in t.odometer(follow=False)}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Budgets:
    """Return a file whose answerer was never interrupted."""
    with patch.object(sqlite3, "connect", files.connect):
        budgets = Budgets(tmp_path_factory.mktemp("calm") / "budgets.db")
        budgets.create()
        shutil.copy(budgets.path, budgets.path.with_name("new.db"))
        budgets.live()
    return budgets


@pytest.fixture
def budgets(calm: Budgets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Budgets:
    """Return a file with the same dataset in which nothing was answered."""
    monkeypatch.setattr(sqlite3, "connect", files.connect)
    shutil.copy(calm.path.with_name("new.db"), tmp_path / "budgets.db")
    return Budgets(tmp_path / "budgets.db")


def assert_same(budgets: Budgets, calm: Budgets) -> None:
    """Check that charges and steps are those of the calm file, each step with one answer."""
    answers = budgets.answers()
    assert answers.keys() == calm.answers().keys()
    assert all(len(values) == 1 for values in answers.values())
    for step, values in budgets.announced.items():
        assert values == answers[step]
    assert budgets.charges() == calm.charges()
    assert budgets.spent() == calm.spent()


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_life_that_ends_at_any_commit_is_continued(
    calm: Budgets, budgets: Budgets, *, is_after: bool
) -> None:
    new = budgets.path.read_bytes()
    points = 0
    for point in range(1, POINTS):
        budgets.path.write_bytes(new)
        budgets.announced.clear()
        if not budgets.live_until(point, COMMIT, is_after=is_after):
            break
        budgets.live()
        assert_same(budgets, calm)
        points += 1
    assert points > 3 * len(calm.answers())
    audit_file(budgets.path)


@pytest.mark.slow
def test_lives_that_end_again_and_again_reach_the_same_result(
    calm: Budgets, budgets: Budgets
) -> None:
    chance = Random(1)
    lives = 0
    while budgets.live_until(chance.randrange(1, 60), WRITES, is_after=chance.random() < 0.5):
        lives += 1
        assert lives < POINTS
    assert lives > 5
    assert_same(budgets, calm)
    audit_file(budgets.path)


def test_answerer_that_is_overtaken_answers_no_more(calm: Budgets, budgets: Budgets) -> None:
    with Turnstile.open(budgets.path) as t, closing(FileJournal(str(budgets.path), 30.0, "d")) as j:
        first = Answering(QUERIES, "x", opener(t, QUERIES), j)
        budgets.live()
        with pytest.raises((Superseded, Fenced)):
            read(first, INPUT)
    assert_same(budgets, calm)


@pytest.mark.parametrize("table", ["answers", "answers_state"])
@pytest.mark.parametrize("column", ["offset", "partition", "written", "key", "value", "digest"])
def test_changed_record_is_damage_and_never_another_answer(
    calm: Budgets, budgets: Budgets, table: str, column: str
) -> None:
    assert budgets.live_until(20, COMMIT, is_after=True)
    where = f"WHERE rowid = (SELECT max(offset) FROM {table})"
    with closing(sqlite3.connect(budgets.path)) as database, database:
        ((value,),) = database.execute(f"SELECT {column} FROM {table} {where}").fetchall()
        other = flipped(value, Random(column)) if isinstance(value, bytes) else value + 1
        database.execute(f"UPDATE {table} SET {column} = ? {where}", (other,))
    with pytest.raises(UnusableFile) as raised:
        (budgets.answers if table == "answers" else budgets.live)()
    assert raised.value.problem is FileProblem.DAMAGED
    with closing(sqlite3.connect(budgets.path)) as database, database:
        where = where.replace(f"max({column})", str(other)) if column == "offset" else where
        database.execute(f"UPDATE {table} SET {column} = ? {where}", (value,))
    budgets.live()
    assert_same(budgets, calm)


@pytest.mark.parametrize("point", [12, 13, 20, 21, 22, 23, 30, 1000])
def test_copied_journal_is_continued_elsewhere(calm: Budgets, budgets: Budgets, point: int) -> None:
    budgets.live_until(point, COMMIT, is_after=True)
    topics, before = MemoryTopics(), budgets.answers()
    topics.answers = [("another/run", b"{}")] * 5  # offsets there are others
    with closing(BudgetFile(str(budgets.path), 30.0)) as file:
        for _ in range(2):  # an interrupted copy is repeated
            assert copy_answers(file, partial(MemoryJournal, topics)) == len(before)
    with Turnstile.open(budgets.path) as t:
        other = replace(QUERIES, run="another")
        if before:
            with pytest.raises(AlreadyAnswered):
                Answering(other, "x", opener(t, other, take_over=True), MemoryJournal(topics, "d"))
        read(Answering(QUERIES, "x", opener(t, QUERIES), MemoryJournal(topics, "d")), INPUT)
    found = by_step(value for name, value in topics.answers if name == "d/r")
    assert found.keys() == calm.answers().keys()
    assert all(len(values) == 1 for values in found.values())
    assert found.items() >= before.items()
    assert (budgets.charges(), budgets.spent()) == (calm.charges(), calm.spent())


def test_each_dataset_gets_its_own_entries_and_answers(budgets: Budgets) -> None:
    entries = {name: JournalEntry("begin", name, "r", 1, name, 0) for name in ("d", "e")}
    for name in ("d", "e", "f", "d"):
        with closing(FileJournal(str(budgets.path), 30.0, name)) as journal:
            if name in entries:
                journal.append(entries[name])
            journal.publish(f"of {name}".encode(), "r")
    topics = MemoryTopics()
    with closing(BudgetFile(str(budgets.path), 30.0)) as file:
        assert copy_answers(file, partial(MemoryJournal, topics)) == 4
    of_each = [(f"{name}/r", f"of {name}".encode()) for name in "ddef"]
    assert sorted(topics.answers) == of_each
    assert set(map(key_of, filter(None, topics.entries))) == set(map(key_of, entries.values()))


# --- commands ---

DAYS, USERS = 40, 12
ASKED = """
dataset = "shop"
run = "year"

[input]
user = "user"
users = "integer"
time = "day"
start = 2026-01-01
end = 2026-02-10

[[query]]
name = "buyers"
kind = "distinct"
window = "1d"
active_windows = 10
correct = true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with queries, events and a budget file."""
    (tmp_path / "year.toml").write_text(ASKED)
    days = [f"2026-{1 + day // 31:02}-{1 + day % 31:02}" for day in range(DAYS)]
    rows = [
        f"{user},{day}" for n, day in enumerate(days) for user in range(USERS) if user % 3 or n % 3
    ]
    (tmp_path / "year.csv").write_text("\n".join(["user,day", *rows]) + "\n")
    done = on(tmp_path, "dataset", "create", "shop", "--epsilon", "1", "--delta", "1e-6")
    assert done.code == 0
    return tmp_path


def on(folder: Path, *arguments: str) -> Done:
    environment = {"TURNSTILE_BUDGETS": str(folder / "budgets.db")}
    return turnstile(*arguments, "--json", environment=environment)


def answered_by(folder: Path) -> list[str]:
    return ["answer", str(folder / "year.toml"), "--input", str(folder / "year.csv")]


@pytest.mark.slow
def test_one_file_is_answered_shown_and_verified(folder: Path) -> None:
    with patch.object(sqlite3, "connect", files.connect):
        done = on(folder, *answered_by(folder))
        again = on(folder, *answered_by(folder))
        shown = on(folder, "answers", "shop")
        assert (done.code, again.code, again.out) == (0, 0, "")
        assert shown.lines == done.lines
        assert [line["step"] for line in done.lines] == list(range(len(done.lines)))
        explained = on(folder, "explain", "shop", "--user", "1").lines
        assert explained[0]["query"] == "buyers"
        (folder / "budgets.db").chmod(0o400)
        assert on(folder, "answers", "shop", "--query", "none").lines == []
        assert on(folder, "answers", "shop", "--csv", str(folder / "answers.csv")).code == 0
        for arguments in (
            ["verify"],
            ["report", "shop", "--output", str(folder / "report.csv")],
            ["statement", "shop", "--delta", "1e-6"],
        ):
            assert on(folder, *arguments).code == 0, arguments


@pytest.mark.slow
@pytest.mark.parametrize("table", ["answers", "answers_state"])
def test_verify_finds_a_damaged_answer_and_entry(folder: Path, table: str) -> None:
    with patch.object(sqlite3, "connect", files.connect):
        assert on(folder, *answered_by(folder)).code == 0
        with closing(sqlite3.connect(folder / "budgets.db")) as database, database:
            last = f"(SELECT max(offset) FROM {table})"
            database.execute(f"UPDATE {table} SET value = zeroblob(9) WHERE offset = {last}")
        done = on(folder, "verify")
    assert done.code == Exit.REFUSED
    found = [line for line in done.lines if line["type"] == "mismatch"]
    assert [(line["check"], line["about"]) for line in found] == [("answers", {"table": table})]


@pytest.mark.parametrize(
    "arguments",
    [
        ["answer", "year.toml"],
        ["answers", "--follow"],
        ["answer", "year.toml", "--until", "2026-01-02"],
        ["answer", "year.toml", "--input", "year.csv", "year.csv"],
    ],
    ids=["a topic", "following", "a time without files", "a file twice"],
)
def test_arguments_that_do_not_fit_a_budget_file_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    assert on(folder, *arguments).code == Exit.USAGE


@pytest.mark.parametrize("until", ["yesterday", "2026-13-01", "0001-01-01", ""])
def test_a_time_that_is_none_is_refused(folder: Path, until: str) -> None:
    with pytest.raises(SystemExit, match=str(Exit.USAGE.value)):
        on(folder, *answered_by(folder), "--until", until)
