"""A store under test, a partition in it as its owner writes it, and a hand that writes past it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import redis

from streams.records.digests import HashChain
from streams.redis_address import AddressKind, read_address
from streams.store.layout import key_of, outbox_entry_name
from streams.store.store_port import Guard, Store, Verdict
from streams.store.stored_state import StoredState
from streams.store.writer import PartitionWriter
from tests.doubles.memory_store import Contents, MemoryStore

Named = dict[str, bytes]
P = 3
PARTITIONS = 4
TOPIC = b"topic of 16 byte"
CHAIN = HashChain(b"head", b"before", 7)


@dataclass
class Owner:
    """Somebody who acquires partitions."""

    store: Store
    name: str
    partition: int = P

    async def acquire(self) -> PartitionWriter:
        acquired = await self.store.acquire(self.partition, self.name, TOPIC, PARTITIONS)
        assert acquired.verdict is Verdict.OK
        return PartitionWriter(self.store, self.partition, self.name, await self.load())

    async def load(self) -> StoredState:
        kept = await self.store.load(self.partition)
        assert kept is not None
        return kept


async def commit(
    writer: PartitionWriter,
    first: int,
    following: int,
    changes: bytes = b"c",
    outputs: tuple[bytes, ...] = (b"o",),
    published: tuple[str, ...] = (),
) -> Verdict:
    outbox_entries = {
        outbox_entry_name(first, number): packed for number, packed in enumerate(outputs)
    }
    return await writer.commit(first, following, CHAIN, 3, changes, outbox_entries, published)


def guard_of(writer: PartitionWriter) -> Guard:
    """The guard of an owner's next write."""
    return Guard(writer.partition, writer.owner, writer.version)


@dataclass
class MemoryHand:
    """Read and change the stored state without any check, as operators and accidents can."""

    store: MemoryStore

    def read(self, partition: int) -> Contents:
        """All that is kept of a partition."""
        return self.store.contents(partition).copy()

    def write(self, partition: int, contents: Contents) -> None:
        """Put this in the place of all that is kept of it."""
        self.store.restore({**self.store.copy(), partition: contents})

    def stage(self, *_: object) -> None:
        """Do nothing: this store has no large writes."""

    def staged(self, partition: int) -> int:
        """Return how many entries are left of large writes that were interrupted."""
        return 0


Client = redis.Redis | redis.RedisCluster


def client_of(url: str) -> Client:
    """A client that has nothing in common with the store's."""
    address = read_address(url)
    if address.kind is AddressKind.CLUSTER:
        host, port = address.nodes[0]
        return redis.RedisCluster(host=host, port=port)
    return redis.Redis.from_url(url)


@dataclass
class RedisHand:
    client: Client
    prefix: str

    def read(self, partition: int) -> Contents:
        key = self._keys(partition)
        with self.client.pipeline() as pipeline:
            pipeline.lrange(key("changes"), 0, -1)
            for name in ("pages", "outbox", "alive", "meta", "suspended"):
                pipeline.hgetall(key(name))
            changes, pages, outbox, alive, meta, suspended = pipeline.execute()
        return Contents(
            _text(meta), changes, _named(pages), _named(outbox), _named(alive), _text(suspended)
        )

    def write(self, partition: int, contents: Contents) -> None:
        key = self._keys(partition)
        with self.client.pipeline() as pipeline:
            for name, kept in vars(contents).items():
                pipeline.delete(key(name))
                if kept and name == "changes":
                    pipeline.rpush(key(name), *kept)
                elif kept:
                    pipeline.hset(key(name), mapping=kept)
            pipeline.execute()

    def stage(self, partition: int, changes: list[bytes], pages: Named, outbox: Named) -> None:
        key = self._keys(partition)
        self.client.rpush(key("staged-changes"), *changes)
        for name, entries in (("staged-pages", pages), ("staged-outbox", outbox)):
            if entries:
                self.client.hset(key(name), mapping=entries)

    def delete(self, partition: int, name: str) -> None:
        self.client.delete(self._keys(partition)(name))

    def staged(self, partition: int) -> int:
        key = self._keys(partition)
        hashes = sum(self.client.hlen(key(name)) for name in ("staged-pages", "staged-outbox"))
        return self.client.llen(key("staged-changes")) + hashes

    def _keys(self, partition: int) -> Callable[[str], str]:
        return lambda name: key_of(self.prefix, partition, name)


def _text(kept: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in kept.items()}


def _named(kept: dict[bytes, bytes]) -> dict[str, bytes]:
    return {name.decode(): value for name, value in kept.items()}


@dataclass
class Bench:
    """A store in which nothing is kept yet, and what happens to it otherwise."""

    store: Store
    hand: MemoryHand | RedisHand

    def owner(self, name: str, partition: int = P) -> Owner:
        return Owner(self.store, name, partition)


Scenario = Callable[[Bench], Awaitable[None]]
