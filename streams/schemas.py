"""Every record that crosses Kafka, and nothing else: the one place that defines the wire.

A record is MessagePack, or JSON when its first byte is ``{``. ``decode_request`` is the edge:
what it returns has the right types, ranges and lengths; what it refuses raises ``Rejection`` with
the reason that the rejects topic will carry. ``deploy/asyncapi.yaml`` describes the same records
and a test holds the two together.

Versions. A request says by which one it is meant (``v``, 1 if it says nothing), and is applied by
that one for ever, because the log is kept and applied again; an answer carries the version of its
request.

1   The first release.
2   A policy says which kinds of user ids a dataset has (``user_ids``), and string ids are in normal
    form: a dataset that version 1 has created takes them as they are, and in version 1 only.
    ``open-run`` with attempt 0 asks for the next attempt. ``close-run`` ends a run,
    ``withdraw-dataset`` takes back a dataset that nobody has used. A step is recognised by a
    SHA-256 of its content. What a charge may make a worker write is limited more tightly. The
    lengths of packed arrays are checked before anything else (in version 1 after the attempt), and
    what is refused for its content names its sender.
3   A policy may bind each user to an order of its own (``own_order``), and may be of measure
    pure-dp.
    A roster: the users of a run are enrolled once (``enrol``) and charged by their levels, one byte
    each, at the prices of a tariff (``charge-roster``). So sampled steps can be charged: what
    computing their cost needs besides rational arithmetic has been done before the log.
    A dataset may be ``within`` another one: what is charged to it counts against both. It is
    opened and charged in version 3 only, by which who asks is told of all these budgets.
    A dataset may know users by ``pseudonyms``, and says of which key.
    A run may keep the participations of a user apart (``min_separation``). It is opened and charged
    in version 3 only, by which who asks is told who came too soon.
    A user can be forgotten (``forget``). Who is charged by then is halted; answers of version 3 say
    so, those of earlier ones that nothing is left. A dataset can be closed (``close-dataset``).
    It can move to another log: it is closed with the id of that one (``moves_to``), which takes it
    (``receive-dataset``) and what its users have spent (``balances``).
    A request can be signed: ``signed`` has the bytes of a request of any version, as they are
    without a signature, and who signed them. An operator says whose keys count (``bind-operator``,
    ``register-principal``), and a policy who may charge and manage a dataset (``allow``).

Changing a record:

1. Add a field with a default, or a new record with a new ``type``; never change a meaning.
2. Raise ``VERSION`` when an older worker would misread the new record, refuse in
   ``_check_features`` what only the new version has, and describe it above.
3. Change ``deploy/asyncapi.yaml`` in the same commit.
4. Apply the recorded logs under ``tests/recorded`` again: what comes out must stay the same, bit
   for bit.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from streams.normal_form import first_irregular, normal_form

VERSION = 3
"""What this module writes."""

OLDEST = 1
"""What it still reads."""

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$(?!\n)")]
"""A dataset or a run: 1 to 128 letters, digits, dots, dashes and underscores."""

IntegerUser: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
StringUser: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
User: TypeAlias = int | str
Users: TypeAlias = list[IntegerUser | StringUser] | bytes
"""User ids, or packed little-endian signed 64-bit integers (the fast path)."""

Norms: TypeAlias = list[float] | bytes
"""One norm per user, or packed little-endian float64 (the fast path)."""

Measure: TypeAlias = Literal["renyi", "zcdp", "gdp", "approx-dp", "pure-dp"]
MechanismName: TypeAlias = Literal["gaussian", "laplace", "pure-dp"]
RosterMechanism: TypeAlias = MechanismName | Literal["poisson-gaussian"]
OnExhaustion: TypeAlias = Literal["halt", "clip"]
UserIds: TypeAlias = Literal["one-kind", "integer", "string", "mixed"]
"""Which ids a dataset has: integers and strings are never equal, so that one person known by 1 and
by "1" would have two budgets. ``one-kind``: whichever comes first in a partition."""

Attempt: TypeAlias = Annotated[int, Meta(ge=1, le=2**63 - 1)]
"""One that a partition has given. In version 1 at most 2**53."""

AskedAttempt: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""One that a sender asks for, 0 for the next. Nobody can ask for the last one that an answer can
carry, which would end the run. In version 1 from 1 to 2**53."""

