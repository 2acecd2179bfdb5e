"""The batch loop: what is committed together, what is passed over, and what suspends it."""

import asyncio

import pytest

from streams.kafka.results import Missing, NotSent
from streams.ledger.ledger import Channel, LayoutMismatch, Ledger, Output
from streams.ledger.partition_errors import CannotVerify
from streams.ledger.state import State as LedgerState
from streams.records import CreateDataset, Policy, encode
from streams.records.signatures import NoVerifier
from streams.store.store_port import SuspensionReason
from streams.worker import processor as batch_loop
from streams.worker.outbox import outbox_entries_of
from streams.worker.ports import Ending
from streams.worker.processor import ProcessorState
from tests.doubles.memory_broker import Effect
from tests.unit.worker.processors import Ended, Record, bench

pytestmark = pytest.mark.usefixtures("virtual_time")


class Writes(Ledger):
    """A ledger whose records write as many bytes as their value says."""

    def __init__(self):
        super().__init__(0, 1)
        self.state.__class__ = CountedBytes

    def apply(self, offset, value):
        self.state.unwritten_bytes += int(value)
        return super().apply(offset, None)


class CountedBytes(LedgerState):
    unwritten_bytes = 0

    def take_delta(self):
        self.unwritten_bytes = 0
        return super().take_delta()


async def test_a_batch_ends_when_it_would_write_too_much():
    made = bench(Writes())
    half = str(batch_loop.WRITE_BYTES // 2).encode()
    made.processor.start()
    await made.arrive(*(Record(offset, half) for offset in range(7)))
    await made.until(lambda: made.processor.next == 7)
    assert all(commit.next - commit.first <= 2 for commit in made.store.commits)


async def test_empty_gap_is_passed_in_the_following_commit():
    made = bench(missing=Missing.NOTHING_TO_APPLY)
    made.processor.start()
    await made.arrive(Record(0), Record(3))
    await made.until(lambda: made.processor.next == 4)
    assert made.gate.passed.count(Effect.READ) == 1
    reached = 0
    for commit in made.store.commits:
        assert commit.first == reached
        reached = commit.next
    assert reached == 4


async def test_a_hole_suspends_the_partition_and_the_reason_is_stored():
    made = bench(missing=Missing.HOLE)
    made.processor.start()
    await made.arrive(Record(0), Record(3))
    await made.until(lambda: made.store.suspension)
    assert made.store.suspension == SuspensionReason.HOLE
    assert made.processor.state is ProcessorState.SUSPENDED
    await made.arrive(Record(1), Record(2), Record(3))
    await made.processor.merge()
    await made.processor.pass_tail(9)
    assert made.processor.next == 1
    assert made.store.merges == []
    assert not made.processor.can_resume


@pytest.mark.parametrize("room", [1, 2**20])
async def test_a_merge_writes_a_limited_number_of_bytes_at_once(monkeypatch, room):
    monkeypatch.setattr("streams.worker.merge.WRITE_BYTES", room)
    made = bench()
    made.processor.start()
    for offset in range(5):
        policy = Policy(
            dataset=f"d{offset}", partitions=1, measure="zcdp", budget=[1], odometer_step=[1]
        )
        await made.arrive(Record(offset, encode(CreateDataset(request="t", policy=policy))))
    await made.until(lambda: made.processor.next == 5)
    await made.processor.merge()
    written = [len(merge.pages) for merge in made.store.merges if merge.pages]
    assert sum(written) >= 5
    assert written == [1] * len(written) if room == 1 else len(written) == 1


async def applied_under_leader_epoch_4(made):
    """Records 0 to 2 of a log that ends there."""
    log = made.broker.norms(0)
    log.leader_epoch = 4
    for offset in range(3):
        await made.arrive(append(log, b"%d" % offset))
    await made.until(lambda: made.processor.next == 3)
    return log


def append(log, value):
    offset = log.append(value)
    return Record(offset, value, log.leader_epochs[offset])


async def test_a_batch_ends_where_a_leader_epoch_ends():
    made = bench(missing=Missing.RECORDS, offsets=0)
    log = made.broker.norms(0)
    records = [append(log, b"0"), append(log, b"1")]
    log.leader_epoch = 3
    records += [append(log, b"2")]
    await made.arrive(*records)
    made.processor.start()
    await made.until(lambda: made.processor.next == 3)
    written = [(commit.next, commit.fields["leader_epoch"]) for commit in made.store.commits]
    assert written == [(2, "0"), (3, "3")]


async def test_after_an_election_the_last_record_is_compared():
    made = bench(missing=Missing.RECORDS, offsets=0)
    made.processor.start()
    log = await applied_under_leader_epoch_4(made)
    assert Effect.READ not in made.gate.passed
    log.leader_epoch = 6
    for value in (b"3", b"4"):
        await made.arrive(append(log, value))
    await made.until(lambda: made.processor.next == 5)
    assert made.gate.passed.count(Effect.READ) == 2  # what came, and what was applied last
    assert made.store.contents(0).meta["leader_epoch"] == "6"


LOST_AND_REWRITTEN = {
    # what an election loses, what is written then
    "other records": (1, (b"x", b"y", b"z", b"3")),
    "the same record behind others": (1, (b"x", b"2", b"2", b"3")),
    "the same records": (1, (b"1", b"2", b"3")),
    "the last record alone": (2, (b"2", b"3")),
}


@pytest.mark.parametrize(
    ("lost_from", "rewritten"), LOST_AND_REWRITTEN.values(), ids=LOST_AND_REWRITTEN
)
async def test_records_behind_a_log_that_was_rewritten_are_not_applied(lost_from, rewritten):
    made = bench(missing=Missing.RECORDS, offsets=0)
    made.processor.start()
    log = await applied_under_leader_epoch_4(made)
    log.lose_from(lost_from)
    for record in [append(log, value) for value in rewritten]:
        await made.arrive(record)  # those that are applied are left out
    await made.until(lambda: made.store.suspension)
    assert made.store.suspension == SuspensionReason.LOG_REWRITTEN
    assert made.processor.next == 3


async def test_record_with_another_leader_epoch_ends_the_worker():
    made = bench(missing=Missing.RECORDS, offsets=0)
    made.processor.start()
    log = await applied_under_leader_epoch_4(made)
    record = append(log, b"3")
    record.leader_epoch = 6  # and the leader that is asked has not heard of it
    await made.arrive(record)
    with pytest.raises(Ended) as ended:
        await made.until(lambda: made.processor.next == 4)
    assert ended.value.reason is Ending.OTHER_LEADER_EPOCH
    assert made.store.suspension is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LayoutMismatch(2, 1), SuspensionReason.OTHER_PARTITIONS),
        (CannotVerify(NoVerifier("cryptography")), SuspensionReason.CANNOT_VERIFY),
    ],
    ids=["another P", "nothing to verify with"],
)
async def test_batch_that_the_ledger_cannot_apply_is_not_written(error, reason):
    class Ending(Ledger):
        def apply(self, offset, value):
            if offset == 1:
                raise error
            return super().apply(offset, value)

    made = bench(Ending(0, 1))
    await made.arrive(Record(0), Record(1))
    made.processor.start()
    await made.until(lambda: made.store.suspension)
    assert made.store.suspension == reason
    assert made.store.commits == []


