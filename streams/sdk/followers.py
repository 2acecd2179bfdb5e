"""Readers of what the workers publish: decisions, HALTs and odometer records, each once.

A worker decides a step once and may publish the decision again. Two different decisions for one
step and partition therefore mean that another program writes to `halts`. A reader cannot tell which
of the two is forged, nor notice a forgery if only the forged decision arrives: see SECURITY.md.
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
from numpy.typing import NDArray

from streams.records import (
    ERASED,
    TOO_SOON,
    Answer,
    Decision,
    Halted,
    OdometerCheckpoint,
    Rejected,
    RosterDecision,
    User,
    Users,
    decode_answer,
    encode,
)
from streams.records.packing import unpack_bits, unpack_positions, unpack_users
from streams.sdk.errors import ConflictingDecisions, InvalidRequest

logger = logging.getLogger("turnstile.sdk")

T = TypeVar("T")
Witnessed: TypeAlias = Decision | RosterDecision | Halted
"""The records about a step that never change once published."""
Since: TypeAlias = Literal["earliest", "latest"]
HaltReason: TypeAlias = Literal["budget", "too-soon", "erased"]
_HALT_REASONS: dict[int, HaltReason] = {TOO_SOON: "too-soon", ERASED: "erased"}
"""The meaning of the reason bytes that do not stand for a budget."""
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""Errors of decoding a record that no worker has written; TypeError if it has no value."""
REMEMBERED_STEPS = 1024
"""Records remembered per run and partition. A contradiction of an older one is not noticed."""
_REMEMBERED_REJECTS = 100_000
"""Rejections remembered to drop repeated ones: far more than a batch has."""


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    There is one exception: a dataset with ``on_exhaustion="clip"`` and no parent charges the
    remainder of a budget that is too small for any norm. The user is then exhausted.

    Attributes:
        user: the id as the log has it; strings are in Unicode's normal form NFC.
        exhausted: nothing is left, so no later step can admit this user. If False, a cheaper step
            may.
        refused_by: the dataset whose budget the step does not fit: the one that was charged or one
            of its ancestors, the nearest if there are several. Where norms are clipped, its budget
            has room for no norm. None: the halt is not because of a budget.
        reason: "budget"; "too-soon" if the last participation is less than ``min_separation`` steps
            ago, whatever is left; or "erased" if the user was erased, and ``user`` is then the
            keyed hash that took the place of the id.
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
    """A published record."""

    partition: int
    value: bytes  # empty for a tombstone, which replaces the records of an erased user
    written: float  # seconds since 1970, by the clock of its writer


@dataclass(frozen=True)
class Reading:
    """Which records to read, and for how long.

    Attributes:
        since: where to begin; the position is fixed before the first record is read.
        follow: wait for more records after those that exist.
        idle_timeout: stop following after so many seconds without a record; None: never.
    """

    since: Since = "latest"
    follow: bool = True
    idle_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidRequest(f"since is {self.since!r}; it must be one of {get_args(Since)}")
        if self.idle_timeout is not None and not self.idle_timeout >= 0:
            raise InvalidRequest(
                f"idle_timeout is {self.idle_timeout}; it must be a number of seconds, at least 0"
            )


class Witness:
    """Remembers the decisions of one run, and detects two that contradict each other."""

    def __init__(self, dataset: str, run: str) -> None:
        self._name = f"run {run!r} of dataset {dataset!r}"
        # By partition, the hash of the record for each step and part.
        self._seen: defaultdict[int, OrderedDict[Hashable, bytes]] = defaultdict(OrderedDict)
        self._conflict: str | None = None

    def see(self, record: Witnessed) -> bool:
        """Remember a record, of any attempt; return whether it is new."""
        seen = self._seen[record.partition]
        # A roster step's HALT events follow its decision in several parts.
        part = record.part if isinstance(record, Halted) else None
        is_new = (record.step, part) not in seen
        # A repeated step is answered with the number of the attempt that repeats it.
        content = hashlib.sha256(encode(msgspec.structs.replace(record, attempt=0))).digest()
        before = seen.setdefault((record.step, part), content)
        if before != content and self._conflict is None:
            self._conflict = (
                f"partition {record.partition} decided step {record.step} of {self._name} in "
                "two ways, so another program than the workers writes to the topic halts. Release "
                "nothing more from this run, and find that program before you open it again"
            )
            logger.critical("%s", self._conflict)
        if len(seen) > REMEMBERED_STEPS:
            seen.popitem(last=False)
        return is_new

    def check(self) -> None:
        """Raise if two decisions contradict each other.

        Raises:
            ConflictingDecisions: from the first contradiction on, at every call.
        """
        if self._conflict is not None:
            raise ConflictingDecisions(self._conflict)


