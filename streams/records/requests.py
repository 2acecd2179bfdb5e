"""Requests: the topic `norms`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import gt, truediv
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import force_setattr

from streams.records.fields import (
    DELTA,
    FALSE_POSITIVE_RATE,
    MAX_BUDGETS,
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
    PartitionCount,
    Positive,
    PublicKey,
    Rate,
    Record,
    Reserve,
    Rights,
    RosterMechanism,
    Signature,
    StringUser,
    Token,
    UserIdKind,
    Users,
)

if TYPE_CHECKING:
    import accounting


class Allowed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of an access list: a public key and its rights."""

    key: PublicKey
    """An Ed25519 public key."""
    rights: Rights
    """The rights in alphabetical order. charge: open, charge and close runs and enrol users.
    manage: withdraw and close the dataset, erase users, nest datasets in it, and set its access
    list."""


AccessList: TypeAlias = Annotated[list[Allowed], Meta(min_length=1, max_length=MAX_KEYS)]
"""The keys that may charge and manage a dataset, in increasing order; one at least may manage."""


@lru_cache(maxsize=256)
def _risk(
    row: accounting.Measure,
    budget: tuple[float, ...],
    orders: tuple[float, ...],
    any_order: bool,
    false_positive_rate: float,
) -> accounting.Risk:
    """Return the risk of a budget. Those of counted steps take a second to compute."""
    return row.risk(budget, false_positive_rate, orders or None, any_order=any_order)


