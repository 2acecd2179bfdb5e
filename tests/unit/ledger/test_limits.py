"""What a charge makes a worker write is known before, and what it takes to decide is bounded."""

import tracemalloc

import msgspec
import numpy as np
import pytest

from streams.ledger import limits, rule
from streams.ledger.ledger import Changes, Ledger
from streams.schemas import (
    MAX_CHARGE_USERS,
    MAX_WRITE_BYTES,
    Charge,
    Decision,
    Enrol,
    Erase,
    Reason,
    Rejection,
    RosterDecision,
    encode,
)
from streams.topics.topics import SETTINGS
from streams.wire.packing import pack_norms
from tests.audit import auditor_charges
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, answer_of, rebuilt
from tests.unit.ledger.roster_logs import LEVELS, RosterLog
from tests.unit.ledger.test_ledger import random_log


def orders_from(count: int) -> dict:
    """Fields of a policy with so many orders, under which everybody's odometer rises at once."""
    if count == 1:
        return {"budget": 4.0, "odometer_step": [1]}
    return {
        "measure": "renyi",
        "orders": [2.0 + i for i in range(count)],
        "budget": [4.0 * (2 + i) for i in range(count)],
        "odometer_step": [1] * count,
    }


def names(count: int, length: int, letter: str = "x") -> list[str]:
    """Ids of ``length`` characters."""
    return [f"{i:06}{letter * (length - 6)}" for i in range(count)]


WORST = [
    # length of the dataset's name, orders, ids, what the policy does when a budget ends
    ("integers", 1, 1, range(2**63 - 400, 2**63), "halt"),
    ("negative integers", 128, 1, range(-(2**63), -(2**63) + 400), "halt"),
    ("integers, clipped", 128, 1, range(2**63 - 400, 2**63), "clip"),
    ("orders", 30, 256, range(2**63 - 40, 2**63), "halt"),
    ("names", 128, 1, names(400, 8), "halt"),
    ("long names", 128, 3, names(300, 256, "\U0001f9ee"), "halt"),
    ("names of control characters", 128, 1, names(300, 256, "\x01"), "clip"),
]


@pytest.mark.parametrize("row", WORST, ids=[row[0] for row in WORST])
def test_no_charge_writes_more_than_is_counted(row):
    _, name_length, orders, ids, on_exhaustion = row
    name = "d" * name_length
    log = Log()
    log.create(name, on_exhaustion=on_exhaustion, **orders_from(orders))
    log.open(dataset=name)
    users = list(ids)
    norms = [20.0 if on_exhaustion == "clip" else 4.0] * len(users)
    packed = users if isinstance(users[0], str) else np.array(users).tobytes()
    assert isinstance(log.charge(0, packed, norms, dataset=name), Decision)
    outputs = log.outputs[-1]
    assert len(outputs) == 1 + len(users)  # the decision, and everybody's checkpoint
    written = len(log.changes[-1]) + len(encode(outputs))
    counted = limits.most_written(len(users), limits.id_bytes(packed), name, orders)
    assert written <= counted <= 3 * written  # an id may take six bytes for one in a key


LARGEST_ANSWER = int(SETTINGS["halts"]["max.message.bytes"])


