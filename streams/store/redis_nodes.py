"""Which server has the keys of a partition: the one there is, the one that Sentinels name, or one
of a Cluster.

That is found out once, and every connection is opened once. redis-py's own clients of a Cluster and
of Sentinels follow a failover by themselves, and write on to what may be an earlier state. Here it
is an error if a connection is lost or an answer sends elsewhere (MOVED, READONLY, CLUSTERDOWN):
whoever writes ends, and a new claim reads what there is and compares it with the log.
"""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import redis.asyncio
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
from redis.exceptions import AuthenticationError, ClusterDownError, ReadOnlyError, RedisError
from redis.exceptions import ConnectionError as LostConnection

from streams.redis_address import Kind, RedisAddress

CONNECTIONS = 8
"""So many are opened to each server, at once; a command waits for one that is free."""

_TIMEOUTS = {"socket_timeout": 30.0, "socket_connect_timeout": 5.0}

Settings = Mapping[str, Any]
Server = redis.asyncio.Redis


class Nodes(ABC):
    """The servers that have keys. Errors are those of redis-py, or of the system."""

    def __init__(self) -> None:
        self._found: Sequence[Node] | None = None
        self._finding = asyncio.Lock()

    async def of(self, key: str) -> Server:
        """The server that has a key."""
        return self._serving(await self.found(), key).client

    async def found(self) -> Sequence[Node]:
        """All of them, as they were found when that was asked first."""
        if self._found is None:
            async with self._finding:
                if self._found is None:
                    self._found = await self._find()
        return self._found

    async def open(self) -> None:
        """Open all connections."""
        for node in await self.found():
            await node.open()

    async def close(self) -> None:
        """Close them."""
        for node in self._found or ():
            await node.close()

    @abstractmethod
    async def _find(self) -> Sequence[Node]: ...

    def _serving(self, found: Sequence[Node], key: str) -> Node:
        return found[0]


class Node:
    """One server, to which connections are opened once."""

    def __init__(self, url: str, settings: Settings) -> None:
        # No retries: whether a write that got no answer took place, only its version can tell.
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

    async def open(self) -> None:
        """Open all connections. After this, none is ever opened again."""
        opened: list[Any] = []
        pool: Any = self._pool  # its types say nothing
        try:
            for _ in range(CONNECTIONS):
                opened.append(await pool.get_connection())
        finally:
            for connection in opened:
                await pool.release(connection)

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()
        await self._pool.disconnect()


