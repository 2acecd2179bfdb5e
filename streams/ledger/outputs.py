"""The records that a worker publishes for a record, once the state is stored.

halts       one answer to every request that is applied, under the name of what it is about
odometer    an odometer record for every user whose bound rose
rejects     what was not applied, and why
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streams.ledger.accounts import Raised
from streams.ledger.validation import published
from streams.records import (
    ERASED,
    MAX_REQUEST_BYTES,
    Answer,
    ChargeRoster,
    Halted,
    OdometerRecord,
    Rejected,
    Rejection,
    Request,
    User,
    Users,
    encode,
    odometer_key,
    tombstone,
)
from streams.records.packing import pack_bits
from streams.records.users import UserIds

AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
_REPEATED = {"dataset", "run", "attempt", "step", "request"}
_OUTPUT_BYTES = 64  # of what surrounds a key and a value
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


def odometer_output(dataset: str, risen: Raised, place: Place) -> Output:
    """Return the odometer record of a user whose bound rose in a dataset."""
    odometer = OdometerRecord(
        dataset=dataset,
        user=risen.user,
        partition=place.partition,
        offset=place.offset,
        bound=risen.bound,
        order=UNSET if risen.order is None else risen.order,
    )
    return Output(Channel.ODOMETER, odometer_key(dataset, risen.user), encode(odometer))


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
    )
    return Output(Channel.REJECTS, run.encode() if run else None, encode(rejected))
