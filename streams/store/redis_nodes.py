"""Finds the server that has the keys of a partition: a single Redis, the master that Sentinels
name, or a server of a Cluster.

The servers are looked up once, and each connection is opened once. redis-py's own clients for
Cluster and Sentinel follow a failover, and may continue to write to an earlier state. Here a lost
connection or a redirection (MOVED, READONLY, CLUSTERDOWN) is an error. The writer exits, and the
next owner reads the state and compares it with the log.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import redis.asyncio
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as LostConnection

from streams.redis_address import AddressKind, RedisAddress

CONNECTIONS = 8
"""The number of connections to each server; a command waits for a free one."""

_ALL_SLOTS = range(REDIS_CLUSTER_HASH_SLOTS)
_TIMEOUTS = {"socket_timeout": 30.0, "socket_connect_timeout": 5.0}

Settings = Mapping[str, Any]
Server = redis.asyncio.Redis


class NoMaster(LostConnection):
    """No Sentinel names a master that it can reach. The cause is the last Sentinel's error."""


class Node:
    """One server, to which each connection is opened once."""

    def __init__(self, url: str, settings: Settings) -> None:
        # No retries: only the version shows whether a write without an answer took place.
        self._pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=None,
            retry=Retry(NoBackoff(), 0),
            **_TIMEOUTS,
            **settings,
        )
        self._pool.connection_class = _once(self._pool.connection_class)
        self.client = Server(connection_pool=self._pool)
        self._asked: list[tuple[Sequence[Any], asyncio.Future[Any]]] = []
        self._rounds: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open all connections. No connection is opened after this."""
        opened: list[Any] = []
        pool: Any = self._pool  # redis-py has no types for it
        try:
            for _ in range(CONNECTIONS):
                opened.append(await pool.get_connection())
        finally:
            for connection in opened:
                await pool.release(connection)

    async def ask(self, *command: Any) -> Any:
        """Return the answer of the server.

        All commands of one turn of the event loop share one round trip, because a charge leads to
        a write in each of its partitions. No command depends on another.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((command, answer))
        if len(self._asked) == 1:
            round_trip = asyncio.create_task(self._round_trip())
            self._rounds.add(round_trip)
            round_trip.add_done_callback(self._rounds.discard)
        return await answer

    async def _round_trip(self) -> None:
        asked, self._asked = self._asked, []
        try:
            pipeline = self.client.pipeline(transaction=False)
            for command, _ in asked:
                pipeline.execute_command(*command)
            replies = await pipeline.execute(raise_on_error=False)
        except Exception as error:
            replies = [error] * len(asked)
        for (_, answer), one in zip(asked, replies, strict=True):
            if answer.done():
                continue  # the caller was cancelled
            if isinstance(one, Exception):
                answer.set_exception(one)
            else:
                answer.set_result(one)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()
        await self._pool.disconnect()


class Nodes:
    """The servers that have keys. Errors are those of redis-py, or of the system."""

    def __init__(self, find: Callable[[], Awaitable[Sequence[tuple[range, Node]]]]) -> None:
        self._find = find
        self._found: Sequence[tuple[range, Node]] | None = None
        self._finding = asyncio.Lock()

    async def of(self, key: str) -> Node:
        """Return the server that has a key."""
        slot = key_slot(key.encode())
        for slots, node in await self._ranges():
            if slot in slots:
                return node
        raise ClusterDownError(f"CLUSTERDOWN no server has slot {slot} of {len(_ALL_SLOTS)}")

    async def found(self) -> list[Node]:
        """Return all servers, as they were found at the first call."""
        return list(dict.fromkeys(node for _, node in await self._ranges()))

    async def open(self) -> None:
        """Open all connections."""
        for node in await self.found():
            await node.open()

    async def close(self) -> None:
        """Close all connections."""
        for _, node in self._found or ():
            await node.close()

    async def _ranges(self) -> Sequence[tuple[range, Node]]:
        if self._found is None:
            async with self._finding:
                if self._found is None:
                    self._found = await self._find()
        return self._found


async def _find_master(
    address: RedisAddress, settings: Settings, asked: Settings
) -> list[tuple[range, Node]]:
    """Return the master of a service, which the Sentinels name."""
    host, port = await _named_master(address, asked)
    node = Node(address.url_of(host, port), settings)
    client: Any = node.client
    role = await client.execute_command("ROLE")
    if role[0] != b"master":
        await node.close()
        raise ReadOnlyError(f"{host}:{port} is not a master, although a Sentinel names it")
    return [(_ALL_SLOTS, node)]


