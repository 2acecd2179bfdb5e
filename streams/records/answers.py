"""Answers: the topics `halts`, `odometer` and `rejects`."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from streams.records.fields import (
    DELTA,
    IntegerUser,
    LogId,
    Measure,
    Name,
    OfDataset,
    OfRun,
    Record,
    StringUser,
    Token,
    User,
    Users,
)
from streams.records.requests import CollectTerms, Holder, Policy, Request


class _OfLog(Record, frozen=True):
    """The base of the answers to requests that name no dataset of their own."""

    request: Token
    partition: int
    offset: int


class _AboutDataset(OfDataset, frozen=True):
    """The base of the answers to requests about a dataset."""

    request: Token
    partition: int
    offset: int


class _AboutRun(OfRun, frozen=True):
    """The base of the answers about the progress of a run."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int
    """The last step decided in the partition; -1 before the first."""


class _AboutStep(OfRun, frozen=True):
    """The base of the answers about a step."""

    attempt: int
    step: int
    """The decided step."""
    partition: int
    offset: int
    """The offset of the charge that was applied."""


class DatasetCreated(_OfLog, frozen=True, tag="dataset-created"):
    """The partition holds the dataset under exactly this policy."""

    policy: Policy
    """The policy that the partition holds."""


class RunOpened(_AboutRun, frozen=True, tag="run-opened"):
    """The partition charges the run under this attempt."""

    policy: Policy
    """The policy that the partition holds."""
    outer: list[Policy] | UnsetType = UNSET
    """The policies of the dataset's ancestors, the nearest first: its parents in increasing order,
    then theirs, each where it is met first. Absent without ancestors."""
    min_separation: int | UnsetType = UNSET
    """The run's minimum separation. Absent without one."""
    collect: CollectTerms | UnsetType = UNSET
    """The terms under which the run collects norm events. Absent if it does not."""


class RunClosed(_AboutRun, frozen=True, tag="run-closed"):
    """The partition charges the run no more."""


class DatasetWithdrawn(_AboutDataset, frozen=True, tag="dataset-withdrawn"):
    """The partition does not hold the dataset."""


class DatasetClosed(_AboutDataset, frozen=True, tag="dataset-closed"):
    """The partition charges neither the dataset nor those nested in it; their accounts stay."""

    datasets: list[Name]
    """The dataset and those nested in it, sorted. All of them are closed."""


OWN_BUDGET = 0
"""The reason byte of a user whose step does not fit the budget of the charged dataset. The bytes
after it stand for the ancestors' budgets, in the order of ``outer`` in run-opened."""

TOO_SOON = 254
"""The reason byte of a user whose last participation is less than ``min_separation`` steps ago."""

ERASED = 255
"""The reason byte of an erased user. Among the halted users it is named ``erased:i:`` or
``erased:s:``, by the kind of the id."""


class HaltReason(NamedTuple):
    """A reason for a HALT that is not a budget."""

    name: str  # for programs
    remark: str  # for operators, in a table
    meaning: str  # for operators, as a sentence
    to_user: str  # for the user


BUDGET = "budget"
"""The name of the reason that is a budget."""

HALT_REASONS: dict[int, HaltReason] = {
    TOO_SOON: HaltReason(
        "too-soon",
        "too soon after the last participation",
        "The user's last participation is less than `min_separation` steps ago.",
        "You took part in this run too recently.",
    ),
    ERASED: HaltReason(
        "erased",
        "erased",
        "The user was erased. `erased:i:` or `erased:s:` takes the place of the id.",
        "Your identity was erased.",
    ),
}
"""The reason bytes that are not the index of a budget. Clients, commands, pages and documents take
names and texts from here."""


def halt_reason(byte: int) -> str:
    """Return the name of a reason byte."""
    return HALT_REASONS[byte].name if byte in HALT_REASONS else BUDGET


