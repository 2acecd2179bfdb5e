"""Requests: the topic `norms`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import gt, truediv
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from streams.schemas.fields import (
    DELTA,
    MAX_KEYS,
    AskedAttempt,
    Attempt,
    BudgetUnits,
    Counter,
    Fingerprint,
    IntegerUser,
    LogId,
    Measure,
    MechanismName,
    MinSeparation,
    Name,
    Norms,
    OfDataset,
    OfRun,
    OnExhaustion,
    Order,
    Positive,
    PublicKey,
    Record,
    Rights,
    RosterMechanism,
    Signature,
    StringUser,
    Token,
    UserIds,
    Users,
)


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of an access list: a public key and its rights."""

    key: PublicKey
    rights: Rights  # in alphabetical order


AccessList: TypeAlias = Annotated[list[Allowed], Meta(min_length=1, max_length=MAX_KEYS)]
"""The keys that may charge and manage a dataset, in increasing order; one at least may manage."""


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Under what a dataset is charged. It is fixed before the first charge and never changes.

    It has its budget in the unit of its measure, and no delta: what that guarantees has an epsilon
    for every delta. Whoever only reads and writes records does so without ``accounting``.
    """

    dataset: Name
    partitions: Annotated[int, Meta(ge=1, le=100_000)]  # P of the topic: a user never moves
    measure: Measure
    # One per order for renyi, else one. Units of accounting.exact.units, rounded down.
    budget: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    odometer_step: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    orders: Annotated[list[Order], Meta(max_length=256)] = msgspec.field(
        default_factory=list
    )  # renyi only, increasing
    on_exhaustion: OnExhaustion = "halt"  # or grant what is left: budget-aware clipping
    # Not given in a request: the kinds of the parent, or one-kind. If the dataset
    # exists, its kinds are kept. A stored policy always has it.
    user_ids: UserIds | UnsetType = UNSET
    # Each user is bound to one of the orders by its first charge that costs something, and charged
    # at that order alone. Not given: all orders have to hold.
    per_user_order: Literal[True] | UnsetType = UNSET
    # Another dataset of the same users. Every charge to this dataset has to fit that budget too,
    # and is charged to it. The on_exhaustion of the charged dataset applies: a clipped norm is the
    # largest that all budgets have room for.
    parent: Name | UnsetType = UNSET
    # The fingerprint of the key that users' pseudonyms are made with. Under another key, or none,
    # each user would be another user with nothing spent.
    pseudonyms: Fingerprint | UnsetType = UNSET
    # The access list that the dataset begins with; set-access replaces it. Requests about the
    # dataset have to be signed by a key with the right. Not given: the list of the nearest parent
    # that has one applies; without any list, requests need no signature.
    allow: AccessList | UnsetType = UNSET
    # The dataset from whose budget this one has a fixed share. The shares of a dataset add up to at
    # most its budget; it is charged through them only.
    share_of: Name | UnsetType = UNSET
    # Several runs may charge the budget at a time, in no fixed order. The caller states that their
    # timing does not depend on any user's data. Outermost datasets only.
    assume_independent_timing: Literal[True] | UnsetType = UNSET
    # Whether norm levels may follow the users' own sampling coins. Then only the budget is a
    # guarantee, and no epsilon below it is shown. Not given: true for renyi only.
    sampled_levels: bool | UnsetType = UNSET

    def epsilon(self, delta: float = DELTA) -> float:
        """Return the epsilon that the budget guarantees to every user, rounded up.

        If each user has an order of its own, it is that of the worst order.

        Args:
            delta: of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: for another delta.
        """
        from accounting import MEASURES

        row, own = MEASURES[self.measure], self.per_user_order is True
        return row.epsilon(row.stated(self.budget), delta, self.orders or None, any_order=own)

    def first_epsilon(self, delta: float = DELTA) -> float:
        """Return `spent_epsilon` of a user without an odometer record.

        An odometer begins with a bound of one tick, and the first record is written when the
        bound rises.

        Args:
            delta: of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: as `spent_epsilon`.
        """
        from accounting import MEASURES

        bound = MEASURES[self.measure].stated(self.first_tick).tolist()
        if self.per_user_order is not True:
            return self.spent_epsilon(bound, None, delta)
        pairs = zip(self.orders, bound, strict=True)
        return max(self.spent_epsilon([one], order, delta) for order, one in pairs)

    def spent_share(self, bound: Sequence[float], order: float | None = None) -> float:
        """Return the share of the budget that one user has spent at most, from 0 to 1.

        It is of rho, of mu squared, or of the Rényi divergence at the order where it is largest.

        Args:
            bound: of an odometer record, in the unit of the measure.
            order: the user's own Rényi order, if the user has one.

        Raises:
            InvalidInput: the bound is not of this policy.
        """
        from accounting import MEASURES, InvalidInput

        row = MEASURES[self.measure]
        budget = row.stated(self.budget).tolist()
        if (order is not None) != (self.per_user_order is True):
            budget = []
        elif order is not None:
            budget = [b for at, b in zip(self.orders, budget, strict=True) if at == order]
        if not 0 < len(bound) == len(budget) or any(map(gt, bound, budget)):
            raise InvalidInput("bound", list(bound), f"one of dataset {self.dataset!r}")
        return float(max(map(truediv, bound, budget)) ** row.power)

    @property
    def has_sampled_levels(self) -> bool:
        """Whether norm levels may follow the users' own sampling coins."""
        if self.sampled_levels is UNSET:
            return self.measure == "renyi"  # the only measure of sampled steps
        return self.sampled_levels

    @property
    def first_tick(self) -> list[int]:
        """The bound with which an odometer begins, in units."""
        return [min(pair) for pair in zip(self.odometer_step, self.budget, strict=True)]

    def spent_epsilon(
        self, bound: Sequence[float], order: float | None = None, delta: float = DELTA
    ) -> float:
        """Return the epsilon of a bound on what one user has spent, rounded up.

        It holds at every stopping time of the released outputs, as
        `accounting.Measure.any_time_epsilon` says. It may exceed `epsilon`, which holds as well.

        Args:
            bound: of an odometer record, in the unit of the measure.
            order: the user's own Rényi order, if the user has one.
            delta: of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: for another delta, a bound that is not of this policy, or a policy whose
                norm levels may follow sampling coins: only its budget is a guarantee (`epsilon`).
        """
        from accounting import MEASURES, InvalidInput

        if self.has_sampled_levels:
            allowed = "False in the policy: otherwise only the whole budget has an epsilon"
            raise InvalidInput("sampled_levels", True, allowed)
        orders, budget = self.orders or None, self.budget
        if order is not None:
            orders, budget = [order], self.budget[:1]
        row = MEASURES[self.measure]
        return float(row.any_time_epsilon([bound], budget, delta, orders)[0])


