"""What the broker and Redis have in common: ports, start, stop, kill, start again."""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, ClassVar, Self

from streams.local.children import Child
from streams.local.directory import write_private
from streams.local.errors import LocalStackError
from streams.local.ports import KAFKA_PORT, LOOPBACK, REDIS_PORT, free_ports, is_free
from streams.local.signals import signals_held

_PORT_TRIES = 5


class Server(ABC):
    """A server on loopback ports that it keeps over stops and starts.

    Ports are chosen at the first start. They are written to a file beside the data, and chosen
    again by the next server on this directory if they are free. When another process takes one
    between the choice and the bind, others are tried. A port that the caller gave is used or
    reported as taken.
    """

    name: ClassVar[str]
    port_count: ClassVar[int]
    start_timeout: ClassVar[float]

    def __init__(
        self,
        directory: Path | str,
        *,
        port: int | None,
        more_ports: Sequence[int] = (),
        hold: Sequence[int],
    ) -> None:
        """Keep everything under ``directory``; ``hold`` are descriptors the guard keeps open."""
        self.directory = Path(directory).absolute()
        self.log = self.directory / "logs" / f"{self.name.lower()}.log"
        self._kept_ports = self.directory / f"{self.name.lower()}.ports"
        self._wanted = () if port is None else (port, *more_ports)
        self._preferred: int | None = None
        self._ports: tuple[int, ...] | None = None
        self._hold = tuple(hold)
        self._child: Child | None = None

    @abstractmethod
    def _launch(self, ports: tuple[int, ...]) -> Child:
        """Start the program on these ports, without waiting for it."""

    @abstractmethod
    def _is_ready(self, child: Child, port: int) -> bool:
        """Whether this very server, not another on that port, answers requests."""

    def prefer(self, port: int) -> None:
        """Take this port at the first start if it is free by then, and else any other."""
        self._preferred = port

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        if self._ports is None:
            raise LocalStackError(f"{self.name} has no port yet: start it first.")
        return self._ports[0]

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        if self._child is None:
            raise LocalStackError(f"{self.name} is not running: start it first.")
        return self._child.pid

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._child is not None and self._child.running

    def start(self) -> None:
        """Start and wait until it answers; on the same ports and data as before.

        Raises:
            LocalStackError: it ended or did not answer; quotes its log.
        """
        if self.running:
            return
        self._child = None
        for last in [False] * (_PORT_TRIES - 1) + [True]:
            ports = self._ports or self._choose_ports()
            try:
                child = self._launch(ports)
            except BaseException:
                self.kill()
                raise
            try:
                child.wait_until(lambda: self._is_ready(child, ports[0]), self.start_timeout)  # noqa: B023
            except LocalStackError as error:
                self.kill()
                taken = [port for port in ports if not is_free(port)]
                if not taken:
                    raise
                if last or self._ports is not None or set(taken) & set(self._wanted):
                    raise LocalStackError(
                        f"Another process uses port {taken[0]}; end it, or give another port. "
                        f"{error}"
                    ) from error
            except BaseException:
                self.kill()
                raise
            else:
                self._ports = ports
                if not self._wanted:
                    write_private(self._kept_ports, " ".join(map(str, ports)).encode())
                return

    def stop(self) -> None:
        """End it in order: SIGTERM, then SIGKILL after the grace period. Fine when not running."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def hasten(self) -> None:
        """End it with SIGKILL, without waiting."""
        if self._child is not None:
            self._child.hasten()

    def check(self) -> None:
        """Raise ``LocalStackError`` with the log's last lines if it ended by itself."""
        if self._child is not None and not self._child.running:
            raise LocalStackError(
                self._child.explain(f"ended with exit code {self._child.exit_code}")
            )

    def _spawn(self, command: Sequence[str]) -> Child:
        """Start a program of this server; whatever comes then, ``kill`` ends it."""
        with signals_held():
            self._child = Child(self.name, command, log=self.log, hold=self._hold)
        return self._child

    def _choose_ports(self) -> tuple[int, ...]:
        preferred, self._preferred = self._preferred, None  # once: who took it keeps it
        wanted = self._wanted
        if not wanted and preferred is not None and is_free(preferred):
            wanted = (preferred,)
        if not wanted:
            wanted = self._ports_before()
        return (*wanted, *free_ports(self.port_count - len(wanted)))

    def _ports_before(self) -> tuple[int, ...]:
        """Return the first ports of the last start on this directory that are free now.

        The ports at which clients look by default are not among them: others may have to have them.
        """
        try:
            kept = [int(port) for port in self._kept_ports.read_text().split()]
        except (OSError, ValueError):
            return ()
        return tuple(takewhile(_is_usable, kept[: self.port_count]))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _is_usable(port: int) -> bool:
    return 0 < port < 2**16 and port not in (KAFKA_PORT, REDIS_PORT) and is_free(port)


def exchange(
    port: int, request: bytes, timeout: float = 2.0, tls: ssl.SSLContext | None = None
) -> BinaryIO | None:
    """Send a request to a loopback port; the answer to read from, or None if nobody listens."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout) as plain:
            connection = tls.wrap_socket(plain, server_hostname=LOOPBACK) if tls else plain
            with connection:
                connection.sendall(request)
                return connection.makefile("rb")  # stays open until it is closed itself
    except OSError:
        return None
