"""The streaming side of dp-turnstile: SDK, records, worker.

The names below come from ``streams.sdk`` and are imported on first use, because ``streams.records``
alone needs neither Kafka nor scipy.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streams.records import CollectTerms
    from streams.sdk.client import Turnstile
    from streams.sdk.decisions import CollectedDecision, StepDecision
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
    "CollectTerms",
    "CollectedDecision",
    "ConflictingDecisions",
    "DatasetInUse",
    "DatasetIsClosed",
    "DecisionTimeout",
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
    "CollectTerms": "streams.records",
    "CollectedDecision": "streams.sdk.decisions",
    "Halt": "streams.sdk.followers",
    "Run": "streams.sdk.run",
    "StepDecision": "streams.sdk.decisions",
    "Turnstile": "streams.sdk.client",
}


def _check_accounting() -> None:
    """Check that ``accounting`` is the package of dp-turnstile, without importing it.

    Another distribution of that name overwrites its files, and a file or folder of that name beside
    a script comes first in the path. Imports would then fail one by one, with names that do not
    show the reason.

    Raises:
        ImportError: names the file in the way, and what to do.
    """
    spec = find_spec("accounting")
    places = spec and ([spec.origin] if spec.origin else spec.submodule_search_locations)
    place = next(iter(places or ()), None)
    with suppress(FileNotFoundError, NotADirectoryError):  # None, or within an archive
        if place and not Path(place).is_dir() and b"dp-turnstile" in Path(place).read_bytes():
            return
        if place is None or Path(place).exists():
            raise ImportError(
                f"the package accounting of dp-turnstile is missing; {place or 'nothing'} was "
                "found instead. Rename a file or folder of yours with this name, or uninstall "
                "the other distribution (pip uninstall accounting). Then run pip install "
                "--force-reinstall --no-deps dp-turnstile",
                name="accounting",
                path=place,
            )


_check_accounting()


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "streams.sdk.errors")), name)
    globals()[name] = found
    return found
