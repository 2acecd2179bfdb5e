"""Runs, as the owners of the partitions last said: how far each is, and which were interrupted.

No state is read. Owners show every two seconds what is in their partitions, so that a run that is
at work is further in some of them than in others; only where all of the log is decided, and
everybody has said so, does a difference mean that a step did not reach all partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from streams.config import Config
from streams.ledger.summaries import RunSummary
from streams.operations.errors import Unavailable
from streams.operations.status import look_at, read_glances
from streams.store.port import Glance
from streams.store.vital_signs import Inventory, decode_inventory
from streams.topics.seen import TopicsUnavailable
from streams.topics.topics import Topics


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
    """Every run, the open ones first.

    Raises:
        Unavailable: Kafka or Redis does not answer, or nobody has said yet what is in a partition.
    """
    try:
        with Topics(config) as topics:
            partitions = look_at(topics, config)[0].partitions
            glances = read_glances(config, partitions)
            log = topics.extents(partitions)
    except TopicsUnavailable as error:
        raise Unavailable(str(error)) from error
    return runs_of(glances, [end for _, end in log])


def runs_of(glances: Sequence[Glance], ends: Sequence[int]) -> RunsSeen:
    """The runs of all partitions.

    Args:
        glances: at each partition.
        ends: of the log, asked for after that.

    Raises:
        Unavailable: nobody has said yet what is in a partition.
    """
    inventories = [decode_inventory(glance.summary) for glance in glances]
    known = [inventory for inventory in inventories if inventory is not None]
    if len(known) < len(glances):
        silent = [number for number, found in enumerate(inventories) if found is None]
        raise Unavailable(
            f"nobody has said yet what is in partitions {silent}: start a worker, and see "
            "`turnstile status`"
        )
    found: dict[tuple[str, str], list[RunSummary]] = {}
    for inventory in known:
        for run in inventory.summary.runs:
            found.setdefault((run.dataset, run.run), []).append(run)
    is_still = all(map(_is_still, known, glances, ends))
    runs = [_status(parts, len(glances), is_still) for _, parts in sorted(found.items())]
    told = sum(run.state == "closed" for run in runs)
    closed = max((inventory.summary.closed_runs for inventory in known), default=0)
    runs.sort(key=lambda run: run.state == "closed")
    return RunsSeen(runs, max(0, closed - told))


def _is_still(inventory: Inventory, glance: Glance, end: int) -> bool:
    """Whether all of the log is decided, and its owner has said what came of it."""
    next_offset, last = (int(glance.meta.get(name, "-1")) for name in ("next", "last"))
    return next_offset == end and inventory.last == last


def _status(parts: list[RunSummary], partitions: int, is_still: bool) -> RunStatus:
    steps = [part.step for part in parts]
    closed = sum(part.closed for part in parts)
    is_everywhere = len(parts) == partitions
    is_one = is_everywhere and len({(part.step, part.closed, part.attempt) for part in parts}) == 1
    users = [part.users for part in parts if part.users is not None]
    halted = [part.halted for part in parts if part.halted is not None]
    return RunStatus(
        dataset=parts[0].dataset,
        run=parts[0].run,
        state=(
            "closed"
            if closed == partitions
            else "interrupted"
            if is_still and not is_one
            else "open"
        ),
        step=min(steps) if is_everywhere else -1,
        charged=max(steps),
        attempt=max(part.attempt for part in parts),
        users=sum(users) if len(users) == len(parts) else None,
        halted=sum(halted) if len(halted) == len(parts) else None,
    )
