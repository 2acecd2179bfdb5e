"""The edge: what is read from Kafka has the right types, ranges and lengths, or is refused."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from streams.normal_form import first_irregular, normal_form
from streams.schemas.answers import Answer
from streams.schemas.fields import OLDEST, VERSION
from streams.schemas.refusals import Reason, Rejection
from streams.schemas.requests import (
    BindOperator,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CreateDataset,
    Enrol,
    Forget,
    OpenRun,
    RegisterPrincipal,
    Request,
    Sender,
    Signed,
    WithdrawDataset,
)

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""A larger request is refused: split the population over more partitions."""

MAX_CHARGE_USERS = 2**19
"""More users in one charge are refused, however small their encoding: an answer has to fit too."""

MAX_BUDGETS = 8
"""Of a dataset and those it is within: so many count against a charge at most."""

MAX_WRITE_BYTES = 256 * 1024 * 1024
"""What a charge may make a worker write (see ``streams.ledger.limits``); not in version 1."""

MAX_ROSTER_WRITE_BYTES = 640 * 1024 * 1024
"""The same, of a step of a roster: 2.7 million integer ids. Redis takes 1 GiB in one command."""

_LAST_ATTEMPT_OF_1 = 2**53

_MSGPACK_REQUEST: msgspec.msgpack.Decoder[Request | Signed] = msgspec.msgpack.Decoder(
    Request | Signed
)
_JSON_REQUEST: msgspec.json.Decoder[Request | Signed] = msgspec.json.Decoder(Request | Signed)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()

encode = _ENCODER.encode
"""Encodes any record as MessagePack."""


def decode_request(value: bytes | None) -> Request:
    """Read a request from the bytes of a Kafka record, whether it is signed or not.

    Raises:
        Rejection: MALFORMED, TOO_LARGE or UNSUPPORTED_VERSION.
    """
    return decode_signed(value)[0]


def decode_signed(value: bytes | None) -> tuple[Request, Sender | None]:
    """The same, and who is said to have signed it; None if nobody is. Nothing is verified here.

    Raises:
        Rejection: as ``decode_request``.
    """
    if value is None:
        raise Rejection(Reason.MALFORMED, "the record has no value (a tombstone)")
    if len(value) > MAX_REQUEST_BYTES:
        detail = f"{len(value)} bytes; a request has at most {MAX_REQUEST_BYTES}"
        raise Rejection(Reason.TOO_LARGE, detail)
    record = _decode(value)
    if not isinstance(record, Signed):
        return _checked(record), None
    if record.v < 3:
        raise Rejection(Reason.MALFORMED, f"a signature needs version 3, not {record.v}")
    request = _decode(record.request)
    if isinstance(request, Signed):
        raise Rejection(Reason.MALFORMED, "a request that is signed twice")
    principal = None if record.principal is UNSET else record.principal
    return _checked(request), Sender(principal, record.signature, record.request)


def _decode(value: bytes) -> Request | Signed:
    try:
        record = (_JSON_REQUEST if value[:1] == b"{" else _MSGPACK_REQUEST).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(_version_of(value))  # a newer version may have fields unknown here
        raise Rejection(Reason.MALFORMED, str(error)) from error
    _check_version(record.v)
    return record


def _checked(request: Request) -> Request:
    if request.v < 3:
        _check_later_features(request)
    if request.v == 1:
        _check_features(request)
    else:
        _check_content(request)
    return request


def _check_version(version: int) -> None:
    if not OLDEST <= version <= VERSION:
        detail = f"version {version}; this worker reads versions {OLDEST} to {VERSION}"
        raise Rejection(Reason.UNSUPPORTED_VERSION, detail)


def _check_features(request: Request) -> None:
    """Refuse in a request of version 1 what only version 2 has."""
    match request:
        case CloseRun() | WithdrawDataset():
            feature = "this type of record"
        case OpenRun(attempt=0):
            feature = "attempt 0"
        case OpenRun(attempt=attempt) | Charge(attempt=attempt) if attempt > _LAST_ATTEMPT_OF_1:
            feature = f"attempt {attempt}"
        case CreateDataset(policy=policy) if policy.user_ids is not UNSET:
            feature = "user_ids"
        case _:
            return
    raise Rejection(Reason.MALFORMED, f"{feature} needs version 2, not {request.v}")


def _check_later_features(request: Request) -> None:
    """Refuse in a request of an earlier version what only version 3 has."""
    match request:
        case (Enrol() | ChargeRoster() | Forget() | CloseDataset()) | (
            BindOperator() | RegisterPrincipal()
        ):
            feature = "this type of record"
        case CreateDataset(policy=policy) if policy.own_order is not UNSET:
            feature = "own_order"
        case CreateDataset(policy=policy) if policy.measure == "pure-dp":
            feature = "measure pure-dp"
        case CreateDataset(policy=policy) if policy.within is not UNSET:
            feature = "within"
        case CreateDataset(policy=policy) if policy.pseudonyms is not UNSET:
            feature = "pseudonyms"
        case CreateDataset(policy=policy) if policy.allow is not UNSET:
            feature = "allow"
        case CreateDataset(policy=policy) if policy.own_exhaustion is not UNSET:
            feature = "own_exhaustion"
        case OpenRun(min_separation=separation) if separation is not UNSET:
            feature = "min_separation"
        case _:
            return
    raise Rejection(Reason.MALFORMED, f"{feature} needs version 3, not {request.v}")


def _check_content(request: Request) -> None:
    """Refuse what can be told from the record alone and not by its types; not in version 1."""
    for name, width in _PACKED.get(type(request), {}).items():
        packed = getattr(request, name)
        if isinstance(packed, bytes) and len(packed) % width:
            raise Rejection(Reason.MALFORMED, uneven(name, packed, width), request)
    users = getattr(request, "users", b"")
    user = None if isinstance(users, bytes) else first_irregular(users)
    if user is not None:
        detail = (
            f"user {user!a} is not in normal form, in which it is "
            f"{normal_form(user)!a}: one name must not have two budgets"
        )
        raise Rejection(Reason.MALFORMED, detail, request)


_PACKED: dict[type[Request], dict[str, int]] = {
    Charge: {"users": 8, "norms": 8},
    Enrol: {"users": 8},
    ChargeRoster: {"units": 8, "positions": 4},
}
"""The packed arrays of a request, and how many bytes an entry of each has."""


def uneven(name: str, packed: bytes, width: int = 8) -> str:
    """What is wrong with a packed array that is cut off."""
    return f"{name}: {len(packed)} packed bytes are not a multiple of {width}"


class _Versioned(msgspec.Struct):
    v: int = 1


def _version_of(value: bytes) -> int:
    decode = msgspec.json.decode if value[:1] == b"{" else msgspec.msgpack.decode
    try:
        return decode(value, type=_Versioned).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def decode_answer(value: bytes) -> Answer:
    """Read a record of the topic `halts`."""
    return _ANSWER.decode(value)
