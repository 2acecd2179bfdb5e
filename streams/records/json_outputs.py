"""The JSON form of what workers publish: arrays of at most 1,024 entries are lists.

A ledger makes every output in MessagePack, where arrays are packed. State, replays and budget files
hold that form alone, so that they do not depend on how a worker publishes. A worker with the
setting ``outputs = "json"`` publishes `to_json` of it, and every reader of a topic begins with
`to_msgpack`, which restores exactly the bytes of the ledger. Publishing both forms instead would
double the topics, and two records about one step could differ.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streams.records import answers
from streams.records.answers import HALT_REASONS, Decision, Halted, RosterDecision, halt_reason
from streams.records.codec import encode_output
from streams.records.fields import IntegerUser, Name, StringUser, Users
from streams.records.packing import (
    pack_bits,
    pack_positions,
    unpack_bits,
    unpack_positions,
)
from streams.records.users import UserIds

LISTED = 1024
"""An array with more entries stays packed, as a base64 string: parsing and writing a list of
thousands of entries costs more than charging them."""

Record = TypeVar("Record", bound=msgspec.Struct)


class HaltEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A HALT event: a user who is left out of the step, and charged nothing for it."""

    user: IntegerUser | StringUser
    """The user's id; `erased:i:` or `erased:s:` for an erased user."""
    reason: Literal["budget", "too-soon", "erased"]
    """budget: the step does not fit it. too-soon: the user's last participation is less than
    ``min_separation`` steps ago. erased: the user was erased."""
    budget: Name | UnsetType = UNSET
    """For budget only: the first dataset whose budget the step does not fit."""
    exhausted: bool
    """True if the user has nothing left."""


Events: TypeAlias = list[HaltEvent | IntegerUser | StringUser] | bytes


class DecisionJson(Decision, frozen=True, kw_only=True, tag="decision"):
    """The users admitted to one step and those halted, in one partition.

    Positions are those of the users in the charge. Of more than 1,024 users, the arrays are packed
    as in MessagePack, and base64 strings.
    """

    admitted: list[bool] | bytes  # type: ignore[assignment]
    """For each user of the charge, in its order, whether the user is admitted."""
    exhausted: list[bool] | bytes  # type: ignore[assignment]
    """For each user of the charge whether nothing is left after this step."""
    halted: Events  # type: ignore[assignment]
    """The HALT events of this step, in the order of the users; of more than 1,024 halted users, the
    ids alone."""
    reasons: bytes = b""
    """If ``halted`` has ids alone: one reason byte per halted user, as in MessagePack. Otherwise
    empty."""
    clipped: list[int] | bytes = b""  # type: ignore[assignment]
    """The positions granted less than requested. Under clip only."""
    granted: list[float] | bytes = b""  # type: ignore[assignment]
    """The granted norms of the clipped positions."""
    norms: list[float] | bytes | UnsetType = UNSET  # type: ignore[assignment]
    """The granted norm of each user in ``collected``, to which the user's contribution must be
    clipped."""


class HaltedJson(Halted, frozen=True, kw_only=True, tag="halted"):
    """HALT events of a roster step: members who are no longer admitted.

    More than 1,024 of them are packed as in MessagePack, and base64 strings.
    """

    users: Events  # type: ignore[assignment]
    """The HALT events of members who were admitted to the step before and are not now; of more than
    1,024 members, the ids alone."""
    exhausted: bytes = b""
    """If ``users`` has ids alone: bit set over these users, least significant bit first: those who
    have nothing left. Otherwise empty."""
    reasons: bytes = b""
    """If ``users`` has ids alone: one reason byte per user. Otherwise empty."""


class RosterDecisionJson(RosterDecision, frozen=True, kw_only=True, tag="roster-decision"):
    """The changes that a step of a roster makes to its members' admission, in one partition.

    More than 1,024 positions are packed as in MessagePack, and base64 strings.
    """

    halted: list[int] | bytes = b"\0"  # type: ignore[assignment]
    """The positions of members who were admitted to the step before and are not now."""
    readmitted: list[int] | bytes = b"\0"  # type: ignore[assignment]
    """The positions of members who are admitted and were not before."""
    exhausted: list[int] | bytes = b"\0"  # type: ignore[assignment]
    """The positions of members who have nothing left after this step and had something before."""
    regranted: list[int] | bytes = b"\0"  # type: ignore[assignment]
    """Under clip only: the positions of members who are granted another level than in the step
    before or, if this step sets the level or readmits, than requested."""
    granted: list[int] | bytes = b""  # type: ignore[assignment]
    """The levels granted at the positions in ``regranted``."""


