"""Budgets in a file: what is charged stays charged, whoever charges and whatever fails."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams import (
    DecisionTimeout,
    FileProblem,
    InvalidRequest,
    ServiceUnavailable,
    Turnstile,
    Unusable,
    UnusableFile,
)
from streams.ledger.ledger import Ledger
from streams.ledger.outputs import Output
from streams.ledger.partition_errors import CannotVerify, PartitionError
from streams.records.signatures import NoVerifier
from streams.sdk import budget_file
from streams.sdk.budget_file import BudgetFile
from tests.audit.budget_file import audit_file
from tests.examples import examples
from tests.unit.sdk import files


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budgets.db"


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use connections that do not wait for the disk, and whose statements can fail."""
    monkeypatch.setattr(sqlite3, "connect", files.connect)
    yield
    files.Database.around = staticmethod(files.unharmed)


def charged(path: Path, *, run: str = "r", norm: float = 1.0, **options: Any) -> Any:
    """Charge users 0 to 9 once, in a client of its own. The budget is enough for four steps."""
    with Turnstile.open(path, partitions=2, **options) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.125)
        opened = turnstile.run("d", run, take_over=True)
        return opened.charge(np.arange(10), np.full(10, norm), noise_stddev=4.0)


def spent(path: Path) -> int:
    """Return how many steps every user of ``charged`` has paid."""
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "rest", take_over=True)
        left = 0
        while run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all():
            left += 1
    return 4 - left


def test_what_is_charged_outlives_the_client(path: Path) -> None:
    admitted = [charged(path).admitted.all() for _ in range(5)]
    assert admitted == [True] * 4 + [False]
    with Turnstile.open(path) as turnstile:
        assert turnstile.partitions == 2
        assert turnstile.run("d", "r").step == 5
        assert {halt.user for halt in turnstile.halts(follow=False)} == set(range(10))
        assert {record.user for record in turnstile.odometer(follow=False)} == set(range(10))
    audit_file(path)


@pytest.mark.slow
@examples(3)
@given(
    rng=st.randoms(use_true_random=True),
    merge=st.sampled_from([1, 3, 9, 1000]),
    failing=st.sampled_from([0.0, 0.004]),
)
def test_clients_of_one_file_charge_as_one_whatever_fails(
    rng: Random, merge: int, failing: float
) -> None:
    codes = sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY

    def around(sql: str) -> Iterator[None]:
        before, after = (rng.random() < failing for _ in range(2))
        if before:
            raise files.error_of(rng.choice(codes))
        yield
        if after:
            raise files.error_of(sqlite3.SQLITE_IOERR)

    with TemporaryDirectory() as folder, patch.object(budget_file, "MERGE_RECORDS", merge):
        path = Path(folder) / "budgets.db"
        clients = files.Clients(path, rng)
        with patch.object(files.Database, "around", staticmethod(around)):
            for _ in range(100):
                clients.act()
        clients.leave_all()
        auditor = audit_file(path)
    assert len(clients.decided) > 10
    for dataset, run, step in clients.decided:
        assert step <= auditor.runs[0][dataset, run].step


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_each_statement_of_a_charge_may_fail(path: Path, tmp_path: Path, is_after: bool) -> None:
    charged(path)
    outcomes = set()
    for number in range(200):
        copy = tmp_path / f"{number}.db"
        shutil.copy(path, copy)
        with Turnstile.open(copy) as turnstile:
            run = turnstile.run("d", "r")
            statements = []

            def around(
                sql: str, seen: list[str] = statements, number: int = number
            ) -> Iterator[None]:
                seen.append(sql)
                is_hit = len(seen) == number + 1
                if is_hit and not is_after:
                    raise files.error_of(sqlite3.SQLITE_IOERR)
                yield
                if is_hit:
                    raise files.error_of(sqlite3.SQLITE_IOERR)

            files.Database.around = staticmethod(around)
            error = None
            try:
                run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
            except (UnusableFile, Unusable) as raised:
                error = raised
            files.Database.around = staticmethod(files.unharmed)
            if isinstance(error, UnusableFile):
                assert error.problem is FileProblem.UNREADABLE
                again = turnstile.run("d", "r", released=0)
                assert (again.step, again.interrupted) == (1, False), "nothing was charged"
            elif error is not None:
                assert statements[number] == "COMMIT"
                with pytest.raises(Unusable):
                    turnstile.run("d", "r")
        with Turnstile.open(copy) as turnstile:
            resumed = turnstile.run("d", "r", released=0)
            is_charged = error is None or (isinstance(error, Unusable) and is_after)
            assert resumed.interrupted is is_charged
            resumed.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        assert spent(copy) == 2
        audit_file(copy)
        outcomes.add(type(error))
        if error is None:
            break
    assert outcomes == {UnusableFile, Unusable, type(None)}