@lru_cache(maxsize=256)  # every step asks for it
def _counted(sampling_rate: float, noise_multiplier: float) -> accounting.Measure:
    """Return the measure that counts steps of this shape."""
    from accounting import StepShape, steps_measure

    return steps_measure(StepShape(sampling_rate, noise_multiplier))


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules under which a dataset is charged. They are fixed at its creation.

    The budget is in units of the measure, without a delta: it guarantees an epsilon for each delta.
    """

    dataset: Name
    """The population whose users hold budgets."""
    partitions: PartitionCount
    """P, the number of partitions of the topics."""
    measure: Measure
    """The measure of budgets: Rényi divergence at each of ``orders`` (renyi), zero-concentrated DP
    (zcdp), Gaussian DP (gdp), the sum of epsilons (pure-dp), or the number of steps of a public
    shape (steps)."""
    budget: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    """Each user's budget in units of 2**-44 of the measure, rounded down: one number per order for
    renyi, else one."""
    odometer_step: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    """The growth of a user's bound from one odometer record to the next, like ``budget``."""
    orders: Annotated[list[Order], Meta(max_length=256)] = msgspec.field(default_factory=list)
    """The Rényi orders, strictly increasing. For renyi only."""
    on_exhaustion: OnExhaustion = "halt"
    """The treatment of a user whose step costs more than is left: the user is not admitted (halt),
    or is admitted with the largest norm that fits (clip, budget-aware clipping)."""
    user_ids: UserIdKind | UnsetType = UNSET
    """The kind of the user ids: integer, string, both (mixed), or the kind that is charged first in
    a partition (one-kind). Without it, a new dataset has the kind of its parents, or one-kind, and
    an existing one keeps its kind. Answers always have it."""
    per_user_order: Literal[True] | UnsetType = UNSET
    """Each user is bound to one order by the first charge that costs something, and is charged at
    that order alone: the order that admits most steps of that charge, where budget // max(cost, 1)
    is largest; of several, the first with the largest quotient in float64. Without it, all orders
    must hold. For renyi only."""
    parents: Annotated[list[Name], Meta(min_length=1, max_length=MAX_BUDGETS - 1)] | UnsetType = (
        UNSET
    )
    """Other datasets of the same users, in increasing order. Every charge to this dataset must fit
    their budgets and those of all their ancestors as well, and is charged to each of them once. The
    user ids of all are of the same kind."""
    pseudonyms: Fingerprint | UnsetType = UNSET
    """The fingerprint of the key of the users' pseudonyms, which are integers. The SDK refuses
    another key, or none: it would make every user another user with nothing spent. A dataset and
    its ancestors have the same."""
    allow: AccessList | UnsetType = UNSET
    """The access list with which the dataset begins; set-access replaces it. Without it, the lists
    of its parents apply, and a key has the rights that all of them give; without any, requests need
    no signature. A dataset with a list has no parent without one, and either all of its parents
    have lists or none has."""
    share_of: Name | UnsetType = UNSET
    """The dataset from whose budget this one has a fixed share. The shares of a dataset add up to
    at most its budget, and it is charged through them only. Measure and orders are the same."""
    assume_independent_timing: Literal[True] | UnsetType = UNSET
    """Several runs may charge the budget at a time, in no fixed order. The creator states that
    their timing does not depend on any user's data. Outermost datasets only."""
    sampled_levels: bool | UnsetType = UNSET
    """True if norm levels may follow the users' own sampling coins. Then only the whole budget is a
    guarantee, and no epsilon below it is shown. Without it: true for renyi and steps, false for
    others."""
    sampling_rate: Rate | UnsetType = UNSET
    """The largest sampling rate of a step that counts as one step. For steps only."""
    noise_multiplier: Positive | UnsetType = UNSET
    """The smallest noise, as a multiple of the largest norm, of a step that counts as one step. For
    steps only."""

    @property
    def row(self) -> accounting.Measure:
        """The measure, with the shape of the steps if it counts steps."""
        from accounting import MEASURES

        if self.sampling_rate is UNSET or self.noise_multiplier is UNSET:
            return MEASURES[self.measure]
        return _counted(self.sampling_rate, self.noise_multiplier)

    @property
    def steps(self) -> int:
        """The number of steps that every user may take; for the measure steps only.

        Raises:
            InvalidInput: the policy has another measure.
        """
        from accounting import UNIT_BITS, InvalidInput

        if self.row.shape is None:
            raise InvalidInput("measure", self.measure, "steps: only it counts steps")
        return self.budget[0] >> UNIT_BITS

    def epsilon(self, delta: float = DELTA) -> float:
        """Return the epsilon that the budget guarantees to every user, rounded up.

        If each user has an order of its own, it is that of the worst order.

        Args:
            delta: the delta of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: for another delta.
        """
        row, own = self.row, self.per_user_order is True
        amounts, orders = row.stated(self.budget), self.orders or None
        return float(row.epsilon(amounts, delta, orders, any_order=own))

    def risk(
        self,
        false_positive_rate: float = FALSE_POSITIVE_RATE,
        *,
        order: float | None = None,
    ) -> accounting.Risk:
        """Return the risk of a membership attack that the budget allows on any user, rounded up.

        It holds for all outputs of the dataset together, whenever the runs end, like `epsilon`.

        Args:
            false_positive_rate: the attack's rate, strictly between 0 and 1.
            order: the user's own Rényi order. None: any user's.

        Raises:
            InvalidInput: for another rate, or an order that is not of this policy.
        """
        from accounting import InvalidInput

        row, own = self.row, self.per_user_order is True
        budget, orders = row.stated(self.budget).tolist(), self.orders
        if order is not None:
            if not own or order not in orders:
                raise InvalidInput("order", order, f"one of dataset {self.dataset!r}")
            budget, orders = [budget[orders.index(order)]], [order]
        return _risk(row, tuple(budget), tuple(orders), own, false_positive_rate)

    def first_epsilon(self, delta: float = DELTA) -> float:
        """Return `spent_epsilon` of a user without an odometer record.

        An odometer begins with a bound of one tick, and the first record is written when the
        bound rises.

        Args:
            delta: the delta of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: as `spent_epsilon`.
        """
        bound = self.row.stated(self.first_tick).tolist()
        if self.per_user_order is not True:
            return self.spent_epsilon(bound, None, delta)
        pairs = zip(self.orders, bound, strict=True)
        return max(self.spent_epsilon([one], order, delta) for order, one in pairs)

    def spent_share(self, bound: Sequence[float], order: float | None = None) -> float:
        """Return the share of the budget that one user has spent at most, from 0 to 1.

        It is of rho, of mu squared, or of the Rényi divergence at the order where it is largest.

        Args:
            bound: the bound of an odometer record, in the unit of the measure.
            order: the user's own Rényi order, if the user has one.

        Raises:
            InvalidInput: the bound is not of this policy.
        """
        from accounting import InvalidInput

        row = self.row
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
        """True if norm levels may follow the users' own sampling coins."""
        if self.sampled_levels is UNSET:
            from accounting import PoissonGaussian

            return PoissonGaussian in self.row.mechanisms
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
        `accounting.Measure.epsilon` says. It may exceed `epsilon`, which holds as well.

        Args:
            bound: the bound of an odometer record, in the unit of the measure.
            order: the user's own Rényi order, if the user has one.
            delta: the delta of the guarantee, strictly between 0 and 1.

        Raises:
            InvalidInput: for another delta, a bound that is not of this policy, or a policy whose
                norm levels may follow sampling coins: only its budget is a guarantee (`epsilon`).
        """
        from accounting import InvalidInput

        if self.has_sampled_levels:
            allowed = "False in the policy: otherwise only the whole budget has an epsilon"
            raise InvalidInput("sampled_levels", True, allowed)
        orders = self.orders or None if order is None else [order]
        budget = self.budget[0]
        return float(self.row.epsilon(bound, delta, orders, when="any time", budget=budget))


class Holder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run that holds a budget: no other run may charge it."""

    dataset: Name
    """The dataset of the run."""
    run: Name
    """The name of the run."""


