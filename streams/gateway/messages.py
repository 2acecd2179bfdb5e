"""The bodies of requests and responses, in JSON.

A field has the name of the SDK's argument or attribute, and takes its text from there unless it has
one here.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias, get_args

import msgspec
from msgspec import Meta, UnsetType

from streams.records import (
    CollectTerms,
    Counter,
    Holder,
    Measure,
    MinSeparation,
    Name,
    Policy,
    Right,
)
from streams.records.fields import IntegerUser, Positive, Rate, Reserve, StringUser
from streams.records.terms import TERMS
from streams.sdk.followers import Halt

AttemptHandle: TypeAlias = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,17}-[0-9a-f]{32}$(?!\n)")]
"""The number and the token of an attempt. Only a caller that knows it can charge the attempt."""

UserId: TypeAlias = IntegerUser | StringUser
NormAsked: TypeAlias = Annotated[float, Meta(ge=0.0)]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of the bodies of requests."""


_Terms: Any = msgspec.defstruct(
    "_Terms",
    [("name", Name), *((term, kind, row.default) for term, (kind, row) in TERMS.items())],
    bases=(Body,),
    frozen=True,
    kw_only=True,
)


class NewDataset(_Terms, kw_only=True):  # type: ignore[misc, call-arg]
    """A dataset to create: its name and policy."""

    parents: list[Name] = msgspec.field(default_factory=list)
    share_of: Name | None = None
    """Another dataset of the same users. The new dataset has a fixed share of its budget, and the
    same measure and orders."""


class NewAttempt(Body, frozen=True):
    """An attempt to open, which fences all earlier ones of the run."""

    released: Annotated[int, Meta(ge=-1, le=2**53)] | None = None
    min_separation: MinSeparation | None = None
    collect: CollectTerms | None = None
    """The terms under which the run collects norms. The first step, or a roster, fixes them; norms
    that were collected under others are dropped. Null: as the run has them; a new run collects no
    norms."""
    charges_ahead: bool = False
    take_over: bool = False


class GaussianNoise(Body, frozen=True, tag_field="type", tag="gaussian"):
    """Gaussian noise of a standard deviation, in the unit of the norms."""

    noise_stddev: Positive
    """The standard deviation, not multiplied by the clip norm."""


class LaplaceNoise(Body, frozen=True, tag_field="type", tag="laplace"):
    """Laplace noise of a scale, in the unit of the norms."""

    scale: Positive
    """The scale of the noise."""


class PureNoise(Body, frozen=True, tag_field="type", tag="pure-dp"):
    """A mechanism with a pure epsilon, which is the norm of each user."""


class SampledGaussianNoise(Body, frozen=True, tag_field="type", tag="poisson-gaussian"):
    """Gaussian noise on a sum over users who are drawn by independent coins. For rosters only."""

    noise_stddev: Positive
    """The standard deviation, not multiplied by the clip norm."""
    sampling_rate: Rate
    """The probability with which each user is drawn."""


class NewCharge(Body, frozen=True):
    """The users of one step, and their norms."""

    users: list[UserId]
    norms: list[NormAsked]
    mechanism: GaussianNoise | LaplaceNoise | PureNoise
    """The noise of the step."""
    clip_norm: float | None = None
    reserve: Reserve = 0.0


class NewNorms(Body, frozen=True):
    """The norms of users' contributions to a step of a run that collects them."""

    users: list[UserId]
    norms: list[NormAsked]
    attempt: Counter | None = None


class NewCollectedCharge(Body, frozen=True):
    """The noise of a step whose norms were collected."""

    mechanism: GaussianNoise | LaplaceNoise | PureNoise
    """The noise of the step."""
    reserve: Reserve = 0.0


class NewRoster(Body, frozen=True):
    """Users to enrol in the run."""

    users: list[UserId]
    clip_norm: Positive
    levels: Annotated[int, Meta(ge=1, le=255)] = 100


class NewRosterCharge(NewRoster, frozen=True, kw_only=True):
    """The users of the roster, all of them at every step, and the norms of the step.

    Users who are not on the roster yet are enrolled.
    """

    mechanism: GaussianNoise | LaplaceNoise | PureNoise | SampledGaussianNoise
    """The noise of the step."""
    norms: list[NormAsked] | None = None
    """Bounds on the users' contributions from this step on, in the order of the users. Null: as in
    the step before; new users have ``clip_norm``."""


def _or_null(kind: Any) -> Any:
    """Return the type of a field of a policy, with null in place of a missing value."""
    kinds = get_args(kind)
    return kinds[0] | None if kinds[1:] == (UnsetType,) else kind


_Policy: Any = msgspec.defstruct(
    "_Policy",
    [(field.name, _or_null(field.type)) for field in msgspec.structs.fields(Policy)],
    frozen=True,
    kw_only=True,
)


class Dataset(_Policy, kw_only=True):  # type: ignore[misc, call-arg]
    """A dataset and its policy, with budgets in the unit of the measure, rounded down."""

    budget: list[float]
    """Each user's budget: one number per order for renyi, else one."""
    odometer_step: list[float]
    """The growth of a user's bound from one odometer record to the next."""
    allow: dict[str, list[Right]] | None
    """The access list with which the dataset began: public keys and their rights."""
    closed: bool = False
    """The dataset was closed permanently when the workers last reported it."""


class DatasetList(msgspec.Struct, frozen=True, kw_only=True):
    """All datasets."""

    datasets: list[Dataset]
    """The datasets and their policies, by name."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The public part of a budget. It does not depend on users' data."""

    policy: Dataset
    """The dataset with this budget, and its policy."""
    worst_case_left: list[float]
    """The rest of the budget of a user who took part in every step at its ``clip_norm``, rounded
    down: one number for each order, or one. Every user who was not erased has at least this. 0
    after a step without ``clip_norm``, whose norms have no public bound."""
    holder: Holder | None
    """The open run that holds the budget: no other run may charge it. Null: no run does, or the
    policy has ``assume_independent_timing``, or the dataset is nested and its parent is held."""


