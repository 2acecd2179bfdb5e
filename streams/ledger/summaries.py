"""What a partition holds, in numbers that are kept and not counted when they are asked for."""

from __future__ import annotations

import msgspec

from streams.ledger.rosters import Rosters
from streams.ledger.runs import RunState, counted
from streams.ledger.state import State
from streams.records import Allowed, Policy

MOST_RUNS = 500
"""Of a summary, which is shown every few seconds."""


class DatasetSummary(msgspec.Struct, frozen=True):
    """One dataset in one partition."""

    policy: Policy
    users: int
    exhausted: int  # users with nothing left
    closed: bool = False
    allow: list[Allowed] | None = None  # the access list in force; None: the dataset is open


class RunSummary(msgspec.Struct, frozen=True):
    """A run in one partition, in numbers."""

    dataset: str
    run: str
    attempt: int
    step: int  # the last one decided, -1 before the first
    closed: bool
    users: int | None = None  # in the last step, or members; None where that is not kept
    halted: int | None = None  # of these


class Summary(msgspec.Struct, frozen=True):
    """What a partition holds, in numbers that are kept and not counted when they are asked for."""

    datasets: dict[str, DatasetSummary]
    open_runs: int
    closed_runs: int
    runs: list[RunSummary] = []  # open ones first, by name, and at most so many


def summary_of(state: State) -> Summary:
    """Of what a partition holds."""
    runs = sorted(state.runs.items(), key=lambda entry: (entry[1].closed, entry[0]))
    return Summary(
        {
            name: DatasetSummary(
                accounts.policy,
                len(accounts),
                accounts.exhausted_users,
                (name,) in state.closed,
                None if access is None else access.allow,
            )
            for name, accounts in state.datasets.items()
            for access in (state.authorization.of(name),)
        },
        len(state.runs) - state.runs.closed,
        state.runs.closed,
        [_run_summary(run, state.rosters) for _, run in runs[:MOST_RUNS]],
    )


def _run_summary(run: RunState, rosters: Rosters) -> RunSummary:
    address = run.dataset, run.run
    if run.of_roster and address in rosters:
        members = rosters.members[address]
        counts: tuple[int, int] | None = len(members), len(members.halted)
    else:
        counts = counted(run)
    users, halted = counts or (None, None)
    return RunSummary(run.dataset, run.run, run.attempt, run.step, run.closed, users, halted)