class CreateDataset(Record, frozen=True, tag="create-dataset"):
    """Create a dataset under a policy; sent to every partition."""

    request: Token
    policy: Policy
    """The policy. It is rejected if the dataset exists under another one."""
    log: LogId | UnsetType = UNSET
    """With an access list: the id of the topic ``norms`` for which requests are signed. It stays
    the same in a copy of the log."""

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset."""
        return (self.policy.dataset,)


class CollectTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms under which a run collects norm events.

    Raises:
        InvalidInput: the clip norm is not positive and finite, or the mechanism is none of these.
    """

    clip_norm: Positive
    """The maximum that no norm may exceed."""
    mechanism: MechanismName = "gaussian"
    """The noise mechanism of all steps."""

    def __post_init__(self) -> None:
        from accounting.exact.argument_checks import positive_finite
        from accounting.exact.invalid_input import InvalidInput

        force_setattr(self, "clip_norm", positive_finite("clip_norm", self.clip_norm))
        if self.mechanism not in get_args(MechanismName):
            allowed = f"one of {get_args(MechanismName)}: a run that collects norms cannot sample"
            raise InvalidInput("mechanism", self.mechanism, allowed)


class CollectAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms under which a run is asked to collect norm events."""

    clip_norm: Positive
    """The maximum that no norm may exceed."""
    mechanism: RosterMechanism = "gaussian"
    """The noise mechanism of all steps. poisson-gaussian is rejected: only the users who were drawn
    would send a norm, and a sampled step must charge all users."""


class OpenRun(OfRun, frozen=True, tag="open-run"):
    """Begin an attempt of a run and fence every lower one; sent to every partition."""

    attempt: AskedAttempt
    """The attempt, which fences every lower one. 0 requests the next one or, with the ``request``
    of the last one, that one again."""
    request: Token
    min_separation: MinSeparation | UnsetType = UNSET
    """The minimum number of steps from one participation of a user, with a norm above 0, to the
    next. The first step fixes it. Without it, the run keeps the one it has; a new run has none."""
    confirms: Token | UnsetType = UNSET
    """The ``request`` with which an attempt was opened. The request then only asks whether this
    attempt is still the newest one, and changes nothing."""
    take_over: Literal[True] | UnsetType = UNSET
    """A new attempt takes over the budget from the run that holds it, which cannot charge any
    more."""
    collect: CollectAsked | UnsetType = UNSET
    """Collect norm events for the steps of this run. The first step, or a roster, fixes it. Until
    then a new attempt may set other terms; norms that were collected before are dropped. Without
    it, the run keeps the terms it has; a new run has none. The dataset and its ancestors have user
    ids of a fixed kind (not one-kind)."""


class CloseRun(OfRun, frozen=True, tag="close-run"):
    """Close a run permanently: it cannot be charged or opened again. Sent to every partition."""

    attempt: Attempt
    """The newest attempt of the run."""
    request: Token


class WithdrawDataset(OfDataset, frozen=True, tag="withdraw-dataset"):
    """Delete a dataset of which no run was ever opened; sent to every partition."""

    request: Token


class CloseDataset(OfDataset, frozen=True, tag="close-dataset"):
    """Close a dataset, those nested in it and their runs permanently; sent to every partition."""

    request: Token


class Charge(OfRun, frozen=True, tag="charge"):
    """Charge the users of one partition for one step. A partition without users gets one too."""

    attempt: Attempt
    """The newest attempt of the run."""
    step: Counter
    """The step: 0, 1, 2, ... in a run. The last step again returns its stored decision."""
    users: Users
    """The users who contribute to the step, all of this partition and none twice."""
    norms: Norms
    """One norm per user before release, finite and not negative, in the order of ``users``: L2 for
    gaussian, L1 for laplace, epsilon in nats for pure-dp. A list, or packed little-endian
    float64."""
    mechanism: MechanismName = "gaussian"
    """The noise mechanism of the step."""
    scale: float = 1.0
    """The standard deviation of Gaussian noise or the scale of Laplace noise, in the unit of the
    norms. Unused for pure-dp."""
    clip_norm: float | None = None
    """The maximum that no norm of the step may exceed; null for none."""
    reserve: Reserve | UnsetType = UNSET
    """The share of each budget that this step must leave; without it, 0. A user is admitted only if
    at least the budget times this share, rounded up to a unit, remains after the step. It limits
    this step alone."""
    collected: Literal[True] | UnsetType = UNSET
    """Charge the users whose norm events the partition has collected for this step. Then ``users``
    and ``norms`` are empty, ``mechanism`` has to be that of the run's ``collect``, and
    ``clip_norm`` that or null."""


class _OfStep(OfRun, frozen=True, kw_only=True):
    """The base of norm events."""

    step: Counter
    """The step: the next one of the run, or the one after it."""
    attempt: Attempt | UnsetType = UNSET
    """The newest attempt of the run. Without it, the event counts in every attempt."""
    pseudonyms: Fingerprint | UnsetType = UNSET
    """The fingerprint of the key of the pseudonyms, if the ids are pseudonyms: as in the policy."""


class NormEvent(_OfStep, frozen=True, tag="norm"):
    """Collect the norm of one user's contribution to a step. It is charged with the step.

    The record's key is the user's key, and Kafka's default partitioner finds the partition. The
    same event twice counts once.
    """

    user: IntegerUser | StringUser
    """The user."""
    norm: float
    """The norm of the user's contribution before release: L2 for gaussian, L1 for laplace, epsilon
    in nats for pure-dp."""


class NormEvents(_OfStep, frozen=True, tag="norms"):
    """Collect the norms of several users of one partition. Each counts, or is rejected, alone."""

    users: Users
    """The users."""
    norms: Norms
    """One norm per user, in the order of ``users``. A list, or packed little-endian float64."""


class Enrol(OfRun, frozen=True, tag="enrol"):
    """Add users at the end of a run's roster in one partition; from then on they are positions.

    Users that are sent again must be the users that are there, so that no user is enrolled twice.
    Without users it asks for the roster.
    """

    attempt: Attempt
    """The newest attempt of the run."""
    request: Token
    first: Counter
    """The position of the first of these users in the partition's roster."""
    users: Users
    """The users, all of this partition and none twice."""
    clip_norm: Positive
    """The norm of the highest level."""
    levels: Annotated[int, Meta(ge=1, le=255)]
    """L, the highest level. Level 0 has norm 0."""


