"""Rejects, as people read them: why, when, from which run, and the record itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from streams.operations.times import utc
from streams.schemas import Rejected, Rejection
from streams.wire.packing import unpack_norms, unpack_users

_PACKED: Mapping[str, Callable[[bytes], Any]] = {
    "users": unpack_users,
    "norms": unpack_norms,
    "units": lambda packed: np.frombuffer(packed, dtype="<i8"),
    "positions": lambda packed: np.frombuffer(packed, dtype="<u4"),
    "levels": lambda packed: np.frombuffer(packed, dtype=np.uint8),
}


def readable(written: float, rejected: Rejected) -> dict[str, Any]:
    """A reject with the record as far as it can be read, and as bytes as far as it cannot."""
    record = decoded(rejected.record)
    return {
        "time": utc(written),
        "reason": rejected.reason,
        "detail": rejected.detail,
        "dataset": rejected.dataset,
        "run": rejected.run,
        "attempt": rejected.attempt,
        "step": rejected.step,
        "request": rejected.request,
        "partition": rejected.partition,
        "offset": rejected.offset,
        "record": record,
        "bytes": rejected.record if record is None else None,
    }


def decoded(record: bytes) -> Any:
    """The record as JSON or MessagePack, with packed arrays as lists; None if neither.

    What is signed stands as a record in the record.
    """
    content = _content(record)
    if content is not None and content.get("type") == "signed":
        inner = content.get("request")
        content["request"] = (_content(inner) if isinstance(inner, bytes) else None) or inner
    return content


def _content(record: bytes) -> dict[str, Any] | None:
    decode = msgspec.json.decode if record[:1] == b"{" else msgspec.msgpack.decode
    try:
        content = decode(record)
        msgspec.json.encode(content, enc_hook=str)  # MessagePack has keys that JSON has not
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None  # one stray byte is a number in MessagePack
    for name, unpack in _PACKED.items():
        if isinstance(content.get(name), bytes):
            with suppress(Rejection, ValueError):  # no whole number of them: they stay bytes
                content[name] = np.asarray(unpack(content[name])).tolist()
    return content
