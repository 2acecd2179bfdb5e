"""The streaming side of dp-turnstile: SDK, records, worker.

The names below come from ``streams.sdk`` and are imported on first use, because ``streams.records``
alone needs neither Kafka nor scipy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.sdk.client import Turnstile
    from streams.sdk.decisions import StepDecision
    from streams.sdk.epochs import Epochs
    from streams.sdk.errors import (
        BudgetHeld,
        ConflictingDecisions,
        DatasetInUse,
        DatasetIsClosed,
        DecisionTimeout,
        ErasedInPart,
        Fenced,
        FileProblem,
        InvalidRequest,
        PartitionsDisagree,
        PolicyChanged,
        ReleasedTwice,
        ReleaseUnknown,
        RequestRejected,
        RunIsClosed,
        SeparationChanged,
        ServiceUnavailable,
        StepContentChanged,
        TurnstileError,
        UncoveredStep,
        Unusable,
        UnusableFile,
    )
    from streams.sdk.followers import Halt
    from streams.sdk.run import Run

__all__ = [
    "BudgetHeld",
    "ConflictingDecisions",
    "DatasetInUse",
    "DatasetIsClosed",
    "DecisionTimeout",
    "Epochs",
    "ErasedInPart",
    "Fenced",
    "FileProblem",
    "Halt",
    "InvalidRequest",
    "PartitionsDisagree",
    "PolicyChanged",
    "ReleaseUnknown",
    "ReleasedTwice",
    "RequestRejected",
    "Run",
    "RunIsClosed",
    "SeparationChanged",
    "ServiceUnavailable",
    "StepContentChanged",
    "StepDecision",
    "Turnstile",
    "TurnstileError",
    "UncoveredStep",
    "Unusable",
    "UnusableFile",
]

_HOMES = {
    "Epochs": "streams.sdk.epochs",
    "Halt": "streams.sdk.followers",
    "Run": "streams.sdk.run",
    "StepDecision": "streams.sdk.decisions",
    "Turnstile": "streams.sdk.client",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "streams.sdk.errors")), name)
    globals()[name] = found
    return found