class ChargeRoster(OfRun, frozen=True, tag="charge-roster"):
    """Charge all members of a run's roster in one partition for one step, at their levels.

    Members keep the level of the step before unless the step changes it. New ones have the highest.
    """

    attempt: Attempt
    """The newest attempt of the run."""
    step: Counter
    """The step: 0, 1, 2, ... in a run, charged by roster or not. The last step again returns its
    stored decision."""
    members: Counter
    """The number of members in the partition, as the sender knows it."""
    cost_table_digest: Annotated[bytes, Meta(min_length=16, max_length=16)]
    """The first 16 bytes of SHA-256 of "cost-table" and the units of the cost table."""
    units: bytes = b""
    """The cost table, packed little-endian int64: for each level, the units at each order. Empty if
    it is the table of the roster's step before. Ignored in a step that is sent again."""
    positions: bytes = b""
    """Packed little-endian uint32, increasing: the members whose levels change. Empty with
    ``levels``: all members."""
    levels: bytes = b""
    """The levels from this step on, one byte each. Empty if no level changes."""
    mechanism: RosterMechanism = "gaussian"
    """The noise mechanism of the step. poisson-gaussian: Gaussian noise on a sum over users each
    drawn with the sampling rate."""
    scale: float = 1.0
    """The standard deviation of Gaussian noise or the scale of Laplace noise, in the unit of the
    norms. Unused for pure-dp."""
    sampling_rate: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """The probability with which each user is drawn; 1 except for poisson-gaussian."""


