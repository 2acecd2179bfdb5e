"""The state of partitions in Redis. The only module that knows Redis; the keys are in ``layout``.

Verbs that write state are Lua scripts: Redis runs each of them alone, from its first check to its
last write. A connection is opened once: one that is lost takes the process with it, because what is
behind the address may be another Redis by then.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from importlib import resources
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as LostConnection

from streams.config import Config
from streams.store.image import Moment
from streams.store.layout import (
    FIRST_LAYOUT,
    STAGED,
    STATE,
    Meta,
    chain_fields,
    fields_of_nothing,
    hexadecimal,
    key_of,
)
from streams.store.port import (
    Claimed,
    Commit,
    Exchange,
    Glance,
    Guard,
    Installation,
    Stage,
    Store,
    StoreUnavailable,
    Verdict,
)
from streams.store.snapshot import Snapshot, verified

CONNECTIONS = 8
"""A worker opens so many, at once; a command waits for one that is free."""


class RedisStore(Store):
    """Connections to one Redis. Every failure is a ``StoreUnavailable``."""

    def __init__(self, url: str, prefix: str, **settings: Any) -> None:
        self.address = without_password(url)
        try:
            # No retries: whether a write that got no answer took place, only its version can tell.
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=None,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=30.0,
                socket_connect_timeout=5.0,
                **settings,
            )
        except ValueError:
            # The error quotes parts of the URL, which may be the password.
            raise StoreUnavailable(
                f"{self.address!r} is no address of a Redis: write redis://host:port/0"
            ) from None
        pool.connection_class = _once(pool.connection_class)
        self._pool = pool
        self._redis = redis.asyncio.Redis(connection_pool=pool)
        self._prefix = prefix
        self._scripts: dict[str, Any] = {}

    @classmethod
    def of(cls, config: Config) -> Self:
        """The store that settings name."""
        settings: dict[str, Any] = {}
        if config.redis_username:
            settings["username"] = config.redis_username
        if config.redis_password:
            settings["password"] = config.redis_password
        if config.redis.startswith("rediss:"):
            settings["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
            settings["ssl_ca_certs"] = config.redis_ca or None
            settings["ssl_certfile"] = config.redis_certificate or None
            settings["ssl_keyfile"] = config.redis_key or config.redis_certificate or None
        return cls(config.redis, config.prefix, **settings)

    async def __aenter__(self) -> RedisStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open all connections. After this, none is ever opened again.

        Raises:
            StoreUnavailable: no answer.
        """
        opened: list[Any] = []
        pool: Any = self._pool  # its types say nothing
        try:
            for _ in range(CONNECTIONS):
                opened.append(await pool.get_connection())
        except (RedisError, OSError) as error:
            raise self._unavailable("Redis does not answer", error) from error
        finally:
            for connection in opened:
                await pool.release(connection)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
        await self._pool.disconnect()

    async def check(self) -> str | None:
        """Make sure that Redis answers and keeps what it is given.

        Returns:
            What could not be found out, if so.

        Raises:
            StoreUnavailable: no answer, or a Redis that may evict keys.
        """
        try:
            await self._redis.ping()
            settings = await self._memory_settings()
        except RedisError as error:
            raise self._unavailable("Redis does not answer", error) from error
        if settings is None:
            return "Redis lets nobody see whether it may evict keys: maxmemory-policy must be " + (
                "noeviction, else charges are forgotten"
            )
        policy, memory = settings
        if policy != "noeviction" and memory != "0":
            raise StoreUnavailable(
                "Redis may evict keys, which would forget charges: "
                "set maxmemory-policy to noeviction"
            )
        return None

    async def facts(self) -> dict[str, Any]:
        """What Redis says of itself (INFO), and its clock, as ``now``.

        Raises:
            StoreUnavailable: no answer.
        """
        try:
            seconds, micros = await self._redis.time()
            return {**await self._redis.info(), "now": seconds + micros / 1_000_000}
        except (RedisError, OSError) as error:
            raise self._unavailable("Redis does not answer", error) from error

    async def claim(self, partition: int, owner: str, topic: bytes, partitions: int) -> Claimed:
        """Own a partition of this log and fence every other owner."""
        keys = (*STATE, *FIRST_LAYOUT)
        nothing = fields_of_nothing(topic, partition, partitions)
        verdict, before = await self._run("claim", partition, keys, [owner, *_flat(nothing)])
        return Claimed(_verdict(verdict), _text(_pairs(before)))

    async def owner(self, partition: int) -> str:
        """Who owns a partition; empty if nobody ever did."""
        owner = await self._ask(partition, self._redis.hget(self._key(partition, "meta"), "owner"))
        return _legible(owner or b"")

    async def load(self, partition: int) -> Snapshot | None:
        """All that is kept of a partition, as of one moment; None if nothing ever was.

        Raises:
            Damaged: it is not whole.
        """
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.hgetall(self._key(partition, "meta"))
        pipeline.hgetall(self._key(partition, "pages"))
        pipeline.lrange(self._key(partition, "changes"), 0, -1)
        pipeline.hgetall(self._key(partition, "outbox"))
        meta, pages, changes, outbox = await self._ask(partition, pipeline.execute())
        if not meta:
            return None
        return verified(_text(meta), _named(pages), changes, _named(outbox))

    async def glance(self, partition: int) -> Glance:
        """What can be said of a partition in no time, however large its state is."""
        pipeline = self._redis.pipeline(transaction=True)
        pipeline.time()
        for name in ("meta", "alive", "stopped"):
            pipeline.hgetall(self._key(partition, name))
        now, meta, alive, stopped = await self._ask(partition, pipeline.execute())
        return Glance(
            now=int(now[0]),
            meta=_text(meta),
            seen=int(alive[b"time"]) if b"time" in alive else None,
            pulse=alive.get(b"pulse", b""),
            summary=alive.get(b"summary", b""),
            stopped=_text(stopped),
        )

    async def commit(self, guard: Guard, commit: Commit) -> Verdict:
        """Append one batch. ``DUPLICATE`` or ``GAP``: it is not the one that comes next."""
        return await self._write(
            "commit",
            guard,
            *(commit.first, commit.next, *chain_fields(commit.chain).values()),
            commit.leader_epoch,
            *(len(commit.changes), *commit.changes),
            *(len(commit.parcels), *_flat(commit.parcels)),
            *commit.published,
        )

    async def compact(self, guard: Guard, exchange: Exchange) -> Verdict:
        """Write pages, or drop the changes that they cover by now."""
        return await self._write(
            "compact",
            guard,
            *(hexadecimal(exchange.digest), exchange.dropped, exchange.since),
            *(len(exchange.pages), *_flat(exchange.pages)),
            *exchange.deleted,
        )

    async def forget(self, guard: Guard, published: Sequence[str]) -> Verdict:
        """Drop parcels that have been published."""
        return await self._write("forget", guard, *published)

    async def moment(self, guard: Guard) -> Moment | Verdict:
        """What is kept besides pages, of one moment, or why it is not what the owner left."""
        arguments = [guard.owner, guard.version]
        verdict, *found = await self._run("moment", guard.partition, STATE, arguments)
        if _verdict(verdict) is not Verdict.OK:
            return _verdict(verdict)
        meta, changes, outbox = found
        return Moment(Meta.of(_text(_pairs(meta))), changes, _named(_pairs(outbox)))

    async def read_pages(self, partition: int, names: Sequence[str]) -> dict[str, bytes]:
        """These pages as they are kept; those that are not there are left out."""
        asked: Any = self._redis.hmget(self._key(partition, "pages"), list(names))
        pages = zip(names, await self._ask(partition, asked), strict=True)
        return {name: page for name, page in pages if page is not None}

    async def stage(self, guard: Guard, stage: Stage) -> Verdict:
        """Put some of an image beside what is kept. This is no state: the version stays."""
        arguments = [
            *(guard.owner, guard.version, int(stage.is_first)),
            *(len(stage.pages), *_flat(stage.pages)),
            *(len(stage.changes), *stage.changes),
            *_flat(stage.parcels),
        ]
        return _verdict(await self._run("stage", guard.partition, (*STATE, *STAGED), arguments))

    async def install(self, guard: Guard, installation: Installation) -> Verdict:
        """Let what was staged take the place of what is kept; ``DAMAGED``: it is not all there."""
        arguments = [
            *(guard.owner, guard.version),
            *(installation.changes, installation.pages, installation.parcels),
            *_flat(installation.fields),
        ]
        return _verdict(await self._run("install", guard.partition, (*STATE, *STAGED), arguments))

    async def beat(self, guard: Guard, pulse: bytes, summary: bytes) -> Verdict:
        """Show that a partition is decided; takes a stop away."""
        arguments = [guard.owner, guard.version, pulse, summary]
        keys = (*STATE, "alive", "stopped")
        return _verdict(await self._run("beat", guard.partition, keys, arguments))

    async def keep_stop(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Say why nothing is decided in a partition, until an owner decides there again."""
        now, _ = await self._ask(partition, self._redis.time())
        fields: Any = {"reason": reason, "problem": problem, "remedy": remedy, "time": now}
        stopped = self._redis.hset(self._key(partition, "stopped"), mapping=fields)
        await self._ask(partition, stopped)

    async def _memory_settings(self) -> tuple[str | None, str | None] | None:
        """(maxmemory-policy, maxmemory), if Redis tells them."""
        try:
            policy = await self._redis.config_get("maxmemory-policy")
            memory = await self._redis.config_get("maxmemory")
            return policy.get("maxmemory-policy"), memory.get("maxmemory")
        except ResponseError:
            pass  # forbidden, as managed services do; INFO has the same
        try:
            known = await self._redis.info("memory")
            return str(known["maxmemory_policy"]), str(known["maxmemory"])
        except (ResponseError, KeyError):
            return None

    def _key(self, partition: int, name: str) -> str:
        return key_of(self._prefix, partition, name)

    async def _write(self, name: str, guard: Guard, *arguments: Any) -> Verdict:
        guarded = [guard.owner, guard.version, *arguments]
        return _verdict(await self._run(name, guard.partition, STATE, guarded))

    async def _run(
        self, name: str, partition: int, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Any:
        """Run one of the scripts."""
        if name not in self._scripts:
            self._scripts[name] = self._redis.register_script(_source(name))
        script = self._scripts[name]
        called = script(keys=[self._key(partition, key) for key in keys], args=arguments)
        return await self._ask(partition, called)

    async def _ask(self, partition: int, asked: Any) -> Any:
        try:
            return await asked
        except (RedisError, OSError) as error:
            raise self._unavailable(f"partition {partition}", error) from error

    def _unavailable(self, what: str, error: Exception) -> StoreUnavailable:
        told = next((told for kind, told in _ADVICE if isinstance(error, kind)), "")
        return StoreUnavailable(f"{what}: {type(error).__name__}: {error} ({self.address}){told}")


_ADVICE: Sequence[tuple[type[Exception], str]] = (
    (
        AuthenticationError,
        ": check redis_username and redis_password; Redis does not say which of them is wrong",
    ),
    (
        NoPermissionError,
        ": this user may not do that; `turnstile acl --format redis` shows the rights of each role",
    ),
)
"""What to do about an error; behind the address, which hides no password."""


def without_password(url: str) -> str:
    """The address of a Redis as it may be shown: nothing that could be a password is left."""
    hidden = "the address given"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return hidden
    # A password with an unquoted / ? or # would show up behind the host.
    if not parts.scheme or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        return hidden
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}{parts.path}"


def _once(base: Any) -> Any:
    """A kind of connection that opens its socket once."""

    class Once(base):  # type: ignore[misc]
        opened = False

        async def _connect(self) -> None:
            if self.opened:
                raise LostConnection("the connection was lost")
            await super()._connect()
            self.opened = True

    return Once


def _source(name: str) -> str:
    scripts = resources.files("streams.store").joinpath("lua")
    guard = "" if name == "claim" else scripts.joinpath("guard.lua").read_text()
    return guard + scripts.joinpath(f"{name}.lua").read_text()


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_legible(name): _legible(value) for name, value in fields.items()}


def _named(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {_legible(name): value for name, value in fields.items()}


def _legible(text: bytes) -> str:
    """What no worker wrote may be no text: it has to be found damaged, not to be an error."""
    return text.decode(errors="backslashreplace")


def _flat(pairs: Mapping[str, Any]) -> list[Any]:
    return [part for pair in pairs.items() for part in pair]


def _pairs(listed: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(listed[::2], listed[1::2], strict=True))


def _verdict(reply: bytes) -> Verdict:
    return Verdict(reply.decode())
