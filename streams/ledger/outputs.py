"""What is published for a record once the state that led to it is safe.

halts       one answer to every request that is applied, under the name of what it is about
odometer    a checkpoint for every user whose bound rose
rejects     what was not applied, and why
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

from streams.ledger.accounts import Outcome
from streams.schemas import (
    MAX_REQUEST_BYTES,
    Charge,
    Decision,
    OdometerCheckpoint,
    Rejected,
    Rejection,
    Request,
    User,
    encode,
    odometer_key,
)
from streams.wire.packing import pack_bits, pack_norms, pack_users

_OUTPUT_BYTES = 64  # of what surrounds a key and a value


class Channel(Enum):
    """Where an output goes."""

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
        """About how many bytes it takes."""
        return len(self.key or b"") + len(self.value) + _OUTPUT_BYTES


class Place(NamedTuple):
    """Where in the log the record is."""

    partition: int
    offset: int


def answer_to(request: Request, answer: bytes) -> Output:
    """An answer goes under the name of what was asked about: of the run, or of the dataset."""
    return Output(Channel.HALTS, request.address[-1].encode(), answer)


def decision_of(charge: Charge, digest: bytes, outcome: Outcome, place: Place) -> Decision:
    """What is said of a step that was charged."""
    users, admitted = outcome.users, outcome.admitted
    halted = (
        [user for user, is_in in zip(users, admitted.tolist(), strict=True) if not is_in]
        if isinstance(users, list)
        else users[~admitted]
    )
    return Decision(
        v=charge.v,
        dataset=charge.dataset,
        run=charge.run,
        attempt=charge.attempt,
        step=charge.step,
        partition=place.partition,
        offset=place.offset,
        digest=digest,
        users=len(users),
        admitted=pack_bits(admitted),
        exhausted=pack_bits(outcome.exhausted),
        halted=pack_users(halted),
        clipped=outcome.clipped.astype("<u4").tobytes(),
        granted=pack_norms(outcome.granted),
    )


def checkpoint_of(charge: Charge, user: User, bound: list[float], place: Place) -> Output:
    """What is said of a user whose bound rose."""
    checkpoint = OdometerCheckpoint(
        v=charge.v,
        dataset=charge.dataset,
        user=user,
        partition=place.partition,
        offset=place.offset,
        bound=bound,
    )
    return Output(Channel.ODOMETER, odometer_key(charge.dataset, user), encode(checkpoint))


def reject(
    value: bytes | None,
    request: Request | None,
    rejection: Rejection,
    current_attempt: int | None,
    place: Place,
) -> Output:
    """What is said of a record that was not applied.

    Args:
        value: of the record.
        request: what could be read of it, if it could be.
        rejection: why.
        current_attempt: of the run that it is about, if there is one.
        place: of the record.
    """
    dataset, run = (*(request.address if request else ()), None, None)[:2]
    attempt, step, token = (getattr(request, name, None) for name in ("attempt", "step", "request"))
    rejected = Rejected(
        v=request.v if request else 1,
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
    )
    return Output(Channel.REJECTS, run.encode() if run else None, encode(rejected))
