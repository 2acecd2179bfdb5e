"""Every record that crosses Kafka, and nothing else: the one place that defines the wire.

A record is MessagePack, or JSON when its first byte is ``{``. ``decode_request`` is the edge:
what it returns has the right types, ranges and lengths; what it refuses raises ``Rejection`` with
the reason that the rejects topic will carry. ``deploy/asyncapi.yaml`` describes the same records
and a test holds the two together.

Every record carries a version in ``v``. Requests of another version than ``VERSION`` are rejected.

Changing a record:

1. Add a field with a default, or a new record with a new ``type``; never change a meaning.
2. Raise ``VERSION`` when an older worker would misread the new record.
3. Change ``deploy/asyncapi.yaml`` in the same commit.
4. Replay the recorded logs under ``tests/recorded``: their outputs must stay the same, bit for bit.
"""

from __future__ import annotations

from streams.schemas.answers import (
    ERASED,
    TOO_SOON,
    Answer,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    Decision,
    Enrolled,
    Forgotten,
    Halted,
    OdometerCheckpoint,
    OperatorBound,
    PrincipalRegistered,
    Rejected,
    RosterDecision,
    RunClosed,
    RunOpened,
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
)
from streams.schemas.fields import (
    DELTA,
    MAX_SEPARATION,
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
    Holder,
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
    "ERASED",
    "MAX_BUDGETS",
    "MAX_CHARGE_USERS",
    "MAX_REQUEST_BYTES",
    "MAX_ROSTER_WRITE_BYTES",
    "MAX_SEPARATION",
    "MAX_WRITE_BYTES",
    "TOO_SOON",
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
    "Forgotten",
    "Halted",
    "Holder",
    "IntegerUser",
    "Measure",
    "MechanismName",
    "MinSeparation",
    "Name",
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
]
