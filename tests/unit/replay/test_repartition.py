"""A repartition loses and doubles nothing, even if it is interrupted."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from streams import Turnstile
from streams.answerer.journal import JournalEntry, carry_over
from streams.answerer.window_answering import AlreadyAnswered, Answering
from streams.ledger.accounts import AccountDelta
from streams.ledger.columns import RowDelta
from streams.ledger.ledger import Ledger
from streams.ledger.partition_errors import ImportPending
from streams.records import CreateDataset, Policy, Reason, Rejected, encode
from streams.replay.archive import CannotRepartition
from streams.replay.findings import Check
from streams.replay.repartition import retired
from streams.replay.verify import verify
from tests.doubles.memory_journal import MemoryJournal, MemoryTopics
from tests.unit.answerer.asking import COUNT, FILE, asked_of, event
from tests.unit.answerer.lives import read
from tests.unit.replay.repartitioned import (
    NEW,
    Crash,
    MemoryLogs,
    loaded,
    quietly,
    retirable,
    take_over,
)
from tests.unit.replay.service import Archived, new_service

USERS = np.arange(40)
CORRECTED = COUNT.replace("noise = 1.0", 'active_windows = 2\nleft_out = 0.4\nblock = "20ms"')


def numbers(ledgers: list[Ledger], *, erased: bool) -> dict:
    """All numbers of users, by dataset and id; each living user has one account."""
    found: dict = {}
    for ledger in ledgers:
        for name, accounts in ledger.state.datasets.items():
            slots = np.arange(len(accounts))
            rows = accounts.numbers(slots)
            for slot, user in enumerate(accounts.users_at(slots)):
                is_erased = (name, str(slot)) in ledger.state.erased
                if is_erased == erased:
                    mine = {column: rows[column][slot].tolist() for column in rows}
                    assert erased or (name, user) not in found
                    assert found.setdefault((name, user), mine) == mine
    return found


def live(logs: MemoryLogs) -> list[Ledger]:
    assert logs.next is not None
    return [loaded(logs.next, partition) for partition in range(logs.next.partitions)]


@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
def test_new_log_has_the_same_numbers_of_users(partitions):
    old = retirable()
    logs = MemoryLogs(old)
    quietly(logs, partitions)
    for erased in (False, True):
        assert numbers(live(logs), erased=erased) == numbers(old.ledgers, erased=erased)
    assert numbers(live(logs), erased=True)
    for ledger in live(logs):
        for name, accounts in ledger.state.datasets.items():
            homes = accounts.users_at(np.arange(len(accounts))).homes(partitions)
            for slot in np.flatnonzero(homes != ledger.state.partition):
                assert (name, str(slot)) in ledger.state.erased
        state = ledger.state
        assert set(state.closed) == {("empty",)}
        assert state.runs.keys() == old.ledgers[0].state.runs.keys()
        assert all(run.closed for run in state.runs.values())
        assert not {*state.rosters, *state.holds, *state.participants}
        assert {policy.partitions for policy in state.policies.values()} == {partitions}


def test_users_continue_with_their_remaining_budgets():
    """The same steps after a repartition get the same decisions as without one."""
    twins = []
    for repartitioned in (False, True):
        service = retirable()
        if repartitioned:
            logs = MemoryLogs(service)
            quietly(logs, 3)
            assert logs.next is not None
            service = take_over(logs.next)
        run = Turnstile(connection=service).run("d", "after", take_over=True)
        steps = [run.charge(USERS, np.linspace(0.1, 2.0, 40), noise_stddev=2.0) for _ in range(6)]
        twins.append([step.admitted.tolist() for step in steps])
    assert twins[0] == twins[1]
    assert not any(admitted[3] for admitted in twins[0])
    assert sum(twins[0][0]) > sum(twins[0][-1])


def test_new_odometer_has_no_smaller_bounds():
    old = retirable()
    logs = MemoryLogs(old)
    quietly(logs, 3)
    assert logs.next is not None
    said = newest(logs.next)
    assert said == {key: bound for key, bound in newest(old).items() if key[1] != 3}
    assert len(said) > 40


def newest(service: Archived) -> dict:
    """The last bound of each user in the topic; none of users who were erased."""
    found: dict = {}
    for partition in range(service.partitions):
        for record in service.topics["odometer", partition]:
            found[record.key] = record.value
    records = [msgspec.msgpack.decode(value) for value in found.values() if value is not None]
    return {(record["dataset"], record["user"]): record["bound"] for record in records}


def effects() -> int:
    logs = MemoryLogs(retirable())
    quietly(logs, 3)
    return logs.effects


@pytest.mark.parametrize(
    "crash_at",
    [pytest.param(n, marks=[pytest.mark.slow] if n % 10 else []) for n in range(effects())],
)
def test_interrupted_repartition_can_be_resumed_with_one_live_log(crash_at):
    old = retirable()
    expected = numbers(old.ledgers, erased=False)
    logs = MemoryLogs(old, crash_at=crash_at)
    with pytest.raises(Crash):
        quietly(logs, 3)
    _assert_one_is_alive(logs)
    quietly(logs, 3)
    assert numbers(live(logs), erased=False) == expected
    assert _refuses(old)


def test_repeated_repartition_changes_nothing():
    logs = MemoryLogs(retirable())
    first = quietly(logs, 3)
    assert logs.next is not None
    service = take_over(logs.next)
    Turnstile(connection=service).run("d", "more", take_over=True).charge(
        USERS, np.full(40, 0.01), noise_stddev=4.0
    )
    service.draw(0)
    drawn = service.snapshot(0).manifest
    records = {place: len(found) for place, found in service.topics.items()}
    again = quietly(logs, 3)
    assert again == first
    assert service.snapshot(0).manifest == drawn
    assert {place: len(found) for place, found in service.topics.items()} == records


def test_new_log_needs_its_snapshot():
    logs = MemoryLogs(retirable())
    quietly(logs, 3)
    assert logs.next is not None
    for partition in range(3):
        (first,) = logs.next.topics["norms", partition]
        with pytest.raises(ImportPending):
            Ledger(partition, 3, NEW).apply(first.offset, first.value)


def test_later_import_is_rejected():
    service, turnstile = new_service(1)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    logs = MemoryLogs(retirable())
    quietly(logs, 1)
    assert logs.next is not None
    (outcome,) = service.apply(0, logs.next.topics["norms", 0][0].value)
    rejected = msgspec.msgpack.decode(outcome.value, type=Rejected)
    assert rejected.reason == Reason.LOG_CHANGED
    assert turnstile.run("d", "r").charge([1], [1.0], noise_stddev=4.0).admitted


# --- refused, and nothing has changed -----------------------------------------------------------


def test_log_with_an_open_run_is_not_retired():
    service, turnstile = new_service()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    turnstile.run("d", "r")
    _assert_refused(MemoryLogs(service))


def test_log_with_different_datasets_is_not_retired():
    service, turnstile = new_service()
    turnstile.create_dataset("d", measure="zcdp", budget=1.0)
    policy = msgspec.structs.replace(
        service.ledgers[0].state.policies["d",], dataset="half", budget=[1]
    )
    service.apply(1, encode(CreateDataset(request="t", policy=policy)))
    _assert_refused(MemoryLogs(service))


def test_log_of_another_service_is_not_changed():
    logs = MemoryLogs(retirable())
    logs.create_log(3)
    assert logs.next is not None
    Turnstile(connection=logs.next).create_dataset("other", measure="zcdp", budget=1.0)
    _assert_refused(logs)


def test_new_log_with_another_partition_count_is_rejected():
    logs = MemoryLogs(retirable())
    logs.create_log(4)
    _assert_refused(logs)


def test_only_one_log_can_continue_a_retired_one():
    old = retirable()
    quietly(MemoryLogs(old), 3)
    second = MemoryLogs(old)
    with pytest.raises(CannotRepartition):
        quietly(second, 4)
    second.create_log(3)
    assert second.next is not None
    second.next.topic = b"topic, the third"
    with pytest.raises(CannotRepartition):
        quietly(second, 3)
    assert all(("norms", p) not in second.next.topics for p in range(3))


def test_dry_run_changes_nothing():
    logs = MemoryLogs(retirable())
    planned = quietly(logs, 3, dry_run=True)
    assert logs.effects == 0
    assert planned.new is None
    assert [part.partition for part in planned.partitions] == [0, 1, 2]


def test_dataset_created_meanwhile_prevents_retirement():
    """It is not lost: the partition refuses to retire, and says so."""

    class Racing(MemoryLogs):
        def retire(self, partition: int, record: bytes) -> None:
            if partition == 1:
                policy = Policy(**{**_policy(self.service), "dataset": "late"})
                self.service.apply(1, encode(CreateDataset(request="t", policy=policy)))
            super().retire(partition, record)

    old = retirable()
    logs = Racing(old)
    with pytest.raises(CannotRepartition):
        quietly(logs, 3)
    assert logs.next is not None
    assert all(logs.next.snapshot(partition) is None for partition in range(3))


def _policy(service: Archived) -> dict:
    return msgspec.structs.asdict(service.ledgers[0].state.policies["d",])


def _refuses(service: Archived) -> bool:
    """Whether every partition of a log refuses a new dataset, when its worker has come so far."""
    return all(_is_retired(service, partition) for partition in range(service.partitions))


def _is_retired(service: Archived, partition: int) -> bool:
    ledger = Ledger(partition, service.partitions, service.topic, service.erasure_keys)
    for record in service.topics["norms", partition]:
        ledger.apply(record.offset, record.value)
    policy = Policy(**{**_policy(service), "dataset": "more"})
    (outcome,) = ledger.apply(10**6, encode(CreateDataset(request="t", policy=policy)))
    answer = msgspec.msgpack.decode(outcome.value)
    return answer.get("reason") == Reason.LOG_RETIRED.value


def _assert_one_is_alive(logs: MemoryLogs) -> None:
    """Where a partition of the new log has a snapshot, no partition of the old one is alive."""
    began = logs.next is not None and any(
        logs.next.snapshot(partition) is not None for partition in range(logs.next.partitions)
    )
    if began:
        assert _refuses(logs.service)


def _assert_refused(logs: MemoryLogs) -> None:
    before = {place: len(records) for place, records in logs.service.topics.items()}
    with pytest.raises(CannotRepartition):
        quietly(logs, 3)
    assert {place: len(records) for place, records in logs.service.topics.items()} == before
    assert not any(_is_retired(logs.service, p) for p in range(logs.service.partitions))


# --- verified across both logs ------------------------------------------------------------------


@pytest.fixture(params=["", "a key of two words, or more"])
def both(request: pytest.FixtureRequest) -> tuple[Archived, Archived]:
    """A retired log, and the one that continues it and was charged since."""
    old = retirable(erasure_keys=request.param)
    logs = MemoryLogs(old)
    quietly(logs, 3)
    assert logs.next is not None
    new = take_over(logs.next)
    run = Turnstile(connection=new).run("d", "after", take_over=True)
    for _ in range(3):
        run.charge(USERS, np.linspace(0.1, 2.0, 40), noise_stddev=2.0)
    return old, new


def test_the_new_log_fits_the_replayed_old_one(both):
    old, new = both
    verified = verify(new, new, origins=retired(old, new.topic, new.partitions))
    assert not list(verified.findings)
    assert verified.fits
    assert [part.began for part in verified.partitions] == [1] * 3
    assert verify(new, new).fits  # from the snapshots alone
    assert verify(old, old).fits


def test_wrong_import_is_found(both):
    old, new = both
    origins = retired(old, new.topic, new.partitions)
    accounts = origins[0].state.datasets["d"]
    more = accounts.numbers(slice(0, 1))["spent"] + 1
    row = RowDelta(np.zeros(1, "<u4").tobytes(), {"spent": more.astype("<i8").tobytes()})
    accounts.apply_delta(AccountDelta("d", b"", len(accounts), [row]))
    verified = verify(new, new, origins=origins)
    assert not verified.fits
    assert {finding.check for finding in verified.findings} >= {Check.STATE, Check.SNAPSHOT}


def test_unrelated_log_is_no_origin(both):
    _, new = both
    for other in (retirable(), new):
        with pytest.raises(CannotRepartition):
            retired(other, new.topic, new.partitions)


def test_answerer_goes_on_in_the_new_log_and_answers_no_window_again():
    old, client = new_service(2)
    client.create_dataset("d", measure="zcdp", budget=9.0, user_ids="integer")
    logs, events = MemoryLogs(old), [event(time % 3, time) for time in range(60)]

    def answer(service, topics, run, to, start=0):
        text = FILE.replace("1970-01-01", f"1970-01-01T00:00:00.{start:03}Z")
        query_file = replace(asked_of(text + CORRECTED), run=run)
        turnstile = Turnstile(connection=service)
        answering = Answering(
            query_file,
            "x",
            lambda released: turnstile.run("d", run, released=released),
            MemoryJournal(topics, "d"),
        )
        answering.start()
        read(answering, events, to)

    answer(old, logs.answers, "r", 36)
    assert client.close_run("d", "r")
    quietly(logs, 3)
    assert logs.next is not None
    new = take_over(logs.next)
    with pytest.raises(AlreadyAnswered) as refused:
        answer(new, logs.next_answers, "s", 60)
    assert refused.value.until == "1970-01-01T00:00:00.030Z"
    answer(new, logs.next_answers, "s", 60, start=30)
    answers = [msgspec.json.decode(value) for _, value in logs.answers.answers]
    answers += [msgspec.json.decode(value) for _, value in logs.next_answers.answers]
    records = {(one["run"], one["step"]): one for one in answers}.values()
    windows = [(one["start"], one["end"]) for one in records if one["type"] == "answer"]
    assert len(windows) == len(set(windows)) == 5


def test_interrupted_copy_of_a_journal_is_completed_and_never_repeated():
    old, new = MemoryTopics(), MemoryTopics()
    for step in range(4):
        MemoryJournal(old, "d").append(
            JournalEntry("answered", "d", "r", 1, "o", step, answers_end=9)
        )

    class Doomed(MemoryJournal):
        def append(self, entry):
            if len(new.entries) == 2:
                raise Crash
            super().append(entry)

    with pytest.raises(Crash):
        carry_over(MemoryJournal(old, None), Doomed(new, None))
    assert carry_over(MemoryJournal(old, None), MemoryJournal(new, None)) == 2
    assert [(one.step, one.answers_end) for one in new.entries] == [(n, 0) for n in range(4)]
    MemoryJournal(new, "d").append(JournalEntry("begin", "d", "s", 1, "p", 0))
    MemoryJournal(new, "d").delete(new.entries[:2])  # its answerer needs them no more
    assert carry_over(MemoryJournal(old, None), MemoryJournal(new, None)) == 0
