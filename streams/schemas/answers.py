"""What workers say: the topics `halts`, `odometer` and `rejects`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from streams.schemas.fields import (
    DELTA,
    IntegerUser,
    Name,
    OfDataset,
    OfRun,
    Record,
    StringUser,
    Token,
    User,
    Users,
)
from streams.schemas.refusals import Reason
from streams.schemas.requests import Holder, Policy


class DatasetCreated(Record, frozen=True, tag="dataset-created"):
    """This partition holds the dataset under exactly this policy."""

    request: Token
    partition: int
    offset: int
    policy: Policy


class RunOpened(OfRun, frozen=True, tag="run-opened"):
    """This partition charges the run under this attempt."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int  # the last step decided here, -1 before the first
    policy: Policy
    outer: list[Policy] | UnsetType = UNSET  # of its ancestors, the nearest first, if it is
    min_separation: int | UnsetType = UNSET  # of the run, if it has one


class RunClosed(OfRun, frozen=True, tag="run-closed"):
    """This partition charges the run no more."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int


class DatasetWithdrawn(OfDataset, frozen=True, tag="dataset-withdrawn"):
    """This partition does not hold the dataset."""

    request: Token
    partition: int
    offset: int


class DatasetClosed(OfDataset, frozen=True, tag="dataset-closed"):
    """This partition charges the dataset no more, nor those nested in it; their accounts stay."""

    request: Token
    partition: int
    offset: int
    datasets: list[Name]  # all of these, sorted


TOO_SOON = 254
"""The reason byte of a user whose last participation is less than ``min_separation`` steps ago."""

ERASED = 255
"""The reason byte of an erased user. Among the halted users it is named by its keyed hash."""


class Decision(OfRun, frozen=True, tag="decision"):
    """Who is admitted to one step, in one partition; positions are those of the request's users."""

    attempt: int
    step: int
    partition: int
    offset: int  # of the charge that was applied
    digest: bytes  # of the charge: 16 bytes
    users: int  # how many the charge had
    admitted: bytes  # bit set, least significant bit first
    exhausted: bytes  # bit set: nothing is left after this step
    halted: Users  # the ids of those not admitted: the HALT events of this step
    reasons: bytes  # a byte for each halted user: the index of a budget, TOO_SOON or ERASED
    budgets: list[Name]  # the dataset itself, then its ancestors, the nearest first
    clipped: bytes = b""  # uint32 positions granted less than they asked for (on_exhaustion=clip)
    granted: bytes = b""  # float64 granted norms of those positions


