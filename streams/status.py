"""How the service is doing, read from Redis and Kafka without disturbing either."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from kafka import TopicPartition
from kafka.errors import KafkaError

from streams.config import Config
from streams.kafka_clients import new_reader
from streams.ledger import ledger_of
from streams.redis_store import RedisStore, Snapshot, StoreUnavailable
from streams.schemas import Policy
from streams.topics import NORMS

T = TypeVar("T")


class Unavailable(Exception):
    """Kafka or Redis does not answer."""


@dataclass(frozen=True)
class PartitionStatus:
    """One partition. ``lag`` records of the log are not decided yet."""

    partition: int
    owner: str | None
    next: int
    lag: int
    users: int
    unpublished: int  # batches whose outputs wait to be published
    deltas: int  # not folded yet
    problem: str | None


@dataclass
class DatasetStatus:
    """One dataset over all partitions."""

    policy: Policy
    users: int = 0
    exhausted: int = 0


def read_partitions(config: Config) -> list[PartitionStatus]:
    """Every partition of the topic norms.

    Raises:
        Unavailable: Kafka or Redis does not answer.
    """
    log = _log(config)
    snapshots = _snapshots(config, len(log))
    found = []
    for partition, ((start, end), snapshot) in enumerate(zip(log, snapshots, strict=True)):
        problem = None
        if snapshot.next > end:
            problem = f"Redis is at {snapshot.next}, beyond the end of the log"
        elif snapshot.next < start:
            problem = f"Redis is at {snapshot.next}, before the start of the log, {start}"
        found.append(
            PartitionStatus(
                partition=partition,
                owner=snapshot.owner or None,
                next=snapshot.next,
                lag=max(0, end - snapshot.next),
                users=sum(map(len, ledger_of(snapshot, partition, len(log)).datasets.values())),
                unpublished=len(snapshot.outbox),
                deltas=len(snapshot.deltas),
                problem=problem,
            )
        )
    return found


def read_datasets(config: Config) -> dict[str, DatasetStatus]:
    """Every dataset that Redis knows.

    Raises:
        Unavailable: Kafka or Redis does not answer.
    """
    count = len(_log(config))
    datasets: dict[str, DatasetStatus] = {}
    for partition, snapshot in enumerate(_snapshots(config, count)):
        for name, accounts in ledger_of(snapshot, partition, count).datasets.items():
            dataset = datasets.setdefault(name, DatasetStatus(accounts.policy))
            dataset.users += len(accounts)
            dataset.exhausted += int(accounts.exhausted().sum())
    return datasets


def read_owners(config: Config, partitions: int) -> list[str]:
    """The owner of every partition; empty for one that was never claimed.

    Raises:
        Unavailable: Redis does not answer.
    """

    async def read(store: RedisStore) -> list[str]:
        return [await store.owner(partition) for partition in range(partitions)]

    return _from_redis(config, read)


def _log(config: Config) -> list[tuple[int, int]]:
    try:
        consumer = new_reader(config)
    except KafkaError as error:
        raise Unavailable(f"no Kafka broker at {config.kafka}: {error}") from error
    try:
        topic = config.topic(NORMS)
        places = [
            TopicPartition(topic, partition)
            for partition in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        if not places:
            raise Unavailable(f"topic {topic} does not exist; start a worker, which creates it")
        starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
        return [(starts[place], ends[place]) for place in places]
    except KafkaError as error:
        raise Unavailable(f"Kafka at {config.kafka} does not answer: {error}") from error
    finally:
        consumer.close()


def _snapshots(config: Config, partitions: int) -> list[Snapshot]:
    async def load(store: RedisStore) -> list[Snapshot]:
        return [await store.load(partition) for partition in range(partitions)]

    return _from_redis(config, load)


def _from_redis(config: Config, read: Callable[[RedisStore], Awaitable[list[T]]]) -> list[T]:
    async def connected() -> list[T]:
        async with RedisStore(config.redis, config.prefix) as store:
            return await read(store)

    try:
        return asyncio.run(connected())
    except StoreUnavailable as error:
        raise Unavailable(f"Redis at {config.redis} does not answer: {error}") from error
