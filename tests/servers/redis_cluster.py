"""A Redis Cluster on the loopback address: three masters, and replicas that can replace them.

The fixture writes the first ``nodes.conf`` of each node itself, with all nodes and slots in it. So
the nodes form the Cluster without ``CLUSTER MEET``, and keep the file from then on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex

import redis

from streams.local import LocalFailure, LocalStackError, RedisServer
from streams.local.server_process import LOOPBACK, free_ports, is_free

MASTERS = 3
"""With fewer masters a Cluster cannot elect a replacement for a lost one."""

_SLOTS = 16384
_BUS = 10000  # the port of the cluster bus is the client port plus this
_FILE = "nodes.conf"
_FORMED_WITHIN = 60.0  # seconds
_POLL = 0.05
_SETTINGS: Mapping[str, str] = {
    "cluster-enabled": "yes",
    "cluster-config-file": _FILE,
    "cluster-announce-ip": LOOPBACK,
    "cluster-node-timeout": "2000",  # milliseconds
    # Promote even an old replica: workers apply the log again from where it ended.
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
}


class RedisCluster:
    """Nodes that keep their data under ``directory``/redis-1, redis-2 and so on."""

    def __init__(
        self,
        directory: Path,
        count: int,
        *,
        announced: Sequence[int] = (),
        binary: Path | None = None,
    ) -> None:
        """Describe the nodes; ``start()`` starts them.

        Args:
            directory: for data and logs.
            count: the number of nodes. The first three are masters, the others their replicas in
                turn; with 6, one node may be lost.
            announced: the client ports that the nodes announce, one per node, if proxies stand
                before them; by default their own.
            binary: the ``redis-server`` to run.
        """
        self._ports = _free_pairs(count)
        self._announced = tuple(announced) or self._ports
        self.nodes = [
            RedisServer(
                directory / f"redis-{number}",
                ports=[port],
                settings={**_SETTINGS, "cluster-announce-port": str(shown)},
                binary=binary,
            )
            for number, (port, shown) in enumerate(
                zip(self._ports, self._announced, strict=True), 1
            )
        ]

    @property
    def url(self) -> str:
        """``redis+cluster://host:port,host:port``."""
        return f"redis+cluster://{','.join(node.address for node in self.nodes)}"

    def start(self) -> None:
        """Start all nodes and wait until all slots are served; if one fails, stop all."""
        try:
            self._write_files()
            self._all(RedisServer.start)
            self._wait_until_formed()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End all nodes with SIGKILL."""
        for node in self.nodes:
            node.kill()

    def _all(self, work: Callable[[RedisServer], None]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(work, self.nodes))

    def _write_files(self) -> None:
        ids = [token_hex(20) for _ in self.nodes]
        for me, node in enumerate(self.nodes):
            file = node.directory / "redis" / _FILE
            file.parent.mkdir(parents=True)
            lines = [self._line(number, me, ids) for number in range(len(ids))]
            file.write_text("\n".join([*lines, f"vars currentEpoch {MASTERS} lastVoteEpoch 0", ""]))

    def _line(self, number: int, me: int, ids: Sequence[str]) -> str:
        """Return the line of a node in the file of node ``me``."""
        place = f"{LOOPBACK}:{self._announced[number]}@{self._ports[number] + _BUS}"
        flags = "myself," if number == me else ""
        if number < MASTERS:
            first, last = (_SLOTS * part // MASTERS for part in (number, number + 1))
            role = f"master - 0 0 {number + 1} connected {first}-{last - 1}"
        else:
            master = number % MASTERS
            role = f"slave {ids[master]} 0 0 {master + 1} connected"
        return f"{ids[number]} {place} {flags}{role}"

    def _wait_until_formed(self) -> None:
        deadline = time.monotonic() + _FORMED_WITHIN
        for node in self.nodes:
            while not _is_formed(node):
                node.check()
                if time.monotonic() > deadline:
                    raise LocalStackError(
                        LocalFailure.NOT_READY,
                        f"The Redis Cluster did not form within {_FORMED_WITHIN:.0f} s; see "
                        f"{node.log}.",
                    )
                time.sleep(_POLL)


def _is_formed(node: RedisServer) -> bool:
    with redis.Redis(port=node.port) as client:
        return bool(client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")


def _free_pairs(count: int) -> list[int]:
    """Return free client ports whose ports for the cluster bus are free as well."""
    found: list[int] = []
    while len(found) < count:
        (bus,) = free_ports(1)
        if bus - _BUS not in found and is_free(bus - _BUS):
            found.append(bus - _BUS)
    return found
