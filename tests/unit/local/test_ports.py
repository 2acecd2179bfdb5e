"""A free port is one that a server could bind."""

from __future__ import annotations

import socket

from streams.local.server_process import LOOPBACK, free_ports, is_free


def test_a_port_on_which_somebody_listens_is_not_free() -> None:
    (port,) = free_ports(1)
    assert is_free(port)
    for address in (LOOPBACK, "0.0.0.0"):
        with socket.create_server((address, port)):
            assert not is_free(port)
