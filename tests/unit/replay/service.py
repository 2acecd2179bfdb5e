"""A service in memory with the topics and the state that tests tamper with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from streams import Turnstile
from streams.answerer.published_answers import AnswerRecord
from streams.kafka.results import Extent
from streams.ledger.ledger import Ledger, Output
from streams.records import encode, tombstone_offset
from streams.replay.archive import ArchivedRecord, HeadSource, MissingRecord, StoredHead
from streams.sdk.memory_connection import MemoryConnection
from streams.store.layout import chain_fields, fields_of_nothing, pack_change, with_digest
from streams.store.snapshot import Snapshot, SnapshotBuilder, find_last
from streams.store.store_port import Unpaged
from streams.store.stored_state import StoredState, verified
from streams.worker.outbox import outbox_entries_of
from tests.doubles.memory_store import Contents

TOPIC = b"topic of a test!"
Topics = dict[tuple[str, int], list[ArchivedRecord]]


@dataclass
class Kept:
    """What Redis has of one partition."""

    pages: dict[str, bytes] = field(default_factory=dict)
    changes: list[bytes] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    next: int = 0
    outbox: list[tuple[int, list[Output]]] = field(default_factory=list)


class Archived(MemoryConnection):
    """Every record with what came of it; ``archive`` and ``states`` of ``verify``."""

    holder = HeadSource.REDIS

    def __init__(self, partitions: int = 2, topic: bytes = TOPIC, erasure_keys: str = "") -> None:
        super().__init__(partitions, 30.0)
        self.topic = self.log = topic
        self.erasure_keys = erasure_keys
        self.ledgers = [Ledger(p, partitions, topic, erasure_keys) for p in range(partitions)]
        self.topics: Topics = {}
        self.starts: dict[tuple[str, int], int] = {}
        self.kept = [Kept() for _ in range(partitions)]
        self.publishing = True
        self.published: list[AnswerRecord] = []
        for partition, kept in enumerate(self.kept):
            kept.fields = fields_of_nothing(topic, partition, partitions)
        self.clock = 1_700_000_000.0

    def _apply(self, partition: int, request: bytes | None) -> Sequence[Output]:
        kept, ledger = self.kept[partition], self.ledgers[partition]
        self.clock += 1.0
        offset = self.append("norms", partition, request, None)
        outputs = ledger.apply(offset, request)
        packed = pack_change(offset, offset + 1, encode(ledger.state.take_delta()))
        kept.changes += packed
        self.kept_at(partition)
        if self.publishing:
            for output in outputs:
                is_tombstone = tombstone_offset(output.value) is not None
                value = None if is_tombstone else output.value
                self.append(output.channel.value, partition, value, output.key)
        else:
            kept.outbox.append((offset, list(outputs)))
        return outputs

    def kept_at(self, partition: int) -> None:
        """Let Redis have the state of the ledger up to its last record."""
        kept, chain = self.kept[partition], self.ledgers[partition].chain
        kept.next = chain.last + 1
        at = dict.fromkeys(("version", "next"), str(kept.next))
        kept.fields |= {**chain_fields(chain), "owner": "test", **at}

    def apply(self, partition: int, request: bytes | None) -> Sequence[Output]:
        """Append a record to the log and apply it, as if any client had published it."""
        return self._apply(partition, request)

    def append(self, topic: str, partition: int, value: bytes | None, key: bytes | None) -> int:
        records = self.topics.setdefault((topic, partition), [])
        offset = records[-1].offset + 1 if records else self.starts.get((topic, partition), 0)
        records.append(ArchivedRecord(offset, key, value, self.clock))
        return offset

    def trim(self, topic: str, partition: int, before: int) -> None:
        """Let a topic begin later, as retention does."""
        records = self.topics[topic, partition]
        self.topics[topic, partition] = [r for r in records if r.offset >= before]
        self.starts[topic, partition] = before

    # --- what is read ---

    def extent(self, topic: str, partition: int) -> Extent:
        records = self.topics.get((topic, partition), [])
        start = self.starts.get((topic, partition), 0)
        return Extent(start, records[-1].offset + 1 if records else start)

    def read(self, *place: Any) -> Any:
        if len(place) == 2:  # those who follow halts and odometers
            return super().read(*place)
        topic, partition, extent = place
        return self._stored(topic, partition, extent)

    def damaged_answers(self) -> Iterator[tuple[str, int]]:
        return iter(())

    def answers(self) -> Iterator[AnswerRecord]:
        return iter(self.published)

    def heads(self, partition: int) -> list[StoredHead]:
        """What ``kept`` and the last snapshot have."""
        kept, snapshot = self.kept[partition], self.snapshot(partition)
        redis = kept.next, bytes.fromhex(kept.fields["head"])
        last = StoredHead(partition, HeadSource.SNAPSHOT, lacking="there is no snapshot")
        if snapshot is not None:
            meta = snapshot.manifest.meta
            last = StoredHead(partition, HeadSource.SNAPSHOT, meta.next, meta.chain.head)
        return [StoredHead(partition, HeadSource.REDIS, *redis), last]

    def snapshot(self, partition: int) -> Snapshot | None:
        """The last snapshot that ``draw`` has made."""
        records = self.topics.get(("snapshots", partition), [])
        return find_last([[(r.key or b"", r.value) for r in records]], with_contents=True)

    def draw(self, partition: int) -> None:
        """Write a snapshot of what Redis has now."""
        kept = self.load(partition)
        assert kept is not None
        builder = SnapshotBuilder(None)
        for name, page in self.kept[partition].pages.items():
            for key, value in builder.add(name, page):
                self.append("snapshots", partition, value, key)
        parts, manifest, _ = builder.finish(Unpaged(kept.fields, self.kept[partition].changes, {}))
        for key, value in [*parts, manifest]:
            self.append("snapshots", partition, value, key)

    def load(self, partition: int) -> StoredState | None:
        kept = self.kept[partition]
        outbox_entries = {
            outbox_entry.name: with_digest(outbox_entry.packed, outbox_entry.name)
            for first, outputs in kept.outbox
            for outbox_entry in outbox_entries_of(first, 0, outputs)
        }
        contents = Contents(kept.fields, kept.changes, kept.pages, outbox_entries)
        contents.seal()
        return verified(contents.meta, kept.pages, kept.changes, outbox_entries)

    def _stored(self, topic: str, partition: int, extent: Extent) -> Iterator[ArchivedRecord]:
        reached = extent.start
        for record in list(self.topics.get((topic, partition), [])):
            if extent.start <= record.offset < extent.end:
                if topic == "norms" and record.offset > reached:
                    raise MissingRecord(partition, reached)
                yield record
                reached = record.offset + 1

    # --- tampering ---

    def change(
        self, topic: str, kind: str, partition: int = 0, **fields: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give the last record of a kind other fields; what it was, and what it is."""
        records = self.topics[topic, partition]
        for number in reversed(range(len(records))):
            record = records[number]
            content = msgspec.msgpack.decode(record.value or b"")
            if content["type"] == kind:
                changed = {**content, **fields}
                records[number] = record._replace(value=msgspec.msgpack.encode(changed))
                return content, changed
        raise AssertionError(f"no {kind} in {topic} {partition}")

    def drop(self, topic: str, kind: str, partition: int = 0) -> None:
        records = self.topics[topic, partition]
        kinds = [msgspec.msgpack.decode(record.value)["type"] for record in records]
        del records[len(kinds) - 1 - kinds[::-1].index(kind)]


