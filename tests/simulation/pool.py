"""The result of one seed, as a process of a pool returns it."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.audit import forget
from tests.simulation.simulation import simulate


class Result(NamedTuple):
    """The result of one seed."""

    seed: int
    wrong: str | None
    records: int
    steps: int


def result_of(seed: int) -> Result:
    """Run one seed."""
    outcome = simulate(seed)
    forget()
    return Result(seed, outcome.wrong, outcome.records, outcome.steps)
