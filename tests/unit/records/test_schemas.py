"""Decoding: a record is valid, or is rejected with a reason."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from accounting.exact.units import MAX_BUDGET_UNITS
from streams.records import (
    MAX_REQUEST_BYTES,
    VERSION,
    BudgetUnits,
    Charge,
    CloseRun,
    CreateDataset,
    OpenRun,
    Policy,
    Reason,
    Rejection,
    WithdrawDataset,
    decode_request,
)
from tests.unit.records.records import (
    CHARGE,
    CLOSE,
    CREATE,
    ENCODINGS,
    OPEN,
    POLICY,
    WITHDRAW,
    as_json,
    as_msgpack,
)


def refusal(value: bytes | None) -> Rejection:
    with pytest.raises(Rejection) as caught:
        decode_request(value)
    return caught.value


# --- accepted -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (CREATE, CreateDataset(request="t", policy=Policy(**POLICY))),
        (OPEN, OpenRun(dataset="d", run="r", attempt=1, request="t")),
        (
            CHARGE,
            Charge(dataset="d", run="r", attempt=1, step=0, users=[1, 2], norms=[0.5, 1.0]),
        ),
        (CLOSE, CloseRun(dataset="d", run="r", attempt=1, request="t")),
        (WITHDRAW, WithdrawDataset(dataset="d", request="t")),
    ],
)
def test_request_without_optional_fields_gets_their_defaults(
    record: dict[str, Any], expected: msgspec.Struct
) -> None:
    assert decode_request(as_json(record)) == expected


def test_integers_among_norms_become_floats() -> None:
    request = decode_request(as_json({**CHARGE, "norms": [1, 2]}))
    assert isinstance(request, Charge)
    assert [type(norm) for norm in request.norms] == [float, float]


# --- rejected ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b"\xc0",
        b"\x90",
        b"\x80",
        b"{'type':'charge'}",
        b" " + as_json(CHARGE),
        b"\xef\xbb\xbf" + as_json(CHARGE),
        as_json(CHARGE) + b"x",
        as_json(CHARGE) * 2,
        as_msgpack(CHARGE) + b"\x01",
        as_json(CHARGE).decode().encode("utf-16"),
        as_msgpack(CHARGE).replace(b"users", b"\xff\xfe\xfd__"),
        as_json({**CHARGE, "users": ["XX"]}).replace(b"XX", b"\xff\xfe"),
        as_json({**CHARGE, "users": ["XXX"]}).replace(b"XXX", b"\xed\xa0\x80"),
        as_msgpack({**CHARGE, "users": ["XXX"]}).replace(b"XXX", b"\xed\xa0\x80"),
        as_json({**CHARGE, "users": ["XX"]}).replace(b"XX", b"\\ud800"),
        as_json({**CHARGE, "users": ["XX"]}).replace(b"XX", b"\\udc00"),
        as_json({**CHARGE, "users": ["XX"]}).replace(b"XX", b"\\ud800\\ud800"),
        json.dumps({**CHARGE, "norms": [float("nan"), 1]}).encode(),
        json.dumps({**CHARGE, "norms": [float("inf"), 1]}).encode(),
        as_json(CHARGE).replace(b"0.5", b"1e999"),
        as_json(CHARGE).replace(b"0.5", b"9" * 5000),
        as_json(CHARGE).replace(b"[1,2]", b"[" + b"9" * 5000 + b"]"),
        as_json(CHARGE).replace(b"[1,2]", b"[9223372036854775808]"),
        as_json(CHARGE).replace(b"[1,2]", b"[-9223372036854775809]"),
        *(as_json({**CHARGE, "users": text}) for text in ("AQIDBAUGBw", "AQIDBAUGB===", "AQ ID")),
        as_msgpack({**CHARGE, "users": "AQIDBAUGBwg="}),
        as_json(CHARGE).replace(b'"step":0', b'"step":' + b"9" * 5000),
        b'{"type":' + b"[" * 100_000,
        b'{"x":' * 100_000,
        b"\x81\xa1x" * 100_000,
        as_msgpack({"type": "charge"})[:-7] + b"\xdb\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
    ],
)
def test_invalid_bytes_are_rejected(value: bytes) -> None:
    assert refusal(value).reason is Reason.MALFORMED


@pytest.mark.parametrize("header", [b"\xdd", b"\xc6", b"\xdb"], ids=["array", "bin", "str"])
@pytest.mark.parametrize("field", [b"users", b"norms"])
def test_length_beyond_the_record_is_rejected(header: bytes, field: bytes) -> None:
    value = as_msgpack(CHARGE)
    start = value.index(field) + len(field)
    assert refusal(value[:start] + header + b"\xff\xff\xff\xff").reason is Reason.MALFORMED


@pytest.mark.parametrize("excess", [0, 1])
def test_request_above_the_maximum_size_is_rejected(excess: int) -> None:
    record = {**CHARGE, "users": b"", "norms": bytes(MAX_REQUEST_BYTES - 184)}
    spare = MAX_REQUEST_BYTES - len(as_msgpack({**record, "run": ""}))
    name = "r" * (spare + excess - 1)  # a name of more than 31 characters takes a byte more
    value = as_msgpack({**record, "run": name})
    assert len(value) == MAX_REQUEST_BYTES + excess
    if excess:
        assert refusal(value).reason is Reason.TOO_LARGE
    else:
        assert isinstance(decode_request(value), Charge)


@ENCODINGS
@pytest.mark.parametrize("changes", [{"new": 1}, {"type": "erase-user"}, {"step": "1a"}])
def test_newer_record_is_rejected_for_its_version(encoded: Any, changes: dict[str, Any]) -> None:
    refused = refusal(encoded({**CHARGE, "v": VERSION + 1, **changes}))
    assert refused.reason is Reason.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "change", [{"users": bytes(31)}, {"norms": bytes(31)}, {"users": ["e\u0308"]}]
)
def test_rejection_for_content_has_the_request(change: dict[str, Any]) -> None:
    refused = refusal(as_msgpack({**CHARGE, **change}))
    assert refused.reason is Reason.MALFORMED
    assert isinstance(refused.request, Charge)
    assert refused.request.run == "r"


def test_policy_and_filter_have_the_same_maximum_budget() -> None:
    (limits,) = BudgetUnits.__metadata__
    assert limits.le == MAX_BUDGET_UNITS


@pytest.mark.process
def test_records_import_neither_kafka_nor_scipy() -> None:
    heavy = "{'accounting', 'kafka', 'redis', 'scipy'} & set(sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys, streams.records; print({heavy})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "set()\n"
