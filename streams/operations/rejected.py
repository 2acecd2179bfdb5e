"""Refused requests for people: why, when, from which run, and the record."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from streams.records import Rejected
from streams.records.packing import unpack_norms


def utc(seconds: float) -> str | None:
    """Return a producer's time in ISO 8601; None if it is unreadable."""
    try:
        time = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):  # a producer can write any number
        return None
    return time.isoformat(timespec="milliseconds") if seconds >= 0 else None


_PACKED: Mapping[str, Callable[[bytes], Any]] = {
    "users": lambda packed: np.frombuffer(packed, dtype="<i8"),
    "norms": unpack_norms,
    "units": lambda packed: np.frombuffer(packed, dtype="<i8"),
    "positions": lambda packed: np.frombuffer(packed, dtype="<u4"),
    "levels": lambda packed: np.frombuffer(packed, dtype=np.uint8),
}


def by_request(refusals: Iterable[tuple[float, Rejected]]) -> Iterator[tuple[float, Rejected]]:
    """Yield the first refusal of each request for each reason, with the time of each.

    A client sends most requests to all partitions, and each of them refuses.
    """
    seen: set[Hashable] = set()
    for written, rejected in refusals:
        request = _request_of(rejected)
        if request is None or request not in seen:
            seen.add(request)
            yield written, rejected


def _request_of(rejected: Rejected) -> Hashable | None:
    """Return what a request and its refusal have in common in all partitions; None if unknown."""
    if rejected.request is not None:
        return rejected.reason, rejected.request
    if rejected.dataset is None or rejected.run is None or rejected.step is None:
        return None
    about = rejected.dataset, rejected.run, rejected.attempt, rejected.step, rejected.user
    return rejected.reason, *about


def readable(written: float, rejected: Rejected) -> dict[str, Any]:
    """Return a reject with the record as far as it can be read, and as bytes if it cannot."""
    record = decoded(rejected.record)
    return {
        "time": utc(written),
        **{name: getattr(rejected, name) for name in _SHOWN},
        "held": msgspec.to_builtins(rejected.held),
        "record": record,
        "bytes": rejected.record if record is None else None,
    }


_SHOWN = (
    *("reason", "detail", "dataset", "run", "attempt", "step", "request", "current_attempt"),
    *("partition", "offset"),
)


def decoded(record: bytes) -> Any:
    """Return the fields of a record in JSON or MessagePack, with packed arrays as lists.

    Return None if it is neither. A signed request is decoded, too.
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
            with suppress(ValueError):  # no whole number of them: they stay bytes
                content[name] = np.asarray(unpack(content[name])).tolist()
    return content
