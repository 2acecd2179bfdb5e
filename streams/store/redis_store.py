"""Stores the state of partitions in one or several Redis servers; ``layout`` defines the keys.

Operations that write state are Lua scripts: Redis runs each of them atomically. They and the
atomic reads use the keys of one partition only, which a Cluster stores on one server. The servers
are looked up once (``redis_nodes``), and each connection is opened once. A lost connection ends
the process, because another Redis may answer at the address by then.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Any, Self

from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from streams.config import Config, redact
from streams.redis_address import UnusableAddress, is_encrypted, read_address
from streams.store.layout import (
    STAGED,
    STATE,
    fields_of_nothing,
    key_of,
)
from streams.store.redis_nodes import NoMaster, Server, nodes_at
from streams.store.store_port import (
    NO_ENTRIES,
    Acquired,
    Glance,
    Guard,
    Store,
    StoreFailure,
    StoreUnavailable,
    Unpaged,
    Verdict,
)
from streams.store.stored_state import StoredState, verified


class RedisStore(Store):
    """Connections to one or several Redis servers. Every failure is a ``StoreUnavailable``."""

    def __init__(
        self,
        url: str,
        prefix: str,
        sentinel: Mapping[str, str | None] | None = None,
        **settings: Any,
    ) -> None:
        try:
            self._nodes = nodes_at(url, read_address(url), settings, sentinel or {})
        except (UnusableAddress, ValueError):
            # Quote nothing of it, and of the error: any part may be the password.
            raise StoreUnavailable(
                StoreFailure.ADDRESS,
                "the address given is not that of a Redis: write redis://host:port/0",
            ) from None
        self.address = redact(url)
        self._prefix = prefix

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the store that the settings name."""
        settings: dict[str, Any] = {}
        if config.redis_username:
            settings["username"] = config.redis_username
        if config.redis_password:
            settings["password"] = config.redis_password
        if is_encrypted(config.redis):
            settings["ssl_min_version"] = ssl.TLSVersion.TLSv1_2
            settings["ssl_ca_certs"] = config.redis_ca or None
            settings["ssl_certfile"] = config.redis_certificate or None
            settings["ssl_keyfile"] = config.redis_key or config.redis_certificate or None
        login = {"username": config.redis_sentinel_username or None}
        login["password"] = config.redis_sentinel_password or None
        return cls(config.redis, config.prefix, login, **settings)

    async def __aenter__(self) -> RedisStore:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self) -> None:
        """Open all connections, or raise ``StoreUnavailable``. None is opened after this."""
        with self._reaching():
            await self._nodes.open()

    async def close(self) -> None:
        """Close the connections."""
        await self._nodes.close()

    async def check(self) -> str | None:
        """Check that Redis answers and never evicts keys, or raise ``StoreUnavailable``.

        Return a warning if the eviction policy cannot be read.
        """
        with self._reaching():
            found = [await _memory_settings(node.client) for node in await self._nodes.found()]
        if any(
            settings is not None and settings[0] != "noeviction" and settings[1] != "0"
            for settings in found
        ):
            raise StoreUnavailable(
                StoreFailure.MAY_EVICT,
                "Redis may evict keys, which would forget charges: "
                "set maxmemory-policy to noeviction",
            )
        if None in found:
            return (
                "Redis does not show its maxmemory-policy: it must be noeviction, because an "
                "evicted key would forget charges"
            )
        return None

    async def facts(self) -> list[dict[str, Any]]:
        """Return each server's INFO, clock (``now``) and ``address``, or ``StoreUnavailable``."""
        with self._reaching():
            return [await _facts(node.client) for node in await self._nodes.found()]

    async def acquire(
        self,
        partition: int,
        owner: str,
        topic: bytes,
        partitions: int,
        discarding: Mapping[str, str] | None = None,
    ) -> Acquired:
        """Own a partition of this log and fence every other owner."""
        seen = [b"", b""]
        if discarding is not None:
            # The script compares bytes, of which ``discarding`` has the legible form.
            meta, names = self._key(partition, "meta"), ("owner", "version")
            found = await self._ask(partition, lambda server: server.hmget(meta, names))
            seen = [value or b"" for value in found]
            for name, value, verdict in zip(names, seen, _MOVED_ON, strict=True):
                if _legible(value) != discarding.get(name, ""):
                    return Acquired(verdict, {})
        nothing = _words(fields_of_nothing(topic, partition, partitions).items())
        arguments = [owner, int(discarding is not None), *seen, *nothing]
        found, before = await self._run("acquire", partition, (*STATE, *STAGED), arguments)
        return Acquired(_verdict(found), _text(_pairs(before)))

    async def load(self, partition: int) -> StoredState | None:
        """Return the whole state of a partition, read atomically; None if there is none."""
        meta, pages, changes, outbox, pulse = await self._at_once(
            partition,
            ("HGETALL", "meta"),
            ("HGETALL", "pages"),
            ("LRANGE", "changes", 0, -1),
            ("HGETALL", "outbox"),
            ("HGET", "alive", "pulse"),
        )
        if not meta:
            return None
        stored = verified(_text(meta), _named(pages), changes, _named(outbox))
        return replace(stored, pulse=pulse or b"")

    async def glance(self, partition: int) -> Glance:
        """Return the facts about a partition that take the same time however large its state is."""
        shown = (("HGETALL", name) for name in ("meta", "alive", "suspended"))
        now, meta, alive, suspended = await self._at_once(partition, ("TIME",), *shown)
        return Glance(
            now=int(now[0]),
            meta=_text(meta),
            seen=int(seen) if (seen := alive.get(b"time", b"")).isdigit() else None,
            pulse=alive.get(b"pulse", b""),
            summary=alive.get(b"summary", b""),
            suspended=_text(suspended),
        )

    async def write(
        self,
        guard: Guard,
        fields: Mapping[str, str],
        *,
        first: int | None = None,
        replaces: bool = False,
        dropped: int = 0,
        changes: Sequence[bytes] = (),
        pages: Mapping[str, bytes] = NO_ENTRIES,
        deleted: Sequence[str] = (),
        outbox: Mapping[str, bytes] = NO_ENTRIES,
        published: Sequence[str] = (),
    ) -> Verdict:
        """Change the state of a partition: everything that is given, or nothing."""
        added: list[_Entries] = [
            [(delta,) for delta in changes],
            list(pages.items()),
            list(outbox.items()),
        ]
        staged = [0, 0, 0]
        # Redis limits the size of one command, so much content is staged beside the state first.
        # The script that writes it then adds all pieces at once.
        if sum(map(len, (*changes, *pages.values(), *outbox.values()))) > _COMMAND_BYTES:
            for number, piece in enumerate(_pieces(added)):
                verdict = await self._guarded("stage", guard, int(number == 0), *_counted(piece))
                if verdict is not Verdict.OK:
                    return verdict
            staged, added = [len(entries) for entries in added], [[], [], []]
        names = [[(name,) for name in removed] for removed in (deleted, published)]
        lists = (*added, list(fields.items()), *names)
        return await self._guarded(
            "write",
            guard,
            *("" if first is None else first, *staged, int(replaces), dropped),
            *_counted(lists),
        )

    async def unpaged(self, partition: int) -> Unpaged:
        """Return the state without its pages, read atomically."""
        meta, changes, outbox = await self._at_once(
            partition, ("HGETALL", "meta"), ("LRANGE", "changes", 0, -1), ("HGETALL", "outbox")
        )
        return Unpaged(_text(meta), changes, _named(outbox))

    async def read_pages(self, partition: int, names: Sequence[str]) -> dict[str, bytes]:
        """Return these pages as they are stored, without those that do not exist."""
        key = self._key(partition, "pages")
        found = await self._ask(partition, lambda server: server.hmget(key, list(names)))
        pages = zip(names, found, strict=True)
        return {name: page for name, page in pages if page is not None}

    async def beat(self, guard: Guard, pulse: bytes, summary: bytes) -> Verdict:
        """Report that a partition is decided; delete the reason for a suspension."""
        arguments = [guard.owner, guard.version, pulse, summary]
        keys = (*STATE, "alive", "suspended")
        return _verdict(await self._run("beat", guard.partition, keys, arguments))

    async def keep_suspension(self, partition: int, reason: str, problem: str, remedy: str) -> None:
        """Store why a partition is suspended, until an owner decides it again."""
        now, _ = await self._ask(partition, lambda server: server.time())
        fields: Any = {"reason": reason, "problem": problem, "remedy": remedy, "time": now}
        key = self._key(partition, "suspended")
        await self._ask(partition, lambda server: server.hset(key, mapping=fields))

    def _key(self, partition: int, name: str) -> str:
        return key_of(self._prefix, partition, name)

    async def _guarded(self, name: str, guard: Guard, *arguments: Any) -> Verdict:
        guarded = [guard.owner, guard.version, *arguments]
        return _verdict(await self._run(name, guard.partition, (*STATE, *STAGED), guarded))

    async def _run(
        self, name: str, partition: int, keys: Sequence[str], arguments: Sequence[Any]
    ) -> Any:
        """Run one of the scripts."""
        named = [self._key(partition, key) for key in keys]
        source, digest = _script(name)
        call = len(named), *named, *arguments
        with self._reaching(partition):
            node = await self._nodes.of(named[0])
            try:
                return await node.ask("EVALSHA", digest, *call)
            except NoScriptError:  # the server does not know the script yet
                return await node.ask("EVAL", source, *call)

    async def _at_once(self, partition: int, *commands: tuple[Any, ...]) -> Any:
        """Return the answers to commands, read atomically. Their second word names a key."""

        def asked(server: Server) -> Awaitable[Any]:
            pipeline = server.pipeline(transaction=True)
            for command, *words in commands:
                named = [self._key(partition, name) for name in words[:1]]
                pipeline.execute_command(command, *named, *words[1:])
            return pipeline.execute()

        return await self._ask(partition, asked)

    async def _ask(self, partition: int, asked: Callable[[Server], Any]) -> Any:
        """Return the answer of the server that has a partition."""
        with self._reaching(partition):
            node = await self._nodes.of(self._key(partition, "meta"))
            return await asked(node.client)

    @contextmanager
    def _reaching(self, partition: int | None = None) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            whole = "Redis does not answer"
            what = whole if partition is None else f"Redis fails for partition {partition}"
            hint = next((hint for kind, hint in _ADVICE if isinstance(error, kind)), "")
            text = f"{what}: {type(error).__name__}: {error} ({self.address}){hint}"
            raise StoreUnavailable(_reason_of(error), text) from error


