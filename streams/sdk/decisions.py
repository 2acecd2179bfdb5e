"""One step charged by norms: the request for each partition, and the decision over all of them.

A decision that a worker cannot have made for the request is rejected. A ``Witness`` detects two
decisions that contradict each other.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streams.records import (
    ERASED,
    HALT_REASONS,
    TOO_SOON,
    Answer,
    Decision,
    Halted,
    RosterDecision,
    User,
    Users,
    decode_answer,
    encode,
)
from streams.records.packing import unpack_bits, unpack_positions
from streams.records.users import UserIds
from streams.sdk.errors import ConflictingDecisions, not_of_a_worker

logger = logging.getLogger("turnstile.sdk")


@dataclass(frozen=True, eq=False)
class StepDecision:
    """The users who take part in one step. All arrays are in the order of the users given.

    Attributes:
        step: the step that was charged.
        admitted: bool (n,), users who may contribute to the release.
        granted: float64 (n,), the norm to which each contribution must be clipped; 0 if halted.
            ``accounting.release.clipping`` clips to it. A narrower type must round it down:
            ``accounting.round_to(granted, np.float32, "down")``.
        exhausted: bool (n,), users who have nothing left after this step.
        reasons: uint8 (n,), why each halted user is halted: a byte of
            ``streams.records.HALT_REASONS``, or the index of a budget.
        decision_ids: the id of each partition's decision, by partition (``DecisionId``). With one
            of them, ``turnstile explain --decision`` explains the decision from the log. Do not
            publish them: an offset counts records, also norm events and erasures of users.
    """

    step: int
    admitted: NDArray[np.bool_]
    granted: NDArray[np.float64]
    exhausted: NDArray[np.bool_]
    reasons: NDArray[np.uint8]
    decision_ids: tuple[str, ...]

    @property
    def halted(self) -> NDArray[np.bool_]:
        """Return the users to leave out of this step; they were charged nothing for it."""
        return ~self.admitted

    @property
    def too_soon(self) -> NDArray[np.bool_]:
        """Return the users who are halted because of the run's ``min_separation``, bool (n,).

        Their last participation is too recent, whatever is left of their budgets.
        """
        return np.asarray(self.halted & (self.reasons == TOO_SOON))

    @property
    def erased(self) -> NDArray[np.bool_]:
        """Return the users who are halted because they were erased, bool (n,).

        Leave them out of every later step, and of the data.
        """
        return np.asarray(self.halted & (self.reasons == ERASED))


@dataclass(frozen=True, eq=False)
class CollectedDecision(StepDecision):
    """The users of one step whose norms were collected. Only ``norms`` may be released.

    All arrays are in the order of ``users``.

    Attributes:
        users: n ids, admitted or halted, by partition and then in the order in which the log has
            their norms. With a ``pseudonym_key``, users that this client has charged, enrolled or
            sent norms of have their ids; others have their pseudonyms.
    """

    users: list[User]

    @property
    def norms(self) -> dict[User, float]:
        """Return the admitted users, with the norm to which each contribution must be clipped.

        Release contributions of these users only.
        """
        positions = np.flatnonzero(self.admitted).tolist()
        return {self.users[at]: float(self.granted[at]) for at in positions}


class ChargePart(NamedTuple):
    """A partition's share of a step; see ``StepPart``.

    Attributes:
        norms: (n,) the norms of the users in this partition.
    """

    record: bytes
    digest: bytes
    norms: NDArray[np.float64]

    def decided(self, answer: Decision | RosterDecision) -> DecisionArrays:
        """Return the decision about these users, in their order.

        Raises:
            ConflictingDecisions: a worker cannot have made this decision for this request.
        """
        if not isinstance(answer, Decision) or answer.users != len(self.norms):
            raise not_of_a_worker(answer.partition, f"is not about {len(self.norms)} users")
        try:
            arrays = DecisionArrays.of(answer)
        except ValueError as error:
            raise not_of_a_worker(answer.partition, str(error)) from error
        clipped, lower = arrays.clipped, arrays.granted
        if not np.all(arrays.admitted[clipped] & (lower >= 0) & (lower <= self.norms[clipped])):
            raise not_of_a_worker(answer.partition, "grants what was not asked for")
        return arrays


class CollectedPart(NamedTuple):
    """A partition's share of a step whose norms were collected; see ``StepPart``.

    Attributes:
        clip_norm: the norm that no granted norm exceeds.
    """

    record: bytes
    digest: bytes
    clip_norm: float

    def decided(self, answer: Decision | RosterDecision) -> CollectedArrays:
        """Return the decision about the partition's users, with their ids as the log has them.

        Raises:
            ConflictingDecisions: a worker cannot have made this decision for this request.
        """
        if not isinstance(answer, Decision) or answer.collected is UNSET or answer.norms is UNSET:
            raise not_of_a_worker(answer.partition, "is not about collected norms")
        try:
            arrays = DecisionArrays.of(answer)
            let_in, left_out = UserIds.unpack(answer.collected), UserIds.unpack(answer.halted)
            norms = np.frombuffer(answer.norms, dtype="<f8")
        except ValueError as error:
            raise not_of_a_worker(answer.partition, str(error)) from error
        admitted = arrays.admitted
        if not len(let_in) == len(norms) == np.count_nonzero(admitted):
            raise not_of_a_worker(answer.partition, "has no ids or no norms of the admitted users")
        granted = np.zeros(answer.users)
        granted[admitted] = norms
        if not (
            np.all((norms >= 0) & (norms <= self.clip_norm))
            and admitted[arrays.clipped].all()
            and np.array_equal(granted[arrays.clipped], arrays.granted)
        ):
            raise not_of_a_worker(answer.partition, "grants norms that cannot have been collected")
        places = np.concatenate([np.flatnonzero(admitted), np.flatnonzero(~admitted)])
        users = let_in.join(left_out).select(np.argsort(places)).tolist()
        return CollectedArrays(arrays, granted, users)


Witnessed: TypeAlias = Decision | RosterDecision | Halted
"""The records about a step that never change once published."""


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""Errors of decoding a record that no worker has written; TypeError if it has no value."""


