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
    Where one of these clips, it says that its own ``on_exhaustion`` decides (``own_exhaustion``),
    without which it is refused, as it was before there was that.
    A dataset may know users by ``pseudonyms``, and says of which key.
    A run may keep the participations of a user apart (``min_separation``). It is opened and charged
    in version 3 only, by which who asks is told who came too soon.
    A user can be forgotten (``forget``). Who is charged by then is halted; answers of version 3 say
    so, those of earlier ones that nothing is left. A dataset can be closed (``close-dataset``).
    A request can be signed: ``signed`` has the bytes of a request of any version, as they are
    without a signature, and who signed them. An operator says whose keys count (``bind-operator``,
    ``register-principal``), and a policy who may charge and manage a dataset (``allow``).

Changing a record:

1. Add a field with a default, or a new record with a new ``type``; never change a meaning.
2. Raise ``VERSION`` when an older worker would misread the new record, refuse in
   ``edge.py`` what only the new version has, and describe it above.
3. Change ``deploy/asyncapi.yaml`` in the same commit.
4. Apply the recorded logs under ``tests/recorded`` again: what comes out must stay the same, bit
   for bit.
"""

from __future__ import annotations

from streams.schemas.answers import (
    Answer,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    Decision,
    Enrolled,
    ForgettingDecision,
    Forgotten,
    Halted,
    NestedDecision,
    OdometerCheckpoint,
    OperatorBound,
    PrincipalRegistered,
    Rejected,
    RosterDecision,
    RunClosed,
    RunOpened,
    SeparatedDecision,
    odometer_key,
    tombstone,
    tombstone_offset,
)
from streams.schemas.edge import (
    MAX_BUDGETS,
    MAX_CHARGE_USERS,
    MAX_REQUEST_BYTES,
    MAX_ROSTER_WRITE_BYTES,
    MAX_WRITE_BYTES,
    decode_answer,
    decode_request,
    decode_signed,
    encode,
    uneven,
)
from streams.schemas.fields import (
    DELTA,
    MAX_SEPARATION,
    OLDEST,
    VERSION,
    BudgetUnits,
    Counter,
    Fingerprint,
    IntegerUser,
    Measure,
    MechanismName,
    MinSeparation,
    Name,
    Norms,
    OnExhaustion,
    RosterMechanism,
    StringUser,
    User,
    UserIds,
    Users,
)
from streams.schemas.refusals import (
    Reason,
    Rejection,
)
from streams.schemas.requests import (
    Allow,
    BindOperator,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CreateDataset,
    Enrol,
    Forget,
    OpenRun,
    Policy,
    RegisterPrincipal,
    Request,
    Sender,
    Signed,
    WithdrawDataset,
)

__all__ = [
    "DELTA",
    "MAX_BUDGETS",
    "MAX_CHARGE_USERS",
    "MAX_REQUEST_BYTES",
    "MAX_ROSTER_WRITE_BYTES",
    "MAX_SEPARATION",
    "MAX_WRITE_BYTES",
    "OLDEST",
    "VERSION",
    "Allow",
    "Answer",
    "BindOperator",
    "BudgetUnits",
    "Charge",
    "ChargeRoster",
    "CloseDataset",
    "CloseRun",
    "Counter",
    "CreateDataset",
    "DatasetClosed",
    "DatasetCreated",
    "DatasetWithdrawn",
    "Decision",
    "Enrol",
    "Enrolled",
    "Fingerprint",
    "Forget",
    "ForgettingDecision",
    "Forgotten",
    "Halted",
    "IntegerUser",
    "Measure",
    "MechanismName",
    "MinSeparation",
    "Name",
    "NestedDecision",
    "Norms",
    "OdometerCheckpoint",
    "OnExhaustion",
    "OpenRun",
    "OperatorBound",
    "Policy",
    "PrincipalRegistered",
    "Reason",
    "RegisterPrincipal",
    "Rejected",
    "Rejection",
    "Request",
    "RosterDecision",
    "RosterMechanism",
    "RunClosed",
    "RunOpened",
    "Sender",
    "SeparatedDecision",
    "Signed",
    "StringUser",
    "User",
    "UserIds",
    "Users",
    "WithdrawDataset",
    "decode_answer",
    "decode_request",
    "decode_signed",
    "encode",
    "odometer_key",
    "tombstone",
    "tombstone_offset",
    "uneven",
]
