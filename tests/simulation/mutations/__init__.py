"""Mutations: each removes one guarantee from the code, and the simulation must notice it.

``make simulate MUTATIONS=all`` prints for each mutation the first seed that finds it, and how many
seeds it took. Each module has the mutations of one package.
"""

from __future__ import annotations

from tests.simulation.mutations import (
    access,
    acquisition,
    answerer,
    collecting,
    ledger,
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
    "collecting",
    "ledger",
    "mutated",
    "sdk",
    "store",
    "worker",
]
