"""The streaming side of dp-turnstile: the SDK, the wire, the worker."""

from streams.sdk.client import Turnstile
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    Fenced,
    InvalidCharge,
    PolicyChanged,
    Refusal,
    ServiceUnavailable,
    TurnstileError,
)
from streams.sdk.followers import Halt
from streams.sdk.run import Run, StepDecision

__all__ = [
    "ConflictingDecisions",
    "DecisionTimeout",
    "Fenced",
    "Halt",
    "InvalidCharge",
    "PolicyChanged",
    "Refusal",
    "Run",
    "ServiceUnavailable",
    "StepDecision",
    "Turnstile",
    "TurnstileError",
]
