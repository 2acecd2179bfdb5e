"""Examples of records, in JSON and MessagePack."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

POLICY: dict[str, Any] = {
    "dataset": "d",
    "partitions": 4,
    "measure": "renyi",
    "budget": [2**44, 2**45],
    "odometer_step": [2**40, 2**40],
    "orders": [2.0, 8.5],
    "on_exhaustion": "clip",
}
CREATE: dict[str, Any] = {"type": "create-dataset", "request": "t", "policy": POLICY}
OPEN: dict[str, Any] = {
    "type": "open-run",
    "dataset": "d",
    "run": "r",
    "attempt": 1,
    "request": "t",
}
CHARGE: dict[str, Any] = {
    "type": "charge",
    "dataset": "d",
    "run": "r",
    "attempt": 1,
    "step": 0,
    "users": [1, 2],
    "norms": [0.5, 1.0],
}
CLOSE: dict[str, Any] = {**OPEN, "type": "close-run"}
WITHDRAW: dict[str, Any] = {"type": "withdraw-dataset", "dataset": "d", "request": "t"}
PACKED_USERS = struct.pack("<2q", 1, 2)
PACKED_NORMS = struct.pack("<2d", 0.5, 1.0)


def as_json(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record)


def as_msgpack(record: dict[str, Any]) -> bytes:
    return msgspec.msgpack.encode(record)


ENCODINGS = pytest.mark.parametrize("encoded", [as_json, as_msgpack], ids=["json", "msgpack"])
