"""The launcher finds a Redis server and ports that are free."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from streams.local.redis_server import find_redis_server
from streams.local.server_process import LOOPBACK, free_ports, is_free

NAMES = ("redis-server", "valkey-server")


@pytest.mark.parametrize("name", NAMES)
def test_a_server_on_path_comes_first(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / name
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_redis_server() == program


def test_a_wheel_has_one_where_path_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_redis_server()
    assert found.name in NAMES
    assert os.access(found, os.X_OK)


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    (port,) = free_ports(1)
    assert is_free(port)
    for address in (LOOPBACK, "0.0.0.0"):
        with socket.create_server((address, port)):
            assert not is_free(port)
