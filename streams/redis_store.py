"""The state of a partition in Redis: atomic verbs, no policy. The only module that knows Redis.

Per partition p, under one hash tag so that Redis Cluster keeps them together:

    turnstile.{norms-p}:meta      hash   owner, next (the offset to apply next)
    turnstile.{norms-p}:deltas    list   state changes since they were last folded
    turnstile.{norms-p}:folded    hash   policies, runs and pages of users
    turnstile.{norms-p}:outbox    hash   outputs of a batch, until they are published

State = folded, then the deltas in order. Values are absolute, so a fold that stopped half-way is
harmless: the deltas that are still there set the same values again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from types import TracebackType
from typing import Any, cast

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError


class StoreUnavailable(Exception):
    """Redis did not answer, or answered with an error. Nothing can be decided."""


class Verdict(StrEnum):
    """What became of a write, in the order of the checks."""

    FENCED = "FENCED"  # somebody else owns the partition
    DUPLICATE = "DUPLICATE"  # it was written before
    GAP = "GAP"  # something before it is missing
    OK = "OK"


@dataclass(frozen=True)
class Snapshot:
    """What Redis holds of a partition."""

    next: int
    owner: str
    folded: dict[str, bytes]
    deltas: list[bytes]
    outbox: list[tuple[int, bytes]]  # in the order of the log


class RedisStore:
    """One connection pool to one Redis. Every failure is a ``StoreUnavailable``."""

    def __init__(self, url: str, prefix: str) -> None:
        # No retries: whether a write that got no answer took place, only its offset can tell.
        self._redis = redis.asyncio.Redis.from_url(
            url, retry=Retry(NoBackoff(), 0), socket_timeout=30.0, socket_connect_timeout=5.0
        )
        self._prefix = prefix
        self._claim = self._script("claim")
        self._commit = self._script("commit")
        self._fold = self._script("fold")

    async def __aenter__(self) -> RedisStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._redis.aclose()

    async def check(self) -> None:
        """Make sure that Redis answers and keeps what it is given.

        Raises:
            StoreUnavailable: no answer, or a Redis that may evict keys.
        """
        try:
            policy = await self._redis.config_get("maxmemory-policy")
            memory = await self._redis.config_get("maxmemory")
        except RedisError as error:
            raise StoreUnavailable(f"Redis does not answer: {error}") from error
        evicting = policy.get("maxmemory-policy") != "noeviction"
        if evicting and memory.get("maxmemory") != "0":
            raise StoreUnavailable(
                "Redis may evict keys, which would forget charges: "
                "set maxmemory-policy to noeviction"
            )

    async def claim(self, partition: int, owner: str) -> tuple[int, str]:
        """Own a partition and fence every other owner; returns next and the owner before."""
        next_offset, before = await self._run(self._claim, partition, ["meta"], [owner])
        return int(next_offset), before.decode()

    async def owner(self, partition: int) -> str:
        """Who owns a partition; empty if nobody ever did."""
        try:
            owner = await cast(Any, self._redis.hget(self._key(partition, "meta"), "owner"))
        except RedisError as error:
            raise StoreUnavailable(f"cannot read partition {partition}: {error}") from error
        return (owner or b"").decode()

    async def load(self, partition: int) -> Snapshot:
        """All that is kept of a partition, as of one moment."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hgetall(self._key(partition, "meta"))
        pipeline.hgetall(self._key(partition, "folded"))
        pipeline.lrange(self._key(partition, "deltas"), 0, -1)
        pipeline.hgetall(self._key(partition, "outbox"))
        try:
            meta, folded, deltas, outbox = await pipeline.execute()
        except RedisError as error:
            raise StoreUnavailable(f"cannot load partition {partition}: {error}") from error
        return Snapshot(
            next=int(meta.get(b"next", b"0")),
            owner=meta.get(b"owner", b"").decode(),
            folded={name.decode(): value for name, value in folded.items()},
            deltas=deltas,
            outbox=sorted((int(first), outputs) for first, outputs in outbox.items()),
        )

    async def commit(
        self,
        partition: int,
        owner: str,
        first: int,
        next_offset: int,
        delta: bytes,
        outputs: bytes,
        published: Iterable[int],
    ) -> Verdict:
        """Write a batch, records first to next_offset - 1, and forget published batches."""
        arguments = [owner, first, next_offset, delta, outputs, *published]
        keys = ["meta", "deltas", "outbox"]
        return _verdict(await self._run(self._commit, partition, keys, arguments))

    async def fold(
        self, partition: int, owner: str, next_offset: int, fields: dict[str, bytes], drop: int = 0
    ) -> Verdict:
        """Write fields of folded state, and drop the oldest deltas once all is folded."""
        pairs = [part for field in fields.items() for part in field]
        arguments = [owner, next_offset, drop, *pairs]
        keys = ["meta", "deltas", "folded"]
        return _verdict(await self._run(self._fold, partition, keys, arguments))

    async def forget_published(self, partition: int, published: Sequence[int]) -> None:
        """Drop outputs that have been published; harmless if somebody else does it too."""
        try:
            await cast(Any, self._redis.hdel(self._key(partition, "outbox"), *map(str, published)))
        except RedisError as error:
            raise StoreUnavailable(f"cannot clear the outbox: {error}") from error

    def _key(self, partition: int, name: str) -> str:
        return f"{self._prefix}{{norms-{partition}}}:{name}"

    def _script(self, name: str) -> Any:
        source = resources.files("streams").joinpath("lua", f"{name}.lua").read_text()
        return self._redis.register_script(source)

    async def _run(
        self, script: Any, partition: int, names: list[str], arguments: list[Any]
    ) -> Any:
        keys = [self._key(partition, name) for name in names]
        try:
            return await script(keys=keys, args=arguments)
        except RedisError as error:
            raise StoreUnavailable(f"a write to partition {partition} failed: {error}") from error


def _verdict(reply: bytes) -> Verdict:
    return Verdict(reply.decode())