class Decision(_AboutStep, frozen=True, tag="decision"):
    """The users admitted to one step and those halted, in one partition.

    Positions are those of the users in the charge. Bit sets begin with the least significant bit.
    """

    digest: bytes
    """The first 16 bytes of SHA-256 of the charge without its attempt, however it was encoded."""
    users: int
    """The number of users in the charge."""
    admitted: bytes
    """Bit set over the positions: the admitted users."""
    exhausted: bytes
    """Bit set over the positions: the users who have nothing left after this step."""
    halted: Users
    """The ids of the users who are not admitted: the HALT events of this step."""
    reasons: bytes
    """One byte per halted user, in their order. Below 254, it is the index in ``budgets`` of the
    first budget that the step does not fit or, under clip, that has nothing left for it. 254: the
    user's last participation is less than ``min_separation`` steps ago. 255: the user was erased,
    and ``halted`` has ``erased:i:`` or ``erased:s:`` in place of the id, or these and a hash."""
    budgets: list[Name]
    """The datasets whose budgets count: the charged one, then its ancestors, the nearest first."""
    clipped: bytes = b""
    """Packed little-endian uint32: the positions granted less than requested. Under clip only."""
    granted: bytes = b""
    """Packed little-endian float64: the granted norms of the clipped positions."""
    collected: Users | UnsetType = UNSET
    """The ids of the admitted users, in the order of their positions. For a charge of collected
    norms only, as is ``norms``. Nothing may be released of any other user."""
    norms: bytes | UnsetType = UNSET
    """Packed little-endian float64: the granted norm of each user in ``collected``, to which the
    user's contribution must be clipped."""
    part: int | UnsetType = UNSET
    """The number of this part of the decision, from 0. A large decision has several parts, each
    about some users of the charge, in their order. If one is missing, there is no decision."""
    parts: int | UnsetType = UNSET
    """The number of parts. Absent if there is one."""


class Enrolled(_AboutRun, frozen=True, tag="enrolled"):
    """A run's roster in one partition after its last step, with the members enrolled since.

    Positions are a zero byte and little-endian uint32 numbers, or a byte 1 and a bit set.
    """

    members: int
    """The number of members in the partition, or of the members that this part is about."""
    digests: bytes
    """16 bytes for each 4096 members, in their order: the first ones of the SHA-256 of "i" and the
    ids as little-endian int64 or, if one of them is a string, of "s" and the ids as a MessagePack
    array. For erased members the id is 0 or the empty string. Each part has those of all members.
    """
    clip_norm: float
    """The norm of the highest level."""
    grid: int
    """L, the highest level."""
    levels: bytes
    """The levels of all members that the last step requested, one byte each."""
    granted: bytes
    """The levels that the last step granted, one byte each; 0 for members who were not admitted."""
    halted: bytes
    """The positions of members who were not admitted to the last step."""
    exhausted: bytes
    """The positions of members who had nothing left after the last step."""
    cost_table_digest: bytes = b""
    """The digest of the last step's cost table; empty before the first step."""
    decision: bytes = b""
    """The last step's decision in MessagePack, if it was a roster step. A part has what the
    decision says about its members."""
    erased: bytes | UnsetType = UNSET
    """The positions of erased members. Absent without any."""
    part: int | UnsetType = UNSET
    """The number of this part of the answer, from 0. The answer about a large roster has several
    parts, each about some members, in their order. If one is missing, there is no answer."""
    parts: int | UnsetType = UNSET
    """The number of parts. Absent if there is one."""


class RosterDecision(_AboutStep, frozen=True, tag="roster-decision"):
    """The changes that a step of a roster makes to its members' admission, in one partition.

    Positions are a zero byte and little-endian uint32 numbers, or a byte 1 and a bit set, whichever
    is shorter.
    """

    digest: bytes
    """The first 16 bytes of SHA-256 of the charge's content without its attempt, with the digest of
    the cost table in place of its units."""
    members: int
    """The number of members in the partition, or of the members that this part is about."""
    halted: bytes = b"\0"
    """The positions of members who were admitted to the step before and are not now."""
    readmitted: bytes = b"\0"
    """The positions of members who are admitted and were not before."""
    exhausted: bytes = b"\0"
    """The positions of members who have nothing left after this step and had something before."""
    regranted: bytes = b"\0"
    """Under clip only: the positions of members who are granted another level than in the step
    before or, if this step sets the level or readmits, than requested."""
    granted: bytes = b""
    """The levels granted at the positions in ``regranted``, one byte each."""
    part: int | UnsetType = UNSET
    """The number of this part of the decision, from 0. A large decision has several parts, each
    about some members, in their order. If one is missing, there is no decision."""
    parts: int | UnsetType = UNSET
    """The number of parts. Absent if there is one."""


