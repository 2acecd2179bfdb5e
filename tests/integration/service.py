"""What a test sees of a running service: one prefix on a broker and a Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import msgspec
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from streams.config import Config
from streams.ledger.ledger import Ledger, ledger_of
from streams.local import LocalStack
from streams.operations.status import read_partitions
from streams.sdk.client import Turnstile
from streams.store.layout import key_of
from streams.store.redis_store import RedisStore
from streams.store.snapshot import Snapshot
from tests.audit.auditor import Auditor, Log, Rows, compare, compare_chain, home, state_of

_SETTLES_WITHIN = 60.0


def eventually(condition: Callable[[], Any], within: float = _SETTLES_WITHIN) -> Any:
    """Wait for something that other processes do; what the condition returned at last."""
    deadline = time.monotonic() + within
    while not (found := condition()):
        assert time.monotonic() < deadline, f"did not happen within {within} seconds"
        time.sleep(0.02)
    return found


class Service:
    """One prefix on a broker and a Redis: what tests publish to it, read of it, and its audit."""

    def __init__(self, stack: LocalStack) -> None:
        self.stack = stack
        self.kafka, self.redis, self.prefix = stack.kafka, stack.redis, stack.prefix
        self.partitions = stack.partitions
        self.config = Config(
            kafka=self.kafka, redis=self.redis, prefix=self.prefix, partitions=self.partitions
        )
        self._open = ExitStack()
        self._log: Log | None = None
        self._producer: KafkaProducer | None = None
        self._client: Turnstile | None = None
        self._auditor: Auditor | None = None
        self._kept: dict[int, Snapshot] = {}
        self._ledgers: dict[int, Ledger] = {}

    def close(self) -> None:
        self._open.close()

    def turnstile(self, timeout: float = 30.0) -> Turnstile:
        """A client that is closed with the service."""
        client = Turnstile(self.kafka, prefix=self.prefix, timeout=timeout)
        self._open.callback(client.close)
        return client

    @property
    def client(self) -> Turnstile:
        """The client that tests share."""
        if self._client is None:
            self._client = self.turnstile()
        return self._client

    @property
    def log(self) -> Log:
        if self._log is None:
            self._log = Log(self.config)
            self._open.callback(self._log.close)
        return self._log

    def publish(self, partition: int, value: bytes | dict[str, Any] | None) -> int:
        """Write a record to `norms` as any Kafka client could; returns its offset."""
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self.kafka, acks="all", max_request_size=16 * 1024 * 1024
            )
            self._open.callback(self._producer.close)
        if isinstance(value, dict):
            value = msgspec.msgpack.encode(value)
        topic = self.config.topic("norms")
        key = b"tombstone" if value is None else None
        sent = self._producer.send(topic, value=value, key=key, partition=partition)
        return sent.get(timeout=30).offset

    def settle(self) -> dict[int, Snapshot]:
        """Wait until all that was published is decided and answered; what Redis holds then."""
        return eventually(self._settled)

    def audit(self) -> Auditor:
        """Everything so far must be as the auditor has it."""
        ledgers = self.ledgers()
        self.log.refresh()
        if self._auditor is None:
            self._auditor = Auditor(self.partitions, self.log.topic_id())
        self._auditor.fold(self.log)
        compare(self._auditor, self.log, ledgers)
        for partition, kept in self._kept.items():
            compare_chain(self._auditor, partition, kept.meta.chain)
        return self._auditor

    def ledgers(self) -> dict[int, Ledger]:
        """The settled state, by partition."""
        kept = self.settle()
        if kept != self._kept:
            self._kept = kept
            self._ledgers = {
                p: ledger_of(
                    found, p, self.partitions, bytes.fromhex(found.meta.topic), found.meta.chain
                )
                for p, found in kept.items()
            }
        return self._ledgers

    def state(self, dataset: str) -> Rows:
        """The settled accounts of one dataset, of all partitions."""
        rows: Rows = {}
        for ledger in self.ledgers().values():
            if dataset in ledger.datasets:
                rows |= state_of(ledger, dataset)
        return rows

    def kept(self) -> dict[int, Snapshot]:
        """What Redis holds now."""
        return asyncio.run(self._load())

    @contextmanager
    def paused_worker(self, index: int = 0) -> Iterator[int]:
        """A worker that does nothing for a while; its process id."""
        pid = self.stack.workers[index].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def problems(self) -> list[str]:
        """What `turnstile status` says of each partition; empty for nothing."""
        return [partition.problem or "" for partition in read_partitions(self.config)]

    def eventually_all(self, problem: str) -> list[str]:
        """Wait until every partition has a problem of this kind."""

        def told() -> list[str]:
            found = self.problems()
            return found if all(problem in partition for partition in found) else []

        found: list[str] = eventually(told)
        return found

    def key(self, partition: int, name: str) -> str:
        """The key of one part of what Redis keeps of a partition."""
        return key_of(self.prefix, partition, name)

    def alter(self, topic: str, **settings: str) -> None:
        """Change settings of a topic; their names with _ for a dot."""
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, self.config.topic(topic), changed)
        with closing(self.admin()) as admin:
            admin.alter_configs([resource])

    def admin(self) -> KafkaAdminClient:
        """A client that changes topics; the caller closes it."""
        return KafkaAdminClient(bootstrap_servers=self.kafka)

    def users(self, count: int, partition: int) -> list[int]:
        """Integer users that live in a partition."""
        found: list[int] = []
        user = 0
        while len(found) < count:
            if home(user, self.partitions) == partition:
                found.append(user)
            user += 1
        return found

    def _settled(self) -> dict[int, Snapshot] | None:
        ends = self.log.norms_ends()
        snapshots = asyncio.run(self._load())
        done = len(snapshots) == self.partitions and all(
            kept.next == ends[p] and not kept.outbox for p, kept in snapshots.items()
        )
        return snapshots if done else None

    async def _load(self) -> dict[int, Snapshot]:
        async with RedisStore(self.redis, self.prefix) as store:
            found = {p: await store.load(p) for p in range(self.partitions)}
            return {p: kept for p, kept in found.items() if kept is not None}


ServiceFactory = Callable[..., AbstractContextManager[Service]]
"""Starts ``workers`` workers under a new prefix, whose topics have ``partitions`` partitions."""
