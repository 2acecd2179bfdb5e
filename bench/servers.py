"""What the benchmarks need of the broker, of Redis and of processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import redis
from kafka import KafkaConsumer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from streams.config import Config
from streams.kafka.topics import HALTS, ensure_topics
from streams.local import Child, LocalStack
from streams.records.json_outputs import to_msgpack

_POLL = 0.02
_WITHIN = 600.0


def create_topics(config: Config) -> None:
    """Create the topics; the broker stamps each decision when it has it."""
    ensure_topics(config)
    stamped = {"message.timestamp.type": "LogAppendTime"}
    alter_topic(config, HALTS, stamped)


def alter_topic(config: Config, name: str, settings: dict[str, str]) -> None:
    """Change settings of a topic."""
    admin = KafkaAdminClient(bootstrap_servers=config.kafka)
    try:
        resource = ConfigResource(ConfigResourceType.TOPIC, config.topic(name), settings)
        admin.alter_configs([resource])
    finally:
        admin.close()


def end_offset(config: Config, name: str) -> int:
    """The offset after the last record in partition 0."""
    place = TopicPartition(config.topic(name), 0)
    consumer = KafkaConsumer(bootstrap_servers=config.kafka)
    try:
        return int(consumer.end_offsets([place])[place])
    finally:
        consumer.close()


def read_halts(config: Config, first: int, count: int) -> list[tuple[int, bytes]]:
    """(milliseconds, decision as the ledger made it) from an offset on; waits for all of them."""
    place = TopicPartition(config.topic(HALTS), 0)
    consumer = KafkaConsumer(
        bootstrap_servers=config.kafka, max_partition_fetch_bytes=16 * 1024 * 1024
    )
    try:
        consumer.assign([place])
        consumer.seek(place, first)
        records: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + 60
        while len(records) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(records)} of {count} decisions came")
            for batch in consumer.poll(timeout_ms=500).values():
                records += [(record.timestamp, to_msgpack(record.value)) for record in batch]
        return records
    finally:
        consumer.close()


def next_offset(client: redis.Redis, config: Config, partition: int = 0) -> int:
    """What a worker will apply next."""
    return int(str(client.hget(f"{config.prefix}{{norms-{partition}}}:meta", "next") or 0))


def unpublished(client: redis.Redis, config: Config, partition: int = 0) -> int:
    """How many batches are in a worker's outbox; what is there is published again later."""
    return int(str(client.hlen(f"{config.prefix}{{norms-{partition}}}:outbox")))


def worker_of(config: Config, **settings: str) -> LocalStack:
    """Return one worker for the topics of a prefix, on servers that run already."""
    return LocalStack(
        workers=1,
        partitions=config.partitions,
        prefix=config.prefix,
        kafka=config.kafka,
        redis=config.redis,
        worker_environment=settings,
    )


def work_off(running: LocalStack, client: redis.Redis, config: Config, end: int) -> None:
    """Wait until a worker has decided and published all records up to an offset."""
    wait_until(lambda: next_offset(client, config) == end, _WITHIN, running.check)
    wait_until(lambda: not unpublished(client, config), _WITHIN, running.check)


def wait_until(condition: Callable[[], bool], within: float, check: Callable[[], None]) -> None:
    """Wait for other processes; ``check`` raises when one of them has failed."""
    deadline = time.monotonic() + within
    while not condition():
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"did not happen within {within} s")
        time.sleep(_POLL)


def start_module(stack: LocalStack, module: str, arguments: Sequence[object]) -> Child:
    """Start a module of this package as a process that ends with this one."""
    command = [sys.executable, "-m", f"bench.{module}", *map(str, arguments)]
    return Child(module, command, log=Path(stack.directory, "logs", f"{module}.log"))


def check_running(child: Child) -> None:
    """Raise if a process has ended with an error."""
    if child.exit_code:
        raise RuntimeError(child.explain(f"exited with code {child.exit_code}"))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    shown = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(shown.stdout) * 1024