class Enrolled(OfRun, frozen=True, tag="enrolled"):
    """The roster of a run in one partition, as of the last step and with who was enrolled since."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int  # the last step decided here, -1 before the first
    members: int
    digests: bytes  # 16 bytes for each 4096 users, in their order: who they are
    clip_norm: float
    grid: int  # how many levels there are beside level 0
    levels: bytes  # asked for by the last step, a byte each
    granted: bytes  # granted by it
    halted: bytes  # positions, as in a decision, of those who were not admitted to the last step
    exhausted: bytes  # positions of those who have nothing left
    cost_table_digest: bytes = b""  # the digest of that of the last step
    decision: bytes = b""  # the last step's, as it was published, if it was one of the roster
    # Positions of those who were erased, if there are any. In the digests there is 0 or "" in
    # the place of their ids.
    erased: bytes | UnsetType = UNSET


class RosterDecision(OfRun, frozen=True, tag="roster-decision"):
    """What changed, with a step of a roster, in who is admitted, in one partition.

    Positions are a zero byte and uint32 numbers, or a byte 1 and a bit set, whichever is shorter.
    """

    attempt: int
    step: int
    partition: int
    offset: int  # of the charge that was applied
    digest: bytes  # of the charge
    members: int
    halted: bytes = b"\0"  # positions of those who were admitted before and are not now
    readmitted: bytes = b"\0"  # the other way round
    exhausted: bytes = b"\0"  # who has nothing left after this step, and had something before
    # on_exhaustion=clip: who is granted another level than in the step before or, if this step sets
    # the level or admits again, than asked for; and these levels, a byte each.
    regranted: bytes = b"\0"
    granted: bytes = b""


class Halted(OfRun, frozen=True, tag="halted"):
    """HALT events of a step of a roster: the ids of users who are admitted no longer."""

    attempt: int
    step: int
    partition: int
    offset: int  # of the charge that was applied
    part: int  # of so many, if there are too many users for one record
    parts: int
    users: Users
    exhausted: bytes  # bit set: nothing is left, least significant bit first
    reasons: bytes  # as in a decision
    budgets: list[Name]  # as in a decision


class Erased(Record, frozen=True, tag="erased"):
    """This partition, where the user lives, does not know any more who that is."""

    request: Token
    partition: int
    offset: int
    datasets: list[Name]  # in which the user is erased and admitted to nothing, sorted
    # The outermost datasets that the sender of a request for all of them may not manage: if the
    # user is there, nothing has changed.
    not_allowed: list[Name] = msgspec.field(default_factory=list)


class AccessSet(OfDataset, frozen=True, tag="access-set"):
    """This partition has the access list that was asked for."""

    request: Token
    partition: int
    offset: int
    number: int


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
)


class OdometerCheckpoint(OfDataset, frozen=True, tag="odometer"):
    """A user has spent at most ``bound``; written on every increase, for that user's eyes alone."""

    user: IntegerUser | StringUser
    partition: int
    offset: int  # of the charge that raised it: of two checkpoints the higher offset counts
    # In the measure's own unit (rho, mu, Rényi divergence per order), rounded up.
    bound: list[float]
    order: float | UnsetType = UNSET  # that the user is bound to, and the bound is one of, if so

    def share(self, policy: Policy) -> float:
        """Return `Policy.spent_share` of the bound: the share of the budget spent at most.

        Args:
            policy: of the dataset: ``run.policy``, or what ``create_dataset`` returns.

        Raises:
            InvalidInput: the policy of another dataset.
        """
        self._check_policy(policy)
        return policy.spent_share(self.bound, self._per_user_order)

    def epsilon(self, policy: Policy, delta: float = DELTA) -> float:
        """Return `Policy.spent_epsilon` of the bound: what the user has spent up to this charge.

        Args:
            policy: of the dataset: ``run.policy``, or what ``create_dataset`` returns.
            delta: of the guarantee, strictly between 0 and 1.

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


class Rejected(Record, frozen=True, tag="rejected"):
    """A request that was not applied: budgets are as they were before it."""

    partition: int
    offset: int
    reason: Reason
    detail: str  # for people; programs read the other fields
    record: bytes  # the original bytes
    # What could be read of the request, so that its sender finds the answer.
    dataset: str | None = None
    run: str | None = None
    attempt: int | None = None
    step: int | None = None
    request: str | None = None
    # Of the run that the request is about, if there is one: what a new attempt has to exceed.
    current_attempt: int | None = None
    held: Policy | None = None  # for policy-changed: the policy that the dataset has
    holder: Holder | None = None  # for budget-held: the run that holds the budget, if one does


def odometer_key(dataset: str, user: User) -> bytes:
    """The key of a user's odometer checkpoints, for compaction: the JSON array [dataset, user]."""
    return msgspec.json.encode((dataset, user))


def tombstone(offset: int) -> bytes:
    """What stands for no value at all, as long as a worker keeps it: Kafka gets a null, by which
    compaction removes the key, and the offset of the record that led to it in a header.
    """
    return _TOMBSTONE + offset.to_bytes(8, "big")


def tombstone_offset(value: bytes) -> int | None:
    """The offset that ``tombstone`` was given; None if it is a record."""
    if value[:1] != _TOMBSTONE or len(value) != 1 + 8:
        return None
    return int.from_bytes(value[1:], "big")


_TOMBSTONE = b"\0"  # with which no record begins
