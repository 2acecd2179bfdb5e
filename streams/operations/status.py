"""The status of a service, from the facts that its parts show without reading any state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from streams.config import Config, Unavailable
from streams.kafka.results import TopicsSeen
from streams.kafka.topics import NORMS, Topics
from streams.operations.guarantees import Amounts
from streams.records import AccessList, Holder, Policy
from streams.sdk.budget_file import BudgetFile
from streams.store.layout import chain_fields, fields_of_nothing, with_meta_digest
from streams.store.misfit import Problem, Suspensions
from streams.store.store_port import (
    Glance,
    Inventory,
    Pulse,
    Store,
    SuspensionReason,
    decode_inventory,
    decode_pulse,
    pack_report,
)

if TYPE_CHECKING:
    from streams.store.redis_store import RedisStore

T = TypeVar("T")

SILENT_AFTER = 10
"""Seconds without a sign of the owner, by the clock of Redis, after which it counts as gone."""
STALLED_AFTER = 10.0
"""Seconds for which records may wait while none is applied."""
_SUMMARY_WITHIN = 5.0
_POLL = 0.1


class PartitionState(StrEnum):
    """The state of a partition."""

    DECIDING = "deciding"  # a worker decides them
    RESTORING = "restoring"  # a worker restores the state from a snapshot; decisions follow
    WAITING = "waiting"  # no worker decides them now
    SUSPENDED = "suspended"  # no worker decides them until the cause is removed


class WaitReason(StrEnum):
    """Why no worker decides a partition that is not suspended."""

    NO_STATE = "no-state"  # no worker has owned it since Redis was empty
    NOT_SEEN = "not-seen"  # its owner has not sent a heartbeat yet
    MOVED = "moved"  # the log of a budget file was moved into a service
    OWNER_SILENT = "owner-silent"  # its owner sends no heartbeat any more
    STALLED = "stalled"  # its owner lives, and applies no record


@dataclass(frozen=True)
class PartitionStatus:
    """The status of one partition.

    Attributes:
        state: whether it is decided.
        owner: the worker that owns it; None if Redis has no state.
        next: the offset to apply next.
        lag: the number of records in the log that are not decided.
        users: the number of users; None if no owner has reported it.
        unpublished: the number of outbox entries that wait to be published.
        changes: the number of deltas that are not merged.
        seen: the seconds since the owner's last heartbeat; None if there was none.
        head: the head of the hash chain; None if nothing was applied.
        snapshot: the offset at which the last snapshot continues; None if there is none, or it
            is not known.
        reason: why it is not decided, a ``SuspensionReason`` or ``WaitReason``; None if it is.
    """

    partition: int
    state: PartitionState
    owner: str | None
    next: int
    lag: int
    users: int | None
    unpublished: int
    changes: int
    seen: int | None
    head: str | None
    snapshot: int | None
    reason: str | None = None
    problem: str | None = None
    remedy: str | None = None


@dataclass
class DatasetStatus:
    """One dataset over all partitions."""

    policy: Policy
    users: int = 0
    exhausted: int = 0
    closed: bool = False
    allow: AccessList | None = None  # in force in the first partition; None: the dataset is open
    allow_agrees: bool = True  # whether it is in force in all partitions
    holder: Holder | None = None  # the run that holds the budget, if one does
    worst_case: list[int] | None = None  # the units spent in the worst case, in any partition

    @property
    def worst_case_left(self) -> list[float]:
        """Return what is left of the budget in the worst case, rounded down: by order, or one."""
        spent = self.worst_case or [0] * len(self.policy.budget)
        return Amounts(self.policy).left(np.array(spent, dtype=np.int64), None)

    @property
    def state(self) -> str:
        """Return open or closed."""
        return "closed" if self.closed else "open"


@dataclass(frozen=True)
class Overview:
    """The present status of a service.

    Attributes:
        erased_without_key: partitions with erased users whose ids can be guessed.
    """

    partitions: list[PartitionStatus]
    datasets: dict[str, DatasetStatus]
    erased_without_key: Sequence[int] = ()


def read_overview(config: Config) -> Overview:
    """Return the status of every partition, and of the datasets that owners have reported.

    Raises:
        Unavailable: Kafka or Redis does not answer.
        UnusableFile: the budget file cannot be read.
    """
    if config.budgets:
        return _overview_of_file(config)
    with Topics(config) as topics:
        seen = look_at(topics, config)
        # Before the end of the log, which is never behind what was decided then.
        glances = read_glances(config, seen.partitions)
        log = topics.extents(seen.partitions)
    return overview_of(config.prefix, seen, log, glances)


def look_at(topics: Topics, config: Config) -> TopicsSeen:
    """Return the topics, after checking that norms exists.

    Raises:
        Unavailable: Kafka does not answer, or there is no log.
    """
    seen = topics.look()
    if not seen.partitions:
        raise Unavailable(
            f"topic {config.topic(NORMS)} does not exist. The first worker creates it. If it "
            "existed before, it was deleted: restore it from a copy of Kafka's data, or all "
            "spending is lost"
        )
    return seen


def overview_of(
    prefix: str,
    topics: TopicsSeen,
    log: Sequence[tuple[int, int]],
    glances: Sequence[Glance],
) -> Overview:
    """Combine the facts of topics, log and Redis."""
    partitions, without_key = [], []
    for partition, ((start, end), glance) in enumerate(zip(log, glances, strict=True)):
        pulse = decode_pulse(glance.pulse)
        own = Suspensions(prefix, partition, topics.topic, topics.partitions, start, end)
        obstacle = _obstacle(own, glance, pulse, topics.problem)
        partitions.append(_status(partition, glance, pulse, end, obstacle))
        if pulse and pulse.erased_without_key:
            without_key.append(partition)
    return Overview(partitions, datasets_of(glances), without_key)


def datasets_of(glances: Iterable[Glance]) -> dict[str, DatasetStatus]:
    """Return every dataset that the partitions' owners have reported."""
    datasets: dict[str, DatasetStatus] = {}
    for glance in glances:
        inventory = decode_inventory(glance.summary)
        for name, found in inventory.summary.datasets.items() if inventory else ():
            dataset = datasets.setdefault(name, DatasetStatus(found.policy, allow=found.allow))
            dataset.allow_agrees &= dataset.allow == found.allow
            dataset.users += found.users
            dataset.exhausted += found.exhausted
            dataset.closed |= found.closed
            dataset.holder = dataset.holder or found.holder
            worst = found.worst_case or []
            dataset.worst_case = list(map(max, dataset.worst_case or worst, worst))
    return datasets


