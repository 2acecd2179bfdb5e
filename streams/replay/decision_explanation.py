"""Explains one decision from the log: the step, and the result for each of its users.

The decision is that of one partition, and the log is replayed up to its end, as for one user
(``streams.replay.explain``). The result has data of all users of the step: it is for the curator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from accounting.costs.norm_levels import grid_norms
from accounting.filters.roster_columns import HALTED
from streams.failures import Exit, Failure
from streams.kafka.results import Extent
from streams.kafka.topics import NORMS
from streams.ledger.collecting import step_of
from streams.ledger.ledger import Ledger
from streams.ledger.tracked import Address
from streams.ledger.validation import is_keyed_hash, published
from streams.records import (
    ERASED,
    OWN_BUDGET,
    Charge,
    ChargeRoster,
    Decision,
    Halted,
    Rejected,
    Rejection,
    Request,
    RosterDecision,
    User,
    decode_answer,
    decode_request,
    halt_reason,
)
from streams.records.decision_ids import DecisionId
from streams.records.packing import unpack_norms, unpack_positions
from streams.records.users import UserIds
from streams.replay.archive import Archive, StoredHead, UnreadableService
from streams.replay.log_replay import Applied, LogReplay
from streams.sdk.decisions import DecisionArrays, refusing_budget

UNKNOWN = -1
"""In place of the reason byte of a HALT event before the log begins."""

Outcome: TypeAlias = Literal["charged", "clipped", "halted"]


class NoDecision(Failure):
    """No decision of this log has the id."""

    exit_code = Exit.REFUSED


@dataclass(frozen=True)
class DecidedUser:
    """The result of a decision for one user.

    Attributes:
        user: the id as outputs have it: ``erased:i:`` or ``erased:s:`` for an erased user.
        norm: the requested norm.
        granted: the norm to which the contribution had to be clipped; 0 if halted.
        what: whether the user was charged, charged less than requested, or halted.
        reason: why the user was halted, as in ``Halt.reason``. None if the user was not, or if the
            HALT event is from before the log begins.
        refused_by: the dataset whose budget the step did not fit, if that is the reason.
        exhausted: whether nothing was left after the step.
    """

    user: User
    norm: float
    granted: float
    what: Outcome
    reason: str | None
    refused_by: str | None
    exhausted: bool


@dataclass(frozen=True)
class DecisionExplanation:
    """One decision, and the stored heads of its log.

    Attributes:
        decision: the id.
        written: the producer's time of the charge, in seconds since 1970.
        charge: the request.
        users: of the step in this partition, in the order of the request or of the roster.
        heads: the stored heads that the log has.
    """

    decision: DecisionId
    written: float
    charge: Charge | ChargeRoster
    users: Sequence[DecidedUser]
    heads: Sequence[StoredHead]


def explain_decision(archive: Archive, decision: DecisionId) -> DecisionExplanation:
    """Replay the log of a partition, and explain one of its decisions.

    Raises:
        NoDecision: it is no decision of this log, or the log does not have it any more.
        BrokenLog: the log has a gap, or is not the one that was applied.
        UnreadableService: Kafka does not answer, or the log cannot be replayed.
    """
    charge = _charge_at(archive, decision)
    replay = LogReplay(archive, decision.partition)
    if replay.cut_off:
        raise UnreadableService(replay.cut_off)
    if decision.offset < replay.began:
        raise NoDecision(
            f"decision {decision} was made before offset {replay.began}, where the replay begins: "
            "the snapshot there has the result of earlier records, and not the records"
        )
    collected: list[tuple[UserIds, NDArray[np.float64]]] = []
    reasons = RosterReasons(charge.address)

    def before(offset: int) -> None:
        if offset == decision.offset and isinstance(charge, Charge):
            collected.append(replay.ledger.state.collected.of(step_of(charge)))

    users: list[DecidedUser] = []
    written = 0.0
    for applied in replay.steps(before):
        reasons.follow(applied)
        if applied.record.offset != decision.offset:
            continue
        _check_decided(applied, decision)
        written = applied.record.written
        if isinstance(charge, ChargeRoster):
            users = list(decided_members(replay.ledger, charge.address, reasons))
        else:
            users = list(_charged(applied.decision, charge, *collected[0]))
    return DecisionExplanation(decision, written, charge, users, replay.heads)


def _charge_at(archive: Archive, decision: DecisionId) -> Charge | ChargeRoster:
    """Return the charge at the place of a decision.

    Raises:
        NoDecision: the log has none there.
    """
    if decision.log != archive.topic:
        raise NoDecision(
            f"the decision is of the log {decision.log.hex()}, and this is the log "
            f"{archive.topic.hex()}: give the settings of that service, or --budgets with its file"
        )
    partition, offset = decision.partition, decision.offset
    if partition >= archive.partitions:
        raise NoDecision(f"the log has {archive.partitions} partitions, and no {partition}")
    extent = archive.extent(NORMS, partition)
    if offset < extent.start:
        raise NoDecision(
            f"partition {partition} begins at offset {extent.start}: the record of {decision} was "
            "deleted"
        )
    found = None
    if offset < extent.end:
        found = next(archive.read(NORMS, partition, Extent(offset, offset + 1)), None)
    if found is None:
        raise NoDecision(f"partition {partition} has no record at offset {offset}")
    request: Request | None = None
    try:
        request = decode_request(found.value)
    except Rejection as rejection:
        raise _rejected(decision, rejection.reason, rejection.detail) from None
    if not isinstance(request, Charge | ChargeRoster):
        kind = type(request).__struct_config__.tag
        raise NoDecision(f"the record at {decision} charges nothing: it is of the type {kind}")
    return request


def _check_decided(applied: Applied, decision: DecisionId) -> None:
    """Check that a record was decided, and for the first time.

    Raises:
        NoDecision: it was rejected, or it repeats a decided step.
    """
    if applied.is_refused:
        rejected = msgspec.msgpack.decode(applied.outputs[0].value, type=Rejected)
        raise _rejected(decision, rejected.reason, rejected.detail)
    if not applied.is_first:
        answer = decode_answer(applied.outputs[0].value)
        assert isinstance(answer, Decision | RosterDecision)
        first = decision._replace(offset=answer.offset)
        raise NoDecision(f"the record at {decision} repeats a step that was decided: see {first}")


def _rejected(decision: DecisionId, reason: str, detail: str) -> NoDecision:
    return NoDecision(f"the record at {decision} was rejected: {reason}: {detail}")


def _charged(
    decision: Decision, charge: Charge, collected: UserIds, norms: NDArray[np.float64]
) -> Iterator[DecidedUser]:
    """Yield the users of a charge by norms.

    Args:
        collected: the users whose norms the partition had collected for the step.
        norms: these norms.
    """
    arrays = DecisionArrays.of(decision)
    if decision.collected is UNSET:
        users, norms = UserIds.unpack(charge.users), unpack_norms(charge.norms)
    else:
        users = collected
    granted = np.where(arrays.admitted, norms, 0.0)
    granted[arrays.clipped] = arrays.granted
    halted = iter(UserIds.unpack(decision.halted))
    columns = zip(
        users,
        norms.tolist(),
        granted.tolist(),
        arrays.admitted.tolist(),
        arrays.reasons.tolist(),
        arrays.exhausted.tolist(),
        strict=True,
    )
    for user, norm, allowed, admitted, reason, exhausted in columns:
        known = user if admitted else next(halted)
        why = None if admitted else reason
        yield decided_user(known, norm, allowed, exhausted, why, decision.budgets)


def decided_user(
    user: User, norm: float, granted: float, exhausted: bool, reason: int | None, budgets: list[str]
) -> DecidedUser:
    """Return the result for one user.

    Args:
        reason: why the user was halted, as a decision has it, or UNKNOWN; None if admitted.
    """
    if reason is None:
        what: Outcome = "clipped" if granted < norm else "charged"
        return DecidedUser(user, norm, granted, what, None, None, exhausted)
    why: tuple[str | None, str | None] = None, None
    if reason != UNKNOWN:
        why = halt_reason(reason), refusing_budget(reason, budgets)
    return DecidedUser(user, norm, 0.0, "halted", *why, exhausted)


class RosterReasons:
    """Follows the HALT events of one roster: a member is halted once, until it is readmitted."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._by_position: dict[int, int] = {}

    def follow(self, applied: Applied) -> None:
        """Read the outputs of the next record."""
        request = applied.request
        if not isinstance(request, ChargeRoster) or request.address != self._address:
            return
        decision = applied.roster_decision
        for position in unpack_positions(decision.readmitted, decision.members).tolist():
            self._by_position.pop(position, None)
        reasons = b"".join(part.reasons for part in applied.answers if isinstance(part, Halted))
        if reasons:  # a repeated step has none
            halted = unpack_positions(decision.halted, decision.members).tolist()
            self._by_position |= zip(halted, reasons, strict=True)

    def of(self, position: int) -> int:
        """Return the reason byte of a halted member."""
        return self._by_position.get(position, UNKNOWN)