Counter: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Fingerprint: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}$(?!\n)")]
Positive: TypeAlias = Annotated[float, Meta(gt=0.0, le=1.7976931348623157e308)]
BudgetUnits: TypeAlias = Annotated[int, Meta(ge=1, le=2**61)]
"""Units of ``accounting.exact.units``, and as many as a filter takes."""
Order: TypeAlias = Annotated[float, Meta(gt=1.0)]
MAX_SEPARATION = 2**14
"""Who took part in a step is kept until so many have followed it: an entry for each of them."""
MinSeparation: TypeAlias = Annotated[int, Meta(ge=2, le=MAX_SEPARATION)]
"""Steps from a participation of a user to the next one, at least."""
Token: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
"""A random string by which the sender recognises the answer."""
PublicKey: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""Of Ed25519; ``streams.wire.requests`` says which 32 bytes are one."""
Signature: TypeAlias = Annotated[bytes, Meta(min_length=64, max_length=64)]
LogId: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
"""What Kafka calls the id of the topic norms."""
Principals: TypeAlias = Annotated[list[Name], Meta(max_length=64)]
TopicId: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
"""The id by which Kafka knows the topic `norms` of a log, which no other topic ever has."""
Digest: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""A SHA-256."""


class Reason(StrEnum):
    """Why a record was refused, in the order in which the checks are made.

    Three things are out of this order: a record of more than ``MAX_REQUEST_BYTES`` is too large and
    is not looked at; in version 1 packed arrays of a wrong length are found after the attempt; and
    that a dataset or a run is opened or charged in later versions only is found when it is known.
    """

    UNSUPPORTED_VERSION = "unsupported-version"
    MALFORMED = "malformed"  # not MessagePack, not JSON, truncated, wrong types or ranges
    INVALID_POLICY = "invalid-policy"
    INVALID_KEY = "invalid-key"  # 32 bytes that are no key by which signatures are told apart
    POLICY_CHANGED = "policy-changed"  # the dataset exists with another policy
    UNKNOWN_DATASET = "unknown-dataset"
    NOT_ALLOWED = "not-allowed"  # not signed by somebody who may do this
    SUPERSEDED = "superseded"  # the operator has said something later
    DATASET_CLOSED = "dataset-closed"  # nothing is charged to it any more, and it stays
    DATASET_MOVING = "dataset-moving"  # not all of it is here yet, or it goes elsewhere
    DATASET_IN_USE = "dataset-in-use"  # it cannot be withdrawn: a run has been opened
    UNKNOWN_RUN = "unknown-run"  # charged or closed before it was opened
    RUN_CLOSED = "run-closed"  # it can neither be charged nor opened again
    OLDER_ATTEMPT = "older-attempt"  # fenced by a newer attempt, or the number is taken
    SEPARATION_CHANGED = "separation-changed"  # the run keeps participations apart otherwise
    STEP_CONTENT_CHANGED = "step-content-changed"  # same step, other content
    STEP_OUT_OF_ORDER = "step-out-of-order"  # neither the last step nor the next one
    NO_ROSTERS = "no-rosters"  # a run that keeps participations apart has none
    UNKNOWN_ROSTER = "unknown-roster"  # nobody has been enrolled in the run
    ROSTER_CHANGED = "roster-changed"  # not the users, the clip norm or the grid that it has
    TOO_LARGE = "too-large"  # too many users, or more than a worker can write at once
    LENGTH_MISMATCH = "length-mismatch"  # not one norm per user
    INVALID_MECHANISM = "invalid-mechanism"  # the measure cannot charge it, or its scale is bad
    INVALID_TARIFF = "invalid-tariff"  # not what steps of this roster can cost, or not known here
    INVALID_BALANCES = "invalid-balances"  # not what users can have spent, or what was announced
    INVALID_LEVELS = "invalid-levels"  # beyond the grid, or positions that are not in the roster
    MIXED_USERS = "mixed-users"  # ids of another kind than those of the dataset
    INVALID_NORM = "invalid-norm"  # NaN, infinite or negative
    NORM_ABOVE_CLIP = "norm-above-clip"
    DUPLICATE_USER = "duplicate-user"
    WRONG_PARTITION = "wrong-partition"  # the user lives in another partition


