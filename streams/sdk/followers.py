"""Following what the workers publish: decisions, HALTs and odometer checkpoints, each once.

The workers decide a step once; sent again, it is the same decision. So two different ones for one
step and partition mean that somebody else writes to `halts`. Which of the two is forged cannot be
told from here, nor can it be when only the forged one ever arrives: see SECURITY.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
from msgspec import UnsetType
from numpy.typing import NDArray

from streams.schemas import (
    Answer,
    Decision,
    ForgettingDecision,
    Halted,
    NestedDecision,
    OdometerCheckpoint,
    Rejected,
    RosterDecision,
    SeparatedDecision,
    User,
    Users,
    decode_answer,
    encode,
)
from streams.sdk.errors import ConflictingDecisions, InvalidRequest
from streams.wire.packing import unpack_bits, unpack_positions, unpack_users

logger = logging.getLogger("turnstile.sdk")

T = TypeVar("T")
Witnessed: TypeAlias = Decision | RosterDecision | Halted
"""What is said of a step, once and for all."""
Since: TypeAlias = Literal["earliest", "latest"]
HaltReason: TypeAlias = Literal["budget", "too-soon", "forgotten"]
_NAMING = (NestedDecision, SeparatedDecision, ForgettingDecision, Halted)
"""What may name the budget that was too small for each of the halted."""
_Naming: TypeAlias = NestedDecision | SeparatedDecision | ForgettingDecision | Halted
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""What decoding a record raises that no worker has written; TypeError if it has no value."""
REMEMBERED_STEPS = 1024
"""Records of each run and partition; what contradicts an older one goes unseen."""
_REMEMBERED_REJECTS = 100_000
"""Those by which one that is published again is recognised: far more than a batch has."""


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    Except, where a dataset clips that is within no other, what was too little to pay for any norm:
    it is charged and the user is exhausted.

    Attributes:
        user: the id as the log has it; strings are in Unicode's normal form NFC.
        exhausted: nothing is left, so that no later step can admit this user either. Otherwise a
            cheaper step still may.
        refused_by: the dataset whose budget the step does not fit, or that has nothing for any norm
            where norms are clipped; the nearest one if there are several: the one that was charged,
            or one that it is within. None: no budget was asked.
        reason: "budget", or "too-soon": the last participation is less than the ``min_separation``
            of the run ago. That says nothing about what is left. Or "forgotten": the user is not
            known any more, and ``user`` is the name that took the place of the id.
    """

    dataset: str
    run: str
    attempt: int
    step: int
    user: User
    exhausted: bool
    partition: int
    offset: int
    refused_by: str | None
    reason: HaltReason = "budget"


class Followed(NamedTuple):
    """One record that was published."""

    partition: int
    value: bytes  # empty: a tombstone, of a user who was forgotten
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
    """What is said of a step, whoever asked, and the digests of its charge, by version."""

    content: bytes
    digests: dict[int, bytes]


class Witness:
    """Remembers what was decided of one run, and sees when two decisions contradict each other."""

    def __init__(self, dataset: str, run: str) -> None:
        self._name = f"run {run!r} of dataset {dataset!r}"
        self._seen: defaultdict[int, OrderedDict[Hashable, _Seen]] = defaultdict(OrderedDict)
        self._conflict: str | None = None

    def see(self, record: Witnessed) -> bool:
        """Take a record, under whichever attempt it was published; whether it is a new one."""
        seen = self._seen[record.partition]
        # HALT events of a roster come beside its decision, in parts.
        part = record.part if isinstance(record, Halted) else None
        is_new = (record.step, part) not in seen
        # A repeated step is answered to the attempt that repeats it, in the version in which it is.
        said, digest = msgspec.structs.replace(record, attempt=0, v=0), b""
        if not isinstance(said, Halted):
            said, digest = msgspec.structs.replace(said, digest=b""), said.digest
        content = hashlib.sha256(encode(said)).digest()
        before = seen.setdefault((record.step, part), _Seen(content, {}))
        known = before.digests.setdefault(record.v, digest)
        if (before.content, known) != (content, digest) and self._conflict is None:
            self._conflict = (
                f"partition {record.partition} decided step {record.step} of {self._name} in "
                "two ways, so somebody else than the workers writes to the topic halts. Release "
                "nothing more from this run, and find out who before it is opened again"
            )
            logger.critical("%s", self._conflict)
        if len(seen) > REMEMBERED_STEPS:
            seen.popitem(last=False)
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
    for name in ("too_soon", "forgotten"):
        packed = getattr(decision, name, None)
        if isinstance(packed, bytes) and len(packed) != octets:
            return False
    admitted = unpack_bits(decision.admitted, decision.users)
    if bool((admitted & (too_soon_of(decision) | forgotten_of(decision))).any()):
        return False
    halted = decision.users - int(admitted.sum())
    packed = isinstance(decision.halted, bytes)
    if isinstance(decision, _NAMING) and not _are_named(decision, halted):
        return False
    return len(decision.halted) == (8 * halted if packed else halted)


def too_soon_of(decision: Decision) -> NDArray[np.bool_]:
    """Who is halted because the last participation was not long enough ago, (users,)."""
    too_soon = getattr(decision, "too_soon", None)
    if isinstance(too_soon, bytes):
        return unpack_bits(too_soon, decision.users)
    return np.zeros(decision.users, dtype=np.bool_)


def forgotten_of(answer: Decision | Halted) -> NDArray[np.bool_]:
    """Who is halted because the service was told to forget them, (users,)."""
    count = answer.users if isinstance(answer, Decision) else _count_of(answer.users)
    forgotten = getattr(answer, "forgotten", None)
    if isinstance(forgotten, bytes):
        return unpack_bits(forgotten, count)
    return np.zeros(count, dtype=np.bool_)


def _count_of(users: Users) -> int:
    return len(users) // 8 if isinstance(users, bytes) else len(users)


def _are_named(answer: _Naming, halted: int) -> bool:
    """Whether a budget is named for each of so many who are halted, if any are named."""
    if isinstance(answer.budgets, UnsetType) or isinstance(answer.refused, UnsetType):
        return answer.budgets is answer.refused
    known = len(answer.budgets)
    return len(answer.refused) == halted and max(answer.refused, default=-1) < known


def _is_whole_roster(decision: RosterDecision) -> bool:
    count = decision.members
    packed = decision.halted, decision.readmitted, decision.exhausted, decision.regranted
    try:
        *_, regranted = (unpack_positions(positions, count) for positions in packed)
    except ValueError:
        return False
    return count >= 0 and len(regranted) == len(decision.granted)


def _is_whole_part(halted: Halted) -> bool:
    if isinstance(halted.users, bytes) and len(halted.users) % 8:
        return False
    users = _count_of(halted.users)
    octets = -(-users // 8)
    if isinstance(halted.forgotten, bytes) and len(halted.forgotten) != octets:
        return False
    fit = len(halted.exhausted) == octets and _are_named(halted, users)
    return fit and 0 <= halted.part < halted.parts


def _decoded(
    records: Iterator[Followed], decode: Callable[[bytes], T]
) -> Iterator[tuple[Followed, T]]:
    """Records with what they say. One that no worker wrote is skipped, and ends nothing."""
    for record in records:
        try:
            yield record, decode(record.value)
        except UNREADABLE as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)


def distinct_halts(
    records: Iterator[Followed], dataset: str | None, run: str | None
) -> Iterator[Halt]:
    """Every HALT event once; workers that take over a partition publish some records again.

    Args:
        records: of the topic halts.
        dataset: of this dataset only.
        run: of runs of this name only.

    Raises:
        ConflictingDecisions: two different records about one step and partition.
    """
    witnesses: dict[tuple[str, str], Witness] = {}
    for _, answer in _decoded(records, whole_answer):
        if not isinstance(answer, Decision | RosterDecision | Halted):
            continue
        if dataset not in (None, answer.dataset) or run not in (None, answer.run):
            continue
        name = answer.dataset, answer.run
        witness = witnesses.setdefault(name, Witness(*name))
        is_new = witness.see(answer)
        witness.check()
        if is_new and not isinstance(answer, RosterDecision):
            yield from _halts_of(answer)


def whole_answer(value: bytes) -> Answer:
    """A record of the topic halts, whose arrays fit each other.

    Raises:
        msgspec.DecodeError: it is none, or they do not; and whatever else is in ``UNREADABLE``.
    """
    answer = decode_answer(value)
    match answer:
        case Decision():
            whole = is_whole(answer)
        case RosterDecision():
            whole = _is_whole_roster(answer)
        case Halted():
            whole = _is_whole_part(answer)
        case _:
            whole = True
    if not whole:
        raise msgspec.ValidationError("its arrays do not fit each other")
    return answer


class LeftOut(NamedTuple):
    """Who was left out of a step, by one record; arrays are in the order of the users."""

    users: NDArray[np.int64] | list[User]
    exhausted: NDArray[np.bool_]
    too_soon: NDArray[np.bool_]
    forgotten: NDArray[np.bool_]
    budgets: list[str]
    refused: NDArray[np.uint8]  # which of these, where it is for the budget


def left_out_by(answer: Decision | Halted) -> LeftOut:
    """Who was left out of a step, and why."""
    if isinstance(answer, Decision):
        users = unpack_users(answer.halted)
        halted = ~unpack_bits(answer.admitted, answer.users)
        exhausted = unpack_bits(answer.exhausted, answer.users)[halted]
        too_soon = too_soon_of(answer)[halted]
        forgotten = forgotten_of(answer)[halted]
    else:
        users = unpack_users(answer.users)
        exhausted = unpack_bits(answer.exhausted, len(users))
        too_soon = np.zeros(len(users), dtype=np.bool_)
        forgotten = forgotten_of(answer)
    budgets, refused = [answer.dataset], bytes(len(users))
    if isinstance(answer, _NAMING) and isinstance(answer.refused, bytes):
        budgets, refused = answer.budgets or budgets, answer.refused
    numbers = np.frombuffer(refused, dtype=np.uint8)
    return LeftOut(users, exhausted, too_soon, forgotten, budgets, numbers)


def _halts_of(answer: Decision | Halted) -> Iterator[Halt]:
    """The HALT events of one record."""
    users, *arrays, budgets, refused = left_out_by(answer)
    ids = users.tolist() if isinstance(users, np.ndarray) else users
    lists = (array.tolist() for array in (*arrays, refused))
    for user, is_exhausted, waits, is_forgotten, number in zip(ids, *lists, strict=True):
        yield Halt(
            dataset=answer.dataset,
            run=answer.run,
            attempt=answer.attempt,
            step=answer.step,
            user=user,
            exhausted=is_exhausted,
            partition=answer.partition,
            offset=answer.offset,
            refused_by=None if waits or is_forgotten else budgets[number],
            reason="forgotten" if is_forgotten else "too-soon" if waits else "budget",
        )


def rising_checkpoints(records: Iterator[Followed]) -> Iterator[OdometerCheckpoint]:
    """Every odometer checkpoint once, never going back; ``records`` are of the topic odometer."""
    decoder = msgspec.msgpack.Decoder(OdometerCheckpoint)
    records = (record for record in records if record.value)  # but for tombstones
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