_COMMAND_BYTES = 128 * 1024 * 1024
"""The largest content of a command that writes. The limit of Redis is 1 GiB by default."""

_MOVED_ON = (Verdict.FENCED, Verdict.REWOUND)
"""The verdicts if the owner or the version of a state differ."""

_Entries = Sequence[tuple[Any, ...]]
"""Entries of one kind, each as the words of a command."""


def _pieces(added: Sequence[_Entries]) -> Iterator[list[list[tuple[Any, ...]]]]:
    """Split the entries of each kind into pieces; a piece of ``_COMMAND_BYTES`` is complete."""
    piece: list[list[tuple[Any, ...]]] = [[] for _ in added]
    size = 0
    for kind, entries in enumerate(added):
        for entry in entries:
            piece[kind].append(entry)
            size += len(entry[-1])
            if size >= _COMMAND_BYTES:
                yield piece
                piece, size = [[] for _ in added], 0
    yield piece


def _counted(lists: Sequence[_Entries]) -> Iterator[Any]:
    """Yield the words of each list, after their number."""
    for entries in lists:
        words = _words(entries)
        yield len(words)
        yield from words


def _words(entries: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [word for entry in entries for word in entry]


_ADVICE: Sequence[tuple[type[Exception], str]] = (
    (
        AuthenticationError,
        ": check redis_username and redis_password; Redis does not say which of them is wrong",
    ),
    (
        NoPermissionError,
        ": this user lacks the right; `turnstile acl --format redis` shows the rights of each role",
    ),
    *(
        (kind, ": the state is on another server, or on none; restart the process to look it up")
        for kind in (AskError, TryAgainError, ClusterDownError, ReadOnlyError)
    ),
)
"""The advice for an error. It follows the address in the message, which contains no password."""


_REASONS: Sequence[tuple[type[Exception], StoreFailure]] = (
    (AuthenticationError, StoreFailure.LOGIN),
    (ssl.SSLCertVerificationError, StoreFailure.CERTIFICATE),
    (NoMaster, StoreFailure.NO_MASTER),
)


def _reason_of(error: Exception) -> StoreFailure:
    """Return the reason for an error: the first that its type, or that of a cause, shows.

    redis-py raises one type for all connections that cannot be opened, from the error of the
    system or of TLS.
    """
    errors: list[BaseException] = [error]
    while earlier := errors[-1].__cause__ or errors[-1].__context__:
        errors.append(earlier)
    for kind, reason in _REASONS:
        if any(isinstance(one, kind) for one in errors):
            return reason
    return StoreFailure.NO_ANSWER


async def _facts(server: Server) -> dict[str, Any]:
    to = server.connection_pool.connection_kwargs
    address = to.get("path") or f"{to.get('host')}:{to.get('port')}"
    return {**await server.info(), "address": address}


async def _memory_settings(server: Server) -> tuple[str, str] | None:
    """Return (maxmemory-policy, maxmemory); None if the server does not show them."""
    # INFO, not CONFIG GET: managed services and the role of a worker forbid CONFIG.
    with suppress(ResponseError, KeyError):
        known = await server.info("memory")
        return str(known["maxmemory_policy"]), str(known["maxmemory"])
    return None


@cache
def _script(name: str) -> tuple[str, str]:
    """Return the source of a script, and the SHA-1 by which Redis knows it."""
    scripts = resources.files("streams.store").joinpath("lua")
    guard = "" if name == "acquire" else scripts.joinpath("guard.lua").read_text()
    source = guard + scripts.joinpath(f"{name}.lua").read_text()
    return source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


def _text(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    return {_legible(name): _legible(value) for name, value in fields.items()}


def _named(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {_legible(name): value for name, value in fields.items()}


def _legible(text: bytes) -> str:
    """Decode text, and escape bytes that no worker wrote: the caller finds them damaged."""
    return text.decode(errors="backslashreplace")


def _pairs(listed: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(listed[::2], listed[1::2], strict=True))


def _verdict(reply: bytes) -> Verdict:
    return Verdict(reply.decode())
