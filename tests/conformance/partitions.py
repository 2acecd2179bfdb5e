"""A partition in a store, as its owner writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import uuid4

from streams.store.holding import Holding
from streams.store.layout import parcel_name
from streams.store.port import Verdict
from streams.store.redis_store import RedisStore
from streams.store.snapshot import Snapshot
from streams.wire.chain import Chain

P = 3
PARTITIONS = 4
TOPIC = b"topic of 16 byte"
CHAIN = Chain(b"head", b"before", 7)


@dataclass
class Owner:
    """Somebody who claims partitions."""

    store: RedisStore
    name: str
    partition: int = P

    async def claim(self) -> Holding:
        claimed = await self.store.claim(self.partition, self.name, TOPIC, PARTITIONS)
        assert claimed.verdict is Verdict.OK
        kept = await self.load()
        return Holding(self.store, self.partition, self.name, kept)

    async def load(self) -> Snapshot:
        kept = await self.store.load(self.partition)
        assert kept is not None
        return kept


async def commit(
    holding: Holding,
    first: int,
    following: int,
    changes: bytes = b"c",
    outputs: tuple[bytes, ...] = (b"o",),
    published: tuple[str, ...] = (),
) -> Verdict:
    parcels = {parcel_name(first, number): packed for number, packed in enumerate(outputs)}
    return await holding.commit(first, following, CHAIN, changes, parcels, published)


Scenario = Callable[[RedisStore], Awaitable[None]]


def on_fresh_keys(url: str, scenario: Scenario, prefix: str | None = None) -> None:
    """Run a scenario against a fresh set of keys."""

    async def connected() -> None:
        async with RedisStore(url, prefix or f"t{uuid4().hex}.") as store:
            await store.connect()
            await scenario(store)

    asyncio.run(connected())
