"""What earlier releases left in Redis is opened as it is, or refused with what to do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import redis

from streams.ledger.ledger import Channel, Ledger, ledger_of
from streams.local import RedisServer
from streams.store.layout import key_of
from streams.store.redis_store import RedisStore
from streams.worker.memory_broker import MemoryBroker, MemoryClient
from streams.worker.partitions import Partitions
from streams.worker.stops import StopReason
from tests.recorded.record import HERE
from tests.recorded.redis_dump import Dump
from tests.unit.ledger.ledgers import Log
from tests.unit.worker.processors import Ends, Gate, Record, world_of

pytestmark = pytest.mark.process

PREFIX = "t."
FIRST = HERE / "release-0.1.0.redis"
OPENED = sorted(path for path in HERE.glob("*.redis") if path != FIRST)


class Service:
    """A worker of now, with what an earlier one left: the log, and what was in Redis."""

    def __init__(self, path: Path, url: str) -> None:
        self.dump = msgspec.msgpack.decode(path.read_bytes(), type=Dump)
        self.url = url
        self.topic = bytes.fromhex(self.dump.topic) or b"another 16 bytes"
        self.broker = MemoryBroker(self.dump.partitions, self.topic)
        self.straight = Log(self.dump.partitions, 0)
        self.straight.ledger = Ledger(0, self.dump.partitions, self.topic)
        for offset, value in self.dump.records:
            assert self.broker.norms(0).append(value) == offset
            self.straight.send(value)
        with redis.Redis.from_url(url) as client:
            client.flushall()
            for name, kept in self.dump.keys.items():
                key = key_of(PREFIX, 0, name)
                if isinstance(kept, list):
                    client.rpush(key, *kept)
                else:
                    client.hset(key, mapping=kept)

    @asynccontextmanager
    async def worker(self, store: RedisStore) -> AsyncIterator[tuple[Partitions, int | None]]:
        """A claim of the partition, and where it continues."""
        ends = Ends()
        client = MemoryClient(self.broker, Gate(ends))
        partitions = Partitions(world_of("new", store, client, ends))
        yield partitions, (await partitions.claim([0])).get(0)
        assert not ends.why
        await partitions.claim([])

    async def decide(self, store: RedisStore, partitions: Partitions, first: int) -> None:
        log = self.broker.norms(0)
        for offset in range(first, log.end):
            await partitions.arrive(0, Record(offset, log.records[offset][1]))
        async with asyncio.timeout(30):
            while True:
                kept = await store.load(0)
                if kept is not None and kept.next == log.end and not kept.outbox:
                    return
                await asyncio.sleep(0.01)

    async def compare(self, store: RedisStore) -> None:
        """What Redis holds is what the log gives."""
        kept = await store.load(0)
        assert kept is not None
        found = Log(self.dump.partitions, 0)
        found.ledger = ledger_of(kept, 0, self.dump.partitions, self.topic, kept.meta.chain)
        for name in ("numbers", "names"):
            spent = found.spent(name)
            assert len(spent) > 20
            assert spent == self.straight.spent(name)
        assert found.ledger.chain.head == self.straight.ledger.chain.head
        assert found.ledger.summary() == self.straight.ledger.summary()

    @property
    def decided(self) -> list[bytes | None]:
        return self.broker.outputs(Channel.HALTS, 0).values


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.stem)
def test_what_an_earlier_release_left_in_redis_is_opened_and_goes_on(path: Path, url: str) -> None:
    async def scenario() -> None:
        service = Service(path, url)
        end = service.broker.norms(0).end
        assert service.dump.keys["pages"]
        assert service.dump.keys["changes"]
        async with RedisStore(url, PREFIX) as store, service.worker(store) as (partitions, first):
            assert first == end
            assert service.decided == []
            await service.compare(store)
            again = service.dump.records[-1][1]
            run = service.straight.ledger.runs["numbers", "r"]
            service.straight.send(again)
            fields = {"dataset": "numbers", "attempt": run.attempt}
            users = list(service.straight.spent("numbers"))[:9]
            service.straight.charge(run.step + 1, users, [0.1] * 9, v=3, **fields)
            for value in service.straight.records[-2:]:
                service.broker.norms(0).append(value)
            await service.decide(store, partitions, end)
            await service.compare(store)
        assert service.decided[0] == service.dump.decided[-1]
        assert len(service.decided) == 2

    asyncio.run(scenario())


def test_what_the_first_release_left_is_refused_and_applied_again_from_its_log(url: str) -> None:
    async def scenario() -> None:
        service = Service(FIRST, url)
        async with RedisStore(url, PREFIX) as store:
            async with service.worker(store):
                stopped = (await store.glance(0)).stopped
            assert stopped["reason"] == StopReason.OTHER_LAYOUT
            assert "applied again and nothing that was spent is forgotten" in stopped["remedy"]
            with redis.Redis.from_url(url) as client:
                before = set(client.keys())
                assert before >= {key_of(PREFIX, 0, name).encode() for name in service.dump.keys}
                client.delete(*re.findall(r"'([^']*)'", stopped["remedy"]))
                assert client.keys() == []
            async with service.worker(store) as (partitions, first):
                assert first == 0
                await service.decide(store, partitions, 0)
                await service.compare(store)
        assert service.decided == service.dump.decided

    asyncio.run(scenario())
