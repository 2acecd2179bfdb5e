"""Encoding and decoding of records. A decoded request has valid types, ranges and lengths."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from streams.records.answers import Answer, Reason, Rejected, Rejection, RosterDecision
from streams.records.fields import RESERVED, VERSION, User
from streams.records.requests import (
    Charge,
    ChargeRoster,
    Enrol,
    Erase,
    NormEvent,
    NormEvents,
    Request,
    Sender,
    Signed,
)
from streams.records.users import first_irregular, normal_form

MAX_RECORD_BYTES = 1_000_000
"""The maximum size of a record that clients send and workers publish: brokers take it by default.
"""

MAX_UNSIGNED_BYTES = MAX_RECORD_BYTES - 1_000
"""The same of a request that is signed afterwards."""

MAX_QUOTED_BYTES = 700_000
"""A reject has so many bytes of its request: in JSON, base64 takes four for three."""

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""A larger request is rejected. Budget files have such large ones, as have logs whose topic takes
them."""

MAX_CHARGE_USERS = 2**19
"""The maximum number of users of one charge or enrolment."""

MAX_EVENTS = 2**16
"""The maximum number of norm events in one record: each of them may be rejected alone."""

MAX_COLLECTED = 2**20
"""The maximum number of norm events that a partition collects for one step."""

MAX_COLLECTED_BYTES = 32 * 1024 * 1024
"""The maximum size of their ids and norms."""

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""The maximum size of a record of the topic ``halts``."""

MAX_ACCOUNTS = 3 * 2**20
"""The maximum number of accounts that one step changes in a partition: users times budgets. The
decision about a roster of so many members fits into an answer."""

MAX_BALANCES = 2**24
"""The maximum number of balances that one step changes in a partition: users times orders, over all
budgets."""

MAX_ROSTERS = 16
"""The maximum number of rosters of open runs that share a budget with one of them."""

MAX_DATASETS = 2**16
"""The maximum number of datasets of one log."""

MAX_NAMES_BYTES = 990_000
"""The maximum size of their names, with 3 bytes more for each: an answer can name all of them."""

_MSGPACK_REQUEST: msgspec.msgpack.Decoder[Request | Signed] = msgspec.msgpack.Decoder(
    Request | Signed
)
_JSON_REQUEST: msgspec.json.Decoder[Request | Signed] = msgspec.json.Decoder(Request | Signed)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()

encode = _ENCODER.encode
"""Encode any record as MessagePack."""


def encode_output(output: Answer | Rejected) -> bytes:
    """Return an answer or a reject as MessagePack.

    The encoder writes another header for a struct that might have more than 15 fields. Rejects and
    decisions about rosters have the header of recorded ones, which could not have so many.
    """
    if not isinstance(output, Rejected | RosterDecision):
        return encode(output)
    fields = {k: v for k, v in msgspec.structs.asdict(output).items() if v is not UNSET}
    return encode({"type": output.__struct_config__.tag, **fields})


def decode_request(value: bytes | None) -> Request:
    """Decode a request from the value of a Kafka record, signed or not.

    Raises:
        Rejection: MALFORMED, TOO_LARGE or UNSUPPORTED_VERSION.
    """
    return decode_signed(value)[0]


def decode_signed(value: bytes | None) -> tuple[Request, Sender | None]:
    """Decode a request and its sender; the sender is None if the request is unsigned.

    The signature is not verified.
    """
    if value is None:
        raise Rejection(Reason.MALFORMED, "the record has no value (a tombstone)")
    if len(value) > MAX_REQUEST_BYTES:
        detail = f"{len(value)} bytes; a request has at most {MAX_REQUEST_BYTES}"
        raise Rejection(Reason.TOO_LARGE, detail)
    record = _decode(value)
    if not isinstance(record, Signed):
        _check_content(record)
        return record, None
    request = _decode(record.request)
    if isinstance(request, Signed):
        raise Rejection(Reason.MALFORMED, "the request is signed twice")
    _check_content(request)
    return request, Sender(record.key, record.signature, record.request)


def _decode(value: bytes) -> Request | Signed:
    try:
        record = (_JSON_REQUEST if value[:1] == b"{" else _MSGPACK_REQUEST).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(_version_of(value))  # a newer version may have fields unknown here
        detail = str(error)
        if not value.startswith(_MAPS):
            detail = "neither a JSON object nor a MessagePack map"
        raise Rejection(Reason.MALFORMED, detail) from error
    _check_version(record.v)
    return record


def _check_version(version: int) -> None:
    if version != VERSION:
        detail = f"the record has version {version}; this worker reads version {VERSION}"
        raise Rejection(Reason.UNSUPPORTED_VERSION, detail)


def _check_content(request: Request) -> None:
    """Check the rules that need no state and that types cannot express."""
    for name, width in _PACKED.get(type(request), {}).items():
        packed = getattr(request, name)
        if isinstance(packed, bytes) and len(packed) % width:
            detail = f"{name}: {len(packed)} packed bytes are not a multiple of {width}"
            raise Rejection(Reason.MALFORMED, detail, request)
    if isinstance(request, NormEvents):
        return  # the ledger rejects each of its events alone
    users = getattr(request, "users", b"")
    if isinstance(request, Erase | NormEvent):
        users = [request.user]
    if isinstance(users, bytes):
        return
    check_names(users, request)


def check_names(users: Sequence[User], request: Request | None = None) -> None:
    """Check that user ids are in normal form, and that none is reserved (MALFORMED)."""
    if (reserved := first_reserved(users)) is not None:
        detail = f"user {reserved[:60]!a} begins with {RESERVED!r}, reserved for erased users"
        raise Rejection(Reason.MALFORMED, detail, request)
    user = None if isinstance(request, Erase) else first_irregular(users)
    if user is not None:
        detail = (
            f"user {user!a} is not in normal form: send {normal_form(user)!a}, so that one name "
            "does not have two budgets"
        )
        raise Rejection(Reason.MALFORMED, detail, request)


def first_reserved(users: Sequence[User]) -> str | None:
    """Return the first id that begins like the hash of an erased user; None if there is none."""
    strings = [user for user in users if isinstance(user, str)]
    if RESERVED not in "".join(strings):
        return None
    return next((user for user in strings if user.startswith(RESERVED)), None)


_MAPS = (b"{", *(bytes([first]) for first in (*range(0x80, 0x90), 0xDE, 0xDF)))
"""The first bytes of a JSON object, and of the maps of MessagePack."""
_PACKED: dict[type[Request], dict[str, int]] = {
    Charge: {"users": 8, "norms": 8},
    NormEvents: {"users": 8, "norms": 8},
    Enrol: {"users": 8},
    ChargeRoster: {"units": 8, "positions": 4},
}
"""The packed arrays of requests, with the number of bytes per entry."""


class _Versioned(msgspec.Struct):
    v: int = VERSION


def _version_of(value: bytes) -> int:
    decode = msgspec.json.decode if value[:1] == b"{" else msgspec.msgpack.decode
    try:
        return decode(value, type=_Versioned).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return VERSION


def decode_answer(value: bytes) -> Answer:
    """Decode a record of the topic `halts`."""
    return _ANSWER.decode(value)
