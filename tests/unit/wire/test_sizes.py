"""Whatever comes in, what a worker publishes about it fits in its topic.

A record that the broker refuses would end the worker, and the next one, for ever: it is in the
outbox.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from streams.ledger.ledger import Ledger
from streams.schemas import (
    MAX_CHARGE_USERS,
    OLDEST,
    VERSION,
    CreateDataset,
    OpenRun,
    Policy,
    encode,
)
from streams.topics.topics import SETTINGS

KAFKA_DEFAULT = 1_048_588  # of max.message.bytes
BATCH = 512  # what surrounds a record in a batch of one
CHARGE = {"type": "charge", "dataset": "d", "run": "r", "attempt": 1, "step": 0}
VERSIONS = pytest.mark.parametrize("v", range(OLDEST, VERSION + 1))


def outputs_fit(value: bytes, **policy: Any) -> bool:
    """Whether every output fits that one partition gives to a record of an open run."""
    ledger = Ledger(partition=0, partitions=1)
    rules = {"measure": "zcdp", "budget": [1], "odometer_step": [1]} | policy
    policy = Policy(dataset="d", partitions=1, **rules)
    ledger.apply(0, encode(CreateDataset(v=VERSION, request="t", policy=policy)))
    ledger.apply(1, encode(OpenRun(dataset="d", run="r", attempt=1, request="t")))
    outputs = ledger.apply(2, value)
    assert outputs
    return all(
        len(output.value) + len(output.key or b"") + BATCH
        <= int(SETTINGS[output.channel.value].get("max.message.bytes", KAFKA_DEFAULT))
        for output in outputs
    )


@pytest.mark.parametrize("value", [b"x" * 2**23, b"x" * (2**23 + 1), b"{" * 2**23])
def test_what_cannot_be_read_fits_in_the_rejects(value: bytes) -> None:
    assert outputs_fit(value)


@VERSIONS
@pytest.mark.parametrize("encoded", [msgspec.json.encode, msgspec.msgpack.encode])
@pytest.mark.parametrize(
    "record",
    [
        {"type": "charge", "x" * 5_000_000: 1},
        {**CHARGE, "type": "x" * 5_000_000},
        {**CHARGE, "users": [], "norms": [], "mechanism": "x" * 5_000_000},
    ],
    ids=["field", "type", "value"],
)
def test_a_refusal_does_not_repeat_a_long_mistake(
    encoded: Any, record: dict[str, Any], v: int
) -> None:
    assert outputs_fit(encoded({**record, "v": v}))


@VERSIONS
def test_the_largest_packed_step_fits_when_all_are_halted(v: int) -> None:
    users = 2**19 - 64
    packed = {"users": b"".join(i.to_bytes(8, "little") for i in range(users))}
    norms = {"norms": b"\0\0\0\0\0\0\xf0\x3f" * users}
    assert outputs_fit(msgspec.msgpack.encode(CHARGE | packed | norms | {"v": v}))


@VERSIONS
def test_the_largest_clipped_step_fits(v: int) -> None:
    users = MAX_CHARGE_USERS
    lists = {"users": list(range(users)), "norms": [9] * users, "v": v}
    assert outputs_fit(msgspec.msgpack.encode(CHARGE | lists), on_exhaustion="clip")


@VERSIONS
def test_the_longest_names_fit_when_all_are_halted_or_rise(v: int) -> None:
    users = [f"{i:05}" + "日" * 251 for i in range(10_000)]
    for budget in (1, 2**50):
        lists = {"users": users, "norms": [1] * len(users), "v": v}
        rules = {"budget": [budget], "odometer_step": [1]}
        assert outputs_fit(msgspec.msgpack.encode(CHARGE | lists), **rules)


@VERSIONS
def test_the_largest_list_of_small_integers_fits_when_all_are_halted(v: int) -> None:
    users = 1_390_000
    lists = {"users": list(range(users)), "norms": [1] * users, "v": v}
    assert outputs_fit(msgspec.msgpack.encode(CHARGE | lists))