class Halted(_AboutStep, frozen=True, tag="halted"):
    """HALT events of a roster step: the ids of members who are no longer admitted."""

    part: int
    """The number of this part of the step's HALT events, from 0."""
    parts: int
    """The number of parts. Each has at most 8192 users, and fewer with long ids."""
    users: Users
    """The ids of members who were admitted to the step before and are not now."""
    exhausted: bytes
    """Bit set over these users, least significant bit first: those who have nothing left."""
    reasons: bytes
    """One reason byte per user, as in a decision."""
    budgets: list[Name]
    """The datasets whose budgets count, as in a decision."""


class Erased(_OfLog, frozen=True, tag="erased"):
    """The user's partition has replaced the id by a keyed hash."""

    datasets: list[Name]
    """The datasets in which the user is erased, sorted; none if the user was never charged or
    enrolled."""
    not_allowed: list[Name] = msgspec.field(default_factory=list)
    """For a request without a dataset: the outermost datasets of each family of which the sender
    may not manage all, sorted. If the user is in one of them, nothing has changed there."""


class AccessSet(_AboutDataset, frozen=True, tag="access-set"):
    """The partition has the requested access list."""

    number: int
    """The number of the change."""


class LogRetired(_OfLog, frozen=True, tag="log-retired"):
    """The partition has ended, and another log continues its state."""

    successor: LogId
    """The id of the topic ``norms`` of the log that continues the state."""


Answer: TypeAlias = (
    DatasetCreated
    | DatasetWithdrawn
    | DatasetClosed
    | RunOpened
    | RunClosed
    | Decision
    | Enrolled
    | RosterDecision
    | Halted
    | Erased
    | AccessSet
    | LogRetired
)


class OdometerRecord(OfDataset, frozen=True, tag="odometer"):
    """An upper bound on what a user has spent. It is published when it rises.

    A user without a record has spent at most one ``odometer_step`` of the policy.
    """

    user: IntegerUser | StringUser
    """The user whose budget it is."""
    partition: int
    """The user's partition."""
    offset: int
    """The offset of the charge that raised the bound. A record with a higher offset is newer."""
    bound: list[float]
    """The upper bound, rounded up, in the measure's own unit: rho in nats (zcdp), mu (gdp),
    Rényi divergence in nats per order (renyi), epsilon (pure-dp), steps (steps)."""
    order: float | UnsetType = UNSET
    """The user's own Rényi order, which the bound is for. With ``per_user_order`` only."""
    measure: Measure | UnsetType = UNSET
    """The measure of the dataset's budgets."""
    spent_share: float | UnsetType = UNSET
    """The share of the budget that the user has spent at most, 0 to 1: of rho, of mu squared, of
    epsilon, of the steps, or of the Rényi divergence at the order where it is largest."""

    def share(self, policy: Policy) -> float:
        """Return `Policy.spent_share` of the bound: the share of the budget spent at most.

        Args:
            policy: the policy of the dataset: ``run.policy``, or what ``create_dataset`` returns.

        Raises:
            InvalidInput: the policy of another dataset.
        """
        self._check_policy(policy)
        return policy.spent_share(self.bound, self._per_user_order)

    def epsilon(self, policy: Policy, delta: float = DELTA) -> float:
        """Return `Policy.spent_epsilon` of the bound: what the user has spent up to this charge.

        Args:
            policy: the policy of the dataset: ``run.policy``, or what ``create_dataset`` returns.
            delta: the delta of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: for another delta, the policy of another dataset, or a policy whose norm
                levels may follow sampling coins.
        """
        self._check_policy(policy)
        return policy.spent_epsilon(self.bound, self._per_user_order, delta)

    @property
    def _per_user_order(self) -> float | None:
        return None if isinstance(self.order, UnsetType) else self.order

    def _check_policy(self, policy: Policy) -> None:
        if policy.dataset != self.dataset:
            from accounting import InvalidInput

            allowed = f"that of dataset {self.dataset!r}"
            raise InvalidInput("policy", f"of dataset {policy.dataset!r}", allowed)


