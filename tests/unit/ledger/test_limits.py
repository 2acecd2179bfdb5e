"""What a charge makes a worker write is known before, and what it takes to decide is bounded."""

import copy
import tracemalloc

import numpy as np
import pytest
from msgspec.structs import replace

from accounting.filters.roster_columns import MAX_STEPS
from streams.ledger import datasets, rule, validation
from streams.ledger.ledger import Channel, Ledger
from streams.records import (
    MAX_ACCOUNTS,
    MAX_BALANCES,
    MAX_CHARGE_USERS,
    MAX_ROSTERS,
    Charge,
    ChargeRoster,
    CloseDataset,
    DatasetCreated,
    Decision,
    Erase,
    Reason,
    Rejection,
    decode_request,
    encode,
)
from streams.records.packing import pack_norms
from tests.audit import auditor, auditor_charges
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, rebuilt
from tests.unit.ledger.random_logs import RandomLog
from tests.unit.ledger.roster_logs import RosterLog, begun, prices


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
def test_no_decision_is_larger_than_is_counted(row, monkeypatch):
    _, name_length, orders, ids, on_exhaustion = row
    log, users, name = AuditedLog(), list(ids), "d" * name_length
    log.create(name, on_exhaustion=on_exhaustion, **orders_from(orders))
    log.open(dataset=name)
    packed = users if isinstance(users[0], str) else np.array(users).tobytes()
    for step, norm in enumerate([20.0, 20.0]):  # clipped or halted
        decision = log.charge(step, packed, [norm] * len(users), dataset=name)
        size = len(encode(decision))
        monkeypatch.setattr(validation, "MAX_ANSWER_BYTES", size)
        monkeypatch.setattr(auditor_charges, "LARGEST_DECISION", size)
        refused = log.charge(step + 1, packed, [norm] * len(users), dataset=name)
        assert refused.reason is Reason.TOO_LARGE
        monkeypatch.undo()


def test_decision_size_counts_keyed_hashes():
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
        patched.setattr(validation, "MAX_ANSWER_BYTES", size)
        patched.setattr(auditor_charges, "LARGEST_DECISION", size)
        assert log.charge(2, users, [1.0] * 300).reason is Reason.TOO_LARGE


@pytest.mark.slow
@pytest.mark.parametrize("encoded", ["packed", "lists"])
def test_oversized_charge_is_rejected_before_memory_is_used(encoded):
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


@pytest.mark.parametrize("seed", range(2))
def test_charging_in_blocks_gives_the_same_bytes(seed, monkeypatch):
    whole = RandomLog(seed).grow(160)
    monkeypatch.setattr(rule, "_BLOCK_NUMBERS", 7)
    blocks = RandomLog(seed).grow(160)
    assert blocks.outputs == whole.outputs
    assert blocks.changes == whole.changes
    assert blocks.ledger.summary() == whole.ledger.summary()


@pytest.mark.slow
def test_decision_needs_little_memory_beside_its_outputs(monkeypatch):
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


@pytest.mark.parametrize("seed", range(2))
def test_unwritten_bytes_are_about_what_is_written(seed):
    source = RandomLog(seed).grow(160)
    ledger = Ledger(0, 1)
    outputs = []
    assert ledger.state.unwritten_bytes == 0
    for offset, record in enumerate(source.records):
        outputs += ledger.apply(offset, record)
        if offset % 20 == 19:
            unwritten = ledger.state.unwritten_bytes
            written = len(encode(ledger.state.take_delta())) + len(encode(outputs))
            assert written <= unwritten <= 2 * written + 20 * 1024
            assert ledger.state.unwritten_bytes == 0
            outputs = []


def test_restored_state_counts_as_written():
    source = RandomLog(0).grow(160)
    ledger = Ledger(0, 1)
    ledger.state.load({}, source.changes)
    assert ledger.state.unwritten_bytes == 0
    loaded = Ledger(0, 1)
    pages = {name: ledger.state.take_page(name) for name in ledger.state.unmerged()}
    loaded.state.load({name: page for name, page in pages.items() if page is not None})
    assert loaded.state.unwritten_bytes == 0
    assert loaded.state.unmerged() == []
    assert loaded.summary() == source.ledger.summary()


def orders_of(accounts: int, each: int) -> dict[str, int]:
    return {f"d{number}": each for number in range(accounts)}


