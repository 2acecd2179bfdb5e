"""Faults of Redis, of the log and of the consumer group, which the service must survive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from streams.ledger import validation
from streams.store import layout, misfit
from streams.store.layout import COVERED_FIELDS, STATE, is_whole
from streams.store.snapshot import deletable
from tests.bits import flipped, flipped_text
from tests.doubles.memory_broker import SNAPSHOTS, last_snapshot
from tests.doubles.memory_store import Contents
from tests.simulation.world import World, Wrong

if TYPE_CHECKING:
    from tests.simulation.service import Service


_KEYS = (*STATE, "outbox", "outbox")
"""The outbox counts twice: it is rarely full, and only its count shows that an entry is missing."""
_FLIPPED_FIELDS = sorted({*COVERED_FIELDS} - {"next", "last", "head"})
"""Without those that the simulation itself reads; ``tests.flips`` flips all."""
_TRIED_FOR = 20.0  # seconds


def inject(world: World, service: Service) -> Iterator[Coroutine[Any, Any, None]]:
    """Yield a task for each kind of fault of a seed."""
    settings = world.settings
    for every, fault in (
        (settings.rewind_every, rewind),
        (settings.damage_every, damage),
        (settings.marker_every, _mark),
        (settings.election_every, _elect),
        (settings.garbage_every, _garbage),
        (settings.trim_every, trim),
        (settings.rebalance_every, lambda *_: service.group.rebalance()),
        (settings.evict_every, _evict),
        (settings.race_every, _race),
        (settings.flush_every, _flush),
        (settings.rotate_every, _rotate),
    ):
        if every:
            yield _again(world, every, fault, service)


async def _again(world: World, every: float, fault: Callable[..., None], service: Service) -> None:
    while True:
        await asyncio.sleep(world.rng.expovariate(1.0 / every))
        fault(world, service)


def rewind(world: World, _: Service) -> None:
    """Return Redis to an older state, in all partitions or in some."""
    rng, store = world.rng, world.store
    history = store.history[world.floor :]
    partitions = list(range(world.broker.partitions))
    if rng.random() < 0.3:
        partitions = rng.sample(partitions, rng.randint(1, len(partitions)))
    back = min(len(history) - 1, rng.choice((1, 1, 2, 3, 5, 8)))
    copy = history[-1 - back] if rng.random() < 0.7 else rng.choice(history)
    copies = {p: copy.get(p, Contents()) for p in partitions}
    if not world.settings.jumps and any(map(store.is_ahead, copies, copies.values())):
        return
    _replace_contents(world, copies, drops=rng.random() < 0.5)


def restore(world: World, partition: int) -> None:
    """Return Redis to its newest state, if it has an older one."""
    newest = world.store.newest_intact(partition, world.floor)
    if world.settings.jumps and world.store.is_ahead(partition, newest):
        _replace_contents(world, {partition: newest}, drops=world.rng.random() < 0.5)


def _flush(world: World, _: Service) -> None:
    """Delete the Redis state of one partition, or of all."""
    count = world.broker.partitions
    flush(world, range(count) if world.rng.random() < 0.5 else [world.rng.randrange(count)])


def flush(world: World, partitions: Iterable[int]) -> None:
    """Delete the Redis state of these partitions."""
    if world.catastrophe is None:
        _replace_contents(
            world, {p: Contents() for p in partitions}, drops=world.rng.random() < 0.5
        )


def clean(world: World, partition: int) -> None:
    """Compact the topic snapshots."""
    world.broker.compact(SNAPSHOTS, partition)
    world.check_snapshot(partition)


def _rotate(world: World, service: Service) -> None:
    """Put a new erasure key before the others, and restart some workers."""
    world.erasure_keys.insert(0, f"key-{len(world.erasure_keys)}")
    world.note("operator", f"gives the workers {world.erasure_keys}")
    for process in service.slots:
        if world.rng.random() < 0.3:
            process.kill("the operator restarts it with another erasure key")


async def run_another_release(world: World, service: Service, chance: Random) -> None:
    """Run the workers of a release that decides differently, and then those of this one again.

    Raises:
        Wrong: the other release decides or publishes something.
    """
    partitions = range(world.broker.partitions)
    other = layout.LAYOUT + 1
    with_snapshot = [p for p in partitions if last_snapshot(world.broker, p) is not None]
    emptied = [p for p in with_snapshot if chance.random() < 0.5]
    with (
        patch.object(layout, "LAYOUT", other),
        patch.object(misfit, "LAYOUT", other),
        patch.object(validation, "MAX_CHARGE_USERS", 0),
    ):
        for process in service.slots:
            process.kill("the operator installs another release")
        flush(world, emptied)
        for partition in partitions:
            world.append(partition, b"of another release")
        before = world.positions()
        await asyncio.sleep(_TRIED_FOR)
        if (after := world.positions()) != before:
            raise Wrong(f"another release goes on: {after}, after {before}")
        for process in service.slots:
            process.kill("the operator installs the release from before")
    # Where Redis had nothing, the other release has written that nothing is applied.
    layouts = {p: world.store.contents(p).meta.get("layout") for p in partitions}
    flush(world, [p for p, found in layouts.items() if found == str(other)])
    # No later rollback goes back to that release, nor to its reason for a suspension.
    world.floor = len(world.store.history) - 1
    for kept in (*world.store.history[-1].values(), *map(world.store.contents, partitions)):
        kept.suspended = {}


def _race(world: World, service: Service) -> None:
    """Let Redis lose its last write, and the owner its place in the group.

    The next owner then raises the version to the one that the old owner expects. The old owner
    continues for a while.
    """
    partition, history = world.rng.randrange(world.broker.partitions), world.store.history
    kept = history[-1].get(partition)
    before = next((c for copy in reversed(history) if (c := copy.get(partition)) is not kept), None)
    owner = kept.meta.get("owner") if kept else None
    for member in service.group.members:
        if before and member.name == owner == before.meta.get("owner") and world.floor == 0:
            _replace_contents(world, {partition: before}, drops=False)
            service.group.evict(member)
            return


def _replace_contents(world: World, copies: dict[int, Contents], drops: bool) -> None:
    store, partitions = world.store, list(copies)
    store.replace_contents(copies)
    store.connection += drops
    where = {p: f"version {store.contents(p).meta.get('version')}" for p in partitions}
    world.note("redis", f"goes to {where}, connections {'dropped' if drops else 'open'}")
    world.rewound.update(partitions)
    for partition in partitions:
        # Trimmed records may now be missing.
        is_behind = store.next_of(partition) < world.broker.norms(partition).start
        if is_behind and not world.is_covered(partition):
            world.damaged.add(partition)


def damage(world: World, _: Service) -> None:
    """Delete one key of a partition from Redis, or return a page to an older version."""
    partition, key = world.rng.randrange(world.broker.partitions), world.rng.choice(_KEYS)
    kept = world.store.contents(partition)
    earlier = world.rng.choice(world.store.history).get(partition, Contents())
    older = [
        name for name in kept.pages if earlier.pages.get(name, b"") not in (b"", kept.pages[name])
    ]
    if older and world.rng.random() < 0.5 and world.catastrophe is None:
        name = world.rng.choice(older)
        kept.pages[name] = earlier.pages[name]
        world.exchanged.add(partition)
        what = f"has an older page {name}"
    elif not getattr(kept, key) or world.catastrophe is not None:
        return
    elif world.rng.random() < 0.5:
        world.exchanged.add(partition)
        what = f"has another bit in {_flip(kept, key, world.rng)}"
    else:
        world.store.lose(partition, key)
        what = f"loses {key}"
    world.damaged.add(partition)
    world.rewound.add(partition)
    world.note("redis", f"{what} of {partition}")


def _flip(kept: Contents, key: str, rng: Random) -> str:
    """Flip a bit of a delta, a page, an outbox entry or a field of meta that is state."""
    held = getattr(kept, key)
    names = range(len(held)) if isinstance(held, list) else sorted(held)
    if not is_whole(kept.meta):  # two flipped fields may look like the meta of another layout
        return "nothing"
    name = rng.choice(names if key != "meta" else _FLIPPED_FIELDS)
    if value := held.get(name) if isinstance(held, dict) else held[name]:
        is_text = isinstance(value, str)
        held[name] = flipped_text(value, rng) if is_text else flipped(value, rng)
    return f"{key} {name}"


def _mark(world: World, _: Service) -> None:
    """Append a transaction marker to the log."""
    partition = world.rng.randrange(world.broker.partitions)
    offset = world.broker.norms(partition).mark()
    world.tell()
    world.note("log", f"{partition}/{offset} marker")


def _elect(world: World, _: Service) -> None:
    """Elect another leader of a partition, which has all of its log."""
    partition = world.rng.randrange(world.broker.partitions)
    log = world.broker.norms(partition)
    log.leader_epoch += world.rng.choice((1, 2))
    world.note("log", f"{partition} has leader epoch {log.leader_epoch}")


def _garbage(world: World, _: Service) -> None:
    """Write an unreadable record to the log, or repeat an earlier one."""
    rng = world.rng
    partition = rng.randrange(world.broker.partitions)
    earlier = [value for p, _, value in world.log.records["norms"] if p == partition]
    choices: list[bytes | None] = [None, b"", b"{", rng.randbytes(rng.randint(1, 30))]
    if earlier:
        choices += [rng.choice(earlier), (rng.choice(earlier) or b"x")[:-1]]
    world.append(partition, rng.choice(choices))


def overlook(world: World) -> None:
    """Append a record that the stream skips, and that no later record reveals."""
    partition = world.rng.randrange(world.broker.partitions)
    world.overlooked[partition, world.broker.norms(partition).end] = True
    world.append(partition, b"left out by stream")


def trim(world: World, _: object = None) -> None:
    """Delete applied records from the log, or records that a snapshot covers."""
    rng, partition = world.rng, world.rng.randrange(world.broker.partitions)
    log = world.broker.norms(partition)
    until = min(world.store.next_of(partition), log.end)
    if world.settings.trims_covered:
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
