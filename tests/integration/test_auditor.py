"""The audit detects wrong answers, accounts, state and hash chains."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from streams.ledger.accounts import AccountDelta
from streams.ledger.columns import RowDelta
from streams.records.digests import genesis
from tests.audit.comparison import compare, compare_chain
from tests.integration.service import Service
from tests.spending import spent_units

Records = dict[str, list[tuple[int, int, bytes]]]


def last(records: Records, topic: str, kind: str) -> int:
    kinds = [msgspec.msgpack.decode(value)["type"] for _, _, value in records[topic]]
    return len(kinds) - 1 - kinds[::-1].index(kind)


def changed(records: Records, topic: str, kind: str, **fields: Any) -> None:
    """Publish a copy of the last record of a kind with other fields."""
    partition, offset, value = records[topic][last(records, topic, kind)]
    record = {**msgspec.msgpack.decode(value), **fields}
    records[topic].append((partition, offset + 1000, msgspec.msgpack.encode(record)))


def dropped(records: Records, topic: str, kind: str) -> None:
    del records[topic][last(records, topic, kind)]


def other_ids(records: Records, topic: str, kind: str) -> dict[str, Any]:
    """Return the policy of the last record of a kind, with another kind of ids."""
    _, _, value = records[topic][last(records, topic, kind)]
    return {**msgspec.msgpack.decode(value)["policy"], "user_ids": "mixed"}


FORGERIES: dict[str, Callable[[Records], None]] = {
    "a second decision": lambda r: changed(r, "halts", "decision", admitted=b"\x00"),
    "another digest": lambda r: changed(r, "halts", "decision", digest=bytes(16)),
    "another version": lambda r: changed(r, "halts", "decision", v=2),
    "a decision lost": lambda r: dropped(r, "halts", "decision"),
    "a run opened twice": lambda r: changed(r, "halts", "run-opened", last_step=7),
    "another attempt given": lambda r: changed(r, "halts", "run-opened", attempt=2),
    "a run closed twice": lambda r: changed(r, "halts", "run-closed", last_step=7),
    "a closing lost": lambda r: dropped(r, "halts", "run-closed"),
    "a withdrawal lost": lambda r: dropped(r, "halts", "dataset-withdrawn"),
    "another kind of ids": lambda r: changed(
        r, "halts", "dataset-created", policy=other_ids(r, "halts", "dataset-created")
    ),
    "a reject lost": lambda r: dropped(r, "rejects", "rejected"),
    "another reason": lambda r: changed(r, "rejects", "rejected", reason="too-large"),
    "other original bytes": lambda r: changed(r, "rejects", "rejected", record=b"x"),
    "another sender": lambda r: changed(r, "rejects", "rejected", run="another"),
    "an odometer record lost": lambda r: dropped(r, "odometer", "odometer"),
    "a bound too low": lambda r: changed(r, "odometer", "odometer", bound=[0.0]),
    "a bound of another version": lambda r: changed(r, "odometer", "odometer", v=2),
    "a bound of another order": lambda r: changed(r, "odometer", "odometer", order=2.0),
    "a decision about a roster lost": lambda r: dropped(r, "halts", "roster-decision"),
    "nobody of a roster halted": lambda r: changed(r, "halts", "roster-decision", halted=b"\0"),
    "a longer form of positions": lambda r: changed(r, "halts", "roster-decision", halted=bytes(5)),
    "halts of a roster lost": lambda r: dropped(r, "halts", "halted"),
    "halts of a roster of others": lambda r: changed(r, "halts", "halted", users=[12345]),
    "halts of who has nothing left": lambda r: changed(r, "halts", "halted", exhausted=b"\1"),
    "an enrolment lost": lambda r: dropped(r, "halts", "enrolled"),
    "other levels": lambda r: changed(r, "halts", "enrolled", levels=b"\1"),
    "other users enrolled": lambda r: changed(r, "halts", "enrolled", digests=bytes(16)),
}


@pytest.fixture(scope="module")
def audited(shared: Service) -> Service:
    shared.client.create_dataset(
        "d", measure="zcdp", budget=1.0, odometer_step=0.1, assume_independent_timing=True
    )
    run = shared.client.run("d", "r")
    user = shared.users(1, partition=0)
    for _ in range(3):
        run.charge(user, [1.0], noise_stddev=2.0)
    roster = shared.client.run("d", "by-roster").enrol(user, clip_norm=1.0, levels=10)
    roster.charge(noise_stddev=2.0)
    roster.charge(noise_stddev=0.5)  # costs more than the budget
    shared.publish(0, b"garbage")
    shared.publish(0, {"type": "withdraw-dataset", "dataset": "gone", "request": "t"})
    other = {"dataset": "d", "run": "other", "request": "t"}
    shared.publish(0, {"type": "open-run", "attempt": 0, **other})
    shared.publish(0, {"type": "close-run", "attempt": 1, **other})
    shared.audit()
    return shared


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_the_audit_finds_a_record_that_does_not_follow_from_the_log(
    audited: Service, forge: Callable[[Records], None]
) -> None:
    records = {topic: list(found) for topic, found in audited.log.records.items()}
    auditor, ledgers = audited.audit(), audited.ledgers()
    for topic in ("halts", "rejects", "odometer"):  # the last decision is in partition 0
        records[topic].sort(key=lambda record: -record[0])
    compare(auditor, SimpleNamespace(records=records), ledgers)
    forge(records)
    with pytest.raises(AssertionError):
        compare(auditor, SimpleNamespace(records=records), ledgers)


@pytest.mark.parametrize("units", [-1, 1, 2**44], ids="{:+d} units".format)
def test_the_audit_finds_a_wrong_unit_in_redis(audited: Service, units: int) -> None:
    auditor, ledgers = audited.audit(), audited.ledgers()
    accounts = ledgers[0].state.datasets["d"]
    _, spent = spent_units(accounts)
    row = RowDelta(
        slots=np.array([0], dtype="<u4").tobytes(),
        values={"spent": (spent[:1] + units).astype("<i8").tobytes()},
    )
    accounts.apply_delta(AccountDelta("d", b"", len(accounts), [row]))
    with pytest.raises(AssertionError):
        compare(auditor, audited.log, ledgers)


def test_the_audit_finds_the_hash_chain_of_another_log(audited: Service) -> None:
    auditor = audited.audit()
    for partition in range(audited.partitions):
        chain = genesis(audited.log.topic_id(), partition, audited.partitions)
        records = [r for r in audited.log.records["norms"] if r[0] == partition]
        for _, offset, value in records[:-1]:
            chain = chain.after(offset, value)
        with pytest.raises(AssertionError):
            compare_chain(auditor, partition, chain)
        compare_chain(auditor, partition, chain.after(*records[-1][1:]))
