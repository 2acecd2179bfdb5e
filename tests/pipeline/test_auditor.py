"""The audit notices what it is there for."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from auditor import compare
from pipeline_service import Service

from streams.accounts import AccountsDelta

Records = dict[str, list[tuple[int, int, bytes]]]


def last(records: Records, topic: str, kind: str) -> int:
    kinds = [msgspec.msgpack.decode(value)["type"] for _, _, value in records[topic]]
    return len(kinds) - 1 - kinds[::-1].index(kind)


def changed(records: Records, topic: str, kind: str, **fields: Any) -> None:
    """Publish the last record of a kind once more, with other fields."""
    partition, offset, value = records[topic][last(records, topic, kind)]
    record = {**msgspec.msgpack.decode(value), **fields}
    records[topic].append((partition, offset + 1000, msgspec.msgpack.encode(record)))


def dropped(records: Records, topic: str, kind: str) -> None:
    del records[topic][last(records, topic, kind)]


FORGERIES: dict[str, Callable[[Records], None]] = {
    "a second decision": lambda r: changed(r, "halts", "decision", admitted=b"\x00"),
    "another digest": lambda r: changed(r, "halts", "decision", digest=bytes(16)),
    "a decision lost": lambda r: dropped(r, "halts", "decision"),
    "a run opened twice": lambda r: changed(r, "halts", "run-opened", last_step=7),
    "a reject lost": lambda r: dropped(r, "rejects", "rejected"),
    "another reason": lambda r: changed(r, "rejects", "rejected", reason="too-large"),
    "other original bytes": lambda r: changed(r, "rejects", "rejected", record=b"x"),
    "an odometer checkpoint lost": lambda r: dropped(r, "odometer", "odometer"),
    "a bound too low": lambda r: changed(r, "odometer", "odometer", bound=[0.0]),
}


@pytest.fixture(scope="module")
def audited(shared: Service) -> Service:
    shared.client.create_dataset("d", budget=1.0, odometer_step=0.1)
    run = shared.client.run("d", "r")
    user = shared.users(1, partition=0)
    for _ in range(3):
        run.charge(user, [1.0], noise_stddev=2.0)
    shared.publish(0, b"garbage")
    shared.audit()
    return shared


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_what_the_log_does_not_say_is_noticed(
    audited: Service, forge: Callable[[Records], None]
) -> None:
    records = {topic: list(found) for topic, found in audited.log.records.items()}
    auditor, ledgers = audited.audit(), audited.ledgers()
    for topic in ("halts", "rejects", "odometer"):  # the last decision of all is of partition 0
        records[topic].sort(key=lambda record: -record[0])
    compare(auditor, SimpleNamespace(records=records), ledgers)
    forge(records)
    with pytest.raises(AssertionError):
        compare(auditor, SimpleNamespace(records=records), ledgers)


@pytest.mark.parametrize("units", [-1, 1, 2**44], ids="{:+d} units".format)
def test_a_single_unit_in_redis_is_noticed(audited: Service, units: int) -> None:
    auditor, ledgers = audited.audit(), copy.deepcopy(audited.ledgers())
    accounts = ledgers[0].datasets["d"]
    _, spent = accounts.spent_units()
    delta = AccountsDelta(
        dataset="d",
        new_users=b"",
        first_new_slot=len(accounts),
        slots=np.array([0], dtype="<u4").tobytes(),
        spent=(spent[:1] + units).astype("<i8").tobytes(),
        raised=b"",
        base=b"",
        rungs=b"",
    )
    accounts.apply(delta)
    with pytest.raises(AssertionError):
        compare(auditor, audited.log, ledgers)
