"""What no service survives: the log is another one, or has lost records. Nothing may be decided
then, and nothing that was said may have to be taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


def another_log(world: World, _: Simulation) -> None:
    """The topic is deleted and created again, empty."""
    world.catastrophe = "other-log"
    world.lost.update(range(world.broker.partitions))
    world.broker.topic = b"another topic!!!"
    for partition in range(world.broker.partitions):
        log = world.broker.norms(partition)
        log.delete_before(log.end)
        log.start = log.end = 0


def added_partitions(world: World, simulation: Simulation) -> None:
    """Partitions are added to the topic; whoever looks next has some of them."""
    world.catastrophe = "other-partitions"
    world.broker.partitions += world.rng.choice((1, 1, 2))
    world.after(world.rng.uniform(0.0, 5.0), simulation.group.rebalance)


def deleted_records(world: World, _: Simulation) -> None:
    """Records that nobody has applied are deleted."""
    partition = world.rng.randrange(world.broker.partitions)
    log = world.broker.norms(partition)
    log.delete_before(log.end)
    if log.end > world.store.next_of(partition):
        world.catastrophe = "log-begins-late"


def hole(world: World, _: Simulation) -> None:
    """A record that nobody has applied is missing, and others follow it."""
    partition = world.rng.randrange(world.broker.partitions)
    log, first = world.broker.norms(partition), world.store.next_of(partition)
    if first + 1 < log.end:
        log.remove(first, world.rng.randint(first + 1, log.end - 1))
        world.catastrophe = "hole"


def lost_tail(world: World, simulation: Simulation) -> None:
    """An election loses the last records, of which some were applied; connections break.

    That the log is another one is seen by the last record that was applied, and by no other. Who
    asks again sends the same bytes: if they come to stand at the same offset, nobody can see it.
    """
    partition = world.rng.randrange(world.broker.partitions)
    log, reached = world.broker.norms(partition), world.store.next_of(partition)
    if log.start < reached == simulation.audit.reached(partition):
        end = max(log.start, reached - world.rng.choice((1, 1, 2, 4)))
        world.not_again[partition] = reached - 1, log.records.get(reached - 1, (None, b""))[1]
        log.remove(end, log.end)
        log.end = end
        world.catastrophe = "lost-tail"
        world.lost.add(partition)
        for process in simulation.slots:
            process.kill("its connections break")
        for seconds in (6.0, 10.0, 14.0, 18.0):  # what has grown again is looked at again
            world.after(seconds, simulation.group.rebalance)


CATASTROPHES: tuple[Callable[[World, Simulation], None], ...] = (
    another_log,
    added_partitions,
    deleted_records,
    hole,
    lost_tail,
    lost_tail,
)