REMEMBERED_STEPS = 1024
"""Records remembered per run and partition. A contradiction of an older one is not noticed."""


class Witness:
    """Remembers the decisions of one run, and detects two that contradict each other."""

    def __init__(self, dataset: str, run: str) -> None:
        self._name = f"run {run!r} of dataset {dataset!r}"
        # By partition, the hash of the record for each step and part.
        self._seen: defaultdict[int, OrderedDict[Hashable, bytes]] = defaultdict(OrderedDict)
        # By partition, the highest offset, and the parts of its record that were seen.
        self._reached: dict[int, tuple[int, frozenset[Hashable]]] = {}
        self._conflict: str | None = None

    def see(self, record: Witnessed) -> bool:
        """Remember a record, of any attempt; return whether it is new."""
        seen = self._seen[record.partition]
        # A roster step's HALT events follow its decision. Both have parts.
        part = isinstance(record, Halted), record.part or 0
        # A worker publishes in the order of the log, and only then deletes from its outbox. So a
        # record with a lower offset was published before, however long ago.
        reached, parts = self._reached.get(record.partition, (-1, frozenset()))
        if record.offset > reached:
            parts = frozenset()
        is_new = record.offset >= reached and part not in parts
        if is_new:
            self._reached[record.partition] = record.offset, parts | {part}
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


