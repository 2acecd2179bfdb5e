"""The common part of the broker and Redis: free ports, start, stop, kill, restart."""

from __future__ import annotations

import random
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import ClassVar, Self

from streams.local.children import Child
from streams.local.directory import write_private
from streams.local.launch_errors import LocalFailure, LocalStackError, started

LOOPBACK = "127.0.0.1"

KAFKA_PORT, REDIS_PORT = 9092, 6379
"""The default ports of clients."""

# Below the ports that Linux (32768-60999) and macOS (49152-65535) use for outgoing connections.
# Among those, a client that keeps reconnecting to a stopped server could get the server's own port,
# connect to itself and so prevent the server from starting again.
_PORTS = range(20000, 32768)
_PORT_TRIES = 5


class Server(ABC):
    """A server on loopback ports that it keeps when it is stopped and started again.

    The first start chooses the ports and writes them to a file beside the data. The next server on
    this directory uses them again if they are free. If another process takes a chosen port before
    the server binds it, the server tries others. A port that the caller gave is never replaced.
    """

    name: ClassVar[str]
    port_count: ClassVar[int]
    start_timeout: ClassVar[float] = 60.0
    ready: ClassVar[str]
    """The text that the server logs as soon as it answers requests. Unlike an answer on its port,
    the log cannot be that of another server."""

    def __init__(
        self,
        directory: Path | str,
        *,
        ports: Sequence[int] = (),
        preferred: int | None = None,
        settings: Mapping[str, str] | None = None,
        hold: Sequence[int] = (),
    ) -> None:
        """Describe the server; ``start()`` starts it.

        Args:
            directory: for data and logs; a later server on it has the same data.
            ports: the ports to use, the one for clients first; the rest are free ones.
            preferred: the port for clients at the first start, if it is free.
            settings: the server's settings that replace the defaults.
            hold: descriptors that stay open until the server has ended.
        """
        self.directory = Path(directory).absolute()
        name = self.name.lower()
        self.log = self.directory / "logs" / f"{name}.log"
        self._data = self.directory / name
        self._ports_file = self.directory / f"{name}.ports"
        self._given = tuple(ports)
        self._preferred = preferred
        self._settings = dict(settings or {})
        self._ports: tuple[int, ...] | None = None
        self._hold = tuple(hold)
        self._child: Child | None = None

    @abstractmethod
    def _launch(self, ports: tuple[int, ...]) -> None:
        """Start the program on these ports with ``_spawn``, without waiting for it."""

    @property
    def port(self) -> int:
        """The port for clients."""
        return started(self._ports, self.name)[0]

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        return started(self._child, self.name).pid

    @property
    def running(self) -> bool:
        """Return whether the server's process exists."""
        return self._child is not None and self._child.running

    def start(self) -> None:
        """Start on the same ports and data as before, and wait until the server answers.

        Raises:
            LocalStackError: it ended or did not answer; quotes its log.
        """
        if self.running:
            return
        for tries_left in reversed(range(_PORT_TRIES)):
            ports = self._ports or self._choose_ports()
            try:
                self._launch(ports)
                assert self._child is not None
                self._child.wait_for(self.ready, self.start_timeout)
                break
            except BaseException as error:
                self.kill()
                is_own = isinstance(error, LocalStackError)
                taken = [port for port in ports if is_own and not is_free(port)]
                if not taken:
                    raise
                if not tries_left or self._ports is not None or set(taken) & set(self._given):
                    raise LocalStackError(
                        LocalFailure.PORT_IN_USE,
                        f"Another process uses port {taken[0]}; end it, or give another port. "
                        f"{error}",
                    ) from error
        self._ports = ports
        if not self._given and ports[0] != self._preferred:
            write_private(self._ports_file, " ".join(map(str, ports)).encode())

    def stop(self) -> None:
        """End the server: SIGTERM, then SIGKILL after the grace period. It may have ended."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if the server ended by itself."""
        if self._child is not None and not self._child.running:
            raise LocalStackError(
                LocalFailure.EXITED,
                self._child.explain(f"ended with exit code {self._child.exit_code}"),
            )

    def _spawn(self, command: Sequence[str]) -> Child:
        self._child = Child(self.name, command, log=self.log, hold=self._hold)
        return self._child

    def _choose_ports(self) -> tuple[int, ...]:
        first = self._given
        if not first and self._preferred is not None and is_free(self._preferred):
            first = (self._preferred,)
        if not first and all(map(is_free, kept := self._ports_before())):
            first = kept
        return (*first, *free_ports(self.port_count - len(first)))

    def _ports_before(self) -> tuple[int, ...]:
        """Return the ports of the last start on this directory, except preferred ones."""
        try:
            return tuple(map(int, self._ports_file.read_text().split()))[: self.port_count]
        except (OSError, ValueError):
            return ()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_free(port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> tuple[int, ...]:
    """Return distinct free ports. Another process may take one first, so callers retry."""
    shuffled = random.SystemRandom().sample(_PORTS, len(_PORTS))
    return tuple(islice(filter(is_free, shuffled), count))
