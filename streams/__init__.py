"""The streaming side of dp-turnstile: the SDK, the wire, the worker."""

from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import (
    ConflictingDecisions,
    DatasetInUse,
    DecisionTimeout,
    Fenced,
    InvalidCharge,
    PartitionsDisagree,
    PolicyChanged,
    Refusal,
    RunIsClosed,
    ServiceUnavailable,
    StepContentChanged,
    TurnstileError,
    Unusable,
)
from streams.sdk.followers import Halt
from streams.sdk.run import Run

__all__ = [
    "ConflictingDecisions",
    "DatasetInUse",
    "DecisionTimeout",
    "Fenced",
    "Halt",
    "InvalidCharge",
    "PartitionsDisagree",
    "PolicyChanged",
    "Refusal",
    "Run",
    "RunIsClosed",
    "ServiceUnavailable",
    "StepContentChanged",
    "StepDecision",
    "Turnstile",
    "TurnstileError",
    "Unusable",
]