MAX_DETAIL = 500


class Rejection(Exception):
    """A record that is not applied: its reason for programs, its detail for people.

    The detail is cut to ``MAX_DETAIL`` characters: it may quote the record, which may be long.
    ``request`` is what could be read of it, if it could be.
    """

    def __init__(self, reason: Reason, detail: str, request: Request | None = None) -> None:
        if len(detail) > MAX_DETAIL:
            detail = f"{detail[:MAX_DETAIL]} ..."
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.request = request


class _Record(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", forbid_unknown_fields=True
):
    """What all records share: a ``type`` and the version by which they are meant."""

    v: int = 1


class _OfDataset(_Record, frozen=True):
    """What all records about a dataset share."""

    dataset: Name

    @property
    def address(self) -> tuple[str, ...]:
        """What it is about, as the names that lead there: a dataset, or a run of a dataset."""
        return (self.dataset,)


class _OfRun(_OfDataset, frozen=True):
    """What all records about a run share."""

    run: Name

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset and the run."""
        return self.dataset, self.run


# --- requests: the topic `norms` --------------------------------------------------------------


class Allow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which principals may do what with a dataset."""

    charge: Principals = []  # open, charge and close runs, and enrol users
    manage: Principals = []  # withdraw, close and move it, forget users, create datasets within it


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Under what a dataset is charged. It is fixed before the first charge and never changes."""

    dataset: Name
    partitions: Annotated[int, Meta(ge=1, le=100_000)]  # P of the topic: a user never moves
    measure: Measure
    # One per order for renyi, else one. Units of accounting.exact.units, rounded down.
    budget: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    odometer_step: Annotated[list[BudgetUnits], Meta(min_length=1, max_length=256)]
    orders: Annotated[list[Order], Meta(max_length=256)] = []  # renyi only, increasing
    on_exhaustion: OnExhaustion = "halt"  # or grant what is left: budget-aware clipping
    # From version 2 on. Not given: one-kind, or the policy that is there already; in version 1:
    # mixed. A policy that is stored without it is of version 1.
    user_ids: UserIds | UnsetType = UNSET
    # From version 3 on. Each user is bound to one of the orders, with its first charge that costs
    # something, and charged there alone; else all orders have to hold.
    own_order: Literal[True] | UnsetType = UNSET
    # From version 3 on. Another dataset, whose budget every charge has to fit as well, and is
    # charged to: of the same users, and halting as this one does.
    within: Name | UnsetType = UNSET
    # From version 3 on. Users are known by pseudonyms of the key that has this fingerprint: under
    # another key, or none, everybody would be somebody else, with nothing spent.
    pseudonyms: Fingerprint | UnsetType = UNSET
    # From version 3 on. Requests about it have to be signed by one of these. Not given: by one of
    # those that the dataset names that it is within, or by nobody, if none of them names any.
    allow: Allow | UnsetType = UNSET


class CreateDataset(_Record, frozen=True, tag="create-dataset"):
    """Fixes the policy of a dataset; sent to every partition, once and for all."""

    request: Token
    policy: Policy

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset."""
        return (self.policy.dataset,)


class OpenRun(_OfRun, frozen=True, tag="open-run"):
    """Begins an attempt of a run and fences every lower one; sent to every partition."""

    # 0, from version 2 on: the one after the last. The same token again gets the same answer.
    attempt: AskedAttempt
    request: Token
    # From version 3 on: a user who takes part in step t, with a norm above 0, is not admitted
    # again before step t + min_separation. Fixed with the first step; not given: as the run has it.
    min_separation: MinSeparation | UnsetType = UNSET


