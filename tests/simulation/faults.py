"""What is done to Redis, to the log and to the group while the workers are at work, and which the
service has to survive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from streams.store.layout import STATE
from streams.store.snapshot import deletable
from tests.doubles.memory_broker import SNAPSHOTS, last_snapshot
from tests.doubles.memory_store import Contents
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.service import Service


_KEYS = (*STATE, "outbox", "outbox")
"""That nothing is missing from the outbox, which is seldom full, its count alone can say."""


def inject(world: World, service: Service) -> Iterator[Coroutine[Any, Any, None]]:
    """All faults of a seed, each by itself."""
    temper = world.temper
    for every, fault in (
        (temper.rewind_every, rewind),
        (temper.damage_every, damage),
        (temper.marker_every, _mark),
        (temper.election_every, _elect),
        (temper.garbage_every, _garbage),
        (temper.trim_every, trim),
        (temper.rebalance_every, lambda *_: service.group.rebalance()),
        (temper.evict_every, _evict),
        (temper.race_every, _race),
        (temper.flush_every, _flush),
    ):
        if every:
            yield _again(world, every, fault, service)


async def _again(world: World, every: float, fault: Callable[..., None], service: Service) -> None:
    while True:
        await asyncio.sleep(world.rng.expovariate(1.0 / every))
        fault(world, service)


def rewind(world: World, _: Service) -> None:
    """Redis goes back to what it was, a few writes ago or long ago, wholly or in part."""
    rng, store = world.rng, world.store
    history = store.history[world.floor :]
    partitions = list(range(world.broker.partitions))
    if rng.random() < 0.3:
        partitions = rng.sample(partitions, rng.randint(1, len(partitions)))
    back = min(len(history) - 1, rng.choice((1, 1, 2, 3, 5, 8)))
    copy = history[-1 - back] if rng.random() < 0.7 else rng.choice(history)
    copies = {p: copy.get(p, Contents()) for p in partitions}
    if not world.temper.jumps and any(map(store.is_ahead, copies, copies.values())):
        return
    _put_back(world, copies, drops=rng.random() < 0.5)


def restore(world: World, partition: int) -> None:
    """Redis goes ahead to the newest copy, if it has gone back: an operator has it."""
    newest = world.store.newest_whole(partition, world.floor)
    if world.temper.jumps and world.store.is_ahead(partition, newest):
        _put_back(world, {partition: newest}, drops=world.rng.random() < 0.5)


def _flush(world: World, _: Service) -> None:
    """Redis loses all that it has of one partition, or of all."""
    count = world.broker.partitions
    flush(world, range(count) if world.rng.random() < 0.5 else [world.rng.randrange(count)])


def flush(world: World, partitions: Iterable[int]) -> None:
    """Redis loses all that it has of these."""
    if world.catastrophe is None:
        _put_back(world, {p: Contents() for p in partitions}, drops=world.rng.random() < 0.5)


def clean(world: World, partition: int) -> None:
    """The topic of snapshots is compacted."""
    world.broker.compact(SNAPSHOTS, partition)
    world.look_at_snapshot(partition)


def _race(world: World, service: Service) -> None:
    """Redis loses its last write, and the owner its place in the group: who acquires the partition
    moves the version to where that owner believes it to be, which goes on for a while.
    """
    partition, history = world.rng.randrange(world.broker.partitions), world.store.history
    kept = history[-1].get(partition)
    before = next((c for copy in reversed(history) if (c := copy.get(partition)) is not kept), None)
    owner = kept.meta.get("owner") if kept else None
    for member in service.group.members:
        if before and member.name == owner == before.meta.get("owner") and world.floor == 0:
            _put_back(world, {partition: before}, drops=False)
            service.group.evict(member)
            return


def _put_back(world: World, copies: dict[int, Contents], drops: bool) -> None:
    store, partitions = world.store, list(copies)
    store.put_back(copies)
    store.connection += drops
    where = {p: f"version {store.contents(p).meta.get('version')}" for p in partitions}
    world.note("redis", f"goes to {where}, connections {'dropped' if drops else 'open'}")
    world.rewound.update(partitions)
    for partition in partitions:
        # A part of what was trimmed may be missing now.
        is_behind = store.next_of(partition) < world.broker.norms(partition).start
        if is_behind and not world.is_covered(partition):
            world.damaged.add(partition)


def damage(world: World, _: Service) -> None:
    """Redis loses one key of one partition, or a page goes back to what it was."""
    partition, key = world.rng.randrange(world.broker.partitions), world.rng.choice(_KEYS)
    kept = world.store.contents(partition)
    earlier = world.rng.choice(world.store.history).get(partition, Contents())
    older = [
        name for name in kept.pages if earlier.pages.get(name, b"") not in (b"", kept.pages[name])
    ]
    if older and world.rng.random() < 0.5 and world.catastrophe is None:
        name = world.rng.choice(older)
        kept.pages[name] = earlier.pages[name]
        world.damaged.add(partition)
        world.rewound.add(partition)
        world.exchanged.add(partition)
        world.note("redis", f"has an older page {name} of {partition}")
    elif getattr(kept, key) and world.catastrophe is None:
        world.store.lose(partition, key)
        world.damaged.add(partition)
        world.rewound.add(partition)
        world.note("redis", f"loses {key} of {partition}")


def _mark(world: World, _: Service) -> None:
    """A transaction of somebody ends in the log."""
    partition = world.rng.randrange(world.broker.partitions)
    offset = world.broker.norms(partition).mark()
    world.tell()
    world.note("log", f"{partition}/{offset} marker")


def _elect(world: World, _: Service) -> None:
    """A partition has another leader, which has all of its log."""
    partition = world.rng.randrange(world.broker.partitions)
    log = world.broker.norms(partition)
    log.leader_epoch += world.rng.choice((1, 2))
    world.note("log", f"{partition} has leader epoch {log.leader_epoch}")


def _garbage(world: World, _: Service) -> None:
    """Somebody writes to the log what nobody can read, or what was written before."""
    rng = world.rng
    partition = rng.randrange(world.broker.partitions)
    earlier = [value for p, _, value in world.log.records["norms"] if p == partition]
    choices: list[bytes | None] = [None, b"", b"{", rng.randbytes(rng.randint(1, 30))]
    if earlier:
        choices += [rng.choice(earlier), (rng.choice(earlier) or b"x")[:-1]]
    world.append(partition, rng.choice(choices))


def overlook(world: World) -> None:
    """What is written last to a log is left out by the stream, and no gap shows it."""
    partition = world.rng.randrange(world.broker.partitions)
    world.overlooked[partition, world.broker.norms(partition).end] = True
    world.append(partition, b"which nobody reads")


def trim(world: World, _: object = None) -> None:
    """What is applied is deleted from the log, or what a snapshot covers."""
    rng, partition = world.rng, world.rng.randrange(world.broker.partitions)
    log = world.broker.norms(partition)
    until = min(world.store.next_of(partition), log.end)
    if world.temper.trims_covered:
        snapshot = last_snapshot(world.broker, partition)
        until = deletable(snapshot) if snapshot else 0
    if until > log.start and partition not in world.damaged | world.lost:
        log.delete_before(until if rng.random() < 0.5 else rng.randint(log.start + 1, until))
        world.note("log", f"{partition} begins at {log.start}")


def _evict(world: World, service: Service) -> None:
    members = list(service.group.members)
    if members:
        member = world.rng.choice(members)
        world.note("group", f"drops {member.name}, which is alive")
        service.group.evict(member)