def read_datasets(config: Config, *, moved_too: bool = True) -> dict[str, DatasetStatus]:
    """Return every dataset, with all records that are decided by now.

    Args:
        config: the settings with the service's addresses, or the budget file.
        moved_too: whether to read a budget file whose budgets a service continues.

    Raises:
        Unavailable: Kafka or Redis does not answer, or a partition was never decided.
        UnusableFile: the budget file cannot be read, or was moved.
    """
    if config.budgets:
        return datasets_of(_read_file(config, moved_too=moved_too)[1])
    return datasets_of(_current_glances(config, topics_of(config).partitions))


def _read_file(config: Config, *, moved_too: bool = True) -> tuple[bytes | None, list[Glance]]:
    """Return the log into which a budget file was moved, and the facts about its partitions."""
    now = int(time.time())
    with closing(BudgetFile(config.budgets, config.timeout, writable=False)) as file:
        if not moved_too:
            file.check_moved()
        moved_to, ledgers = file.moved_to(), file.load()
        metas = [file.fields(partition) for partition in range(file.partitions)]
    glances = []
    for meta, ledger in zip(metas, ledgers, strict=True):
        last, nothing = ledger.chain.last, fields_of_nothing(b"", 0, 0)
        meta = {**nothing, **meta, **chain_fields(ledger.chain), "next": str(last + 1)}
        summary = pack_report(Inventory(last, ledger.summary()))
        glances.append(Glance(now, with_meta_digest(meta), None, b"", summary, {}))
    return moved_to, glances


def _overview_of_file(config: Config) -> Overview:
    moved_to, glances = _read_file(config)
    moved = None
    if moved_to is not None:
        problem = f"its log continues in a service as {moved_to.hex()}"
        moved = Problem(WaitReason.MOVED, problem, "Use the service")
    partitions = [_status(number, glance, None, 0, moved) for number, glance in enumerate(glances)]
    return Overview(partitions, datasets_of(glances))


def read_owners(config: Config, partitions: int) -> list[str]:
    """Return the owner of every partition; empty if Redis has no state.

    Raises:
        Unavailable: Redis does not answer.
    """
    return [glance.meta.get("owner", "") for glance in read_glances(config, partitions)]


def topics_of(config: Config) -> TopicsSeen:
    """Return the topics, after checking that norms exists.

    Raises:
        Unavailable: Kafka does not answer, or there is no log.
    """
    with Topics(config) as topics:
        return look_at(topics, config)


