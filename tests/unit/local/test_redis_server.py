"""Where the launcher finds a Redis server."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.local.redis_server import find_redis_server

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