class DecisionArrays(NamedTuple):
    """The arrays of a decision about n users.

    Attributes:
        admitted: bool (n,).
        exhausted: bool (n,).
        clipped: uint32, the positions of users with a lower norm than they asked for.
        granted: float64, these norms.
        reasons: uint8 (n,), why each user was halted; 0 for users who were admitted.
        offset: that of the charge in the log.
    """

    admitted: NDArray[np.bool_]
    exhausted: NDArray[np.bool_]
    clipped: NDArray[np.uint32]
    granted: NDArray[np.float64]
    reasons: NDArray[np.uint8]
    offset: int

    @classmethod
    def of(cls, decision: Decision) -> DecisionArrays:
        """Unpack a decision.

        Raises:
            ValueError: the arrays do not fit each other, so no worker has made the decision.
        """
        count = decision.users
        if not len(decision.admitted) == len(decision.exhausted) == -(-count // 8):
            raise ValueError("has bit sets of the wrong length")
        admitted = unpack_bits(decision.admitted, count)
        clipped = np.frombuffer(decision.clipped, dtype="<u4")
        granted = np.frombuffer(decision.granted, dtype="<f8")
        if len(clipped) != len(granted) or (len(clipped) and int(clipped.max()) >= count):
            raise ValueError("grants norms at invalid positions")
        halted = count - int(np.count_nonzero(admitted))
        if _count_of(decision.halted) != halted or not _has_reasons(decision, halted):
            raise ValueError("has no ids or no reasons of the halted users")
        reasons = np.zeros(count, dtype=np.uint8)
        if halted:
            reasons[~admitted] = np.frombuffer(decision.reasons, dtype=np.uint8)
        exhausted = unpack_bits(decision.exhausted, count)
        return cls(admitted, exhausted, clipped, granted, reasons, decision.offset)


class CollectedArrays(NamedTuple):
    """A partition's decision about the n users whose norms it collected.

    Attributes:
        arrays: of these users.
        granted: float64 (n,), the norm to which each contribution must be clipped.
        users: n ids, as the log has them.
    """

    arrays: DecisionArrays
    granted: NDArray[np.float64]
    users: list[User]


class RosterChanges(NamedTuple):
    """The changes that a decision makes to the members of a roster in one partition.

    Attributes:
        members: how many members it is about.
        halted, readmitted, exhausted, regranted: int64, positions among them, increasing.
        granted: uint8, the levels granted at the last of these.
        offset: that of the charge in the log.
    """

    members: int
    halted: NDArray[np.int64]
    readmitted: NDArray[np.int64]
    exhausted: NDArray[np.int64]
    regranted: NDArray[np.int64]
    granted: NDArray[np.uint8]
    offset: int

    @classmethod
    def of(cls, decision: RosterDecision) -> RosterChanges:
        """Unpack a decision.

        Raises:
            ValueError: the arrays do not fit each other, so no worker has made the decision.
        """
        packed = decision.halted, decision.readmitted, decision.exhausted, decision.regranted
        halted, readmitted, exhausted, regranted = (
            unpack_positions(each, decision.members) for each in packed
        )
        granted = np.frombuffer(decision.granted, dtype=np.uint8)
        if decision.members < 0 or len(regranted) != len(granted):
            raise ValueError("has levels that do not fit")
        changed = halted, readmitted, exhausted, regranted
        return cls(decision.members, *changed, granted, decision.offset)


def _count_of(users: Users) -> int:
    """Return the number of users.

    Raises:
        ValueError: packed ids are cut off.
    """
    if isinstance(users, bytes) and len(users) % 8:
        raise ValueError("has a packed id that is cut off")
    return len(users) // 8 if isinstance(users, bytes) else len(users)


def _has_reasons(answer: Decision | Halted, halted: int) -> bool:
    """Return whether each of so many halted users has a reason that is defined."""
    if len(answer.reasons) != halted:
        return False
    return not halted or {*range(len(answer.budgets)), *HALT_REASONS}.issuperset(answer.reasons)


def whole_answer(value: bytes) -> Answer:
    """Decode a record of the topic halts, and check that its arrays fit each other.

    Raises:
        msgspec.DecodeError: it is invalid; also the other errors in ``UNREADABLE``.
    """
    answer = decode_answer(value)
    try:
        match answer:
            case Decision():
                DecisionArrays.of(answer)
            case RosterDecision():
                RosterChanges.of(answer)
            case Halted():
                users = _count_of(answer.users)
                if len(answer.exhausted) != -(-users // 8) or not _has_reasons(answer, users):
                    raise ValueError("has no reasons of the halted users")
                if not 0 <= answer.part < answer.parts:
                    raise ValueError("is a part that does not exist")
    except ValueError as error:
        raise msgspec.ValidationError(f"the record {error}") from error
    return answer


class LeftOut(NamedTuple):
    """The users who were left out of a step, by one record; arrays are in the order of the
    users.
    """

    users: UserIds
    exhausted: NDArray[np.bool_]
    reasons: NDArray[np.uint8]  # as in a decision
    budgets: list[str]


def left_out_by(answer: Decision | Halted) -> LeftOut:
    """Return the users who were left out of a step, and why."""
    if isinstance(answer, Decision):
        users = UserIds.unpack(answer.halted)
        halted = ~unpack_bits(answer.admitted, answer.users)
        exhausted = unpack_bits(answer.exhausted, answer.users)[halted]
    else:
        users = UserIds.unpack(answer.users)
        exhausted = unpack_bits(answer.exhausted, len(users))
    reasons = np.frombuffer(answer.reasons, dtype=np.uint8)
    return LeftOut(users, exhausted, reasons, answer.budgets)


def refusing_budget(reason: int, budgets: list[str]) -> str | None:
    """Return the budget that a reason byte stands for, if it stands for one."""
    return None if reason in HALT_REASONS else budgets[reason]
