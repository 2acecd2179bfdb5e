"""A repartition in memory, with a crash at any of its effects."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from streams import Turnstile
from streams.answerer.journal import carry_over
from streams.ledger.ledger import Ledger, ledger_of
from streams.ledger.repartition import Imported
from streams.records import CloseRun, encode
from streams.replay.archive import Archive
from streams.replay.repartition import Logs, install, repartition
from tests.doubles.memory_broker import MemoryBroker, MemoryClient
from tests.doubles.memory_journal import MemoryJournal, MemoryTopics
from tests.unit.replay.service import Archived, used

NEW = b"topic of another"


class Crash(Exception):
    """The process of the repartition ends here."""


class MemoryLogs(Logs):
    """The port of a repartition. The process ends before the effect ``crash_at``.

    Attributes:
        effects: the number of effects so far.
    """

    def __init__(self, old: Archived, *, crash_at: int = -1) -> None:
        self.old: Archive = old
        self.service = old
        self.next: Archived | None = None
        self.broker = MemoryBroker(0, NEW)
        self.answers, self.next_answers = MemoryTopics(), MemoryTopics()
        self.shown: Counter[tuple[str, int]] = Counter()
        self.effects = 0
        self.crash_at = crash_at

    def new(self) -> Archive | None:
        return self.next

    def create(self, partitions: int) -> Archive:
        if self.next is None:
            self._effect(lambda: self.create_log(partitions))
        assert self.next is not None
        return self.next

    def begin(self, partition: int, record: bytes) -> None:
        assert self.next is not None
        log = self.next
        self._effect(lambda: log.append("norms", partition, record, None))

    def retire(self, partition: int, record: bytes) -> None:
        self._effect(lambda: self.service.append("norms", partition, record, None))

    def carry_over(self) -> None:
        old, new = (MemoryJournal(topics, None) for topics in (self.answers, self.next_answers))
        self._effect(lambda: carry_over(old, new))

    def install(self, partition: int, state: Imported) -> None:
        client = MemoryClient(self.broker, self._before)
        odometer, topic = client.odometer_producer_of(partition), client.snapshots_of(partition)
        try:
            asyncio.run(install(state, odometer, topic))
        finally:
            self._show("snapshots", partition)
            self._show("odometer", partition)

    def create_log(self, partitions: int) -> None:
        self.next = Archived(partitions, NEW, self.service.erasure_keys)

    def _show(self, topic: str, partition: int) -> None:
        """Let readers see what is committed by now."""
        assert self.next is not None
        records = self.broker.of(topic, partition).records
        committed = self.broker.committed(topic, partition)
        for offset in committed[self.shown[topic, partition] :]:
            key, value = records[offset]
            self.next.append(topic, partition, value, key)
        self.shown[topic, partition] = len(committed)

    async def _before(self, effect: object) -> None:
        self._effect(lambda: None)

    def _effect(self, do: Callable[[], Any]) -> None:
        self.effects += 1
        if self.effects - 1 == self.crash_at:
            self.crash_at = -1
            raise Crash
        do()


def closed(service: Archived) -> Archived:
    """Close all open runs."""
    for partition, ledger in enumerate(service.ledgers):
        for (dataset, run), state in list(ledger.state.runs.items()):
            if not state.closed:
                request = CloseRun(dataset=dataset, run=run, attempt=state.attempt, request="end")
                service.apply(partition, encode(request))
    return service


def retirable(partitions: int = 2, erasure_keys: str = "") -> Archived:
    """A service that has done a bit of everything, with an erased user and a closed dataset."""
    service = used(partitions, erasure_keys)
    turnstile = Turnstile(connection=service)
    turnstile.close_dataset("empty")
    turnstile.erase(3)
    return closed(service)


def quietly(logs: MemoryLogs, partitions: int, **options: Any) -> Any:
    return repartition(logs, partitions, tell=lambda _: None, **options)


def take_over(service: Archived) -> Archived:
    """Let workers continue a new log from its snapshots."""
    for partition in range(service.partitions):
        snapshot = service.snapshot(partition)
        assert snapshot is not None
        service.ledgers[partition] = loaded(service, partition)
        kept = service.kept[partition]
        kept.pages, kept.next = snapshot.pages, snapshot.manifest.next
        kept.fields = {**snapshot.manifest.fields, "owner": "test", "version": "1"}
    return service


def loaded(service: Archived, partition: int) -> Ledger:
    snapshot = service.snapshot(partition)
    assert snapshot is not None
    manifest = snapshot.manifest
    return ledger_of(
        snapshot.state(),
        partition,
        service.partitions,
        service.topic,
        manifest.chain,
        service.erasure_keys,
    )