class OdometerJson(answers.OdometerRecord, frozen=True, kw_only=True, tag="odometer"):
    """An upper bound on what a user has spent. It is published when it rises.

    A user without a record has spent at most one ``odometer_step`` of the policy.
    """

    unit: Literal["rho", "mu", "nats per order", "epsilon", "steps"] | UnsetType = UNSET
    """The unit of ``bound``."""


UNITS: dict[str, str] = {
    "zcdp": "rho",
    "gdp": "mu",
    "renyi": "nats per order",
    "pure-dp": "epsilon",
    "steps": "steps",
}

# Odometer records differ by `unit` alone. Decoding their JSON form saves a copy of each.
_MADE: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    answers.Answer | OdometerJson | answers.Rejected
)
_PUBLISHED: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    answers.DatasetCreated
    | answers.DatasetWithdrawn
    | answers.DatasetClosed
    | answers.RunOpened
    | answers.RunClosed
    | DecisionJson
    | answers.Enrolled
    | RosterDecisionJson
    | HaltedJson
    | answers.Erased
    | answers.AccessSet
    | answers.LogRetired
    | OdometerJson
    | answers.Rejected
)
_JSON = msgspec.json.Encoder()
_BYTES = {name: byte for byte, (name, *_) in HALT_REASONS.items()}
_POSITIONS = ("halted", "readmitted", "exhausted", "regranted")


def to_json(output: bytes) -> bytes:
    """Return an output of a ledger in JSON; unchanged if it is a tombstone."""
    if answers.tombstone_offset(output) is not None:
        return output
    return _JSON.encode(_listed(_MADE.decode(output)))


def to_msgpack(published: bytes) -> bytes:
    """Return a published record as the ledger made it.

    A record that no worker can have published is returned unchanged: no reader can decode it.
    Otherwise readers of the JSON could understand it differently: where two fields contradict each
    other, or where a position, a reason or a key of the JSON stands for another one.
    """
    if published[:1] != b"{":
        return published
    try:
        read = _PUBLISHED.decode(published)
        made = _packed(read)
        # This one comparison, instead of a check for each pair of fields: it misses none.
        if _listed(made) != read:
            return published
        if _JSON.encode(read) != published:  # as another version writes it, or with a key twice
            json.loads(published, object_pairs_hook=_distinct)
        return encode_output(made)
    except (msgspec.DecodeError, ValueError, LookupError, OverflowError, RecursionError):
        return published


def _listed(record: Any) -> Any:
    """Return a record with lists in place of short arrays."""
    match record:
        case OdometerJson():  # first, because most records are of odometers
            return msgspec.structs.replace(record, unit=_unit_of(record))
        case Decision():
            admitted = unpack_bits(record.admitted, record.users)
            exhausted = unpack_bits(record.exhausted, record.users)
            short = _short(
                admitted=admitted,
                exhausted=exhausted,
                clipped=np.frombuffer(record.clipped, "<u4"),
                granted=np.frombuffer(record.granted, "<f8"),
            )
            if record.norms is not UNSET:
                short |= _short(norms=np.frombuffer(record.norms, "<f8"))
                if "norms" in short:
                    short["collected"] = UserIds.unpack(record.collected or b"").tolist()
            short |= _events("halted", record, record.halted, exhausted[~admitted])
            return _changed(DecisionJson, record, **short)
        case Halted():
            exhausted = unpack_bits(record.exhausted, len(record.reasons))
            short = _events("users", record, record.users, exhausted)
            return _changed(HaltedJson, record, **short, **({"exhausted": b""} if short else {}))
        case RosterDecision():
            positions = {
                name: unpack_positions(getattr(record, name), record.members) for name in _POSITIONS
            }
            short = _short(**positions, granted=np.frombuffer(record.granted, np.uint8))
            return _changed(RosterDecisionJson, record, **short)
        case answers.OdometerRecord():
            return _changed(OdometerJson, record, unit=_unit_of(record))
    return record


