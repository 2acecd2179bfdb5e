"""The topics and stored state of a simulated world, for `verify`."""

from __future__ import annotations

from collections.abc import Iterator

from streams.kafka.results import Extent
from streams.replay.archive import (
    Archive,
    ArchivedRecord,
    MissingRecord,
)
from streams.store.snapshot import Snapshot
from streams.store.stored_state import StoredState
from tests.doubles.memory_broker import last_snapshot
from tests.simulation.world import World


class WorldArchive(Archive):
    """Reads the broker and the store of a simulation offline."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topic, self.partitions = world.broker.topic, world.broker.partitions
        self.erasure_keys = " ".join(world.erasure_keys)

    def extent(self, topic: str, partition: int) -> Extent:
        found = self._world.broker.of(topic, partition)
        return Extent(found.start, found.end)

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        found = self._world.broker.of(topic, partition)
        for offset in range(*extent):
            if offset in found.records:
                yield ArchivedRecord(offset, *found.records[offset], 0.0)
            elif topic == "norms" and offset not in found.markers:
                raise MissingRecord(partition, offset)

    def snapshot(self, partition: int) -> Snapshot | None:
        return last_snapshot(self._world.broker, partition)

    def load(self, partition: int) -> StoredState | None:
        loading = self._world.store.load(partition)
        try:
            loading.send(None)
        except StopIteration as done:
            stored: StoredState | None = done.value
            return stored
        raise AssertionError("a store in memory waits for nothing")
