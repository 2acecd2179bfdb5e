"""`turnstile rejects`: what was refused, why, when, from which run, and the record itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from streams.cli.output import Exit, show
from streams.cli.times import utc
from streams.config import Config
from streams.ledger.outputs import Channel
from streams.schemas import Rejected, Rejection
from streams.sdk.followers import Reading, distinct_rejects
from streams.sdk.kafka_connection import read_topic
from streams.wire.packing import unpack_norms, unpack_users

_PACKED: Mapping[str, Callable[[bytes], Any]] = {
    "users": unpack_users,
    "norms": unpack_norms,
    "units": lambda packed: np.frombuffer(packed, dtype="<i8"),
    "positions": lambda packed: np.frombuffer(packed, dtype="<u4"),
    "levels": lambda packed: np.frombuffer(packed, dtype=np.uint8),
}


def rejects(options: argparse.Namespace, config: Config) -> int:
    """Rejects, from the first that Kafka still has."""
    records = read_topic(config, Channel.REJECTS, Reading("earliest", options.follow))
    for written, rejected in distinct_rejects(records):
        if options.dataset in (None, rejected.dataset) and options.reason in (
            None,
            rejected.reason,
        ):
            show(readable(written, rejected), options.json)
    return Exit.OK


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
    """The record as JSON or MessagePack, with packed arrays as lists; None if neither."""
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
