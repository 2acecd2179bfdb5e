"""A test's access to a running service: one prefix on a broker and a Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import msgspec
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.produce import ProduceRequest
from kafka import KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from streams.config import Config
from streams.ledger.ledger import Ledger, ledger_of
from streams.local import LocalStack
from streams.operations.status import (
    PartitionState,
    PartitionStatus,
    read_overview,
)
from streams.sdk.client import Turnstile
from streams.store.layout import key_of
from streams.store.redis_store import RedisStore
from streams.store.store_port import SuspensionReason
from streams.store.stored_state import StoredState
from streams.worker.outbox import Packed
from tests.audit.auditor import Auditor
from tests.audit.auditor_state import home
from tests.audit.comparison import compare, compare_chain
from tests.audit.log import OUTPUTS, Log
from tests.audit.stored import Rows, state_of
from tests.integration.command import Done, turnstile
from tests.waiting import HANGS_AFTER, eventually

IMPATIENT_WORKER = (sys.executable, str(Path(__file__).with_name("impatient_worker.py")))
"""The command of a worker with short heartbeat and watch intervals."""


def end_at_once(stack: LocalStack, *servers: Any) -> None:
    """Kill the workers and servers of a stack; a graceful stop takes seconds and is tested
    elsewhere.
    """
    for worker in stack.workers:
        worker.terminate()
        worker.kill()
    for server in servers:
        server.kill()


class Service:
    """One prefix on a broker and a Redis: publishes records, reads topics and state, and audits."""

    def __init__(self, stack: LocalStack, config: Config | None = None) -> None:
        """Use ``config``, or settings for a service without logins."""
        self.stack = stack
        self.kafka, self.redis, self.prefix = stack.kafka, stack.redis, stack.prefix
        self.partitions = stack.partitions
        self.config = config or Config(
            kafka=self.kafka,
            redis=self.redis,
            prefix=self.prefix,
            partitions=self.partitions,
            timeout=HANGS_AFTER,
        )
        self._open = ExitStack()
        self._log: Log | None = None
        self._producer: KafkaProducer | None = None
        self._client: Turnstile | None = None
        self._auditor: Auditor | None = None

    def close(self) -> None:
        self._open.close()

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables by which commands find the service."""
        return {
            "TURNSTILE_KAFKA": self.kafka,
            "TURNSTILE_REDIS": self.redis,
            "TURNSTILE_PREFIX": self.prefix,
        }

    def command(self, *arguments: str) -> Done:
        """Run a command with the service, in this process."""
        return turnstile(*arguments, environment=self.environment)

    def turnstile(self, timeout: float = HANGS_AFTER) -> Turnstile:
        """Return a new client that is closed with the service."""
        client = Turnstile(self.kafka, prefix=self.prefix, timeout=timeout)
        self._open.callback(client.close)
        return client

    @property
    def client(self) -> Turnstile:
        """Return the shared client."""
        if self._client is None:
            self._client = self.turnstile()
        return self._client

    @property
    def log(self) -> Log:
        if self._log is None:
            self._log = Log(self.config)
            self._open.callback(self._log.close)
        return self._log

    def publish(self, partition: int, value: bytes | dict[str, Any]) -> int:
        """Write a record to `norms` as any Kafka client can; return its offset."""
        if self._producer is None:
            self._producer = KafkaProducer(
                bootstrap_servers=self.kafka, acks="all", max_request_size=16 * 1024 * 1024
            )
            self._open.callback(self._producer.close)
        packed = msgspec.msgpack.encode(value) if isinstance(value, dict) else value
        sent = self._producer.send(self.config.topic("norms"), value=packed, partition=partition)
        return int(sent.get(timeout=HANGS_AFTER).offset)

    def publish_batch(self, batch: bytes, partition: int = 0, topic: str = "") -> int:
        """Write a complete record batch to `norms` or another topic; return its offset."""
        topic = topic or self.config.topic("norms")

        async def send() -> int:
            client = AIOKafkaClient(bootstrap_servers=self.kafka)
            await client.bootstrap()
            try:
                await client._wait_on_metadata(topic)
                place = aiokafka.TopicPartition(topic, partition)
                request = ProduceRequest(
                    required_acks=-1,
                    timeout=30_000,
                    topics=[(topic, [(partition, batch)])],
                    transactional_id=None,
                )
                leader = client.cluster.leader_for_partition(place)
                answer = await client.send(leader, request)
            finally:
                await client.close()
            _, error, offset, *_ = answer.topics[0][1][0]
            assert error == 0, f"the broker refused the batch: error {error}"
            return int(offset)

        return asyncio.run(send())

    def settle(self) -> dict[int, StoredState]:
        """Wait until all published requests are decided and answered; return the state in Redis.

        All outboxes are empty: no worker has anything left to write.
        """
        return self._decided(lambda partition, kept: not kept.outbox)

    def answered(self) -> dict[int, StoredState]:
        """Return the state as `settle` does, without waiting for empty outboxes."""
        return self._decided(self._is_published)

    def audit(self) -> Auditor:
        """Check that all records, answers and state agree with the auditor."""
        ledgers = self.ledgers()
        self.log.refresh()
        if self._auditor is None:
            self._auditor = Auditor(self.partitions, self.log.topic_id())
        self._auditor.apply_all(self.log)
        compare(self._auditor, self.log, ledgers)
        for partition, ledger in ledgers.items():
            compare_chain(self._auditor, partition, ledger.chain)
        return self._auditor

    def ledgers(self) -> dict[int, Ledger]:
        """Return the settled state, by partition."""
        topic = self.log.topic_id()
        return {
            partition: ledger_of(kept, partition, self.partitions, topic, kept.meta.chain)
            for partition, kept in self.answered().items()
        }

    def state(self, dataset: str) -> Rows:
        """Return the settled accounts of a dataset, over all partitions."""
        rows: Rows = {}
        for ledger in self.ledgers().values():
            if dataset in ledger.state.datasets:
                rows |= state_of(ledger, dataset)
        return rows

    def kept(self) -> dict[int, StoredState]:
        """Return the present state in Redis."""

        async def read() -> dict[int, StoredState]:
            async with RedisStore.of(self.config) as store:
                return await self._load(store)

        return asyncio.run(read())

    @contextmanager
    def paused_worker(self) -> Iterator[int]:
        """Pause the first worker for the block; yield its process id."""
        pid = self.stack.workers[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def reasons(self) -> list[str | None]:
        """Return why each partition is not decided; None for one that is."""
        return [partition.reason for partition in read_overview(self.config).partitions]

    def suspensions(self) -> list[str | None]:
        """Return why each partition is suspended; None for one that is not."""
        return [
            partition.reason if partition.state is PartitionState.SUSPENDED else None
            for partition in read_overview(self.config).partitions
        ]

    def eventually_all(self, reason: str) -> list[PartitionStatus]:
        """Wait until no partition is decided, or all are suspended, for this reason."""
        state = (
            PartitionState.SUSPENDED
            if isinstance(reason, SuspensionReason)
            else PartitionState.WAITING
        )

        def found() -> list[PartitionStatus]:
            partitions = read_overview(self.config).partitions
            is_so = all((one.state, one.reason) == (state, reason) for one in partitions)
            return partitions if is_so else []

        partitions: list[PartitionStatus] = eventually(found)
        return partitions

    def key(self, partition: int, name: str) -> str:
        """Return the Redis key of one part of a partition's state."""
        return key_of(self.prefix, partition, name)

    def alter(self, topic: str, **settings: str) -> None:
        """Change settings of a topic; names have _ instead of a dot."""
        changed = {name.replace("_", "."): value for name, value in settings.items()}
        resource = ConfigResource(ConfigResourceType.TOPIC, self.config.topic(topic), changed)
        with closing(self.admin()) as admin:
            admin.alter_configs([resource])

    def admin(self) -> KafkaAdminClient:
        """Return an admin client; the caller closes it."""
        return KafkaAdminClient(bootstrap_servers=self.kafka)

    def users(self, count: int, partition: int) -> list[int]:
        """Return integer users whose home is a partition."""
        found: list[int] = []
        user = 0
        while len(found) < count:
            if home(user, self.partitions) == partition:
                found.append(user)
            user += 1
        return found

    def _decided(self, is_done: Callable[[int, StoredState], bool]) -> dict[int, StoredState]:
        """Wait until every partition has applied its log and published all outputs."""

        async def read(ends: dict[int, int]) -> dict[int, StoredState]:
            async with RedisStore.of(self.config) as store:
                glances = {p: (await store.glance(p)).meta for p in range(self.partitions)}
                if any(int(glances[p].get("next", -1)) != ends[p] for p in glances):
                    return {}  # the full state is read once, at the end
                return await self._load(store)

        def found() -> dict[int, StoredState] | None:
            ends = self.log.norms_ends()
            kept = asyncio.run(read(ends))
            done = len(kept) == self.partitions and all(
                stored.next == ends[p] and is_done(p, stored) for p, stored in kept.items()
            )
            return kept if done else None

        kept: dict[int, StoredState] = eventually(found)
        return kept

    def _is_published(self, partition: int, kept: StoredState) -> bool:
        if kept.outbox:
            self.log.refresh(OUTPUTS)
        return all(
            self.log.has(output.channel.value, partition, output.value)
            for _, packed in kept.outbox
            for output in msgspec.msgpack.decode(packed, type=Packed).outputs
        )

    async def _load(self, store: RedisStore) -> dict[int, StoredState]:
        found = {p: await store.load(p) for p in range(self.partitions)}
        return {p: kept for p, kept in found.items() if kept is not None}


def largest_resident_bytes(pid: int) -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


Life = Callable[..., int]
"""Run Python with these arguments; return its exit code, such as `KILLED`."""
KILLED = 128 + signal.SIGKILL

ServiceFactory = Callable[..., AbstractContextManager[Service]]
"""Start ``workers`` workers under a new prefix, whose topics have ``partitions`` partitions."""