async def _named_master(address: RedisAddress, asked: Settings) -> tuple[str, int]:
    """Return the master that the first Sentinel names."""
    service, problems = address.service, []
    last: Exception | None = None
    for host, port in address.nodes:
        pool: Any = ConnectionPool(host=host, port=port, **asked)  # no types
        sentinel: Any = Server(connection_pool=pool)
        try:
            known = (await sentinel.sentinel_masters()).get(service)
        except (RedisError, OSError) as error:
            login = " (see redis_sentinel_username)" * isinstance(error, AuthenticationError)
            problems.append(f"{host}:{port}: {error}{login}")
            last = error
        else:
            if known and known["is_master"] and not (known["is_sdown"] or known["is_odown"]):
                return str(known["ip"]), int(known["port"])
            problems.append(f"{host}:{port} knows no reachable master of {service!r}")
        finally:
            await pool.disconnect()
    raise NoMaster(f"no Sentinel names a master: {'; '.join(problems)}") from last


async def _find_masters(address: RedisAddress, settings: Settings) -> list[tuple[range, Node]]:
    """Return the masters of a Cluster, each with its slots."""
    views = await asyncio.gather(
        *(_view(address, settings, host, port) for host, port in address.nodes),
        return_exceptions=True,
    )
    known = [view for view in views if not isinstance(view, BaseException)]
    for error in views:
        if not known and isinstance(error, BaseException):
            raise error
    # A node that is cut off from the others still answers, with an older epoch.
    epoch, slots = max(known, key=lambda view: view[0])
    if epoch < 0:
        raise ClusterDownError("CLUSTERDOWN the Cluster does not serve requests")
    nodes = {place: Node(address.url_of(*place), settings) for place in {p for _, p in slots}}
    return [(held, nodes[place]) for held, place in slots]


async def _view(
    address: RedisAddress, settings: Settings, host: str, port: int
) -> tuple[int, list[tuple[range, tuple[str, int]]]]:
    """Return a node's view of the Cluster: its epoch (-1: not serving), and the slots of each
    master.

    The addresses of masters are as the Cluster announces them.
    """
    seed = Node(address.url_of(host, port), settings)
    client: Any = seed.client
    try:
        reply = await client.execute_command("CLUSTER", "INFO")
        slots = await client.execute_command("CLUSTER", "SLOTS")
    finally:
        with suppress(RedisError, OSError):
            await seed.close()
    if isinstance(reply, bytes):
        reply = reply.decode()
    info = dict(line.split(":", 1) for line in reply.split("\r\n") if ":" in line)
    epoch = int(info["cluster_current_epoch"]) if info["cluster_state"] == "ok" else -1
    return epoch, [
        (range(first, last + 1), (_host(master[0]) or host, int(master[1])))
        for first, last, master, *_ in slots
    ]


def nodes_at(url: str, address: RedisAddress, settings: Settings, sentinel: Settings) -> Nodes:
    """Return the servers at an address; ``sentinel`` is the login for Sentinels."""
    if address.kind is AddressKind.CLUSTER:
        return Nodes(partial(_find_masters, address, settings))
    if address.kind is AddressKind.SENTINEL:
        # The encryption options of the address apply to Sentinels too; its login is for Redis.
        options = {**settings, **parse_url(address.url_of(*address.nodes[0]))}
        asked = {
            **_TIMEOUTS,
            "retry": Retry(NoBackoff(), 0),
            "connection_class": _once(SSLConnection if address.encrypted else Connection),
            **{name: value for name, value in options.items() if name.startswith("ssl_")},
            **sentinel,
        }
        return Nodes(partial(_find_master, address, settings, asked))
    node = Node(url, settings)

    async def find() -> list[tuple[range, Node]]:
        return [(_ALL_SLOTS, node)]

    return Nodes(find)


def _host(announced: bytes | str | None) -> str:
    """Return the announced host; empty if the node does not know its own."""
    name = announced.decode() if isinstance(announced, bytes) else announced or ""
    return "" if name == "?" else name


def _once(base: Any) -> Any:
    """Return a connection class that opens its socket once, and trusts given authorities only."""

    class Once(base):  # type: ignore[misc]
        opened = False

        async def _connect(self) -> None:
            if self.opened:
                raise LostConnection("the connection was lost")
            if tls := getattr(self, "ssl_context", None):
                tls.context = tls.context or _believing(tls)
            await super()._connect()
            self.opened = True

    return Once


def _believing(tls: Any) -> ssl.SSLContext:
    """Return the TLS context that redis-py would build, but without the authorities of the system.

    redis-py would trust these in addition to the given one, and thus any public certificate.
    """

    def option(name: str) -> Any:
        return getattr(tls, name, None)  # older releases of redis-py have fewer options

    context = ssl.create_default_context(
        cafile=tls.ca_certs, capath=option("ca_path"), cadata=tls.ca_data
    )
    context.check_hostname = tls.check_hostname
    context.verify_mode = tls.cert_reqs
    if tls.certfile or tls.keyfile:
        # Give a password, even an empty one: otherwise OpenSSL asks for it on the terminal.
        context.load_cert_chain(tls.certfile, tls.keyfile, option("password") or "")
    if tls.min_version is not None:
        context.minimum_version = tls.min_version
    if tls.ciphers is not None:
        context.set_ciphers(tls.ciphers)
    for flag in option("include_verify_flags") or ():
        context.verify_flags |= flag
    for flag in option("exclude_verify_flags") or ():
        context.verify_flags &= ~flag
    return context