class CloseRun(_OfRun, frozen=True, tag="close-run"):
    """Ends a run for good: it cannot be charged or opened again. Sent to every partition."""

    attempt: Attempt  # the current one
    request: Token


class WithdrawDataset(_OfDataset, frozen=True, tag="withdraw-dataset"):
    """Takes back a dataset of which no run was ever opened; sent to every partition."""

    request: Token


class CloseDataset(_OfDataset, frozen=True, tag="close-dataset"):
    """Ends a dataset for good, those within it, and all their runs; sent to every partition."""

    request: Token
    # The log that may take it, and no other ever; from then on nothing of the dataset changes here.
    # Only one that is within no other moves, and those within it go with it.
    moves_to: TopicId | UnsetType = UNSET


class Origin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The log that a dataset comes from, as it was when it was closed there."""

    topic: TopicId
    partitions: Annotated[int, Meta(ge=1, le=100_000)]
    heads: Digest  # of the heads of its chains: see streams.offline.moves


class ErasureKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key by which users have names who were forgotten in the log that a dataset comes from."""

    fingerprint: Fingerprint
    highest: Annotated[int, Meta(ge=0, le=2**31)]  # number of a name
    topic: TopicId | UnsetType = UNSET  # of which the key is made, if nobody has set one


class ReceiveDataset(_Record, frozen=True, tag="receive-dataset"):
    """Creates a dataset that comes from another log; sent to every partition.

    It can be charged when all balances are in, of all datasets that come together.
    """

    request: Token
    policy: Policy  # the one that it has there, but for the number of partitions
    origin: Origin
    parts: Counter  # records of balances that this partition gets
    digest: Digest  # of all of them: see streams.ledger.arrivals
    brings: Counter = 0  # datasets that come within it; all of them are here, or none is charged
    closed: bool = False  # it had been closed before, and stays so
    erasure: Annotated[list[ErasureKey], Meta(max_length=256)] = []

    @property
    def address(self) -> tuple[str, ...]:
        """The dataset."""
        return (self.policy.dataset,)


class Balances(_OfDataset, frozen=True, tag="balances"):
    """What some users have spent by the time a dataset came here: users who are new to it.

    Numbers are int64, little-endian, in the order of users; of `spent` and `base` one for each
    order, if all orders of the policy have to hold.
    """

    request: Token
    part: Counter  # of those that were announced, from 0
    users: Users
    spent: bytes  # units
    base: bytes  # units that were spent when the odometer last restarted
    rungs: bytes  # how many odometer steps the bound has climbed
    order: bytes = b""  # own_order: a byte each, the place of the order that the user is bound to
    bound: bytes = b""  # own_order: a byte each, 1 if so
    forgotten: bool = False  # users who were forgotten, by their names: they may live here or not


class Charge(_OfRun, frozen=True, tag="charge"):
    """One step of one run, for the users of one partition; empty partitions get one too."""

    attempt: Attempt
    step: Counter
    users: Users
    norms: Norms  # before release; L2 for gaussian, L1 for laplace, eps for pure-dp
    mechanism: MechanismName = "gaussian"
    scale: float = 1.0  # noise standard deviation, or Laplace scale; unused for pure-dp
    clip_norm: float | None = None  # no norm of the step may exceed it


class Enrol(_OfRun, frozen=True, tag="enrol"):
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


class ChargeRoster(_OfRun, frozen=True, tag="charge-roster"):
    """One step of one run, for all users of its roster in one partition, at their levels.

    Levels that it does not bring are those of the step before; a user who is new has the highest.
    """

    attempt: Attempt
    step: Counter
    members: Counter  # of the roster: it is the one that the sender knows
    tariff: Annotated[bytes, Meta(min_length=16, max_length=16)]  # its digest
    units: bytes = b""  # the tariff: int64, (levels + 1, orders); empty: that of the step before
    positions: bytes = b""  # uint32, increasing: whose levels change; empty: those of all, or none
    levels: bytes = b""  # a byte each
    mechanism: RosterMechanism = "gaussian"
    scale: float = 1.0  # noise standard deviation, or Laplace scale; unused for pure-dp
    sampling_rate: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0  # 1 but for poisson-gaussian


