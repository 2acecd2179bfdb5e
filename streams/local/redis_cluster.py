"""A Redis Cluster on the loopback address: three masters, and replicas that take their places.

Each node finds the others in its file ``nodes.conf``, which is written before the first start and
kept by the nodes from then on. So nobody has to be asked to join, and a directory that is used
again has the slots where they were; only the ports in it are made those of now.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from secrets import token_hex

from streams.local.errors import LocalStackError
from streams.local.ports import LOOPBACK, free_ports, is_free
from streams.local.redis_server import RedisServer
from streams.local.server import exchange

MASTERS = 3
"""Fewer cannot agree on who takes the place of one that is lost."""

_SLOTS = 16384
_BUS = 10000  # so far behind the port of its clients is that on which a node talks to the others
_FILE = "nodes.conf"
_FORMED_WITHIN = 60.0  # seconds
_POLL = 0.05
_SETTINGS: Mapping[str, str] = {
    "cluster-enabled": "yes",
    "cluster-config-file": _FILE,
    "cluster-announce-ip": LOOPBACK,
    "cluster-node-timeout": "2000",  # milliseconds
    # What a replica does not have is applied again from the log: an old one is better than none.
    "cluster-replica-validity-factor": "0",
    "repl-diskless-sync": "yes",
    "repl-diskless-sync-delay": "0",
}
_NODE = re.compile(r"^(?P<id>[0-9a-f]{40}) \S+?(?=,|\s)", re.MULTILINE)
_MYSELF = re.compile(r"^([0-9a-f]{40}) \S+ \S*myself", re.MULTILINE)


class RedisCluster:
    """Nodes that keep their data under ``directory``/redis-1, redis-2 and so on.

    ```
    with LocalStack(redis_nodes=6) as stack:
        stack.redis_cluster.nodes[0].kill()
    ```
    """

    name = "Redis Cluster"

    def __init__(
        self,
        directory: Path | str,
        count: int,
        *,
        announced: Sequence[int] = (),
        binary: Path | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        """Describe the nodes; ``start()`` starts them.

        Args:
            directory: keeps data and logs; used again, with as many nodes, they have their keys
                again.
            count: how many: three masters, and the others are their replicas in turn. With 6, one
                may be lost.
            announced: the ports at which clients are told to find them, in their order, if
                something stands before them; else their own.
            binary: the ``redis-server`` to run, as ``RedisServer`` has it.
            hold: descriptors that stay open until they have ended.
        """
        if count < MASTERS:
            raise LocalStackError(
                f"A Redis Cluster of {count} nodes is none: give {MASTERS}, or {2 * MASTERS} so "
                "that one may be lost."
            )
        self._root = Path(directory).absolute()
        ports = _free_pairs(count)
        self._announced = tuple(announced) or ports
        self.nodes = [
            RedisServer(
                self._root / f"redis-{number}",
                port=port,
                settings={**_SETTINGS, "cluster-announce-port": str(shown)},
                binary=binary,
                hold=hold,
            )
            for number, (port, shown) in enumerate(zip(ports, self._announced, strict=True), 1)
        ]
        self._ports = ports

    @property
    def address(self) -> str:
        """host:port of each, comma separated."""
        return ",".join(node.address for node in self.nodes)

    @property
    def url(self) -> str:
        """``redis+cluster://host:port,host:port``."""
        return f"redis+cluster://{self.address}"

    @property
    def running(self) -> bool:
        """Whether all of them are there."""
        return all(node.running for node in self.nodes)

    def start(self) -> None:
        """Start those that do not run, and wait until all slots are served.

        Raises:
            LocalStackError: one of them did not answer; quotes its log. All are stopped.
        """
        try:
            if not any(node.running for node in self.nodes):
                self._write_files()
            self._all(RedisServer.start)
            self._wait_until_formed()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End them in order."""
        self._all(RedisServer.stop)

    def kill(self) -> None:
        """End all of them with SIGKILL."""
        for node in self.nodes:
            node.kill()

    def hasten(self) -> None:
        """End all of them with SIGKILL, without waiting."""
        for node in self.nodes:
            node.hasten()

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if one ended by itself."""
        for node in self.nodes:
            node.check()

    def _all(self, work: Callable[[RedisServer], None]) -> None:
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(work, self.nodes))

    def _write_files(self) -> None:
        files = [node.directory / "redis" / _FILE for node in self.nodes]
        if not any(file.exists() for file in files):
            ids = [token_hex(20) for _ in files]
            for me, file in enumerate(files):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(_first_view(me, ids))
        ids = [_own_id(file) for file in files]
        places = {
            name: f"{LOOPBACK}:{shown}@{port + _BUS}"
            for name, port, shown in zip(ids, self._ports, self._announced, strict=True)
        }
        for file in files:
            file.write_text(_NODE.sub(lambda node: _placed(node, places), file.read_text()))

    def _wait_until_formed(self) -> None:
        deadline = time.monotonic() + _FORMED_WITHIN
        for node in self.nodes:
            while b"cluster_state:ok" not in _told(node.port):
                node.check()
                if time.monotonic() > deadline:
                    raise LocalStackError(
                        f"The Redis Cluster did not form within {_FORMED_WITHIN:.0f} s; see "
                        f"{node.log}."
                    )
                time.sleep(_POLL)


def count_of_redis_nodes(directory: Path) -> int:
    """How many nodes have kept their data here, 1 for a Redis that is no Cluster; 0 for none."""
    if (directory / "redis").exists():
        return 1
    return len(list(directory.glob(f"redis-*/redis/{_FILE}")))


def _first_view(me: int, ids: Sequence[str]) -> str:
    """The file of a node as it is when masters and replicas have met; ``_placed`` adds where."""
    lines = []
    for number, name in enumerate(ids):
        flags = "myself," if number == me else ""
        if number < MASTERS:
            first, last = (_SLOTS * part // MASTERS for part in (number, number + 1))
            role = f"master - 0 0 {number + 1} connected {first}-{last - 1}"
        else:
            master = number % MASTERS
            role = f"slave {ids[master]} 0 0 {master + 1} connected"
        lines.append(f"{name} :0@0 {flags}{role}")
    return "\n".join([*lines, f"vars currentEpoch {MASTERS} lastVoteEpoch 0", ""])


def _own_id(file: Path) -> str:
    found = _MYSELF.search(file.read_text() if file.exists() else "")
    if not found:
        raise LocalStackError(
            f"{file} does not say which node this is: use another data directory."
        )
    return found[1]


def _placed(node: re.Match[str], places: Mapping[str, str]) -> str:
    return f"{node['id']} {places[node['id']]}" if node["id"] in places else node[0]


def _told(port: int) -> bytes:
    answer = exchange(port, b"CLUSTER INFO\r\nQUIT\r\n")
    if answer is None:
        return b""
    try:
        with answer:
            return answer.read()
    except OSError:
        return b""


def _free_pairs(count: int) -> list[int]:
    """Ports for clients, with those behind them for the bus free as well."""
    found: list[int] = []
    while len(found) < count:
        (bus,) = free_ports(1)
        if bus - _BUS not in found and is_free(bus - _BUS):
            found.append(bus - _BUS)
    return found
