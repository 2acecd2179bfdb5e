"""The records that a worker publishes for a record, once the state is stored.

halts       one answer to every request that is applied, under the name of what it is about
odometer    an odometer record for every user whose bound rose
rejects     what was not applied, and why
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from streams.ledger.accounts import Raised
from streams.ledger.parts import Parted, is_small, numbered, parts_of
from streams.ledger.validation import published
from streams.records import (
    ERASED,
    MAX_QUOTED_BYTES,
    Answer,
    ChargeRoster,
    Halted,
    NormEvent,
    OdometerRecord,
    Policy,
    Reason,
    Rejected,
    Rejection,
    Request,
    User,
    Users,
    encode,
    encode_output,
    odometer_key,
    tombstone,
)
from streams.records.packing import pack_bits
from streams.records.users import UserIds

AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
_REPEATED = {"dataset", "run", "attempt", "step", "request"}
_OUTPUT_BYTES = 64  # of what surrounds a key and a value
_MAX_ATTEMPT = 2**63 - 1
_ATTEMPT_BYTES = 8  # encoded, an attempt takes at most this many less than the largest
_HALTED_USERS = 2**13
"""The maximum number of HALT events in a record about a roster."""


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

    ``fields`` are all others, and those that differ from the request.
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


def in_parts(request: Request, answer: Parted, packed: bytes) -> list[Output]:
    """Return an answer, and as ``encode_output`` packs it, in as many records as it needs."""
    # A repeated step has the same parts under any attempt, so their sizes are those of the largest.
    if is_small(len(packed) + _ATTEMPT_BYTES):
        return [answer_to(request, packed)]
    changed = msgspec.structs.replace
    parts = parts_of(changed(answer, attempt=_MAX_ATTEMPT))
    return [
        answer_to(request, encode_output(changed(part, attempt=answer.attempt))) for part in parts
    ]


def halted_of(
    charge: ChargeRoster,
    users: UserIds,
    exhausted: NDArray[np.bool_],
    reasons: NDArray[np.uint8],
    budgets: list[str],
    place: Place,
) -> list[Output]:
    """Return the HALT events of a roster step for n halted users.

    ``exhausted``, (n,), says who has nothing left, and ``reasons``, (n,), refers to ``budgets``.
    """
    parts: list[Halted] = []
    for start in range(0, len(users), _HALTED_USERS):
        some = slice(start, start + _HALTED_USERS)
        halted = answer(
            Halted,
            charge,
            place,
            part=0,
            parts=1,
            users=published_halts(users[some], reasons[some]),
            exhausted=pack_bits(exhausted[some]),
            reasons=reasons[some].tobytes(),
            budgets=budgets,
        )
        parts += parts_of(halted)
    return [answer_to(charge, encode_output(part)) for part in numbered(parts)]


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
    *,
    names_erased: bool,
) -> Output:
    """Return the reject of a record that was not applied.

    ``request`` is None if the record cannot be decoded, ``current_attempt`` that of the run which
    it names, and ``names_erased`` whether it is an event of an erased user, whom no output names.
    """
    dataset, run, *_ = (*(request.address if request else ()), None, None)
    attempt, step, token = (getattr(request, name, None) for name in ("attempt", "step", "request"))
    if attempt is UNSET:  # of a norm event
        attempt = None
    detail = rejection.detail
    user: User | UnsetType = request.user if isinstance(request, NormEvent) else UNSET
    if names_erased:
        value, user = b"", UNSET
        if rejection.reason is Reason.MALFORMED:  # the detail can have the id
            detail = "a user of the record was erased, so the fault is not described"
    rejected = Rejected(
        partition=place.partition,
        offset=place.offset,
        reason=rejection.reason,
        detail=detail,
        record=(value or b"")[:MAX_QUOTED_BYTES],
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
    return Output(Channel.REJECTS, run.encode() if run else None, encode_output(rejected))