def is_whole(decision: Decision) -> bool:
    """Return whether the arrays of a decision fit each other, as in every worker's decision."""
    octets = -(-decision.users // 8)
    if not len(decision.admitted) == len(decision.exhausted) == octets:
        return False
    if len(decision.clipped) % 4 or 2 * len(decision.clipped) != len(decision.granted):
        return False
    if np.any(np.frombuffer(decision.clipped, dtype="<u4") >= decision.users):
        return False
    halted = decision.users - int(unpack_bits(decision.admitted, decision.users).sum())
    packed = isinstance(decision.halted, bytes)
    has_ids = len(decision.halted) == (8 * halted if packed else halted)
    return has_ids and _has_reasons(decision, halted)


def reasons_of(decision: Decision) -> NDArray[np.uint8]:
    """Return the reason byte of every user, 0 for those admitted, (users,)."""
    reasons = np.zeros(decision.users, dtype=np.uint8)
    halted = ~unpack_bits(decision.admitted, decision.users)
    reasons[halted] = np.frombuffer(decision.reasons, dtype=np.uint8)
    return reasons


def _count_of(users: Users) -> int:
    return len(users) // 8 if isinstance(users, bytes) else len(users)


def _has_reasons(answer: Decision | Halted, halted: int) -> bool:
    """Return whether each of so many halted users has a reason that is defined."""
    known = {*range(len(answer.budgets)), TOO_SOON, ERASED}
    return len(answer.reasons) == halted and known.issuperset(answer.reasons)


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
    fit = len(halted.exhausted) == -(-users // 8) and _has_reasons(halted, users)
    return fit and 0 <= halted.part < halted.parts


def _decoded(
    records: Iterator[Followed], decode: Callable[[bytes], T]
) -> Iterator[tuple[Followed, T]]:
    """Yield records with their content. A record that cannot be decoded is logged and skipped."""
    for record in records:
        try:
            yield record, decode(record.value)
        except UNREADABLE as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)


def distinct_halts(
    records: Iterator[Followed], dataset: str | None, run: str | None
) -> Iterator[Halt]:
    """Yield every HALT event once. Workers that take over a partition publish some records again.

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
    """Decode a record of the topic halts, and check that its arrays fit each other.

    Raises:
        msgspec.DecodeError: it is invalid; also the other errors in ``UNREADABLE``.
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
    """The users who were left out of a step, by one record; arrays are in the order of the
    users.
    """

    users: NDArray[np.int64] | list[User]
    exhausted: NDArray[np.bool_]
    reasons: NDArray[np.uint8]  # as in a decision
    budgets: list[str]


def left_out_by(answer: Decision | Halted) -> LeftOut:
    """Return the users who were left out of a step, and why."""
    if isinstance(answer, Decision):
        users = unpack_users(answer.halted)
        halted = ~unpack_bits(answer.admitted, answer.users)
        exhausted = unpack_bits(answer.exhausted, answer.users)[halted]
    else:
        users = unpack_users(answer.users)
        exhausted = unpack_bits(answer.exhausted, len(users))
    reasons = np.frombuffer(answer.reasons, dtype=np.uint8)
    return LeftOut(users, exhausted, reasons, answer.budgets)


def halt_reason(reason: int) -> HaltReason:
    """Return the name of a reason byte."""
    return _HALT_REASONS.get(reason, "budget")


def refusing_budget(reason: int, budgets: list[str]) -> str | None:
    """Return the budget that a reason byte stands for, if it stands for one."""
    return None if reason in _HALT_REASONS else budgets[reason]


def _halts_of(answer: Decision | Halted) -> Iterator[Halt]:
    """Yield the HALT events of one record."""
    left_out = left_out_by(answer)
    users = left_out.users
    ids = users.tolist() if isinstance(users, np.ndarray) else users
    lists = left_out.exhausted.tolist(), left_out.reasons.tolist()
    for user, is_exhausted, reason in zip(ids, *lists, strict=True):
        yield Halt(
            dataset=answer.dataset,
            run=answer.run,
            attempt=answer.attempt,
            step=answer.step,
            user=user,
            exhausted=is_exhausted,
            partition=answer.partition,
            offset=answer.offset,
            refused_by=refusing_budget(reason, left_out.budgets),
            reason=halt_reason(reason),
        )


def rising_checkpoints(records: Iterator[Followed]) -> Iterator[OdometerCheckpoint]:
    """Yield every odometer record once and in rising order; ``records`` are of the topic
    odometer.
    """
    decoder = msgspec.msgpack.Decoder(OdometerCheckpoint)
    records = (record for record in records if record.value)  # skip tombstones
    newest: dict[tuple[str, User], int] = {}
    for _, checkpoint in _decoded(records, decoder.decode):
        key = checkpoint.dataset, checkpoint.user
        if newest.get(key, -1) < checkpoint.offset:
            newest[key] = checkpoint.offset
            yield checkpoint


def distinct_rejects(records: Iterator[Followed]) -> Iterator[tuple[float, Rejected]]:
    """Yield each rejection once, with its time in seconds since 1970.

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
