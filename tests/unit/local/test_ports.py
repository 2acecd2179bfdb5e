"""A free port is one that a server could bind."""

from __future__ import annotations

import socket

import pytest

from streams.local import server as ports
from streams.local.server import LOOPBACK, free_ports, is_free


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    (port,) = free_ports(1)
    assert is_free(port)
    for address in (LOOPBACK, "0.0.0.0"):
        with socket.create_server((address, port)):
            assert not is_free(port)


def test_where_no_low_port_is_free_the_system_chooses_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: False)
    found = free_ports(9)
    assert len(set(found)) == 9
    assert all(map(is_free, found))