class BudgetList(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets that a charge to a dataset draws on."""

    budgets: list[Budget]
    """The dataset's own budget, then those of its ancestors, the nearest first."""


class BalancesAsked(Body, frozen=True):
    """The users whose balances are asked for."""

    users: Annotated[list[UserId], Meta(min_length=1, max_length=1000)]
    """At most 1,000 ids, as the log has them: 7 and "7" are two users, and in a dataset with
    pseudonyms the ids are these. They are in the body, because proxies write URLs into their logs.
    """


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """A user's spending of one budget, and the rest of it."""

    dataset: Name
    """The dataset with this budget."""
    user: UserId
    """The user."""
    unit: str
    """The unit of the amounts: rho, mu, nats, epsilon or steps. The squares of mu add up."""
    orders: list[float]
    """The Rényi orders of the amounts. Empty if the measure has none, or the user no own one yet.
    """
    spent: list[float]
    """The spent amounts, rounded up: one for each order, or one."""
    left: list[float]
    """The amounts that are left, rounded down. Empty if the user has no own Rényi order yet, and so
    the whole budget."""
    partition: int
    """The user's partition."""
    offset: int
    """The balance includes the records of this partition before this offset."""


class BalanceList(msgspec.Struct, frozen=True, kw_only=True):
    """Balances of users, by partition."""

    balances: list[Balance]
    """A user's balance in each budget that a charge to the dataset draws on. None of a user who was
    never charged or enrolled."""


class AttemptState(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt of a run, and its next step."""

    dataset: Name
    run: Name
    attempt: str
    """The number and the token of the attempt, for the paths of its requests. It is a secret."""
    number: int
    """The number of the attempt."""
    step: int
    interrupted: bool
    """``step`` was handed back: it was charged before, in some partitions or in all, and not
    released. Charging it with the same content completes it; ``abandon`` gives it up."""
    min_separation: int | None
    collect: CollectTerms | None
    policy: Dataset
    outer: list[Dataset]


class HaltedUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user who is not admitted to a step."""

    position: int
    """The index of the user in ``users``."""
    reason: str
    refused_by: str | None


class ChargeDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision of all partitions about one step. Arrays are in the order of ``users``."""

    dataset: Name
    run: Name
    attempt: str
    """The number and the token of the attempt."""
    step: int
    decision_ids: list[str]
    admitted: list[bool]
    """Users who may contribute to the release."""
    granted: list[float]
    """The norm to which each contribution must be clipped; 0 if halted."""
    exhausted: list[bool]
    """Users who have nothing left after this step."""
    halted: list[HaltedUser]
    """The users to leave out, and why; they were charged nothing."""


class CollectedChargeDecision(ChargeDecision, frozen=True, kw_only=True):
    """The decision of all partitions about a step whose norms were collected.

    Release contributions of the admitted users only. Arrays are in the order of ``users``.
    """

    users: list[UserId]
    """The users whose norms were collected, by partition and then in the order of the log."""


class SentNorms(msgspec.Struct, frozen=True, kw_only=True):
    """Norms that the log has. Rejected ones are on the topic ``rejects``."""

    users: int
    """The number of users whose norms were sent."""


class EnrolledRoster(msgspec.Struct, frozen=True, kw_only=True):
    """The roster of a run."""

    members: int
    """The number of users on the roster."""


class RosterStepDecision(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions' decision about one roster step. Arrays are in the order of ``users``."""

    dataset: Name
    run: Name
    attempt: str
    """The number and the token of the attempt."""
    step: int
    decision_ids: list[str]
    admitted: list[bool]
    """Users who were charged and may be drawn."""
    exhausted: list[bool]
    """Users who have nothing left for any step with a cost."""
    clip_norms: list[float]
    """The norm to which each contribution must be clipped; 0 if not admitted."""
    halted: list[int]
    """Positions of the users who are not admitted from this step on."""
    readmitted: list[int]
    """Positions of the users who are admitted again from this step on."""
    sampling_rate: float
    """The probability with which each admitted user is drawn."""
    may_be_drawn: bool
    """The step was decided before this request, and is sampled. Draw its users only if you are
    certain that they were not drawn before."""


class RunIsOver(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is closed permanently."""

    dataset: Name
    run: Name
    closed: bool = True
    """True."""


class HaltList(msgspec.Struct, frozen=True, kw_only=True):
    """HALT events of a run that Kafka still has."""

    halts: list[Halt]
    """The events, the oldest first within each partition."""
    is_complete: bool
    """False if there are more events than one response can have."""


class HttpProblem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request failed (RFC 9457). After any problem nothing may be released."""

    status: int
    """The HTTP status code."""
    reason: str
    """The reason, for programs."""
    detail: str
    """The reason as text, for people. Programs read the other fields."""
    partition: int | None = None
    """The partition that rejected the request."""
    current_attempt: int | None = None
    """The number of the newest attempt of the run."""
    held: Dataset | None = None
    """The policy that the dataset has, if another one was requested."""
    holder: Holder | None = None
    """The run that holds the budget, if another run requested it."""
    released: int | None = None
    """The step that the caller named as released."""
    newest: int | None = None
    """The last step that all partitions have decided."""
    measure: Measure | None = None
    """The measure that cannot charge the step."""
    covered_by: list[Measure] | None = None
    """The measures that can charge it."""