@pytest.mark.parametrize("missing", Missing)
async def test_tail_is_passed_only_if_it_holds_nothing_to_apply(missing):
    made = bench(missing=missing, next_offset=5)
    await made.processor.pass_tail(8)
    passed = missing is Missing.NOTHING_TO_APPLY
    assert made.processor.next == (8 if passed else 5)
    assert [(c.first, c.next) for c in made.store.commits] == ([(5, 8)] if passed else [])
    await made.processor.pass_tail(5)
    assert made.gate.passed.count(Effect.READ) == 1


OUTPUTS = [
    Output(Channel.ODOMETER, b"k", b"first odometer"),
    Output(Channel.HALTS, b"r", b"first answer"),
    Output(Channel.ODOMETER, b"k", b"second odometer"),
    Output(Channel.REJECTS, None, b"second answer"),
]


def test_outbox_entries_are_of_one_kind_and_of_limited_size(monkeypatch):
    answers, odometers = outbox_entries_of(4, 2, OUTPUTS)
    assert (answers.name, odometers.name) == ("4/0", "4/1")
    assert [output.value for output in answers.outputs] == [b"first answer", b"second answer"]
    assert [output.value for output in odometers.outputs] == [
        b"first odometer",
        b"second odometer",
    ]
    assert outbox_entries_of(4, 2, []) == []
    monkeypatch.setattr("streams.worker.outbox.ENTRY_BYTES", 100)
    many = [Output(Channel.HALTS, None, b"x" * 60) for _ in range(9)]
    entries = outbox_entries_of(0, 2, many)
    assert [len(entry.outputs) for entry in entries] == [2, 2, 2, 2, 1]
    assert [output for entry in entries for output in entry.outputs] == many


class Raises(Ledger):
    """A ledger whose every record has outputs."""

    def apply(self, offset, value):
        super().apply(offset, value)
        return OUTPUTS


async def test_many_odometers_that_wait_hold_up_no_answer():
    made = bench(Raises(0, 1))
    made.gate.hold(Effect.BEGIN)
    made.processor.start()
    for offset in range(30):
        await made.arrive(Record(offset))
        await made.until(lambda offset=offset: made.processor.next == offset + 1)
    await made.until(lambda: len(made.answers()) == 60)
    assert made.odometers() == []


async def test_partition_that_could_not_publish_is_loaded_again():
    made = bench()
    made.gate.hold(Effect.ACKNOWLEDGE)
    made.processor.start()
    await made.arrive(Record(0))
    await made.until(lambda: made.gate.waiting[Effect.ACKNOWLEDGE])
    suspended = asyncio.create_task(made.processor.pause())
    await made.until(lambda: made.processor.state is ProcessorState.PAUSED)
    made.gate.waiting[Effect.ACKNOWLEDGE][0].set_exception(NotSent("fenced"))
    await suspended
    assert not made.processor.can_resume