class Holder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that holds a budget: no other run may charge it."""

    dataset: Name
    run: Name


class CreateDataset(Record, frozen=True, tag="create-dataset"):
    """Fixes the policy of a dataset; sent to every partition, once and for all."""

    request: Token
    policy: Policy
    # Given with an access list: the id of this log. Requests about the dataset are signed for it,
    # also in a copy of the log.
    log: LogId | UnsetType = UNSET

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset."""
        return (self.policy.dataset,)


class OpenRun(OfRun, frozen=True, tag="open-run"):
    """Begins an attempt of a run and fences every lower one; sent to every partition."""

    # 0: the attempt after the last one. The same token again gets the same answer.
    attempt: AskedAttempt
    request: Token
    # A user who takes part in step t, with a norm above 0, is not admitted again before step
    # t + min_separation. Fixed with the first step; not given: as the run has it.
    min_separation: MinSeparation | UnsetType = UNSET
    # Only ask whether the attempt is still the current one. It is known by the token with which it
    # was opened; the request has a token of its own.
    confirms: Token | UnsetType = UNSET
    # A new attempt takes the budget over from the run that holds it, if one does. That run cannot
    # charge any more.
    take_over: Literal[True] | UnsetType = UNSET


class CloseRun(OfRun, frozen=True, tag="close-run"):
    """Ends a run for good: it cannot be charged or opened again. Sent to every partition."""

    attempt: Attempt  # the current one
    request: Token


