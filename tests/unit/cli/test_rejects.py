"""Rejects can be read: reason, time, run, and the record itself."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from streams.cli.printing import show
from streams.operations.rejected import by_request, decoded, readable
from streams.records import Charge, ChargeRoster, Enrol, Reason, Rejected, encode
from tests.keys import public_key, signed

USERS = np.array([1, -(2**63)], dtype="<i8").tobytes()
RUN: dict[str, Any] = {"dataset": "d", "run": "r", "attempt": 1}
CHARGE = Charge(**RUN, step=0, users=USERS, norms=np.array([0.5, 1.0], dtype="<f8").tobytes())
ROSTER = ChargeRoster(
    **RUN,
    step=0,
    members=3,
    cost_table_digest=bytes(16),
    units=np.array([0, 5, -1], dtype="<i8").tobytes(),
    positions=np.array([1, 2**32 - 1], dtype="<u4").tobytes(),
    levels=b"\x03\xff",
)
ENROL = Enrol(**RUN, request="t", first=0, users=USERS, clip_norm=1.0, levels=7)
TOKEN = Rejected(
    partition=0, offset=1, reason=Reason.UNKNOWN_DATASET, detail="d", record=b"a", request="token"
)
STEP = msgspec.structs.replace(TOKEN, request=None, dataset="d", run="r", attempt=1, step=0)
NOBODYS = msgspec.structs.replace(TOKEN, request=None)


def reject(record: bytes) -> Rejected:
    return msgspec.structs.replace(STEP, record=record)


def in_partition(rejected: Rejected, partition: int, **changes: object) -> tuple[float, Rejected]:
    return 1.0, msgspec.structs.replace(rejected, partition=partition, **changes)


@pytest.mark.parametrize(
    ("refused", "partitions"),
    [
        ([in_partition(TOKEN, 2), in_partition(TOKEN, 0), in_partition(TOKEN, 2)], [2]),
        ([in_partition(STEP, 0), in_partition(STEP, 1)], [0]),
        ([in_partition(STEP, 0), in_partition(STEP, 1, step=1)], [0, 1]),
        ([in_partition(TOKEN, 0), in_partition(TOKEN, 1, reason=Reason.MALFORMED)], [0, 1]),
        ([in_partition(NOBODYS, 0), in_partition(NOBODYS, 1)], [0, 1]),
        ([in_partition(STEP, 0, user=1), in_partition(STEP, 0, user=2)], [0, 0]),
        ([in_partition(STEP, 0), in_partition(TOKEN, 1), in_partition(STEP, 2)], [0, 1]),
    ],
)
def test_each_rejected_request_is_shown_once(
    refused: list[tuple[float, Rejected]], partitions: list[int]
) -> None:
    assert [rejected.partition for _, rejected in by_request(refused)] == partitions


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (encode(CHARGE), {"type": "charge", "users": [1, -(2**63)], "norms": [0.5, 1.0]}),
        (encode(ROSTER), {"units": [0, 5, -1], "positions": [1, 2**32 - 1], "levels": [3, 255]}),
        (encode(ENROL), {"users": [1, -(2**63)], "levels": 7}),
        (b'{"type": "charge", "users": ["\xc3\xbc"]}', {"users": ["ü"]}),
        (signed(CHARGE, "alice"), {"key": public_key("alice"), "request": decoded(encode(CHARGE))}),
        # No deeper than one level.
        (signed(signed(CHARGE, "alice"), "alice"), {"type": "signed"}),
        (msgspec.msgpack.encode({"users": b"123", "norms": b"1"}), {"users": b"123"}),
    ],
)
def test_records_are_decoded(record: bytes, fields: dict[str, Any]) -> None:
    found = decoded(record)
    assert {name: found[name] for name in fields} == fields


UNREADABLE = [b"", b"\xff", b"{", b"\x93\x01", b"A", b"\x81\xa1a", b'["no", "object"]', b"{\xff}"]


@pytest.mark.parametrize("record", [*UNREADABLE, b"[" * 10_000])
def test_unreadable_record_is_kept_as_bytes(record: bytes, capfd) -> None:
    assert decoded(record) is None
    shown = readable(0.0, reject(record))
    show("reject", shown, as_json=True)
    line = json.loads(capfd.readouterr().out)
    assert line["record"] is None
    assert msgspec.convert(line["bytes"], bytes, strict=False) == record


@pytest.mark.parametrize(
    ("written", "time"),
    [(0.0, "1970-01-01T00:00:00.000+00:00"), (-0.001, None), (9e15, None)],
)
def test_unreadable_time_is_none(written: float, time: str | None) -> None:
    assert readable(written, reject(b""))["time"] == time


@pytest.mark.parametrize("key", [None, True, 1, 1.5, b"k", "k", (1, "k")])
def test_a_record_with_any_keys_is_shown(key: object, capfd) -> None:
    shown = readable(0.0, reject(msgspec.msgpack.encode({"type": {key: [{key: 1}]}})))
    for as_json in (True, False):
        show("reject", shown, as_json)
        show("reject", [shown], as_json)
    assert len(capfd.readouterr().out.splitlines()) > 4
