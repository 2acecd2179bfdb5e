"""`turnstile verify` finds nothing wrong with a service that was under every fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streams.offline.archive import Archive, Extent, States, Stored
from streams.offline.findings import Check
from streams.offline.results import Verified
from streams.offline.verification import verify
from streams.store.image import Image
from streams.store.snapshot import Snapshot
from streams.worker.memory_broker import last_image
from tests.simulation.audit import Audit
from tests.simulation.simulation import simulate
from tests.simulation.told import Told
from tests.simulation.world import World

SEEDS = range(310, 318)


class Seen(Archive, States):
    """What the broker and the store of a simulation have."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.topic, self.partitions = world.broker.topic, world.broker.partitions

    def extent(self, topic: str, partition: int) -> Extent:
        found = self._world.broker.of(topic, partition)
        return Extent(found.start, found.end)

    def read(self, topic: str, partition: int, extent: Extent) -> Iterator[Stored]:
        records = self._world.broker.of(topic, partition).records
        for offset in sorted(records):
            if extent.start <= offset < extent.end:
                yield Stored(offset, *records[offset], 0.0)

    def image(self, partition: int) -> Image | None:
        return last_image(self._world.broker, partition)

    def load(self, partition: int) -> Snapshot | None:
        loading = self._world.store.load(partition)
        try:
            loading.send(None)
        except StopIteration as done:
            snapshot: Snapshot | None = done.value
            return snapshot
        raise AssertionError("a store in memory waits for nothing")


@pytest.mark.slow
def test_nothing_wrong_is_found_where_the_auditor_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audit.when_settled
    seen: list[Verified] = []

    async def when_settled(audit: Audit, told: Told) -> Any:
        await audited(audit, told)
        seen.append(verify(Seen(audit.world), Seen(audit.world)))

    monkeypatch.setattr(Audit, "when_settled", when_settled)
    for seed in SEEDS:
        simulate(seed)
    assert len(seen) >= len(SEEDS) // 2
    for part in (part for result in seen for part in result.partitions):
        # A log whose beginning is gone without a checkpoint is all that cannot be compared.
        assert {finding.check for finding in part.findings.kept} <= {Check.LOG}, part.findings.kept
        assert (part.state_at is not None) is not bool(part.impossible)
        assert bool(part.impossible) is (part.start > 0 and part.began == 0)
    # Faults have left their traces: some logs were applied from a checkpoint on.
    assert any(part.began for result in seen for part in result.partitions)
