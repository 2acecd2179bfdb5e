"""Runs, as the owners of the partitions last said: how far each is, and which were interrupted.

No state is read. Owners show every two seconds what is in their partitions, so that a run that is
at work is further in some of them than in others. A difference means that a request did not reach
all partitions where one of these is true:

- all of the log is decided, and everybody has said so;
- the run has not moved for a while, and then all was decided that the log had by the end of it.

The second says it of each run, whoever else is at work. What a client has sent to some partitions
reaches the others within milliseconds, and not after seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streams.config import Config
from streams.kafka.seen import TopicsUnavailable
from streams.kafka.topics import Topics
from streams.ledger.summaries import RunSummary
from streams.operations.errors import Unavailable
from streams.operations.status import look_at, read_glances
from streams.store.port import Glance
from streams.store.vital_signs import Inventory, decode_inventory

UNMOVED_FOR = 2.0
"""Seconds after which a run that is not alike in all partitions is looked at again."""
_DECIDED_WITHIN = 6.0
_POLL = 0.5


@dataclass(frozen=True)
class RunStatus:
    """One run over all partitions.

    Attributes:
        state: "interrupted": its last request reached some of the partitions only.
        step: the last one that all partitions have decided, -1 for none.
        charged: the last one that some have.
        attempt: the last one.
        users: in its last step, or members of its roster; None where nobody keeps that.
        halted: of these.
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
    """All runs that are told of, and how many there are besides."""

    runs: list[RunStatus]
    closed_besides: int


def read_runs(config: Config) -> RunsSeen:
    """Every run, the open ones first; takes some seconds where it has to look again.

    Raises:
        Unavailable: Kafka or Redis does not answer, or nobody has said yet what is in a partition.
    """
    try:
        with Topics(config) as topics:
            partitions = look_at(topics, config)[0].partitions
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
    except TopicsUnavailable as error:
        raise Unavailable(str(error)) from error


def runs_of(
    glances: Sequence[Glance], ends: Sequence[int], before: Sequence[Glance] | None = None
) -> RunsSeen:
    """The runs of all partitions.

    Args:
        glances: at each partition.
        ends: of the log: asked for after ``glances``, or a while after ``before``.
        before: the glances before that; None where nobody has looked twice.

    Raises:
        Unavailable: nobody has said yet what is in a partition.
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
    told = sum(run.state == "closed" for run in runs)
    closed = max((inventory.summary.closed_runs for inventory in inventories), default=0)
    runs.sort(key=lambda run: run.state == "closed")
    return RunsSeen(runs, max(0, closed - told))


def _ends(topics: Topics, partitions: int) -> list[int]:
    return [end for _, end in topics.extents(partitions)]


def _inventories(glances: Sequence[Glance]) -> list[Inventory]:
    found = [decode_inventory(glance.summary) for glance in glances]
    known = [inventory for inventory in found if inventory is not None]
    if len(known) < len(glances):
        silent = [number for number, inventory in enumerate(found) if inventory is None]
        raise Unavailable(
            f"nobody has said yet what is in partitions {silent}: start a worker, and see "
            "`turnstile status`"
        )
    return known


def _parts(inventories: Sequence[Inventory]) -> dict[tuple[str, str], dict[int, RunSummary]]:
    """(dataset, run) -> what each partition that has it says."""
    found: dict[tuple[str, str], dict[int, RunSummary]] = {}
    for partition, inventory in enumerate(inventories):
        for run in inventory.summary.runs:
            found.setdefault((run.dataset, run.run), {})[partition] = run
    return found


def _places(parts: dict[int, RunSummary]) -> dict[int, tuple[int, int, bool]]:
    return {number: (run.attempt, run.step, run.closed) for number, run in parts.items()}


def _is_decided(glances: Sequence[Glance], ends: Sequence[int]) -> bool:
    """Whether all before these ends is decided, and its owners have said what came of it."""
    return all(map(_has_passed, _inventories(glances), glances, ends))


def _has_passed(inventory: Inventory, glance: Glance, end: int) -> bool:
    next_offset, last = (int(glance.meta.get(name, "-1")) for name in ("next", "last"))
    return inventory.last >= end - 1 or (next_offset >= end and inventory.last == last)


def _is_alike(parts: dict[int, RunSummary], partitions: int) -> bool:
    """Whether a run is the same in all partitions."""
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