@pytest.mark.slow
def test_what_is_said_of_a_charge_fits_into_an_answer_however_short_its_norms_are_written():
    """MessagePack writes whole numbers below 128 in one byte; the SDK writes eight for each."""
    users = names((8 * 2**20 - 300) // 27, 25)
    log = Log()
    log.create("outer", user_ids="string")
    log.create("d", parent="outer", user_ids="string")
    log.open("d", min_separation=2)
    about = {"type": "charge", "dataset": "d", "run": "r", "attempt": 1, "step": 0}

    def charged(count: int):
        said = {"users": users[:count], "norms": [100] * count, "scale": 1e-3}
        return answer_of(log.ledger.apply(9, encode({**about, **said})))

    refused = charged(len(users))
    assert refused.reason is Reason.TOO_LARGE
    most = int(len(users) * 27 / 29.5)
    assert len(encode(charged(most))) <= LARGEST_ANSWER


@pytest.mark.parametrize("row", WORST, ids=[row[0] for row in WORST])
def test_no_decision_is_larger_than_is_counted(row, monkeypatch):
    _, name_length, orders, ids, on_exhaustion = row
    log, users, name = AuditedLog(), list(ids), "d" * name_length
    log.create(name, on_exhaustion=on_exhaustion, **orders_from(orders))
    log.open(dataset=name)
    packed = users if isinstance(users[0], str) else np.array(users).tobytes()
    for step, norm in enumerate([20.0, 20.0]):  # clipped or halted
        decision = log.charge(step, packed, [norm] * len(users), dataset=name)
        size = len(encode(decision))
        for module, limit in ((limits, "MAX_REQUEST_BYTES"), (auditor_charges, "LARGEST_RECORD")):
            monkeypatch.setattr(module, limit, size)
        refused = log.charge(step + 1, packed, [norm] * len(users), dataset=name)
        assert refused.reason is Reason.TOO_LARGE
        monkeypatch.undo()
    log.audit()


def test_names_of_those_who_were_erased_are_counted_as_they_are_told():
    """They are longer than most ids."""
    log = AuditedLog()
    log.create(user_ids="string")
    log.open()
    users = names(300, 7)
    log.charge(0, users, [1.0] * 300)
    for user in users:
        log.send(Erase(request="f", user=user))
    decision = log.charge(1, users, [1.0] * 300)
    size = len(encode(decision))
    assert size > 300 * 42
    limit = pytest.MonkeyPatch()
    with limit.context() as patched:
        patched.setattr(limits, "MAX_REQUEST_BYTES", size)
        patched.setattr(auditor_charges, "LARGEST_RECORD", size)
        assert log.charge(2, users, [1.0] * 300).reason is Reason.TOO_LARGE
    log.audit()


@pytest.mark.slow
@pytest.mark.parametrize("row", WORST, ids=[row[0] for row in WORST])
def test_no_step_of_a_roster_writes_more_than_is_counted(row):
    """Beside its cost table, which the record has: enrolled, risen, halted, readmitted, clipped."""
    _, name_length, orders, ids, on_exhaustion = row
    name, users = "d" * name_length, list(ids)
    count = len(users)
    counted = limits.most_written(count, limits.id_bytes(users), name, orders)
    log = RosterLog()
    log.create(name, on_exhaustion=on_exhaustion, **orders_from(orders))
    log.open(dataset=name)
    packed = users if isinstance(users[0], str) else np.array(users).tobytes()
    enrolled = {"dataset": name, "members": count}
    log.enrol(packed, dataset=name)
    assert written_last(log) <= counted
    budgets = np.array(log.ledger.datasets[name].policy.budget)
    tenths = np.arange(LEVELS + 1)[:, np.newaxis] * (budgets // 10)
    dense = {"levels": [5] * count, **enrolled}
    for step, (prices, fields) in enumerate(
        [
            (tenths, dense),
            (tenths, {**dense, "levels": [6] * count}),  # halted, or clipped
            (tenths // 2, {**dense, "levels": [8] * count, "positions": list(range(count))}),
            (np.sign(tenths) * 2**61, enrolled),
        ]
    ):
        units = prices.astype("<i8").tobytes()
        assert isinstance(log.step(step, units, **fields), RosterDecision)
        assert written_last(log) <= counted + len(units)
    log.audit()


def written_last(log: Log) -> int:
    """Bytes of changes and answers of the last record."""
    return len(log.changes[-1]) + len(encode(log.outputs[-1]))


def test_the_members_of_a_roster_are_counted_together_however_they_are_enrolled(monkeypatch):
    for module, name in (
        (limits, "MAX_ROSTER_WRITE_BYTES"),
        (auditor_charges, "_MOST_WRITTEN_BY_ROSTERS"),
    ):
        monkeypatch.setattr(module, name, 4096 + 10 * 227 + 8 * 3)
    log = RosterLog()
    log.create(user_ids="mixed")
    log.open()
    for first in range(0, 8, 4):
        log.enrol(list(range(first, first + 4)), first=first)
    assert log.enrol(["abc", 9, 10], first=8).reason is Reason.TOO_LARGE
    assert log.enrol(["abcd", 9], first=8).reason is Reason.TOO_LARGE
    assert log.enrol(["abc"], first=8).members == 9
    log.hand_over(rebuilt(log.changes))
    assert log.enrol(["d"], first=9).reason is Reason.TOO_LARGE
    assert log.enrol([10], first=9).members == 10
    assert log.enrol([11], first=10).reason is Reason.TOO_LARGE
    log.audit()


def test_the_largest_charge_at_one_order_is_within_the_limit():
    assert limits.most_written(MAX_CHARGE_USERS, 0, "d" * 128, 1) <= MAX_WRITE_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("encoded", ["packed", "lists"])
def test_a_charge_that_cannot_be_written_is_refused_before_memory_is_taken(encoded):
    """256 orders x 140,000 users: 287 MB of spent units alone, in each of a dozen arrays."""
    users = np.arange(140_000)
    log = AuditedLog()
    log.create(**orders_from(256))
    log.open()
    ids = users.tobytes() if encoded == "packed" else users.tolist()
    norms = pack_norms(users / 1e6)
    value = encode(Charge(dataset="d", run="r", attempt=1, step=0, users=ids, norms=norms))
    ledger = rebuilt(log.changes)
    tracemalloc.start()
    try:
        ledger.apply(2, value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(value)
    log.send(value)
    assert log.reason() == Reason.TOO_LARGE
    assert isinstance(log.charge(0, users[:20].tobytes(), users[:20] / 1e6), Decision)
    log.audit()


def test_an_enrolment_whose_steps_cannot_be_written_is_refused_before_memory_is_taken():
    users = np.arange(140_000)
    log = RosterLog()
    log.create(**orders_from(256))
    log.open()
    ledger = rebuilt(log.changes)
    rejected = log.enrol(users.tobytes())
    assert rejected.reason is Reason.TOO_LARGE
    tracemalloc.start()
    try:
        ledger.apply(2, log.records[-1])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(log.records[-1])
    assert log.enrol(users[:200].tobytes()).members == 200
    log.audit()


def _charge(users: list[int]) -> Charge:
    return Charge(dataset="d", run="r", attempt=1, step=0, users=users, norms=[])


def test_what_a_charge_may_write_is_counted_for_every_budget_that_it_counts_against():
    users = np.arange(2**18).astype("<i8").tobytes()
    charge = msgspec.structs.replace(_charge(users))
    one, eight = {"d": 1}, {f"dataset{depth}": 1 for depth in range(8)}
    limits.check_size(charge, one)
    with pytest.raises(Rejection) as refused:
        limits.check_size(charge, eight)
    assert refused.value.reason is Reason.TOO_LARGE
    request = Enrol(
        dataset="d", run="r", attempt=1, request="t", first=0, users=users, clip_norm=1.0, levels=1
    )
    limits.check_roster(request, 2**19, 0, one, clip=False)
    with pytest.raises(Rejection) as refused:
        limits.check_roster(request, 2**19, 0, eight, clip=False)
    assert refused.value.reason is Reason.TOO_LARGE


@pytest.mark.parametrize("seed", range(4))
def test_charging_in_blocks_gives_the_same_bytes(seed, monkeypatch):
    whole = random_log(seed, messages=60)
    monkeypatch.setattr(rule, "_BLOCK_NUMBERS", 7)
    blocks = random_log(seed, messages=60)
    assert blocks.outputs == whole.outputs
    assert blocks.changes == whole.changes
    assert blocks.ledger.summary() == whole.ledger.summary()


@pytest.mark.slow
def test_deciding_takes_little_memory_beside_what_is_kept_and_written(monkeypatch):
    monkeypatch.setattr(rule, "_BLOCK_NUMBERS", 2**14)
    users = np.arange(4_000)
    log = Log()
    log.create(**orders_from(64))
    log.open()
    log.charge(0, users.tobytes(), np.full(4_000, 4.0))
    ledger = rebuilt(log.changes[:-1])
    tracemalloc.start()
    try:
        outputs = ledger.apply(2, log.records[-1])
        stays, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(outputs) == 4_001
    assert peak < 1.75 * stays


@pytest.mark.parametrize("seed", range(4))
def test_unwritten_bytes_are_about_what_is_written(seed):
    source = random_log(seed)
    ledger = Ledger(0, 1)
    outputs = []
    assert ledger.unwritten_bytes == 0
    for offset, record in enumerate(source.records):
        outputs += ledger.apply(offset, record)
        if offset % 20 == 19:
            unwritten = ledger.unwritten_bytes
            written = len(encode(ledger.take_changes())) + len(encode(outputs))
            assert written <= unwritten <= 2 * written + 20 * 1024
            assert ledger.unwritten_bytes == 0
            outputs = []


def test_what_is_loaded_or_put_back_is_written_already():
    source = random_log(0)
    ledger = Ledger(0, 1)
    for one in source.changes:
        ledger.put_back(msgspec.msgpack.decode(one, type=Changes))
    assert ledger.unwritten_bytes == 0
    loaded = Ledger(0, 1)
    loaded.load({name: ledger.take_page(name) for name in ledger.uncompacted()})
    assert loaded.unwritten_bytes == 0
    assert loaded.uncompacted() == []
    assert loaded.summary() == source.ledger.summary()