class WithdrawDataset(OfDataset, frozen=True, tag="withdraw-dataset"):
    """Takes back a dataset of which no run was ever opened; sent to every partition."""

    request: Token


class CloseDataset(OfDataset, frozen=True, tag="close-dataset"):
    """Ends a dataset for good, those nested in it, and all their runs; sent to every partition."""

    request: Token


class Charge(OfRun, frozen=True, tag="charge"):
    """One step of one run, for the users of one partition; empty partitions get one too."""

    attempt: Attempt
    step: Counter
    users: Users
    norms: Norms  # before release; L2 for gaussian, L1 for laplace, eps for pure-dp
    mechanism: MechanismName = "gaussian"
    scale: float = 1.0  # noise standard deviation, or Laplace scale; unused for pure-dp
    clip_norm: float | None = None  # no norm of the step may exceed it


class Enrol(OfRun, frozen=True, tag="enrol"):
    """Puts users into the roster of a run, in one partition; from then on they are positions.

    Users are added at the end. What is sent again has to be what is there: so nobody is enrolled
    twice, and with no users at all it asks for the roster as it is.
    """

    attempt: Attempt
    request: Token
    first: Counter  # position of the first of these users in this partition's part of the roster
    users: Users
    clip_norm: Positive  # the norm of the highest level
    levels: Annotated[int, Meta(ge=1, le=255)]  # of the grid, beside level 0, whose norm is 0


class ChargeRoster(OfRun, frozen=True, tag="charge-roster"):
    """One step of one run, for all users of its roster in one partition, at their levels.

    Levels that it does not bring are those of the step before; a user who is new has the highest.
    """

    attempt: Attempt
    step: Counter
    members: Counter  # of the roster: it is the one that the sender knows
    cost_table_digest: Annotated[bytes, Meta(min_length=16, max_length=16)]  # its digest
    units: bytes = b""  # the cost table: int64, (levels + 1, orders); empty: as the step before
    positions: bytes = b""  # uint32, increasing: whose levels change; empty: those of all, or none
    levels: bytes = b""  # a byte each
    mechanism: RosterMechanism = "gaussian"
    scale: float = 1.0  # noise standard deviation, or Laplace scale; unused for pure-dp
    sampling_rate: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0  # 1 but for poisson-gaussian


class Erase(Record, frozen=True, tag="erase"):
    """Replaces a user id by a keyed hash and admits the user to nothing; sent where the user lives.

    The datasets whose budgets count together are one: of all nested in one another, the user
    is erased in every one.
    """

    request: Token
    user: IntegerUser | StringUser
    dataset: Name | UnsetType = UNSET  # and those that share a budget with it; not given: all
    # Of the key that made the id, if it is a pseudonym: datasets of other keys know nobody by it.
    pseudonyms: Fingerprint | UnsetType = UNSET

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset, if it names one."""
        return () if self.dataset is UNSET else (self.dataset,)


class SetAccess(OfDataset, frozen=True, tag="set-access"):
    """Replaces the access list of a dataset; sent to every partition.

    It is signed by a key that may manage the dataset under the list that is in force.
    """

    request: Token
    number: Counter  # above those of all earlier changes of this dataset's list
    allow: AccessList  # the whole list
    log: LogId  # for which requests about the dataset are signed from now on


Request: TypeAlias = (
    CreateDataset
    | WithdrawDataset
    | CloseDataset
    | OpenRun
    | CloseRun
    | Charge
    | Enrol
    | ChargeRoster
    | Erase
    | SetAccess
)


class Signed(Record, frozen=True, tag="signed"):
    """A request with a signature for one log and one partition."""

    request: bytes  # as it would be without: MessagePack or JSON
    signature: Signature  # see ``streams.wire.requests``
    key: PublicKey  # by which it can be verified


class Sender(NamedTuple):
    """The key that is said to have signed a request."""

    key: bytes
    signature: bytes
    request: bytes  # what was signed