def _status(
    partition: int,
    glance: Glance,
    pulse: Pulse | None,
    log_end: int,
    obstacle: Problem | None,
) -> PartitionStatus:
    meta, inventory = glance.state, decode_inventory(glance.summary)
    reached = meta or pulse
    next_offset = reached.next if reached else 0
    state = PartitionState.DECIDING
    if obstacle is not None:
        state = PartitionState.SUSPENDED if glance.suspended else PartitionState.WAITING
        if obstacle.reason is SuspensionReason.RESTORING:
            state = PartitionState.RESTORING
    return PartitionStatus(
        partition=partition,
        state=state,
        owner=glance.meta.get("owner") or None,
        next=next_offset,
        lag=max(0, log_end - next_offset),
        users=sum(d.users for d in inventory.summary.datasets.values()) if inventory else None,
        unpublished=meta.outbox if meta else 0,
        changes=meta.changes if meta else 0,
        seen=None if glance.seen is None else max(0, glance.now - glance.seen),
        head=meta.chain.head.hex() if meta else None,
        snapshot=pulse.snapshot if pulse else None,
        reason=obstacle.reason if obstacle else None,
        problem=obstacle.problem if obstacle else None,
        remedy=obstacle.remedy if obstacle else None,
    )


def _obstacle(
    own: Suspensions, glance: Glance, pulse: Pulse | None, problem: str | None
) -> Problem | None:
    """Return why no worker decides a partition: the first cause that is seen, if there is one."""
    meta, stored = glance.meta, glance.suspended
    if stored:
        try:
            reason = SuspensionReason(stored.get("reason", ""))
        except ValueError:  # a worker of another release stored it
            reason = SuspensionReason.OTHER_LAYOUT
        return Problem(reason, stored.get("problem", ""), stored.get("remedy", ""))
    if problem:
        return own.topics(problem)
    next_offset = glance.state.next if glance.state else 0
    # Whether the state of an empty Redis can be built again, the next worker says.
    if meta and (misfit := own.unusable(meta) or own.out_of_log(next_offset)):
        return misfit
    lag, silent = own.log_end - next_offset, glance.now - (glance.seen or 0)
    stalled = pulse.waiting if pulse else 0.0
    waiting = f", and {lag} records wait" if lag > 0 else ""
    checks: tuple[tuple[bool, str, str, str], ...] = (
        (
            bool(meta) and glance.state is None,
            SuspensionReason.DAMAGED,
            "the state in Redis has numbers that no worker wrote",
            "Restart the workers: they restore the state from the snapshot and the log",
        ),
        (
            not meta.get("owner"),
            WaitReason.NO_STATE,
            "Redis has no state of it",
            "If a worker is starting, wait: it builds the state from the snapshot and the log. "
            "Otherwise start a worker",
        ),
        (
            glance.seen is None or pulse is None,
            WaitReason.NOT_SEEN,
            "its owner has not sent a heartbeat yet",
            "Wait some seconds. If nothing changes, read the worker's log",
        ),
        (
            silent > SILENT_AFTER,
            WaitReason.OWNER_SILENT,
            f"its owner sent its last heartbeat {silent} seconds ago{waiting}",
            "Start a worker. If it exits, `turnstile doctor` looks for the cause",
        ),
        (
            lag > 0 and stalled > STALLED_AFTER,
            WaitReason.STALLED,
            f"{lag} records wait, and none was applied for {stalled:.0f} seconds",
            "Read the worker's log",
        ),
    )
    return next((Problem(*check[1:]) for check in checks if check[0]), None)


def _current_glances(config: Config, partitions: int) -> list[Glance]:
    """Return the facts about every partition; wait for owners that are about to report them."""

    async def read(store: Store) -> list[Glance]:
        wanted: list[int] = []
        deadline = time.monotonic() + _SUMMARY_WITHIN
        while True:
            glances = [await store.glance(partition) for partition in range(partitions)]
            metas = (glance.state for glance in glances)
            wanted = wanted or [meta.chain.last if meta else -1 for meta in metas]
            older = [
                number
                for number, (glance, last) in enumerate(zip(glances, wanted, strict=True))
                if (found := decode_inventory(glance.summary)) is None or found.last < last
            ]
            if not older:
                return glances
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"partitions {older} have no current summary: start a worker, and look at "
                    "`turnstile status`"
                )
            await asyncio.sleep(_POLL)

    return from_redis(config, read)


def read_glances(config: Config, partitions: int) -> list[Glance]:
    """Return the facts about every partition that can be read without its state.

    Raises:
        Unavailable: Redis does not answer.
    """
    if config.budgets:
        return _read_file(config)[1]

    async def read(store: Store) -> list[Glance]:
        return [await store.glance(partition) for partition in range(partitions)]

    return from_redis(config, read)


def read_redis_facts(config: Config) -> list[dict[str, Any]]:
    """Return the facts of each Redis server.

    Raises:
        Unavailable: Redis does not answer.
    """

    return from_redis(config, lambda store: store.facts())


def from_redis(config: Config, read: Callable[[RedisStore], Awaitable[list[T]]]) -> list[T]:
    """Return what a function reads from Redis.

    Raises:
        StoreUnavailable: Redis does not answer.
    """

    from streams.store.redis_store import RedisStore  # needs redis, which clients lack

    async def connected() -> list[T]:
        async with RedisStore.of(config) as store:
            return await read(store)

    return asyncio.run(connected())
