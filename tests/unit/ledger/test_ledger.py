"""One partition: what a record does, what it must not do, and that it can be done again.

In both versions of the wire, and with the auditor of the pipeline tests looking on.
"""

import random
from copy import deepcopy
from functools import cache
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from streams.ledger.columns import PAGE_ROWS
from streams.ledger.ledger import Channel, Ledger, ledger_of
from streams.records import (
    Charge,
    Decision,
    OdometerRecord,
    Reason,
    RunOpened,
    encode,
)
from streams.records.digests import NO_TOPIC
from streams.records.packing import pack_norms
from tests.spending import spent_units
from tests.unit.ledger.audited import AuditedLog
from tests.unit.ledger.ledgers import Log, admitted, answer_of, exhausted, rebuilt


@pytest.fixture
def log(new_log) -> Log:
    log = new_log()
    log.create(**log.any_ids)
    log.open()
    return log


def state_of(ledger: Ledger) -> tuple:
    datasets = {
        name: [part.tolist() for part in spent_units(a)] + [a.bounds().tolist()]
        for name, a in ledger.state.datasets.items()
    }
    return datasets, dict(ledger.state.runs)


def test_exactly_as_many_steps_are_admitted_as_fit(new_log):
    log = new_log()
    log.create(budget=1.0)
    log.open()
    for step in range(32):  # each costs 1 / 32
        decision = log.charge(step, [1], [1.0])
        assert admitted(decision) == [True]
        assert exhausted(decision) == [step == 31]
    assert admitted(log.charge(32, [1], [1.0])) == [False]
    assert admitted(log.charge(33, [1], [0.0])) == [True]
    assert log.spent() == {1: 2**44}


def test_a_repeated_step_returns_the_stored_decision_and_charges_nothing(log):
    first = log.charge(0, [1, 2], [1.0, 2.0])
    spent = log.spent()
    assert log.charge(0, [1, 2], [1.0, 2.0]) == first
    assert log.spent() == spent
    log.open(attempt=2)
    again = log.charge(0, [1, 2], [1.0, 2.0], attempt=2)
    assert msgspec.structs.replace(again, attempt=1) == first
    assert log.spent() == spent


def test_the_encoding_of_a_step_does_not_make_it_another_step(log):
    first = log.charge(0, [1, 2], [1.0, 2.0])
    packed = np.array([1, 2], dtype="<i8").tobytes()
    assert log.charge(0, packed, [1.0, 2.0]) == first


def test_a_newer_attempt_fences_an_older_one_and_keeps_the_step(log):
    log.charge(0, [1], [1.0])
    opened = log.open(attempt=3, request="other")
    assert isinstance(opened, RunOpened)
    assert opened.last_step == 0
    assert log.charge(1, [1], [1.0], attempt=1).reason is Reason.OLDER_ATTEMPT
    assert log.open(attempt=3, request="token").reason is Reason.OLDER_ATTEMPT
    assert log.open(attempt=3, request="other") == msgspec.structs.replace(
        opened, offset=len(log.records) - 1
    )


def test_a_policy_never_changes(log):
    created = answer_of(log.outputs[0])
    log.create(budget=1.0)
    assert answer_of(log.outputs[-1]).policy == created.policy
    refused = log.create(budget=2.0)
    assert refused.reason is Reason.POLICY_CHANGED
    assert refused.held == created.policy


def test_clipping_lets_a_user_spend_to_the_end_and_no_further(new_log):
    log = new_log()
    log.create(budget=1.0, on_exhaustion="clip")
    log.open()
    log.charge(0, [1], [5.0])  # 25 of 32
    decision = log.charge(1, [1], [5.0])
    granted = np.frombuffer(decision.granted, dtype="<f8")
    assert granted == pytest.approx([np.sqrt(7.0)])
    assert granted[0] ** 2 <= 7.0
    assert admitted(decision) == exhausted(decision) == [True]
    last = log.charge(2, [1], [5.0])
    assert admitted(last) == [False]
    assert log.spent() == {1: 2**44}


def test_odometer_is_published_on_every_rise_and_never_below_spend(log):
    for step in range(40):
        log.charge(step, [1], [0.9])
    rises = [
        msgspec.msgpack.decode(out.value, type=OdometerRecord)
        for outputs in log.outputs
        for out in outputs
        if out.channel is Channel.ODOMETER
    ]
    bounds = [rise.bound[0] for rise in rises]
    assert bounds == sorted(set(bounds))
    assert bounds[-1] <= 1.0
    final = log.ledger.state.datasets["d"].bounds()[0]
    assert final == bounds[-1] >= log.spent()[1] / 2**44