def new_service(
    partitions: int = 2, topic: bytes = TOPIC, erasure_keys: str = ""
) -> tuple[Archived, Turnstile]:
    archived = Archived(partitions, topic, erasure_keys)
    return archived, Turnstile(connection=archived)


def used(partitions: int = 2, erasure_keys: str = "") -> Archived:
    """A service that has done a bit of everything: charges, HALTs, rosters, nesting, rejects."""
    archived, turnstile = new_service(partitions, erasure_keys=erasure_keys)
    turnstile.create_dataset("empty", measure="zcdp", budget=1.0)
    turnstile.create_dataset("d", measure="zcdp", budget=1.0, odometer_step=0.1)
    run = turnstile.run("d", "r")
    users = np.arange(40)
    for _ in range(4):
        run.charge(users, np.linspace(0.1, 4.0, 40), noise_stddev=4.0)
    turnstile.create_dataset(
        "faces", measure="renyi", epsilon=1.0, delta=1e-5, sampled_levels=False
    )
    sampled = turnstile.run("faces", "s").enrol(users, clip_norm=1.0, levels=10)
    for step in range(6):
        sampled.charge(noise_stddev=1.1, sampling_rate=0.05 if step % 2 else 0.1)
        sampled.set_norms([0.15 * step, 0.05], [step, step + 1])
    turnstile.create_dataset("inner", measure="gdp", budget=0.5, parents="d")
    nested = turnstile.run("inner", "n", take_over=True).enrol(users, clip_norm=1.0, levels=4)
    for _ in range(5):
        nested.charge(noise_stddev=3.0)
    separated = turnstile.run("d", "separated", min_separation=3, take_over=True)
    for _ in range(4):
        separated.charge(users[::2], np.full(20, 0.2), noise_stddev=4.0)
    names = turnstile.run("d", "names", take_over=True)
    names.charge(users[:5], np.ones(5), noise_stddev=1.0)
    names.close()
    for partition in range(partitions):
        archived.apply(partition, b"garbage")
        archived.apply(partition, None)
    return archived


Tamper = Callable[[Archived], object]
