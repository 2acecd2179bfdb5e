"""``turnstile trim`` deletes only records that a complete snapshot of this log covers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest
from kafka import KafkaProducer

from streams.config import Config
from streams.kafka.snapshot_producer import KafkaSnapshotTopic
from streams.kafka.topics import NORMS, Topics
from streams.local import LocalStack
from streams.operations.trimming import plan_trims
from streams.store.layout import with_meta_digest
from streams.store.snapshot import Record
from tests.integration.command import Done, turnstile
from tests.unit.store.snapshots import PARTITIONS, Kept, P, drawn, written

RECORDS = 12


class Trimmed:
    """Topics without workers: a log with some records, and handmade snapshots."""

    def __init__(self, stack: LocalStack) -> None:
        self.config = Config(
            kafka=stack.kafka, prefix=f"t{uuid4().hex[:8]}.", partitions=PARTITIONS
        )
        with Topics(self.config) as topics:
            self.kept = Kept(next=10, topic=topics.ensure().topic)
        producer = KafkaProducer(bootstrap_servers=stack.kafka, acks="all")
        for number in range(RECORDS):
            value = b"record %d" % number
            producer.send(self.config.topic(NORMS), value, partition=P)
        producer.close()

    def write(self, records: Sequence[Record]) -> None:
        async def send() -> None:
            topic = KafkaSnapshotTopic(self.config, P)
            await topic.start()
            await topic.send(records)
            await topic.stop()

        asyncio.run(send())

    def trim(self, *options: str) -> Done:
        settings = ["--kafka", self.config.kafka, "--prefix", self.config.prefix]
        return turnstile("trim", *settings, "--json", *options)

    def log_start(self) -> int:
        return plan_trims(self.config)[P].start


@pytest.fixture
def trimmed(servers: LocalStack) -> Trimmed:
    return Trimmed(servers)


def test_trim_deletes_what_a_complete_snapshot_covers_except_the_last_record(
    trimmed: Trimmed,
) -> None:
    trimmed.write(written(trimmed.kept))
    dry = trimmed.trim("--dry-run")
    assert dry.lines[P]["would_delete"] == 9
    assert trimmed.log_start() == 0
    done = trimmed.trim()
    assert (done.code, dry.code) == (0, 0)
    line = done.lines[P]
    assert (line["log_start"], line["log_end"]) == (0, 12)
    assert (line["snapshot"], line["deleted"]) == (10, 9)
    assert line["log_begins_at"] == trimmed.log_start() == 9
    assert "9 is the last record that the snapshot covers" in line["why_not_more"]
    again = trimmed.trim().lines[P]
    assert (again["deleted"], again["why_not_more"]) == (
        0,
        "the log begins where the snapshot ends",
    )


def test_a_partition_without_a_snapshot_is_not_trimmed_and_is_no_error(
    trimmed: Trimmed,
) -> None:
    parts, _, _ = drawn(trimmed.kept)
    trimmed.write(parts)  # of an incomplete snapshot
    done = trimmed.trim()
    assert (done.code, trimmed.log_start()) == (0, 0)
    assert "there is no snapshot in" in done.lines[P]["why_not_more"]


WRONG: dict[str, tuple[Callable[[Kept], list[Record]], str]] = {
    "a part is missing": (lambda kept: written(kept)[1:], "of page:d/0 are missing"),
    "a part is another": (
        lambda kept: [(written(kept)[0][0], b"another"), *written(kept)[1:]],
        "page:d/0 is not what was written",
    ),
    "another topic": (
        lambda kept: written(replace(kept, topic=b"another topic!!!")),
        "the state in the snapshot belongs to the topic with id",
    ),
    "another P": (
        lambda kept: written(replace(kept, partitions=5)),
        "users were charged in 5 partitions",
    ),
    "beyond the end": (lambda kept: written(replace(kept, next=13)), "beyond the end of the log"),
    "another record": (
        lambda kept: written(Forked(next=10, topic=kept.topic)),
        "record 9, the last one that the snapshot covers, is another one",
    ),
}


class Forked(Kept):
    """Topics whose last snapshot is of a log with another last record."""

    @property
    def unpaged(self):
        unpaged = super().unpaged
        return unpaged._replace(fields=with_meta_digest({**unpaged.fields, "head": "00" * 32}))


@pytest.mark.parametrize(("records", "why"), WRONG.values(), ids=WRONG.keys())
def test_an_incomplete_or_foreign_snapshot_deletes_nothing(
    trimmed: Trimmed, records: Callable[[Kept], list[Record]], why: str
) -> None:
    trimmed.write(records(trimmed.kept))
    done = trimmed.trim()
    assert (done.code, done.lines[P]["deleted"], trimmed.log_start()) == (1, 0, 0)
    assert why in done.lines[P]["why_not_more"]
