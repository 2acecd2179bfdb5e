"""Following what the workers publish: decisions, HALTs and odometer checkpoints, each once.

The workers decide a step once; sent again, it is the same decision. So two different ones for one
step and partition mean that somebody else writes to `halts`. Which of the two is forged cannot be
told from here, nor can it be when only the forged one ever arrives: see SECURITY.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np

from streams.schemas import (
    Answer,
    Decision,
    OdometerCheckpoint,
    Rejected,
    User,
    decode_answer,
    encode,
)
from streams.sdk.errors import ConflictingDecisions, InvalidRequest
from streams.wire.packing import unpack_bits, unpack_users

logger = logging.getLogger("turnstile.sdk")

T = TypeVar("T")
Since: TypeAlias = Literal["earliest", "latest"]
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""What decoding a record raises that no worker has written; TypeError if it has no value."""
REMEMBERED_STEPS = 1024
"""Of each run and partition; what contradicts an older decision goes unseen."""
_REMEMBERED_REJECTS = 100_000
"""Those by which one that is published again is recognised: far more than a batch has."""


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    Except, where policies clip, what was too little to pay for any norm: it is charged and the
    user is exhausted.

    Attributes:
        user: the id as the log has it; strings are in Unicode's normal form NFC.
        exhausted: nothing is left, so that no later step can admit this user either. Otherwise a
            cheaper step still may.
    """

    dataset: str
    run: str
    attempt: int
    step: int
    user: User
    exhausted: bool
    partition: int
    offset: int


class Followed(NamedTuple):
    """One record that was published."""

    partition: int
    value: bytes
    written: float  # seconds since 1970, by the clock of whoever wrote it


@dataclass(frozen=True)
class Reading:
    """Which records to read, and for how long.

    Attributes:
        since: where to begin; the position is fixed before the first record is asked for.
        follow: wait for more after what there is.
        idle_timeout: following ends when nothing came for so many seconds; None is never.
    """

    since: Since = "latest"
    follow: bool = True
    idle_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidRequest(f"since is {self.since!r}; it must be one of {get_args(Since)}")
        if self.idle_timeout is not None and not self.idle_timeout >= 0:
            raise InvalidRequest(f"idle_timeout is {self.idle_timeout}; it must be seconds")


class _Seen(NamedTuple):
    """What a decision says, whoever asked, and the digests of its charge, by version."""

    content: bytes
    digests: dict[int, bytes]


class Witness:
    """Remembers what was decided of one run, and sees when two decisions contradict each other."""

    def __init__(self, dataset: str, run: str) -> None:
        self._name = f"run {run!r} of dataset {dataset!r}"
        self._seen: defaultdict[int, OrderedDict[int, _Seen]] = defaultdict(OrderedDict)
        self._conflict: str | None = None

    def see(self, decision: Decision) -> bool:
        """Take a decision, under whichever attempt it was published; whether it is a new one."""
        steps = self._seen[decision.partition]
        is_new = decision.step not in steps
        # A repeated step is answered to the attempt that repeats it, in the version in which it is.
        said = encode(msgspec.structs.replace(decision, attempt=0, v=0, digest=b""))
        content = hashlib.sha256(said).digest()
        before = steps.setdefault(decision.step, _Seen(content, {}))
        digest = before.digests.setdefault(decision.v, decision.digest)
        if (before.content, digest) != (content, decision.digest) and self._conflict is None:
            self._conflict = (
                f"partition {decision.partition} decided step {decision.step} of {self._name} in "
                "two ways, so somebody else than the workers writes to the topic halts. Release "
                "nothing more from this run, and find out who before it is opened again"
            )
            logger.critical("%s", self._conflict)
        if len(steps) > REMEMBERED_STEPS:
            steps.popitem(last=False)
        return is_new

    def check(self) -> None:
        """Raise if decisions contradict each other.

        Raises:
            ConflictingDecisions: from the first contradiction on, for ever.
        """
        if self._conflict is not None:
            raise ConflictingDecisions(self._conflict)


def is_whole(decision: Decision) -> bool:
    """Whether the arrays of a decision fit each other, as those of every worker's do."""
    octets = -(-decision.users // 8)
    if not len(decision.admitted) == len(decision.exhausted) == octets:
        return False
    if len(decision.clipped) % 4 or 2 * len(decision.clipped) != len(decision.granted):
        return False
    if np.any(np.frombuffer(decision.clipped, dtype="<u4") >= decision.users):
        return False
    halted = decision.users - int(unpack_bits(decision.admitted, decision.users).sum())
    packed = isinstance(decision.halted, bytes)
    return len(decision.halted) == (8 * halted if packed else halted)


def _decoded(
    records: Iterator[Followed], decode: Callable[[bytes], T]
) -> Iterator[tuple[Followed, T]]:
    """Records with what they say. One that no worker wrote is skipped, and ends nothing."""
    for record in records:
        try:
            yield record, decode(record.value)
        except UNREADABLE as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)


