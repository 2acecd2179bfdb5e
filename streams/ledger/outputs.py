"""The records that a worker publishes for a record, once the state is stored.

halts       one answer to every request that is applied, under the name of what it is about
odometer    an odometer record for every user whose bound rose
rejects     what was not applied, and why
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import reduce
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streams.ledger.accounts import Raised
from streams.ledger.validation import published
from streams.records import (
    ERASED,
    MAX_REQUEST_BYTES,
    Answer,
    Charge,
    ChargeRoster,
    Decision,
    Halted,
    NormEvent,
    OdometerRecord,
    Policy,
    Reason,
    Rejected,
    Rejection,
    Request,
    RosterDecision,
    User,
    Users,
    encode,
    encode_rejected,
    odometer_key,
    tombstone,
)
from streams.records.json_outputs import LISTED, to_json
from streams.records.packing import pack_bits, unpack_bits
from streams.records.users import UserIds

AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
_REPEATED = {"dataset", "run", "attempt", "step", "request"}
_OUTPUT_BYTES = 64  # of what surrounds a key and a value
MAX_PART_BYTES = 1_000_000
"""The maximum size of a decision's part in either form: brokers take such records by default."""
_EVENT_BYTES = 256  # of a HALT event in JSON, with the name of a budget, without the id
_MAX_ATTEMPT = 2**63 - 1
_HALTED_USERS = 2**13
"""The maximum per record: ids of 256 characters of up to four bytes each take 8 MiB."""


class Channel(Enum):
    """The topic of an output."""

    HALTS = "halts"
    ODOMETER = "odometer"
    REJECTS = "rejects"


class Output(msgspec.Struct, frozen=True, array_like=True):
    """A record to publish."""

    channel: Channel
    key: bytes | None
    value: bytes

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return len(self.key or b"") + len(self.value) + _OUTPUT_BYTES


class Place(NamedTuple):
    """The place of a record in the log."""

    partition: int
    offset: int


def answer(kind: type[AnyAnswer], request: Request, place: Place, **fields: Any) -> AnyAnswer:
    """Return an answer, which repeats what the request is about.

    Args:
        kind: the answer's kind.
        request: the request.
        place: the request's place.
        fields: all others, and those that differ from the request.
    """
    repeated = {
        name: getattr(request, name)
        for name in kind.__struct_fields__
        if name in _REPEATED and name not in fields
    }
    return kind(**repeated, partition=place.partition, offset=place.offset, **fields)


def answer_to(request: Request, answer: bytes) -> Output:
    """Return an answer, keyed by the run or dataset that the request names."""
    address = request.address
    return Output(Channel.HALTS, address[-1].encode() if address else None, answer)


def decided(request: Charge | ChargeRoster, decision: Decision | RosterDecision) -> list[Output]:
    """Return the decision about a step, in as many records as it needs."""
    # A repeated step has the same parts under any attempt, so their sizes are those of the largest.
    largest = msgspec.structs.replace(decision, attempt=_MAX_ATTEMPT)
    # JSON takes at most six times as many bytes, because one control character becomes six, and
    # what is listed.
    if (
        isinstance(largest, RosterDecision)
        or 6 * len(encode(largest)) + LISTED * _EVENT_BYTES <= MAX_PART_BYTES
    ):
        return [answer_to(request, encode(decision))]
    parts = list(_parts(largest, 0, largest.users))
    if len(parts) == 1:
        return [answer_to(request, encode(decision))]
    about = {"attempt": decision.attempt, "parts": len(parts)}
    return [
        answer_to(request, encode(msgspec.structs.replace(part, part=number, **about)))
        for number, part in enumerate(parts)
    ]


def _parts(decision: Decision, start: int, end: int) -> Iterator[Decision]:
    """Yield parts of a decision that fit into a record each: first halves, then their halves."""
    if end - start > 1:
        part = part_of(decision, start, end)
        packed = encode(part)
        if len(packed) > MAX_PART_BYTES or len(to_json(packed)) > MAX_PART_BYTES:
            middle = (start + end) // 2
            yield from _parts(decision, start, middle)
            yield from _parts(decision, middle, end)
            return
    yield part_of(decision, start, end)


def part_of(decision: Decision, start: int, end: int) -> Decision:
    """Return the part of a decision about the users at positions from start to end."""
    admitted = unpack_bits(decision.admitted, decision.users)
    before, within = np.count_nonzero(admitted[:start]), np.count_nonzero(admitted[start:end])
    let_in = slice(int(before), int(before + within))
    out = slice(start - int(before), end - int(before + within))
    clipped = np.frombuffer(decision.clipped, dtype="<u4")
    lower = (start <= clipped) & (clipped < end)
    granted = np.frombuffer(decision.granted, dtype="<f8")
    collected = {}
    if decision.collected is not UNSET and decision.norms is not UNSET:
        norms = np.frombuffer(decision.norms, dtype="<f8")[let_in]
        collected = {"collected": UserIds.unpack(decision.collected)[let_in].pack()}
        collected["norms"] = norms.tobytes()
    return msgspec.structs.replace(
        decision,
        users=end - start,
        admitted=pack_bits(admitted[start:end]),
        exhausted=pack_bits(unpack_bits(decision.exhausted, decision.users)[start:end]),
        halted=UserIds.unpack(decision.halted)[out].pack(),
        reasons=decision.reasons[out],
        clipped=(clipped[lower] - np.uint32(start)).astype("<u4").tobytes(),
        granted=granted[lower].tobytes(),
        **collected,
    )