def decided_members(
    ledger: Ledger,
    address: Address,
    reasons: RosterReasons,
    rows: NDArray[np.int64] | None = None,
) -> Iterator[DecidedUser]:
    """Yield the members of a roster, right after its step.

    Args:
        rows: the positions of the members; None for all.
    """
    rosters, budgets = ledger.state.rosters, ledger.state.policies.budgets(address[0])
    members, terms = rosters.members[address], rosters[address]
    rows = np.arange(len(members)) if rows is None else rows
    numbers = members.numbers(rows)
    norms = grid_norms(terms.clip_norm, terms.levels)
    columns = zip(
        rows.tolist(),
        budgets.own.users_at(members.slots[rows]),
        norms[numbers["level"]].tolist(),
        norms[numbers["granted"]].tolist(),
        (numbers["flags"] & HALTED).astype(bool).tolist(),
        members.is_exhausted(rows).tolist(),
        strict=True,
    )
    for position, user, norm, granted, halted, exhausted in columns:
        reason = reasons.of(position) if halted else None
        if halted and isinstance(user, str) and is_keyed_hash(user):
            user, reason = published(user), ERASED
        elif reason == UNKNOWN and not budgets.is_nested:
            reason = OWN_BUDGET
        yield decided_user(user, norm, granted, exhausted, reason, budgets.names)