def distinct_decisions(
    records: Iterator[Followed], dataset: str | None, run: str | None
) -> Iterator[Decision]:
    """Every decision once; workers that take over a partition publish some of them again.

    Args:
        records: of the topic halts.
        dataset: of this dataset only.
        run: of runs of this name only.

    Raises:
        ConflictingDecisions: two different decisions for one step and partition.
    """
    decisions = (
        answer
        for _, answer in _decoded(records, _answer)
        if isinstance(answer, Decision)
        and dataset in (None, answer.dataset)
        and run in (None, answer.run)
    )
    return _once_each(decisions)


def _answer(value: bytes) -> Answer:
    answer = decode_answer(value)
    if isinstance(answer, Decision) and not is_whole(answer):
        raise msgspec.ValidationError("its arrays do not fit each other")
    return answer


def _once_each(decisions: Iterator[Decision]) -> Iterator[Decision]:
    witnesses: dict[tuple[str, str], Witness] = {}
    for decision in decisions:
        run = decision.dataset, decision.run
        witness = witnesses.setdefault(run, Witness(*run))
        is_new = witness.see(decision)
        witness.check()
        if is_new:
            yield decision


def halts_of(decision: Decision) -> Iterator[Halt]:
    """The HALT events of one decision."""
    users = unpack_users(decision.halted)
    admitted = unpack_bits(decision.admitted, decision.users)
    exhausted = unpack_bits(decision.exhausted, decision.users)[~admitted]
    ids = users.tolist() if isinstance(users, np.ndarray) else users
    for user, is_exhausted in zip(ids, exhausted.tolist(), strict=True):
        yield Halt(
            dataset=decision.dataset,
            run=decision.run,
            attempt=decision.attempt,
            step=decision.step,
            user=user,
            exhausted=is_exhausted,
            partition=decision.partition,
            offset=decision.offset,
        )


def rising_checkpoints(records: Iterator[Followed]) -> Iterator[OdometerCheckpoint]:
    """Every odometer checkpoint once, never going back; ``records`` are of the topic odometer."""
    decoder = msgspec.msgpack.Decoder(OdometerCheckpoint)
    newest: dict[tuple[str, User], int] = {}
    for _, checkpoint in _decoded(records, decoder.decode):
        key = checkpoint.dataset, checkpoint.user
        if newest.get(key, -1) < checkpoint.offset:
            newest[key] = checkpoint.offset
            yield checkpoint


def distinct_rejects(records: Iterator[Followed]) -> Iterator[tuple[float, Rejected]]:
    """When something was refused, in seconds since 1970, and what and why, each once.

    Args:
        records: of the topic rejects.
    """
    decoder = msgspec.msgpack.Decoder(Rejected)
    seen: OrderedDict[bytes, None] = OrderedDict()
    for (_, value, written), rejected in _decoded(records, decoder.decode):
        digest = hashlib.sha256(value).digest()
        if digest in seen:  # a worker that took over a partition published it again
            continue
        seen[digest] = None
        if len(seen) > _REMEMBERED_REJECTS:
            seen.popitem(last=False)
        yield written, rejected
