"""The progress of runs, from the summaries of the partitions' owners; finds interrupted runs.

No state is read. Owners report a summary every two seconds, so the summaries of an active run
differ between partitions. A difference means that a request did not reach all partitions if one of
these is true:

- the whole log is decided, and all owners have reported it;
- the run did not move for a while, after which all records were decided that the log had then.

The second condition also holds while other runs are active: a client sends a request to all
partitions within milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streams.config import Config, Unavailable
from streams.kafka.topics import Topics
from streams.ledger.ledger import RunSummary
from streams.operations.status import look_at, read_glances
from streams.store.store_port import Glance, Inventory, decode_inventory

UNMOVED_FOR = 2.0
"""The seconds after which a run that differs between partitions is read again."""
_DECIDED_WITHIN = 6.0
_POLL = 0.5


@dataclass(frozen=True)
class RunStatus:
    """One run over all partitions.

    Attributes:
        state: "interrupted" if its last request reached only some of the partitions.
        step: the last step that all partitions have decided, -1 for none.
        charged: the last step that any partition has decided.
        attempt: the last attempt.
        users: the users of its last step, or the members of its roster; None if unknown.
        halted: the number of these users that the last step halted.
    """

    dataset: str
    run: str
    state: Literal["open", "interrupted", "closed"]
    step: int
    charged: int
    attempt: int
    users: int | None
    halted: int | None


class RunsSeen(NamedTuple):
    """The listed runs, and the number of closed runs that are not listed."""

    runs: list[RunStatus]
    closed_besides: int


def read_runs(config: Config) -> RunsSeen:
    """Return every run, the open ones first; takes some seconds if runs have to be read again.

    Raises:
        Unavailable: Kafka or Redis does not answer, or a partition has no summary yet.
    """
    if config.budgets:
        glances = read_glances(config, 0)
        return runs_of(glances, [glance.state.next if glance.state else 0 for glance in glances])
    with Topics(config) as topics:
        partitions = look_at(topics, config).partitions
        glances = read_glances(config, partitions)
        ends = _ends(topics, partitions)
        all_alike = all(
            _is_alike(parts, partitions) for parts in _parts(_inventories(glances)).values()
        )
        if all_alike or _is_decided(glances, ends):
            return runs_of(glances, ends)
        time.sleep(UNMOVED_FOR)
        before, ends = glances, _ends(topics, partitions)
        deadline = time.monotonic() + _DECIDED_WITHIN
        while True:
            glances = read_glances(config, partitions)
            if _is_decided(glances, ends) or time.monotonic() > deadline:
                return runs_of(glances, ends, before)
            time.sleep(_POLL)


def runs_of(
    glances: Sequence[Glance], ends: Sequence[int], before: Sequence[Glance] | None = None
) -> RunsSeen:
    """Return the runs of all partitions.

    Args:
        glances: the facts about each partition.
        ends: the ends of the log, read after ``glances``, or a while after ``before``.
        before: earlier facts; None if they were read only once.

    Raises:
        Unavailable: a partition has no summary yet.
    """
    inventories = _inventories(glances)
    found = _parts(inventories)
    is_decided = _is_decided(glances, ends)
    then = None if before is None else _parts(_inventories(before))
    runs = [
        _status(
            parts,
            len(glances),
            is_still=is_decided and (then is None or _places(parts) == _places(then.get(name, {}))),
        )
        for name, parts in sorted(found.items())
    ]
    listed = sum(run.state == "closed" for run in runs)
    closed = max((inventory.summary.closed_runs for inventory in inventories), default=0)
    runs.sort(key=lambda run: run.state == "closed")
    return RunsSeen(runs, max(0, closed - listed))


def _ends(topics: Topics, partitions: int) -> list[int]:
    return [end for _, end in topics.extents(partitions)]


def _inventories(glances: Sequence[Glance]) -> list[Inventory]:
    found = [decode_inventory(glance.summary) for glance in glances]
    known = [inventory for inventory in found if inventory is not None]
    if len(known) < len(glances):
        silent = [number for number, inventory in enumerate(found) if inventory is None]
        raise Unavailable(
            f"partitions {silent} have no summary yet: start a worker, and look at `turnstile "
            "status`"
        )
    return known


def _parts(inventories: Sequence[Inventory]) -> dict[tuple[str, str], dict[int, RunSummary]]:
    """Return (dataset, run) -> the summary of each partition that has it."""
    found: dict[tuple[str, str], dict[int, RunSummary]] = {}
    for partition, inventory in enumerate(inventories):
        for run in inventory.summary.runs:
            found.setdefault((run.dataset, run.run), {})[partition] = run
    return found


def _places(parts: dict[int, RunSummary]) -> dict[int, tuple[int, int, bool]]:
    return {number: (run.attempt, run.step, run.closed) for number, run in parts.items()}


def _is_decided(glances: Sequence[Glance], ends: Sequence[int]) -> bool:
    """Return whether all records before these ends are decided and summarized."""
    return all(map(_has_passed, _inventories(glances), glances, ends))


def _has_passed(inventory: Inventory, glance: Glance, end: int) -> bool:
    if inventory.last >= end - 1:
        return True
    meta = glance.state
    return meta is not None and meta.next >= end and inventory.last == meta.chain.last


def _is_alike(parts: dict[int, RunSummary], partitions: int) -> bool:
    """Return whether a run is the same in all partitions."""
    return len(parts) == partitions and len(set(_places(parts).values())) == 1


def _status(found: dict[int, RunSummary], partitions: int, *, is_still: bool) -> RunStatus:
    parts = list(found.values())
    steps = [part.step for part in parts]
    closed = sum(part.closed for part in parts)
    is_everywhere = len(parts) == partitions
    users = [part.users for part in parts if part.users is not None]
    halted = [part.halted for part in parts if part.halted is not None]
    return RunStatus(
        dataset=parts[0].dataset,
        run=parts[0].run,
        state=(
            "closed"
            if closed == partitions
            else "interrupted"
            if is_still and not _is_alike(found, partitions)
            else "open"
        ),
        step=min(steps) if is_everywhere else -1,
        charged=max(steps),
        attempt=max(part.attempt for part in parts),
        users=sum(users) if len(users) == len(parts) else None,
        halted=sum(halted) if len(halted) == len(parts) else None,
    )