class Forget(_Record, frozen=True, tag="forget"):
    """Forgets who a user is, and admits that user to nothing any more; sent where the user lives.

    The datasets whose budgets count together are one: of all that are within one another, the user
    is forgotten in every one.
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


class BindOperator(_Record, frozen=True, tag="bind-operator"):
    """Says by which key the operator is known from now on; sent to every partition.

    The first one is signed by that key, later ones by the key before.
    """

    request: Token
    number: Counter  # above those of all that the operator said before
    log: LogId  # for which it was signed
    operator: PublicKey
    # Of other logs, signatures for which count here: those of which records were copied to this one
    # are named by its first record.
    also: Annotated[list[LogId], Meta(max_length=16)] = []

    @property
    def address(self) -> tuple[str, ...]:
        """It is about no dataset."""
        return ()


class RegisterPrincipal(_Record, frozen=True, tag="register-principal"):
    """Says by which key a principal is known; signed by the operator, sent to every partition."""

    request: Token
    number: Counter  # above those of all that the operator said before
    principal: Name
    key: PublicKey | UnsetType = UNSET  # not given: by none any more
    creates: bool = False  # it may create datasets, within none that says who may

    @property
    def address(self) -> tuple[str, ...]:
        """It is about no dataset."""
        return ()


Request: TypeAlias = (
    CreateDataset
    | WithdrawDataset
    | CloseDataset
    | ReceiveDataset
    | Balances
    | OpenRun
    | CloseRun
    | Charge
    | Enrol
    | ChargeRoster
    | Forget
    | BindOperator
    | RegisterPrincipal
)


class Signed(_Record, frozen=True, tag="signed"):
    """A request, and who signed it for this log and this partition."""

    request: bytes  # as it would be without: MessagePack or JSON
    signature: Signature  # see ``streams.wire.requests``
    principal: Name | UnsetType = UNSET  # not given: the operator


class Sender(NamedTuple):
    """Who is said to have signed a request."""

    principal: str | None  # None: the operator
    signature: bytes
    request: bytes  # what was signed


# --- answers: the topic `halts` -----------------------------------------------------------------


class DatasetCreated(_Record, frozen=True, tag="dataset-created"):
    """This partition holds the dataset under exactly this policy."""

    request: Token
    partition: int
    offset: int
    policy: Policy


class RunOpened(_OfRun, frozen=True, tag="run-opened"):
    """This partition charges the run under this attempt."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int  # the last step decided here, -1 before the first
    policy: Policy
    outer: list[Policy] | UnsetType = UNSET  # of those it is within, the nearest first, if it is
    min_separation: int | UnsetType = UNSET  # of the run, if it keeps participations apart


class RunClosed(_OfRun, frozen=True, tag="run-closed"):
    """This partition charges the run no more."""

    attempt: int
    request: Token
    partition: int
    offset: int
    last_step: int


class DatasetWithdrawn(_OfDataset, frozen=True, tag="dataset-withdrawn"):
    """This partition does not hold the dataset."""

    request: Token
    partition: int
    offset: int


class DatasetClosed(_OfDataset, frozen=True, tag="dataset-closed"):
    """This partition charges the dataset no more, nor those within it; their accounts stay."""

    request: Token
    partition: int
    offset: int
    datasets: list[Name]  # all of these, sorted
    moves_to: TopicId | UnsetType = UNSET  # the log that may take it, if one may


class DatasetReceived(_OfDataset, frozen=True, tag="dataset-received"):
    """This partition has so many of the balances of a dataset that comes from another log."""

    request: Token
    partition: int
    offset: int
    received: int  # parts
    parts: int  # of so many
    digest: bytes  # of those that are in


class Decision(_OfRun, frozen=True, tag="decision"):
    """Who is admitted to one step, in one partition; positions are those of the request's users."""

    attempt: int
    step: int
    partition: int
    offset: int  # of the charge that was applied
    digest: bytes  # of the charge, by its own version: 16 bytes
    users: int  # how many the charge had
    admitted: bytes  # bit set, least significant bit first
    exhausted: bytes  # bit set: nothing is left after this step
    halted: Users  # the ids of those not admitted: the HALT events of this step
    clipped: bytes = b""  # uint32 positions granted less than they asked for (on_exhaustion=clip)
    granted: bytes = b""  # float64 granted norms of those positions