def joined(parts: Sequence[Decision]) -> Decision:
    """Return the decision of which these are all parts, in order; the only one unchanged.

    Raises:
        ValueError: a part is missing, or parts of several decisions are mixed.
    """
    first = parts[0]
    if len(parts) == 1 and first.parts is UNSET:
        return first
    blank: dict[str, Any] = {"part": UNSET, "parts": UNSET}
    for name in ("users", "admitted", "exhausted", "halted", "reasons", "clipped", "granted"):
        blank[name] = 0 if name == "users" else b""
    is_collected = first.collected is not UNSET
    if is_collected:
        blank |= {"collected": b"", "norms": b""}
    about = msgspec.structs.replace(first, **blank)
    numbers = [(part.part, part.parts) for part in parts]
    if numbers != [(number, len(parts)) for number in range(len(parts))] or any(
        msgspec.structs.replace(part, **blank) != about for part in parts
    ):
        raise ValueError("has parts that are missing or do not belong together")
    starts = np.cumsum([0, *(part.users for part in parts)])
    bits = {
        name: pack_bits(np.concatenate([unpack_bits(getattr(p, name), p.users) for p in parts]))
        for name in ("admitted", "exhausted")
    }
    clipped = [
        np.frombuffer(part.clipped, dtype="<u4") + np.uint32(start)
        for part, start in zip(parts, starts, strict=False)
    ]
    users = {
        name: reduce(UserIds.join, (UserIds.unpack(getattr(part, name)) for part in parts)).pack()
        for name in ("halted", "collected")[: 1 + is_collected]
    }
    whole = {
        name: b"".join(getattr(part, name) for part in parts)
        for name in ("reasons", "granted", "norms")[: 2 + is_collected]
    }
    return msgspec.structs.replace(
        about,
        users=int(starts[-1]),
        clipped=np.concatenate(clipped).astype("<u4").tobytes(),
        **bits,
        **users,
        **whole,
    )


def halted_of(
    charge: ChargeRoster,
    users: UserIds,
    exhausted: NDArray[np.bool_],
    reasons: NDArray[np.uint8],
    budgets: list[str],
    place: Place,
) -> Iterator[Output]:
    """Yield the HALT events of a roster step for n halted users.

    ``exhausted``, (n,), says who has nothing left, and ``reasons``, (n,), refers to ``budgets``.
    """
    starts = range(0, len(users), _HALTED_USERS)
    for part, start in enumerate(starts):
        some = slice(start, start + _HALTED_USERS)
        halted = answer(
            Halted,
            charge,
            place,
            part=part,
            parts=len(starts),
            users=published_halts(users[some], reasons[some]),
            exhausted=pack_bits(exhausted[some]),
            reasons=reasons[some].tobytes(),
            budgets=budgets,
        )
        yield answer_to(charge, encode(halted))


def published_halts(halted: UserIds, reasons: NDArray[np.uint8]) -> Users:
    """Return halted users as an output has them."""
    erased = np.flatnonzero(reasons == ERASED).tolist()
    return halted.replace({at: published(halted[at]) for at in erased}).pack()


def odometer_output(policy: Policy, risen: Raised, place: Place) -> Output:
    """Return the odometer record of a user whose bound rose in a dataset."""
    odometer = OdometerRecord(
        dataset=policy.dataset,
        user=risen.user,
        partition=place.partition,
        offset=place.offset,
        bound=risen.bound,
        order=UNSET if risen.order is None else risen.order,
        measure=policy.measure,
        spent_share=risen.share,
    )
    return Output(Channel.ODOMETER, odometer_key(policy.dataset, risen.user), encode(odometer))


def tombstone_of(dataset: str, user: User, place: Place) -> Output:
    """Return the tombstone of an erased user's odometer records."""
    return Output(Channel.ODOMETER, odometer_key(dataset, user), tombstone(place.offset))


def reject(
    value: bytes | None,
    request: Request | None,
    rejection: Rejection,
    current_attempt: int | None,
    place: Place,
) -> Output:
    """Return the reject of a record that was not applied.

    ``request`` is None if the record cannot be decoded; ``current_attempt`` is that of the run that
    it names, if there is one.
    """
    dataset, run, *_ = (*(request.address if request else ()), None, None)
    attempt, step, token = (getattr(request, name, None) for name in ("attempt", "step", "request"))
    if attempt is UNSET:  # of a norm event
        attempt = None
    user: User | UnsetType = request.user if isinstance(request, NormEvent) else UNSET
    if rejection.reason is Reason.USER_ERASED:  # outputs have no id of an erased user
        value, user = b"", UNSET
    rejected = Rejected(
        partition=place.partition,
        offset=place.offset,
        reason=rejection.reason,
        detail=rejection.detail,
        record=(value or b"")[:MAX_REQUEST_BYTES],
        dataset=dataset,
        run=run,
        attempt=attempt,
        step=step,
        request=token,
        current_attempt=current_attempt,
        held=rejection.held,
        holder=rejection.holder,
        user=user,
    )
    return Output(Channel.REJECTS, run.encode() if run else None, encode_rejected(rejected))
