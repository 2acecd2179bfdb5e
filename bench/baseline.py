"""The no-op baseline: reads, writes and publishes as a worker does, and decides nothing.

It runs as a separate process. It reads the same topic as the worker, writes the same bytes to Redis
in one write per batch, and publishes the same records to topics under another prefix. What it
writes and publishes was computed beforehand and is read from a file.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import aiokafka
import msgspec
import redis.asyncio

from bench.workload import Applied
from streams.config import Config
from streams.kafka.fenced_producer import contents_of, queue_in_batches
from streams.kafka.publisher import KafkaPublisher, published_form
from streams.kafka.results import Origin
from streams.kafka.topics import NORMS, ODOMETER
from streams.ledger.ledger import Channel
from streams.records import MAX_REQUEST_BYTES, encode
from streams.worker.outbox import UNPUBLISHED_ENTRIES
from streams.worker.processor import BATCH_RECORDS

_ORIGIN = Origin(bytes(16), 0)
"""The same limit as a worker's."""


class RawPipe:
    """One pass over the prepared records, from a given offset on."""

    def __init__(self, config: Config, source: str, first: int, applied: list[Applied]) -> None:
        self._topic = aiokafka.TopicPartition(Config(prefix=source).topic(NORMS), 0)
        self._first = first
        self._changes = [record.changes for record in applied]
        self._packed = [encode(record.outputs) for record in applied]
        self._outputs = [record.outputs for record in applied]
        self._config = config
        self._keys = raw_keys(config.prefix)
        self._redis = redis.asyncio.Redis.from_url(config.redis)
        self._publisher = KafkaPublisher(config)
        self._publishing = asyncio.Semaphore(UNPUBLISHED_ENTRIES)
        self._published: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Consume, write and publish until all prepared records are published."""
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self._config.kafka,
            enable_auto_commit=False,
            max_partition_fetch_bytes=MAX_REQUEST_BYTES + 1024 * 1024,
        )
        await self._publisher.start()
        await consumer.start()
        consumer.assign([self._topic])
        consumer.seek(self._topic, self._first)
        done = 0
        while done < len(self._changes):
            fetched = await consumer.getmany(timeout_ms=1000, max_records=BATCH_RECORDS)
            count = len(fetched.get(self._topic, ()))
            if count:
                await self._write(done, done + count)
                await self._publish(done, done + count)
                done += count
        await asyncio.gather(*self._tasks)
        await consumer.stop()
        await self._publisher.stop()
        await self._redis.aclose()

    async def _write(self, start: int, stop: int) -> None:
        meta, changes, outbox = self._keys
        published, self._published = self._published, []
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.rpush(changes, b"".join(self._changes[start:stop]))
            pipeline.hset(outbox, str(start), b"".join(self._packed[start:stop]))
            if published:
                pipeline.hdel(outbox, *published)
            pipeline.hset(meta, "next", str(self._first + stop))
            await pipeline.execute()

    async def _publish(self, start: int, stop: int) -> None:
        await self._publishing.acquire()
        answers, odometers = [], []
        for outputs in self._outputs[start:stop]:
            answers += [output for output in outputs if output.channel is not Channel.ODOMETER]
            risen = [output for output in outputs if output.channel is Channel.ODOMETER]
            if risen:
                odometers.append((_ORIGIN, risen))
        sent = await self._publisher.publish(0, answers)
        if odometers:
            producer, topic = self._publisher.producer, self._config.topic(ODOMETER)
            contents = contents_of(odometers, published_form(self._config))
            sent += await queue_in_batches(producer, topic, 0, contents)
        task = asyncio.create_task(self._confirm(start, sent))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _confirm(self, start: int, sent: list[asyncio.Future[object]]) -> None:
        await asyncio.gather(*sent)
        self._publishing.release()
        self._published.append(str(start))


def raw_keys(prefix: str) -> tuple[str, str, str]:
    """Return the Redis keys of a no-op baseline: meta, changes, outbox."""
    return (
        f"{prefix}{{baseline}}:meta",
        f"{prefix}{{baseline}}:changes",
        f"{prefix}{{baseline}}:outbox",
    )


def main() -> None:
    """Run one pass; all settings are arguments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--redis", required=True)
    parser.add_argument("--prefix", required=True, help="of the topics and keys written")
    parser.add_argument("--source", required=True, help="prefix of the topic read")
    parser.add_argument("--first", type=int, required=True, help="offset of the first record")
    parser.add_argument("--applied", type=Path, required=True, help="file with what is written")
    options = parser.parse_args()
    config = Config(kafka=options.kafka, redis=options.redis, prefix=options.prefix, partitions=1)
    applied = msgspec.msgpack.decode(options.applied.read_bytes(), type=list[Applied])
    asyncio.run(RawPipe(config, options.source, options.first, applied).run())


if __name__ == "__main__":
    main()