def random_log(seed: int, kind: type[Log] = Log, messages: int = 120) -> Log:
    """Good and bad records of three datasets with all kinds of users."""
    rng = random.Random(seed)
    log = kind()
    log.create("d", budget=1.0, **log.any_ids)
    log.create("clip", budget=0.5, on_exhaustion="clip", **log.any_ids)
    log.create("renyi", budget=[2.0, 6.0], measure="renyi", orders=[2.0, 8.0], **log.any_ids)
    steps: dict[str, int] = {}
    for dataset in ("d", "clip", "renyi"):
        log.open(dataset=dataset)
    for _ in range(messages):
        dataset = rng.choice(["d", "clip", "renyi"])
        count = rng.choice([0, 1, 5, 60])
        users = rng.sample(range(150), count)
        if rng.random() < 0.4:
            users = [f"u{user}" if user % 3 == 0 else user for user in users]
        norms = [rng.choice([0.0, 0.3, 1.0, rng.random() * 3]) for _ in users]
        step = steps.get(dataset, 0) - (rng.random() < 0.1)
        answer = log.charge(max(step, 0), users, norms, scale=2.0, dataset=dataset)
        if isinstance(answer, Decision) and answer.step == steps.get(dataset, 0):
            steps[dataset] = answer.step + 1
        if rng.random() < 0.05:
            log.send(rng.choice([b"", b"{", b"\xff\xfe", b"\x81", None]))
    return log


applied_log = cache(random_log)  # for those who leave it as it is


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_auditor_agrees_about_random_logs(seed):
    random_log(seed, AuditedLog).audit()


@pytest.mark.parametrize("seed", range(6))
def test_applying_a_log_again_gives_the_same_bytes(seed):
    log = applied_log(seed)
    again = Log()
    for record in log.records:
        again.send(record)
    assert again.outputs == log.outputs
    assert again.changes == log.changes


@pytest.mark.parametrize("seed", range(6))
def test_changes_rebuild_the_state(seed):
    log = applied_log(seed)
    assert state_of(rebuilt(log.changes)) == state_of(log.ledger)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_a_compaction_that_stops_anywhere_changes_nothing(seed):
    """Compact while the log grows, stop at a random page, drop only what a whole one covers."""
    rng = random.Random(seed)
    source = deepcopy(applied_log(seed))
    ledger = Ledger(0, 1)
    pages: dict[str, bytes] = {}
    changes: list[bytes] = []
    pending: list[str] = []
    covered = 0
    for offset, record in enumerate(source.records):
        ledger.apply(offset, record)
        changes.append(encode(ledger.state.take_delta()))
        if not pending and rng.random() < 0.1:
            pending, covered = ledger.state.unmerged(), len(changes)
        elif pending:
            name = pending.pop(0)
            pages[name] = ledger.state.take_page(name)
            if not pending:
                del changes[:covered]
    taken_over = Ledger(0, 1)
    taken_over.state.load(pages, changes)
    assert state_of(taken_over) == state_of(source.ledger)
    follow_up = encode(
        Charge(
            dataset="d",
            run="r",
            attempt=1,
            step=source.ledger.state.runs["d", "r"].step + 1,
            users=[1, "u3"],
            norms=pack_norms(np.array([0.5, 0.5])),
            scale=2.0,
        )
    )
    offset = len(source.records)
    assert taken_over.apply(offset, follow_up) == source.ledger.apply(offset, follow_up)


def test_a_new_owner_goes_on_where_state_and_chain_stand():
    source = applied_log(1)
    half = len(source.records) // 2
    before = Ledger(0, 1)
    for offset, record in enumerate(source.records[:half]):
        before.apply(offset, record)
    before.state.take_delta()
    pages = {name: before.state.take_page(name) for name in before.state.unmerged()}
    changes = []
    for offset, record in enumerate(source.records[half:-1], start=half):
        before.apply(offset, record)
        changes.append(encode(before.state.take_delta()))
    kept = SimpleNamespace(pages=pages, changes=changes)
    after = ledger_of(kept, 0, 1, NO_TOPIC, before.chain)
    assert state_of(after) == state_of(before)
    assert after.chain.ends_with(source.records[-2])
    last = len(source.records) - 1
    assert after.apply(last, source.records[-1]) == before.apply(last, source.records[-1])
    assert after.chain == before.chain == source.ledger.chain


@pytest.mark.slow
def test_a_compaction_of_many_pages_survives_users_that_arrive_meanwhile(new_log):
    log = new_log()
    log.create(budget=1.0)
    log.open()
    ids = np.arange(3 * PAGE_ROWS)
    half = len(ids) // 2
    log.charge(0, ids[:half].tobytes(), np.full(half, 0.5))
    names = log.ledger.state.unmerged()
    pages = {
        names[0]: log.ledger.state.take_page(names[0]),
        names[1]: log.ledger.state.take_page(names[1]),
    }
    log.charge(1, ids[half:].tobytes(), np.full(len(ids) - half, 0.5))
    for name in names[2:]:  # the second page of users is now fuller than the changes know
        pages[name] = log.ledger.state.take_page(name)
    ledger = Ledger(0, 1)
    ledger.state.load(pages, log.changes[3:])
    assert state_of(ledger)[0] == state_of(log.ledger)[0]
