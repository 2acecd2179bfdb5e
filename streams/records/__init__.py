"""All records on Kafka topics: the definition of the wire.

A record is MessagePack, or JSON if its first byte is ``{``. ``decode_request`` checks types, ranges
and lengths; it raises ``Rejection`` with the reason that the record in ``rejects`` has.
``deploy/asyncapi.yaml`` is generated from these records: the docstring of a class is its text, and
the string below a field is the field's.

Every record carries a version in ``v``. Requests of another version than ``VERSION`` are rejected.

Changing a record:

1. Add a field with a default, or a new record with a new ``type``; never change a meaning.
2. Raise ``VERSION`` when an older worker would misread the new record.
3. Run ``make reference``, which writes ``deploy/asyncapi.yaml``, in the same commit.
4. Replay the recorded logs under ``tests/recorded``: their outputs must stay the same, bit for bit.
"""

from __future__ import annotations

from streams.records.answers import (
    BUDGET,
    ERASED,
    HALT_REASONS,
    OWN_BUDGET,
    TOO_SOON,
    AccessSet,
    Answer,
    DatasetClosed,
    DatasetCreated,
    DatasetWithdrawn,
    Decision,
    Enrolled,
    Erased,
    Halted,
    LogRetired,
    OdometerRecord,
    Reason,
    Rejected,
    Rejection,
    RosterDecision,
    RunClosed,
    RunOpened,
    halt_reason,
    odometer_key,
    tombstone,
    tombstone_offset,
)
from streams.records.codec import (
    MAX_ACCOUNTS,
    MAX_ANSWER_BYTES,
    MAX_BALANCES,
    MAX_CHARGE_USERS,
    MAX_COLLECTED,
    MAX_COLLECTED_BYTES,
    MAX_DATASETS,
    MAX_EVENTS,
    MAX_NAMES_BYTES,
    MAX_QUOTED_BYTES,
    MAX_RECORD_BYTES,
    MAX_REQUEST_BYTES,
    MAX_ROSTERS,
    MAX_UNSIGNED_BYTES,
    check_names,
    decode_answer,
    decode_request,
    decode_signed,
    encode,
    encode_output,
)
from streams.records.fields import (
    DELTA,
    ERASED_INTEGER,
    ERASED_STRING,
    FALSE_POSITIVE_RATE,
    HIDDEN,
    MAX_BUDGETS,
    MAX_KEYS,
    MAX_SEPARATION,
    RESERVED,
    VERSION,
    BudgetUnits,
    Counter,
    Fingerprint,
    IntegerUser,
    Measure,
    MechanismName,
    MinSeparation,
    Name,
    Right,
    RosterMechanism,
    StringUser,
    User,
    Users,
)
from streams.records.requests import (
    AccessList,
    Allowed,
    Charge,
    ChargeRoster,
    CloseDataset,
    CloseRun,
    CollectAsked,
    CollectTerms,
    CreateDataset,
    Enrol,
    Erase,
    Holder,
    Import,
    NormEvent,
    NormEvents,
    OpenRun,
    Policy,
    Request,
    Retire,
    Sender,
    SetAccess,
    Signed,
    WithdrawDataset,
)
