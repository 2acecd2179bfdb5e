"""`turnstile status`: who owns each partition, how far it is, and what the datasets guarantee."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from streams.cli.output import Exit, plain, say, show, show_table
from streams.config import Config
from streams.operations.guarantees import budget_of
from streams.operations.status import (
    DatasetStatus,
    PartitionState,
    PartitionStatus,
    read_overview,
)

_PARTITIONS = ("partition", "owner", "next", "lag", "users", "snapshot", "seen", "state")
_DATASETS = ("dataset", "measure", "budget", "epsilon", "delta", "users", "state")
_WORDS = {"dataset", "measure", "budget", "state"}


def status(options: argparse.Namespace, config: Config) -> int:
    """Every partition and, for people, every dataset."""
    seen = read_overview(config)
    wrong = [
        partition for partition in seen.partitions if partition.state is not PartitionState.DECIDING
    ]
    if options.json:
        for partition in seen.partitions:
            show(asdict(partition), True)
    else:
        show_table(
            _PARTITIONS, [_row(partition) for partition in seen.partitions], {"owner", "state"}
        )
        for partition in wrong:
            problem = plain(partition.problem)
            say(f"\npartition {partition.partition} is {partition.state}: {problem}")
            say(f"-> {plain(partition.remedy)}")
        if seen.datasets:
            say("")
            found = [dataset for _, dataset in sorted(seen.datasets.items())]
            rows = [_dataset(each, options.delta) for each in found]
            show_table(_DATASETS, rows, _WORDS)
    return Exit.UNAVAILABLE if wrong else Exit.OK


def _row(partition: PartitionStatus) -> list[object]:
    return [
        partition.partition,
        partition.owner,
        partition.next,
        partition.lag,
        partition.users,
        partition.snapshot,
        None if partition.seen is None else f"{partition.seen} s ago",
        partition.state,
    ]


def _dataset(found: DatasetStatus, delta: float) -> list[object]:
    policy = found.policy
    guaranteed = [budget_of(policy), policy.epsilon(delta), delta]
    return [policy.dataset, policy.measure, *guaranteed, found.users, found.state]