class NestedDecision(Decision, frozen=True, kw_only=True, tag="nested-decision"):
    """The same, of a dataset that is within others."""

    budgets: list[Name]  # the dataset itself, then the others, the nearest first
    refused: bytes  # for each of the halted the first of these budgets that the step does not fit


class SeparatedDecision(Decision, frozen=True, kw_only=True, tag="separated-decision"):
    """The same, of a run that keeps participations apart."""

    # Bit set: halted whatever is left, since the last time this user took part is less than
    # min_separation steps ago.
    too_soon: bytes
    # As in a nested decision, if the dataset is within others; 0 for who came too soon.
    budgets: list[Name] | UnsetType = UNSET
    refused: bytes | UnsetType = UNSET


class ForgettingDecision(Decision, frozen=True, kw_only=True, tag="forgetting-decision"):
    """The same, whatever the run and its dataset, where somebody was halted who was forgotten."""

    # Bit set: halted because they were forgotten. Among the halted they have the names that took
    # the place of their ids.
    forgotten: bytes
    # As in a separated decision, if the run keeps participations apart.
    too_soon: bytes | UnsetType = UNSET
    # As in a nested decision, if the dataset is within others; 0 for who was forgotten.
    budgets: list[Name] | UnsetType = UNSET
    refused: bytes | UnsetType = UNSET


class Enrolled(_OfRun, frozen=True, tag="enrolled"):
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
    tariff: bytes = b""  # the digest of that of the last step
    decision: bytes = b""  # the last step's, as it was published, if it was one of the roster
    # Positions of those who were forgotten, if there are any. In the digests there is 0 or "" in
    # the place of their ids.
    forgotten: bytes | UnsetType = UNSET


class RosterDecision(_OfRun, frozen=True, tag="roster-decision"):
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


class Halted(_OfRun, frozen=True, tag="halted"):
    """HALT events of a step of a roster: the ids of users who are admitted no longer."""

    attempt: int
    step: int
    partition: int
    offset: int  # of the charge that was applied
    part: int  # of so many, if there are too many users for one record
    parts: int
    users: Users
    exhausted: bytes  # bit set: nothing is left, least significant bit first
    # As in a nested decision, if the dataset is within others.
    budgets: list[Name] | UnsetType = UNSET
    refused: bytes | UnsetType = UNSET
    forgotten: bytes | UnsetType = UNSET  # as in a forgetting decision, if anybody was


class Forgotten(_Record, frozen=True, tag="forgotten"):
    """This partition, where the user lives, does not know any more who that is."""

    request: Token
    partition: int
    offset: int
    datasets: list[Name]  # in which the user is forgotten and admitted to nothing, sorted


class OperatorBound(_Record, frozen=True, tag="operator-bound"):
    """This partition knows the operator by this key."""

    request: Token
    partition: int
    offset: int
    number: int
    operator: bytes


class PrincipalRegistered(_Record, frozen=True, tag="principal-registered"):
    """This partition knows a principal by the key that was said, or by none any more."""

    request: Token
    partition: int
    offset: int
    number: int
    principal: Name


Answer: TypeAlias = (
    DatasetCreated
    | DatasetWithdrawn
    | DatasetClosed
    | DatasetReceived
    | RunOpened
    | RunClosed
    | Decision
    | NestedDecision
    | SeparatedDecision
    | ForgettingDecision
    | Enrolled
    | RosterDecision
    | Halted
    | Forgotten
    | OperatorBound
    | PrincipalRegistered
)

# --- the topics `odometer` and `rejects` --------------------------------------------------------


class OdometerCheckpoint(_OfDataset, frozen=True, tag="odometer"):
    """A user has spent at most ``bound``; written on every increase, for that user's eyes alone."""

    user: IntegerUser | StringUser
    partition: int
    offset: int  # of the charge that raised it: of two checkpoints the higher offset counts
    # In the measure's own unit (rho, mu, Rényi divergence per order), rounded up.
    bound: list[float]
    order: float | UnsetType = UNSET  # that the user is bound to, and the bound is one of, if so