class Reason(StrEnum):
    """Why a request was rejected, in the order of the checks.

    The size of a record is checked before it is decoded, and the size of a decision last.
    """

    UNSUPPORTED_VERSION = "unsupported-version"
    """The record has another version than 1."""
    MALFORMED = "malformed"
    """Neither MessagePack nor JSON, truncated, with wrong types or ranges, with a packed array of a
    wrong length, or with an id that is not in normal form."""
    LOG_RETIRED = "log-retired"
    """The log has ended, and another log continues its state."""
    LOG_CHANGED = "log-changed"
    """The partition is not as a ``retire`` expects it, or an ``import`` is not the first record."""
    INVALID_POLICY = "invalid-policy"
    """The fields of the policy do not fit together, or not to the datasets that it names."""
    INVALID_ACCESS = "invalid-access"
    """The access list has an invalid key, is not in order, gives no key the right to manage, or is
    that of a dataset nested in one without a list; or only some of the parents have lists."""
    POLICY_CHANGED = "policy-changed"
    """The dataset exists under another policy, and a policy never changes."""
    UNKNOWN_DATASET = "unknown-dataset"
    """The dataset, one of its parents or the dataset that it shares was never created."""
    NOT_ALLOWED = "not-allowed"
    """The request is not signed by a key with the required right."""
    SUPERSEDED = "superseded"
    """The access list was set with this number or a higher one."""
    DATASET_CLOSED = "dataset-closed"
    """The dataset is closed. It cannot be charged, opened, created, withdrawn or nested in."""
    DATASET_IN_USE = "dataset-in-use"
    """The dataset cannot be withdrawn: a run was opened, or another dataset is nested in it or has
    a share of it."""
    DATASET_SHARED = "dataset-shared"
    """The dataset is charged through its shares, or one of its shares is not closed."""
    UNKNOWN_RUN = "unknown-run"
    """The run was never opened."""
    RUN_CLOSED = "run-closed"
    """The run is closed. It can be neither charged nor opened again."""
    OLDER_ATTEMPT = "older-attempt"
    """A newer attempt has fenced this one, or the attempt's number is taken."""
    SEPARATION_CHANGED = "separation-changed"
    """The run has another minimum separation, and has been charged or has a roster."""
    BUDGET_HELD = "budget-held"
    """Another run holds an outermost budget, or this run was fenced and must be opened again."""
    STEP_CONTENT_CHANGED = "step-content-changed"
    """The step was charged with other content."""
    STEP_OUT_OF_ORDER = "step-out-of-order"
    """The step is neither the last step nor the next one."""
    NOT_COLLECTING = "not-collecting"
    """The run was opened without ``collect``, so it takes no norm events and decides no collected
    norms. Or it was opened with it, so it has no roster and its charges name no users."""
    COLLECT_CHANGED = "collect-changed"
    """The run collects norms under other terms, or not at all, and has been charged or has a
    roster. Or a charge of collected norms has other terms than the run."""
    STEP_DECIDED = "step-decided"
    """The norm event is late: its step was decided."""
    NO_ROSTERS = "no-rosters"
    """A run with a minimum separation has no roster."""
    UNKNOWN_ROSTER = "unknown-roster"
    """No user has been enrolled in the run."""
    ROSTER_CHANGED = "roster-changed"
    """The roster has other users, another clip norm, another grid or another number of members."""
    TOO_LARGE = "too-large"
    """A fixed maximum is exceeded. A request has at most 524288 users and 8 MiB (brokers take 1 MiB
    by default), a record of norm events at most 65536. A step changes at most 3145728 accounts
    (users x budgets) and 16777216 balances (users x orders, over all budgets), where an enrolment
    counts all members. At most 16 rosters of open runs share a budget with one of them, and each
    takes at most 4294967293 steps. A log has at most 65536 datasets, whose names have at most
    990000 bytes, with 3 more for each. A decision about named users has at most 16 MiB: 4096 +
    users x 3 / 2, and for each user the id in the decision (8 bytes where all are integers, else 9,
    or 3 and the UTF-8 of the string), or 12 if that is fewer and norms are clipped."""
    LENGTH_MISMATCH = "length-mismatch"
    """The numbers of users and norms differ."""
    INVALID_MECHANISM = "invalid-mechanism"
    """The measure of a budget cannot charge the mechanism, or its scale is invalid."""
    INVALID_COST_TABLE = "invalid-cost-table"
    """A roster's steps cannot have these costs, or the table with this digest is not known here."""
    INVALID_LEVELS = "invalid-levels"
    """A level is above the grid, positions are not in the roster or do not increase, or two norms
    of the grid are equal."""
    MIXED_USERS = "mixed-users"
    """The ids are of another kind than the policy allows, or pseudonyms of another key."""
    INVALID_NORM = "invalid-norm"
    """A norm is NaN, infinite or negative."""
    NORM_ABOVE_CLIP = "norm-above-clip"
    """A norm exceeds ``clip_norm``."""
    DUPLICATE_USER = "duplicate-user"
    """A user appears twice in a step or in a roster."""
    WRONG_PARTITION = "wrong-partition"
    """The user lives in another partition. A client that publishes norm events must use the
    partitioner murmur2; in librdkafka this is ``partitioner=murmur2_random``."""
    USER_ERASED = "user-erased"
    """The norm event is that of an erased user."""
    NORM_CHANGED = "norm-changed"
    """Another norm of the user was collected for the step, and it counts."""
    TOO_MANY_NORMS = "too-many-norms"
    """More norms were sent for the step than a partition collects, 1048576, or fewer with several
    budgets or long ids. The step gets no decision, because otherwise the order of the events would
    decide who is left out."""