class Erase(Record, frozen=True, tag="erase"):
    """Replace a user id by a keyed hash and halt the user from now on.

    It is sent to the user's partition. A user is erased in all datasets that share a budget with
    the named one, directly or through others.
    """

    request: Token
    user: IntegerUser | StringUser
    """The user to erase."""
    dataset: Name | UnsetType = UNSET
    """A dataset of the family in which to erase the user. Without it: in all datasets with the same
    ``pseudonyms``."""
    pseudonyms: Fingerprint | UnsetType = UNSET
    """The fingerprint of the key that made the id, if the id is a pseudonym: as in the policy."""
    hidden: bool = False
    """True: later HALTs name the user by the kind of the id alone, ``erased:i:`` or ``erased:s:``.
    Clients send it. By default HALTs have the keyed hash, and a replay with other keys publishes
    other HALTs."""

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset, if it names one."""
        return () if self.dataset is UNSET else (self.dataset,)


class SetAccess(OfDataset, frozen=True, tag="set-access"):
    """Replace the access list of a dataset; sent to every partition.

    It is signed by a key that may manage the dataset under the present list.
    """

    request: Token
    number: Counter
    """A number above those of all earlier changes of this dataset's list."""
    allow: AccessList
    """The new list."""
    log: LogId
    """The id of the topic ``norms`` for which requests are signed from now on."""


class Retire(Record, frozen=True, tag="retire"):
    """End the log permanently, because another log continues its state; sent to every partition.

    It ends all runs. From then on the partition refuses every other request. Only a
    development version wrote this record, to continue a log with another number of partitions.
    """

    request: Token
    successor: LogId
    """The id of the topic ``norms`` of the log that continues the state."""
    partitions: PartitionCount
    """The number of partitions of that log."""
    agreement: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """A digest of the datasets of the partition, which rejects any other one. It is the same in
    all partitions: the SHA-256 of the MessagePack of three sorted lists, ``[[dataset], policy]``
    of all datasets, ``[dataset]`` of the closed ones, and ``[[dataset], [log, number, allow]]`` of
    all access lists."""

    @property
    def address(self) -> tuple[str, ...]:
        """Empty, because the record is about the log."""
        return ()


class Import(Record, frozen=True, tag="import"):
    """State that the log begins with the state of another log; the first record of a partition.

    Only logs of a development version begin so. The state is in a snapshot. Without it, workers
    suspend the partition.
    """

    origin: LogId
    """The id of the topic ``norms`` of the other log."""
    partitions: PartitionCount
    """The number of partitions of the other log."""

    @property
    def address(self) -> tuple[str, ...]:
        """Empty, because the record is about the log."""
        return ()


Request: TypeAlias = (
    CreateDataset
    | WithdrawDataset
    | CloseDataset
    | OpenRun
    | CloseRun
    | Charge
    | NormEvent
    | NormEvents
    | Enrol
    | ChargeRoster
    | Erase
    | SetAccess
    | Retire
    | Import
)


class Signed(Record, frozen=True, tag="signed"):
    """A request with a signature for one log and one partition."""

    request: bytes
    """The bytes of the request, MessagePack or JSON, which is not signed itself."""
    signature: Signature
    """The Ed25519 signature."""
    key: PublicKey
    """The public key that verifies the signature."""


class Sender(NamedTuple):
    """The key that is said to have signed a request."""

    key: bytes
    signature: bytes
    request: bytes  # the signed bytes