class OneNode(Nodes):
    """The only one."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__()
        self._node = Node(url, settings)

    async def _find(self) -> Sequence[Node]:
        return [self._node]


class SentinelNode(Nodes):
    """The master of a service, as its Sentinels know it."""

    def __init__(self, address: RedisAddress, settings: Settings, login: Settings) -> None:
        super().__init__()
        self._address, self._settings = address, settings
        # What the address says of encryption is meant for them as well; its login is of Redis.
        told = {**settings, **parse_url(address.url_of(*address.nodes[0]))}
        self._asked = {
            **_TIMEOUTS,
            "retry": Retry(NoBackoff(), 0),
            "connection_class": _once(SSLConnection if address.encrypted else Connection),
            **{name: value for name, value in told.items() if name.startswith("ssl_")},
            **login,
        }

    async def _find(self) -> Sequence[Node]:
        host, port = await self._master()
        node = Node(self._address.url_of(host, port), self._settings)
        client: Any = node.client
        role = await client.execute_command("ROLE")
        if role[0] != b"master":
            await node.close()
            raise ReadOnlyError(f"{host}:{port} is no master: Sentinels knew less than it does")
        return [node]

    async def _master(self) -> tuple[str, int]:
        """Whom the first Sentinel names that knows one."""
        service, problems = self._address.service, []
        for host, port in self._address.nodes:
            pool: Any = ConnectionPool(host=host, port=port, **self._asked)  # no types
            sentinel: Any = Server(connection_pool=pool)
            try:
                known = (await sentinel.sentinel_masters()).get(service)
            except AuthenticationError as error:
                problems.append(f"{host}:{port}: {error} (see redis_sentinel_username)")
            except (RedisError, OSError) as error:
                problems.append(f"{host}:{port}: {error}")
            else:
                if known and known["is_master"] and not (known["is_sdown"] or known["is_odown"]):
                    return str(known["ip"]), int(known["port"])
                problems.append(f"{host}:{port} knows no master of {service!r} that is there")
            finally:
                await pool.disconnect()
        raise LostConnection(f"no Sentinel names a master: {'; '.join(problems)}")


class ClusterNodes(Nodes):
    """The masters of a Cluster, each with the slots that it serves."""

    def __init__(self, address: RedisAddress, settings: Settings) -> None:
        super().__init__()
        self._address, self._settings = address, settings
        self._server_of: dict[int, Node] = {}  # by slot

    async def _find(self) -> Sequence[Node]:
        views = await asyncio.gather(
            *(self._view(host, port) for host, port in self._address.nodes), return_exceptions=True
        )
        known = [view for view in views if not isinstance(view, BaseException)]
        for error in views:
            if not known and isinstance(error, BaseException):
                raise error
        # Who is cut off from the others knows less, and still answers.
        epoch, slots = max(known, key=lambda view: view[0])
        if epoch < 0:
            raise ClusterDownError("CLUSTERDOWN the Cluster serves nothing")
        nodes: dict[tuple[str, int], Node] = {}
        for first, last, place in slots:
            if place not in nodes:
                nodes[place] = Node(self._address.url_of(*place), self._settings)
            for slot in range(first, last + 1):
                self._server_of[slot] = nodes[place]
        return list(nodes.values())

    def _serving(self, found: Sequence[Node], key: str) -> Node:
        slot = key_slot(key.encode())
        if slot not in self._server_of:
            raise ClusterDownError(
                f"CLUSTERDOWN no server has slot {slot} of {REDIS_CLUSTER_HASH_SLOTS}"
            )
        return self._server_of[slot]

    async def _view(
        self, host: str, port: int
    ) -> tuple[int, Sequence[tuple[int, int, tuple[str, int]]]]:
        """How a node sees the Cluster: its epoch (-1: it does not serve), and who has which slots.

        The masters' addresses are as the Cluster announces them.
        """
        seed = Node(self._address.url_of(host, port), self._settings)
        client: Any = seed.client
        try:
            told = await client.execute_command("CLUSTER", "INFO")
            slots = await client.execute_command("CLUSTER", "SLOTS")
        finally:
            with suppress(RedisError, OSError):
                await seed.close()
        if isinstance(told, bytes):
            told = told.decode()
        info = dict(line.split(":", 1) for line in told.split("\r\n") if ":" in line)
        epoch = int(info["cluster_current_epoch"]) if info["cluster_state"] == "ok" else -1
        return epoch, [
            (first, last, (_host(master[0]) or host, int(master[1])))
            for first, last, master, *_ in slots
        ]


def nodes_at(url: str, address: RedisAddress, settings: Settings, sentinel: Settings) -> Nodes:
    """The servers behind an address.

    Args:
        url: the address, as given.
        address: the same, read.
        settings: of each connection.
        sentinel: the login of Sentinels.
    """
    if address.kind is Kind.CLUSTER:
        return ClusterNodes(address, settings)
    if address.kind is Kind.SENTINEL:
        return SentinelNode(address, settings, sentinel)
    return OneNode(url, settings)


def _host(announced: bytes | str | None) -> str:
    """Empty if the node does not know its own."""
    name = announced.decode() if isinstance(announced, bytes) else announced or ""
    return "" if name == "?" else name


def _once(base: Any) -> Any:
    """A kind of connection that opens its socket once, and believes whom it is told to."""

    class Once(base):  # type: ignore[misc]
        opened = False

        async def _connect(self) -> None:
            if self.opened:
                raise LostConnection("the connection was lost")
            if told := getattr(self, "ssl_context", None):
                told.context = told.context or _believing(told)
            await super()._connect()
            self.opened = True

    return Once


def _believing(told: Any) -> ssl.SSLContext:
    """What redis-py would make of its options, but for the authorities of the system.

    It would believe those beside the one that is named, and so whoever has a public certificate.
    """
    context = ssl.create_default_context(
        cafile=told.ca_certs, capath=told.ca_path, cadata=told.ca_data
    )
    context.check_hostname = told.check_hostname
    context.verify_mode = told.cert_reqs
    if told.certfile or told.keyfile:
        # A password, though empty: else the terminal would be asked for one.
        context.load_cert_chain(told.certfile, told.keyfile, told.password or "")
    if told.min_version is not None:
        context.minimum_version = told.min_version
    if told.ciphers is not None:
        context.set_ciphers(told.ciphers)
    for flag in getattr(told, "include_verify_flags", None) or ():  # of newer clients
        context.verify_flags |= flag
    for flag in getattr(told, "exclude_verify_flags", None) or ():
        context.verify_flags &= ~flag
    return context
