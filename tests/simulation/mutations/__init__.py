"""The guarantees of the service, each taken out of the real code, to see that the simulation
misses it.

``make simulate MUTATIONS=all`` says for each which seed found it, and after how many. A module has
those of one room.
"""

from __future__ import annotations

from tests.simulation.mutations import (
    access,
    acquisition,
    answerer,
    ledger,
    repartition,
    sdk,
    store,
    worker,
)
from tests.simulation.mutations.registry import MUTATIONS, mutated

__all__ = [
    "MUTATIONS",
    "access",
    "acquisition",
    "answerer",
    "ledger",
    "mutated",
    "repartition",
    "sdk",
    "store",
    "worker",
]