MAX_DETAIL = 500


class Rejection(Exception):
    """A record that is not applied: its reason for programs, its detail for people.

    The detail is cut to ``MAX_DETAIL`` characters: it may quote the record, which may be long.

    Attributes:
        request: the decoded record, if it could be decoded.
        held: for POLICY_CHANGED, the policy that the dataset has.
        holder: for BUDGET_HELD, the run that holds the budget, if one does.
        uncovered: for INVALID_MECHANISM, the measure that cannot charge the step, if that is why.
        covered_by: the measures that can charge it.
    """

    def __init__(
        self,
        reason: Reason,
        detail: str,
        request: Request | None = None,
        *,
        held: Policy | None = None,
        holder: Holder | None = None,
        uncovered: Measure | None = None,
        covered_by: tuple[Measure, ...] = (),
    ) -> None:
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[:MAX_DETAIL]} ..."
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.request = request
        self.held = held
        self.holder = holder
        self.uncovered = uncovered
        self.covered_by = covered_by


class Rejected(Record, frozen=True, tag="rejected"):
    """A request that was rejected. It changed no budget."""

    partition: int
    """The partition that rejects the request."""
    offset: int
    reason: Reason
    """The reason, for programs."""
    detail: str
    """The reason as text, for people. Programs read the other fields."""
    record: bytes
    """The first 700000 bytes of the request; empty for norm events of which a user was erased."""
    dataset: str | None = None
    """The request's dataset, as far as it could be read; likewise the next four fields."""
    run: str | None = None
    """The request's run."""
    attempt: int | None = None
    """The request's attempt."""
    step: int | None = None
    """The request's step."""
    request: str | None = None
    """The request's token."""
    current_attempt: int | None = None
    """The newest attempt of the run, if it exists. A new attempt must exceed it."""
    held: Policy | None = None
    """For policy-changed: the policy that the dataset has."""
    holder: Holder | None = None
    """For budget-held: the run that holds the budget, if one does."""
    user: IntegerUser | StringUser | UnsetType = UNSET
    """For a norm event: its user, unless the user was erased. Other events of the same record may
    have been collected."""


def odometer_key(dataset: str, user: User) -> bytes:
    """Return the compaction key of a user's odometer records: the JSON array [dataset, user]."""
    return msgspec.json.encode((dataset, user))


def tombstone(offset: int) -> bytes:
    """Return the worker's value for a record without one.

    Kafka gets a null, with which compaction removes the key, and the offset of the request that led
    to it in a header.
    """
    return _TOMBSTONE + offset.to_bytes(8, "big")


def tombstone_offset(value: bytes) -> int | None:
    """Return the offset that ``tombstone`` was given; None if the value is a record."""
    if value[:1] != _TOMBSTONE or len(value) != 1 + 8:
        return None
    return int.from_bytes(value[1:], "big")


_TOMBSTONE = b"\0"  # with which no record begins