def _unit_of(record: answers.OdometerRecord) -> Any:
    return UNITS.get(record.measure or "", UNSET)


def _packed(record: Any) -> Any:
    """Return a record with packed arrays in place of lists, or raise ``ValueError``."""
    match record:
        case DecisionJson():
            packed: dict[str, Any] = {
                "admitted": _bits(record.admitted),
                "exhausted": _bits(record.exhausted),
                "clipped": _array(record.clipped, "<u4"),
                "granted": _array(record.granted, "<f8"),
            }
            if record.norms is not UNSET and record.collected is not UNSET:
                packed["norms"] = _array(record.norms, "<f8")
                packed["collected"] = _users(record.collected)
            # Before memory is taken for this number of users.
            if not len(packed["admitted"]) == len(packed["exhausted"]) == -(-record.users // 8):
                raise ValueError(f"bit sets not of {record.users} users")
            columns = _columns("halted", record, record.halted)
            columns.pop("exhausted", None)  # of all users, in the field of this name
            return _changed(Decision, record, **packed, **columns)
        case HaltedJson():
            return _changed(Halted, record, **_columns("users", record, record.users))
        case RosterDecisionJson():
            packed = {
                name: pack_positions(np.array(positions, dtype=np.int64), record.members)
                for name in _POSITIONS
                if isinstance(positions := getattr(record, name), list)
            }
            granted = _array(record.granted, "u1")
            return _changed(RosterDecision, record, granted=granted, **packed)
        case OdometerJson():
            fields = msgspec.structs.asdict(record)
            del fields["unit"]
            return answers.OdometerRecord(**fields)
    return record


def _changed(kind: type[Record], record: msgspec.Struct, **fields: Any) -> Record:
    """Return a record as one of another class, with other values in some fields."""
    return kind(**{**msgspec.structs.asdict(record), **fields})


def _short(**arrays: NDArray[Any]) -> dict[str, Any]:
    """Return the arrays that are short enough, as lists."""
    return {name: array.tolist() for name, array in arrays.items() if len(array) <= LISTED}


def _events(
    name: str, record: Decision | Halted, users: Users, exhausted: NDArray[np.bool_]
) -> dict[str, Any]:
    """Return fields of a record with HALT events, or no fields if there are too many events.

    Args:
        name: of the field with the events.
        record: the record, whose reason bytes become empty.
        users: the halted users, n of them.
        exhausted: which of them have nothing left, (n,).
    """
    if len(exhausted) > LISTED:
        return {}
    columns = UserIds.unpack(users), record.reasons, exhausted.tolist()
    events = [
        HaltEvent(
            user=user,
            reason=halt_reason(byte),  # type: ignore[arg-type]
            budget=UNSET if byte in HALT_REASONS else record.budgets[byte],
            exhausted=is_exhausted,
        )
        for user, byte, is_exhausted in zip(*columns, strict=True)
    ]
    return {name: events, "reasons": b""}


def _columns(name: str, record: DecisionJson | HaltedJson, events: Events) -> dict[str, Any]:
    """Return the packed fields that HALT events stand for; none if the events are ids alone.

    ``name`` is that of the field with the events.
    """
    if isinstance(events, bytes):
        return {}
    listed = [event for event in events if isinstance(event, HaltEvent)]
    if len(listed) < len(events):
        if listed:
            raise ValueError("some HALT events are ids alone")
        return {}
    return {
        name: UserIds([event.user for event in listed]).pack(),
        "exhausted": pack_bits(np.array([event.exhausted for event in listed], dtype=np.bool_)),
        "reasons": bytes(
            _BYTES[event.reason] if event.budget is UNSET else record.budgets.index(event.budget)
            for event in listed
        ),
    }


def _users(users: Users) -> Users:
    """Return users as a ledger has them: integers are packed."""
    return UserIds(users).pack() if isinstance(users, list) else users


def _bits(bits: list[bool] | bytes) -> bytes:
    return pack_bits(np.array(bits, dtype=np.bool_)) if isinstance(bits, list) else bits


def _array(numbers: list[Any] | bytes, dtype: str) -> bytes:
    return np.array(numbers, dtype=dtype).tobytes() if isinstance(numbers, list) else numbers


def _distinct(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
