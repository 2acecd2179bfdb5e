"""Redis with failover: a Cluster with replicas, or a master and a replica with a Sentinel.

A test can disconnect a replica from its master and promote it later: a failover that loses the last
writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis

from streams.local import RedisServer
from streams.local.redis_server import find_redis_server
from streams.store.layout import key_of
from tests.servers.redis_cluster import RedisCluster
from tests.waiting import eventually

_NOBODY = "nobody"
SERVICE = "state"
_QUICK = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}


class Failover(ABC):
    """Masters and their replicas."""

    url: str
    servers: list[RedisServer]

    @abstractmethod
    def master_of(self, key: str) -> RedisServer:
        """Return the master that has a key."""

    def replica_of(self, master: RedisServer) -> RedisServer:
        """Wait for and return a connected replica of a master."""
        found: RedisServer = eventually(
            lambda: next((s for s in self.servers if s.running and _follows(s, master)), None)
        )
        return found

    def cut(self, replica: RedisServer) -> None:
        """Disconnect the replica from its master."""
        with client_of(replica) as client:
            client.config_set("masteruser", _NOBODY)
            client.config_set("masterauth", _NOBODY)
            client.client_kill_filter(_type="master")
        eventually(lambda: _link(replica) == "down")

    def lose(self, key: str, meanwhile: Callable[[], object]) -> RedisServer:
        """Fail over the master of a key and lose its writes in ``meanwhile``; return it."""
        master = self.master_of(key)
        replica = self.replica_of(master)
        self.cut(replica)
        meanwhile()
        assert version(replica, key) < version(master, key)
        self.promote(replica, master)
        return master

    def promote(self, replica: RedisServer, master: RedisServer) -> None:
        """Kill the master and wait until the replica is promoted."""
        master.kill()
        eventually(lambda: _role(replica) == b"master")
        with client_of(replica) as client:  # it may replicate again later
            client.config_set("masteruser", "")
            client.config_set("masterauth", "")


class ClusterFailover(Failover):
    """A Cluster of three masters, each with a replica."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.url, self.servers = cluster.url, cluster.nodes

    def master_of(self, key: str) -> RedisServer:
        return next(server for server in self.servers if _has(server, key))


class SentinelFailover(Failover):
    """A master, a replica and a Sentinel. The URL names a Sentinel that does not answer first."""

    def __init__(self, servers: list[RedisServer], sentinel: RedisServer) -> None:
        self.servers, self._sentinel = servers, sentinel
        self.url = f"redis+sentinel://127.0.0.1:1,{sentinel.address}/{SERVICE}"

    def master_of(self, key: str) -> RedisServer:
        with client_of(self._sentinel) as client:
            asked: Any = client
            _, port = asked.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))


class Sentinel(RedisServer):
    """A Sentinel that watches one master."""

    name = "Sentinel"
    ready = "Sentinel ID is"

    def __init__(self, directory: Path, watched: int, *more: str) -> None:
        super().__init__(directory)
        self._watched = watched
        self._more = more  # lines of its file

    def _launch(self, ports: tuple[int, ...]) -> None:
        file = self.directory / "sentinel.conf"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            f"port {ports[0]}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {self._watched} 1",
            f"sentinel down-after-milliseconds {SERVICE} 1000",
            f"sentinel failover-timeout {SERVICE} 5000",
            *self._more,
        ]
        file.write_text("\n".join([*lines, ""]))
        self._spawn([str(find_redis_server()), str(file), "--sentinel"])


@contextmanager
def sentinel_failover(directory: Path) -> Iterator[Failover]:
    with ExitStack() as running:
        master = running.enter_context(RedisServer(directory / "1", settings=_QUICK))
        replica = running.enter_context(RedisServer(directory / "2", settings=_QUICK))
        with client_of(replica) as client:
            client.replicaof("127.0.0.1", master.port)
        sentinel = running.enter_context(Sentinel(directory / "3", master.port))
        with client_of(sentinel) as client:
            asked: Any = client
            eventually(lambda: len(asked.sentinel_slaves(SERVICE)) == 1)
        yield SentinelFailover([master, replica], sentinel)


def client_of(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port)


def version(server: RedisServer, key: str) -> int:
    """Return the version in the meta of a partition on this server."""
    with client_of(server) as client:
        if client.info("cluster")["cluster_enabled"]:
            client.readonly()
        return int(client.hget(key, "version") or 0)


def meta_of(prefix: str, partition: int) -> str:
    return key_of(prefix, partition, "meta")


def _role(server: RedisServer) -> bytes:
    with client_of(server) as client:
        return bytes(client.execute_command("ROLE")[0])


def _follows(server: RedisServer, master: RedisServer) -> bool:
    with client_of(server) as client:
        role = client.execute_command("ROLE")
    return role[0] == b"slave" and role[2] == master.port and role[3] == b"connected"


def _link(server: RedisServer) -> str:
    with client_of(server) as client:
        return str(client.info("replication").get("master_link_status"))


def _has(server: RedisServer, key: str) -> bool:
    if not server.running or _role(server) != b"master":
        return False
    with client_of(server) as client:
        try:
            client.hget(key, "version")
        except redis.ResponseError:
            return False
    return True