@pytest.mark.parametrize(
    ("users", "orders", "is_taken"),
    [
        (MAX_CHARGE_USERS, orders_of(6, 1), True),
        (MAX_CHARGE_USERS, orders_of(7, 1), False),
        (MAX_ACCOUNTS, orders_of(1, 1), True),
        (MAX_ACCOUNTS + 1, orders_of(1, 1), False),
        (MAX_BALANCES // 256, orders_of(1, 256), True),
        (MAX_BALANCES // 256, orders_of(2, 128), True),
        (MAX_BALANCES // 256 + 1, orders_of(2, 128), False),
    ],
)
def test_a_step_changes_a_limited_number_of_accounts_and_balances(users, orders, is_taken):
    if is_taken:
        validation.check_balances(users, orders)
        return
    with pytest.raises(Rejection) as rejected:
        validation.check_balances(users, orders)
    assert rejected.value.reason is Reason.TOO_LARGE


def test_members_of_several_enrolments_are_counted_together(monkeypatch):
    monkeypatch.setattr(validation, "MAX_ACCOUNTS", 20)
    monkeypatch.setattr(auditor_charges, "_MOST_ACCOUNTS", 20)
    log = RosterLog()
    log.create("o")
    log.create("d", parents=["o"])
    log.open()
    for first in range(0, 8, 4):
        log.enrol(list(range(first, first + 4)), first=first)
    assert log.enrol([8, 9, 10], first=8).reason is Reason.TOO_LARGE
    log.hand_over(rebuilt(log.changes))
    assert log.enrol([8, 9], first=8).members == 10
    assert log.enrol([10], first=10).reason is Reason.TOO_LARGE


def test_a_limited_number_of_rosters_share_a_budget():
    log = RosterLog()
    log.create("o")
    for name in ("a", "b", "elsewhere"):
        log.create(name, **({} if name == "elsewhere" else {"parents": ["o"]}))
    runs = [("ab"[number % 2], f"r{number}") for number in range(MAX_ROSTERS)]
    for dataset, run in [*runs, ("o", "more"), ("elsewhere", "r")]:
        log.open(dataset, run)
    for dataset, run in runs:
        assert log.enrol([1, 2], dataset=dataset, run=run).members == 2
    log.hand_over(rebuilt(log.changes))
    assert log.enrol([1], dataset="o", run="more").reason is Reason.TOO_LARGE
    assert log.enrol([3], 2, dataset="a", run="r0").members == 3
    assert log.enrol([1], dataset="elsewhere", run="r").members == 1
    log.close("a", "r0")
    assert log.enrol([1], dataset="o", run="more").members == 1


def test_a_log_has_a_limited_number_of_datasets(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_DATASETS", 2)
    monkeypatch.setattr(auditor, "_MOST_DATASETS", 2)
    log = AuditedLog()
    log.create("a")
    log.create("b")
    log.send(CloseDataset(dataset="b", request="t"))
    log.create("c")
    assert log.reason() == Reason.TOO_LARGE
    assert isinstance(log.create("a"), DatasetCreated)


def test_the_names_of_all_datasets_of_a_log_fit_into_an_answer(monkeypatch):
    monkeypatch.setattr(datasets, "MAX_NAMES_BYTES", 20)
    monkeypatch.setattr(auditor, "_MOST_OF_NAMES", 20)
    log = AuditedLog()
    log.create("five5")
    log.create("ten-ten-10")
    assert log.reason() == Reason.TOO_LARGE
    assert isinstance(log.create("nine-nine"), DatasetCreated)
    assert isinstance(log.create("nine-nine"), DatasetCreated)
    log.create("a")
    assert log.reason() == Reason.TOO_LARGE


def test_roster_takes_no_more_steps_than_its_columns_can_count():
    log = begun()
    log.step(0, prices())
    runs, last = log.ledger.state.runs, MAX_STEPS
    for steps, expected in ((last - 1, Channel.HALTS), (last, Channel.REJECTS)):
        ledger = copy.deepcopy(log.ledger)
        ledger.state.runs["d", "r"] = replace(runs["d", "r"], roster_steps=steps)
        members = ledger.state.rosters.members["d", "r"]
        members.recurring.steps = steps
        members.rows.since[:] = steps
        record = decode_request(log.records[-1])
        assert isinstance(record, ChargeRoster)
        record = replace(record, step=1, positions=b"\0" * 4, levels=b"\1")
        outputs = ledger.apply(9, encode(record))
        assert outputs[0].channel is expected
        assert members.rows.since[0] == min(steps + 1, last)
