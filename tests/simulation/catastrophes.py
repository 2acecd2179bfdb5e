"""Catastrophes that no service survives: the log is replaced, or has lost records.

After a catastrophe nothing may be decided, and no earlier decision may be contradicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streams.store.layout import is_whole
from tests.doubles.memory_broker import MemoryTopic
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.service import Service


def another_log(world: World, _: Service) -> None:
    """Delete the topic and create it again; it is empty or has new records."""
    world.catastrophe = "other-log"
    world.lost.update(range(world.broker.partitions))
    world.broker.topic = b"another topic!!!"
    for partition in range(world.broker.partitions):
        log = world.broker.norms(partition)
        log.delete_before(log.end)
        log.start = log.end = log.leader_epoch = 0
    if world.rng.random() < 0.5:
        for partition in range(world.broker.partitions):
            for _ in range(world.store.next_of(partition)):
                world.append(partition, b"of another log")


def added_partitions(world: World, service: Service) -> None:
    """Add partitions to the topic; the next assignment may include them."""
    world.catastrophe = "other-partitions"
    world.broker.partitions += world.rng.choice((1, 1, 2))
    if world.rng.random() < 0.5:
        world.after(world.rng.uniform(0.0, 5.0), service.group.rebalance)


def deleted_records(world: World, _: Service) -> None:
    """Delete records that no worker has applied."""
    partition = world.rng.randrange(world.broker.partitions)
    log = _unapplied(world, partition)
    log.delete_before(log.end)
    world.catastrophe = "log-begins-late"


def hole(world: World, _: Service) -> None:
    """Remove records that no worker has applied, before others."""
    partition = world.rng.randrange(world.broker.partitions)
    log, first = _unapplied(world, partition), world.store.next_of(partition)
    log.remove(first, world.rng.randint(first + 1, log.end - 1))
    world.catastrophe = "hole"


def _unapplied(world: World, partition: int) -> MemoryTopic:
    """Return the log of a partition after appending records that no worker has fetched."""
    for _ in range(3):
        world.append(partition, b"a record not yet read")
    return world.broker.norms(partition)


def lost_tail(world: World, service: Service) -> None:
    """Lose the last records of a log in an election; some of them were applied.

    Clients that retry send the same bytes, so these may return to the same offsets: above all the
    last record, with other records before it. The connections break, or stay open.
    """
    rng, count = world.rng, world.broker.partitions
    for partition in rng.sample(range(count), count):
        log, meta = world.broker.norms(partition), world.store.contents(partition).meta
        reached, applied = int(meta["next"]), int(meta["last"]) + 1  # markers may lie in between
        # A damaged meta proves only how far records were applied (``worker.continuity``).
        if log.start < applied and reached == service.audit.reached(partition) and is_whole(meta):
            break
    else:
        return
    lost = dict(log.records)
    log.lose_from(max(log.start, applied - rng.choice((1, 1, 2, 4))))
    world.catastrophe = "lost-tail"
    world.lost.add(partition)
    if rng.random() < 0.7:
        while log.end < reached:
            _, value = lost.get(log.end, (None, b""))
            is_last = log.end == applied - 1
            world.append(partition, value if is_last or rng.random() < 0.5 else b"another")
    if rng.random() < 0.5:
        for process in service.slots:
            process.kill("its connections break")


CATASTROPHES: tuple[Callable[[World, Service], None], ...] = (
    another_log,
    added_partitions,
    deleted_records,
    hole,
    lost_tail,
    lost_tail,
    lost_tail,
)