class Rejected(_Record, frozen=True, tag="rejected"):
    """A request that was not applied: budgets are as they were before it."""

    partition: int
    offset: int
    reason: Reason
    detail: str
    record: bytes  # the original bytes
    # What could be read of the request, so that its sender finds the answer.
    dataset: str | None = None
    run: str | None = None
    attempt: int | None = None
    step: int | None = None
    request: str | None = None
    # For older-attempt: what a new attempt has to exceed.
    current_attempt: int | None = None


MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""A larger request is refused: split the population over more partitions."""

MAX_CHARGE_USERS = 2**19
"""More users in one charge are refused, however small their encoding: an answer has to fit too."""

MAX_BUDGETS = 8
"""Of a dataset and those it is within: so many count against a charge at most."""

MAX_WRITE_BYTES = 256 * 1024 * 1024
"""What a charge may make a worker write (see ``streams.ledger.limits``); not in version 1."""

MAX_ROSTER_WRITE_BYTES = 640 * 1024 * 1024
"""The same, of a step of a roster: 2.7 million integer ids. Redis takes 1 GiB in one command."""

_LAST_ATTEMPT_OF_1 = 2**53

_MSGPACK_REQUEST: msgspec.msgpack.Decoder[Request | Signed] = msgspec.msgpack.Decoder(
    Request | Signed
)
_JSON_REQUEST: msgspec.json.Decoder[Request | Signed] = msgspec.json.Decoder(Request | Signed)
_ANSWER: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_ENCODER = msgspec.msgpack.Encoder()

encode = _ENCODER.encode
"""Encodes any record of this module as MessagePack."""


def decode_request(value: bytes | None) -> Request:
    """Read a request from the bytes of a Kafka record, whether it is signed or not.

    Raises:
        Rejection: MALFORMED, TOO_LARGE or UNSUPPORTED_VERSION.
    """
    return decode_signed(value)[0]


def decode_signed(value: bytes | None) -> tuple[Request, Sender | None]:
    """The same, and who is said to have signed it; None if nobody is. Nothing is verified here.

    Raises:
        Rejection: as ``decode_request``.
    """
    if value is None:
        raise Rejection(Reason.MALFORMED, "the record has no value (a tombstone)")
    if len(value) > MAX_REQUEST_BYTES:
        detail = f"{len(value)} bytes; a request has at most {MAX_REQUEST_BYTES}"
        raise Rejection(Reason.TOO_LARGE, detail)
    record = _decode(value)
    if not isinstance(record, Signed):
        return _checked(record), None
    if record.v < 3:
        raise Rejection(Reason.MALFORMED, f"a signature needs version 3, not {record.v}")
    request = _decode(record.request)
    if isinstance(request, Signed):
        raise Rejection(Reason.MALFORMED, "a request that is signed twice")
    principal = None if record.principal is UNSET else record.principal
    return _checked(request), Sender(principal, record.signature, record.request)


def _decode(value: bytes) -> Request | Signed:
    try:
        record = (_JSON_REQUEST if value[:1] == b"{" else _MSGPACK_REQUEST).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        _check_version(_version_of(value))  # a newer version may have fields unknown here
        raise Rejection(Reason.MALFORMED, str(error)) from error
    _check_version(record.v)
    return record


def _checked(request: Request) -> Request:
    if request.v < 3:
        _check_later_features(request)
    if request.v == 1:
        _check_features(request)
    else:
        _check_content(request)
    return request


def _check_version(version: int) -> None:
    if not OLDEST <= version <= VERSION:
        detail = f"version {version}; this worker reads versions {OLDEST} to {VERSION}"
        raise Rejection(Reason.UNSUPPORTED_VERSION, detail)


def _check_features(request: Request) -> None:
    """Refuse in a request of version 1 what only version 2 has."""
    match request:
        case CloseRun() | WithdrawDataset():
            feature = "this type of record"
        case OpenRun(attempt=0):
            feature = "attempt 0"
        case OpenRun(attempt=attempt) | Charge(attempt=attempt) if attempt > _LAST_ATTEMPT_OF_1:
            feature = f"attempt {attempt}"
        case CreateDataset(policy=policy) if policy.user_ids is not UNSET:
            feature = "user_ids"
        case _:
            return
    raise Rejection(Reason.MALFORMED, f"{feature} needs version 2, not {request.v}")


def _check_later_features(request: Request) -> None:
    """Refuse in a request of an earlier version what only version 3 has."""
    match request:
        case (Enrol() | ChargeRoster() | Forget() | CloseDataset()) | (
            ReceiveDataset() | Balances() | BindOperator() | RegisterPrincipal()
        ):
            feature = "this type of record"
        case CreateDataset(policy=policy) if policy.own_order is not UNSET:
            feature = "own_order"
        case CreateDataset(policy=policy) if policy.measure == "pure-dp":
            feature = "measure pure-dp"
        case CreateDataset(policy=policy) if policy.within is not UNSET:
            feature = "within"
        case CreateDataset(policy=policy) if policy.pseudonyms is not UNSET:
            feature = "pseudonyms"
        case CreateDataset(policy=policy) if policy.allow is not UNSET:
            feature = "allow"
        case OpenRun(min_separation=separation) if separation is not UNSET:
            feature = "min_separation"
        case _:
            return
    raise Rejection(Reason.MALFORMED, f"{feature} needs version 3, not {request.v}")


def _check_content(request: Request) -> None:
    """Refuse what can be told from the record alone and not by its types; not in version 1."""
    for name, width in _PACKED.get(type(request), {}).items():
        packed = getattr(request, name)
        if isinstance(packed, bytes) and len(packed) % width:
            raise Rejection(Reason.MALFORMED, uneven(name, packed, width), request)
    # Balances bring ids as they are, also those of a dataset of version 1.
    users = b"" if isinstance(request, Balances) else getattr(request, "users", b"")
    user = None if isinstance(users, bytes) else first_irregular(users)
    if user is not None:
        detail = (
            f"user {user!a} is not in normal form, in which it is "
            f"{normal_form(user)!a}: one name must not have two budgets"
        )
        raise Rejection(Reason.MALFORMED, detail, request)


_PACKED: dict[type[Request], dict[str, int]] = {
    Charge: {"users": 8, "norms": 8},
    Enrol: {"users": 8},
    ChargeRoster: {"units": 8, "positions": 4},
    Balances: {"users": 8, "spent": 8, "base": 8, "rungs": 8},
}
"""The packed arrays of a request, and how many bytes an entry of each has."""


def uneven(name: str, packed: bytes, width: int = 8) -> str:
    """What is wrong with a packed array that is cut off."""
    return f"{name}: {len(packed)} packed bytes are not a multiple of {width}"


class _Versioned(msgspec.Struct):
    v: int = 1


def _version_of(value: bytes) -> int:
    decode = msgspec.json.decode if value[:1] == b"{" else msgspec.msgpack.decode
    try:
        return decode(value, type=_Versioned).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def decode_answer(value: bytes) -> Answer:
    """Read a record of the topic `halts`."""
    return _ANSWER.decode(value)


def odometer_key(dataset: str, user: User) -> bytes:
    """The key of a user's odometer checkpoints, for compaction: the JSON array [dataset, user]."""
    return msgspec.json.encode((dataset, user))


def tombstone(offset: int) -> bytes:
    """What stands for no value at all, as long as a worker keeps it: Kafka gets a null, by which
    compaction forgets the key, and the offset of the record that led to it in a header.
    """
    return _TOMBSTONE + offset.to_bytes(8, "big")


def tombstone_offset(value: bytes) -> int | None:
    """The offset that ``tombstone`` was given; None if it is a record."""
    if value[:1] != _TOMBSTONE or len(value) != 1 + 8:
        return None
    return int.from_bytes(value[1:], "big")


_TOMBSTONE = b"\0"  # with which no record of this module begins