@pytest.mark.parametrize("is_committed", [False, True])
def test_interrupted_charge_is_made_or_not(path: Path, is_committed: bool) -> None:
    charged(path)
    interruption = (
        files.failing(KeyboardInterrupt(), after="COMMIT")
        if is_committed
        else patch.object(Ledger, "apply", side_effect=KeyboardInterrupt)
    )
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        with interruption, pytest.raises(KeyboardInterrupt):
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        if is_committed:
            with pytest.raises(Unusable):
                turnstile.run("d", "r")
        else:
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
    assert spent(path) == 2
    audit_file(path)


@pytest.mark.parametrize(
    "problem", [PartitionError("not here", "nothing"), CannotVerify(NoVerifier("no package"))]
)
def test_record_that_cannot_be_applied_here_changes_nothing(
    path: Path, problem: PartitionError
) -> None:
    charged(path)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        with patch.object(Ledger, "apply", side_effect=problem):
            with pytest.raises(ServiceUnavailable):
                run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
            with pytest.raises(ServiceUnavailable) as opening:
                Turnstile.open(path)
            is_damaged = isinstance(opening.value, UnusableFile)
            assert is_damaged is not isinstance(problem, CannotVerify)
        assert run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).step == 1
    audit_file(path)


# --- waiting ---


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "SELECT"])
def test_locked_file_times_out_with_nothing_charged(path: Path, lock: str) -> None:
    """A writer keeps the transaction from beginning, a reader keeps it from being committed."""
    charged(path)
    other = sqlite3.connect(path, isolation_level=None)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        other.execute("BEGIN IMMEDIATE" if lock != "SELECT" else "BEGIN")
        other.execute("SELECT * FROM norms").fetchone()
        with pytest.raises(DecisionTimeout):
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0, timeout=0.05)
        other.execute("ROLLBACK")
        decision = run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        assert (decision.step, decision.admitted.all()) == (1, True)
    other.close()
    assert spent(path) == 2
    audit_file(path)


def test_file_that_stays_locked_cannot_be_opened(path: Path) -> None:
    charged(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnusableFile) as raised:
        Turnstile.open(path, timeout=0.05)
    assert raised.value.problem is FileProblem.BUSY
    other.close()
    assert spent(path) == 1


def test_full_disk_charges_nothing(path: Path) -> None:
    charged(path)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        users = np.arange(2000)  # their records do not fit into pages that exist
        with files.limited(path.stat().st_size), pytest.raises(UnusableFile) as raised:
            run.charge(users, np.ones(2000), noise_stddev=4.0)
        assert raised.value.problem is FileProblem.FULL
        assert run.charge(users, np.ones(2000), noise_stddev=4.0).step == 1
    assert spent(path) == 2
    audit_file(path)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE])
@pytest.mark.parametrize("statement", ["INSERT OR REPLACE INTO state", "COMMIT"])
def test_failed_write_charges_nothing(path: Path, statement: str, code: int) -> None:
    charged(path)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        failing = files.failing(files.error_of(code), before=statement)
        with failing, pytest.raises(UnusableFile) as raised:
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        assert raised.value.problem is FileProblem.FULL
        run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
    assert spent(path) == 2
    audit_file(path)


def test_full_disk_creates_no_file(path: Path) -> None:
    with files.limited(10_000), pytest.raises(UnusableFile) as raised:
        Turnstile.open(path)
    assert raised.value.problem is FileProblem.FULL
    assert not os.listdir(path.parent)


def test_interrupted_rollback_ends_every_later_call(path: Path) -> None:
    """The transaction stays open, so later calls would see what was not committed."""
    charged(path)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        failing = files.failing(KeyboardInterrupt(), before="ROLLBACK")
        broken = patch.object(Ledger, "apply", side_effect=MemoryError)
        with failing, broken, pytest.raises(KeyboardInterrupt):
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        for _ in range(2):
            with pytest.raises(Unusable) as raised:
                list(turnstile.halts(follow=False))
            assert not isinstance(raised.value, UnusableFile)
            with pytest.raises(Unusable):
                turnstile.run("d", "r")
    assert spent(path) == 1
    audit_file(path)


def test_write_ahead_log_of_another_program_is_named(path: Path) -> None:
    """A copy of the file would lack what is only in the second file."""
    charged(path)
    with Turnstile.open(path, timeout=0.05) as turnstile:
        run = turnstile.run("d", "r")
        other = sqlite3.connect(path, isolation_level=None)
        assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
        with pytest.raises(UnusableFile) as charging:
            run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
        with pytest.raises(UnusableFile) as opening:
            Turnstile.open(path, timeout=0.05)
        for raised in (charging, opening):
            assert raised.value.problem is FileProblem.WRITE_AHEAD
    other.close()
    assert spent(path) == 1
    assert os.listdir(path.parent) == [path.name]
    audit_file(path)


def test_thread_waits_for_another_one_until_its_timeout(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(path)
    inside, go_on = threading.Event(), threading.Event()
    apply = Ledger.apply

    def slow(self: Ledger, offset: int, value: bytes | None) -> list[Output]:
        inside.set()
        go_on.wait(60.0)
        return apply(self, offset, value)

    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        monkeypatch.setattr(Ledger, "apply", slow)
        users = np.arange(10)
        charging = threading.Thread(target=lambda: run.charge(users, np.ones(10), noise_stddev=4.0))
        charging.start()
        inside.wait(60.0)
        with pytest.raises(DecisionTimeout):
            turnstile.close_run("d", "r", timeout=0.05)
        go_on.set()
        charging.join(60.0)
    assert spent(path) == 2


# --- the file ---


def contents(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def sql(statement: str) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with sqlite3.connect(path) as database:
            database.execute(statement)
        database.close()

    return run


def other_database(path: Path) -> None:
    path.unlink()
    sql("CREATE TABLE notes (text TEXT)")(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:20_000])


def replaced_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def flipped_schema(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE state", b"CREATE \xd4ABLE state"))


DAMAGE: dict[str, tuple[Callable[[Path], Any], FileProblem]] = {
    "a text": (lambda path: path.write_text("budgets\n" * 1000), FileProblem.FOREIGN),
    "another database": (other_database, FileProblem.FOREIGN),
    "a newer file": (sql("PRAGMA user_version = 1000"), FileProblem.OTHER_LAYOUT),
    "nothing": (lambda path: path.write_bytes(b""), FileProblem.DAMAGED),
    "a part": (cut, FileProblem.DAMAGED),
    "a schema that is no text": (flipped_schema, FileProblem.DAMAGED),
    "no table": (sql("DROP TABLE pages"), FileProblem.DAMAGED),
    "no log": (sql("DELETE FROM file"), FileProblem.DAMAGED),
    "a state of another log": (sql("UPDATE file SET topic = zeroblob(16)"), FileProblem.DAMAGED),
    "another P": (sql("UPDATE file SET partitions = 3"), FileProblem.DAMAGED),
    "a record less": (
        sql("DELETE FROM norms WHERE rowid = (SELECT max(rowid) FROM norms)"),
        FileProblem.DAMAGED,
    ),
    "another record": (sql("UPDATE norms SET value = zeroblob(9)"), FileProblem.DAMAGED),
    "a read-only file": (lambda path: path.chmod(0o400), FileProblem.READ_ONLY),
    "a folder": (replaced_by_folder, FileProblem.UNREADABLE),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_file_that_cannot_be_used_is_not_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(budget_file, "MERGE_RECORDS", 4)
    for _ in range(4):
        charged(path)
    do, problem = DAMAGE[damage]
    do(path)
    before = contents(path)
    with pytest.raises(UnusableFile) as raised:
        Turnstile.open(path)
    assert (raised.value.problem, raised.value.path) == (problem, str(path))
    assert contents(path) == before
    assert sorted(os.listdir(path.parent)) == [path.name]


REBUILT = {
    "a page of another name": "UPDATE pages SET name = 'new:d' WHERE name LIKE 'policy%'",
    "a page less": "DELETE FROM pages WHERE rowid = (SELECT min(rowid) FROM pages)",
    "another page": "UPDATE pages SET page = zeroblob(99)",
    "pages of a later offset": "UPDATE state SET pages = json_set(pages, '$.next', '99')",
    "no meta of pages": "UPDATE state SET pages = '{}'",
    "no partition": "DELETE FROM state WHERE partition = 1",
    "no meta": "UPDATE state SET meta = '{}'",
    "no JSON": "UPDATE state SET meta = '{'",
    "another number of pages": "UPDATE state SET pages = json_set(pages, '$.pages', '7')",
    "an older meta": "UPDATE state SET meta = json_set(meta, '$.next', '1', '$.last', '0')",
}


@pytest.mark.parametrize("statement", REBUILT.values(), ids=REBUILT)
def test_damaged_state_is_rebuilt_from_the_log(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    monkeypatch.setattr(budget_file, "MERGE_RECORDS", 4)
    for _ in range(3):
        charged(path)
    sql(statement)(path)
    before = contents(path)
    with Turnstile.open(path):
        assert contents(path) == before  # reading repairs nothing
    assert spent(path) == 3
    audit_file(path)
    with closing(BudgetFile(str(path), 1.0)) as file:
        for partition in range(2):
            file.stored(partition)  # the charges of ``spent`` have stored it


@pytest.mark.parametrize("log", ["another record", "a record less"])
def test_damaged_state_with_a_damaged_log_is_refused(path: Path, log: str) -> None:
    for _ in range(2):
        charged(path)
    sql("UPDATE state SET pages = '{}'")(path)
    DAMAGE[log][0](path)
    with pytest.raises(UnusableFile) as raised:
        Turnstile.open(path)
    assert raised.value.problem is FileProblem.DAMAGED


@pytest.mark.parametrize("name", ["no/budgets.db", "a\0b", "\ud800", "n" * 300, ""])
def test_path_that_cannot_be_created_is_reported(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableFile) as raised:
        Turnstile.open(tmp_path / name)
    assert raised.value.problem is FileProblem.UNREADABLE


@pytest.mark.parametrize("change", ["deleted", "replaced", "older", "damaged"])
def test_file_that_changes_while_it_is_open_is_charged_no_more(
    path: Path, tmp_path: Path, change: str
) -> None:
    charged(path)
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with Turnstile.open(path) as turnstile:
        run = turnstile.run("d", "r")
        if change == "deleted":
            path.unlink()
        elif change == "replaced":
            copy.replace(path)
        elif change == "older":
            path.write_bytes(copy.read_bytes())
        else:
            sql("DROP TABLE norms")(path)
        for _ in range(2):  # the first failure is not forgotten
            with pytest.raises(UnusableFile) as raised:
                run.charge(np.arange(10), np.ones(10), noise_stddev=4.0)
            expected = FileProblem.DAMAGED if change == "damaged" else FileProblem.REPLACED
            assert raised.value.problem is expected


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM pages WHERE name LIKE 'page:%'", "UPDATE pages SET partition = partition + 2"],
)
def test_pages_that_are_lost_while_it_is_open_are_rebuilt(
    path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """The digest of the next pages must not be made of those that are left."""
    monkeypatch.setattr(budget_file, "MERGE_RECORDS", 2)
    with Turnstile.open(path, partitions=2) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.125)
        run = turnstile.run("d", "r")
        for step in range(8):
            admitted = run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted
            assert admitted.all() == (step < 4)
        sql(statement)(path)
        refused = 0
        for _ in range(8):
            try:
                run = turnstile.run("d", "r")
                assert not run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.any()
            except ServiceUnavailable:
                refused += 1
        assert 1 <= refused <= 2  # once in each partition
    assert spent(path) == 4
    audit_file(path)


def test_a_change_within_a_call_is_refused_and_undoes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler runs in the thread whose transaction is open."""
    real, refused = BudgetFile._publish, []
    with Turnstile.open(path, partitions=2) as turnstile:
        turnstile.create_dataset("d", measure="zcdp", budget=0.125)
        run = turnstile.run("d", "r")

        def publish(*given: Any) -> None:
            with pytest.raises(InvalidRequest) as raised:
                turnstile.erase(3, "d")
            refused.append(raised.value)
            real(*given)

        with monkeypatch.context() as patched:
            patched.setattr(BudgetFile, "_publish", publish)
            assert run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all()
        assert refused
        assert turnstile.erase(3, "d") == ["d"]
    audit_file(path)


def test_every_commit_waits_for_the_disk(path: Path) -> None:
    """A rollback journal leaves every delivered decision in the file itself."""
    seen = []

    def around(sql: str) -> Iterator[None]:
        seen.append(sql)
        yield

    charged(path)
    files.Database.around = staticmethod(around)
    charged(path)
    assert {"PRAGMA journal_mode = DELETE", "PRAGMA synchronous = EXTRA"} <= set(seen)


def test_working_folder_may_change(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with Turnstile.open("a %41?#.db", partitions=2) as turnstile:
        monkeypatch.chdir(tmp_path / "other")
        turnstile.create_dataset("d", measure="zcdp", budget=0.125)
    monkeypatch.chdir(tmp_path)
    assert sorted(os.listdir()) == ["a %41?#.db", "other"]
    assert charged(Path("a %41?#.db")).admitted.all()


def test_only_the_owner_can_read_the_file(path: Path) -> None:
    before = os.umask(0)
    try:
        charged(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_invalid_arguments_create_no_file(path: Path) -> None:
    for options in ({"partitions": 0}, {"partitions": 10_000}, {"timeout": -1.0}):
        with pytest.raises(InvalidRequest):
            Turnstile.open(path, **options)
    for key in ("pseudonym_key", "request_key"):
        with pytest.raises(InvalidRequest):
            Turnstile.open(path, **{key: "short"})
    assert not path.exists()
    charged(path)
    with pytest.raises(InvalidRequest):
        Turnstile.open(path, partitions=3)


def test_opening_applies_only_what_follows_the_pages(path: Path) -> None:
    with patch.object(budget_file, "MERGE_RECORDS", 4):
        for _ in range(6):
            charged(path, norm=0.5)
        with patch.object(Ledger, "apply", autospec=True, side_effect=Ledger.apply) as applied:
            Turnstile.open(path).close()
    assert 0 < applied.call_count <= 2 * 4  # of 2 partitions


def test_clients_in_turn_apply_the_records_of_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    charged(path)

    def load(*_: Any) -> Ledger:
        raise AssertionError("a state is loaded")

    clients = [Turnstile.open(path) for _ in range(2)]
    with monkeypatch.context() as patched:
        patched.setattr(budget_file, "ledger_of", load)
        for number in range(3):
            run = clients[number % 2].run("d", "r", take_over=True)
            assert run.step == 1 + number
            assert run.charge(np.arange(10), np.ones(10), noise_stddev=4.0).admitted.all()
    for client in clients:
        client.close()
    audit_file(path)


def test_pages_of_two_clients_are_never_mixed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What accrued in one client was settled in another: a page of each would lose charges."""
    monkeypatch.setattr(budget_file, "MERGE_RECORDS", 1)
    with Turnstile.open(path, partitions=1) as one:
        one.create_dataset("d", measure="zcdp", budget=9.0, assume_independent_timing=True)
        roster = one.run("d", "r").enrol(np.arange(10), clip_norm=1.0)
        for _ in range(4):
            roster.charge(noise_stddev=4.0)
        beside = one.run("d", "beside")
        with Turnstile.open(path) as other:
            roster = other.run("d", "r").enrol(np.arange(10), clip_norm=1.0)
            for step in range(4):
                roster.charge(noise_stddev=4.0)
                beside.charge([100 + step], [1.0], noise_stddev=4.0)
                audit_file(path)


def test_erased_user_has_no_odometer_record(path: Path) -> None:
    charged(path)
    with Turnstile.open(path) as turnstile:
        assert turnstile.erase(3) == ["d"]
        assert {record.user for record in turnstile.odometer(follow=False)} == {*range(10)} - {3}
    assert charged(path).erased.tolist() == [user == 3 for user in range(10)]
    audit_file(path)


def test_user_who_is_charged_meanwhile_has_an_odometer_record(path: Path) -> None:
    """A charge moves the record of a user behind those that were there when the reading began."""
    for turnstile in (Turnstile.open(path, partitions=1), Turnstile.in_memory()):
        with turnstile:
            turnstile.create_dataset("d", measure="zcdp", budget=1.0, odometer_step=0.01)
            run = turnstile.run("d", "r")
            run.charge([1, 2], [1.0, 1.0], noise_stddev=4.0)
            records = turnstile.odometer(follow=False)
            run.charge([1], [1.0], noise_stddev=4.0)
            assert {record.user for record in records} == {1, 2}
