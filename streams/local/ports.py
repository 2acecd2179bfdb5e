"""Free TCP ports on the loopback address."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

LOOPBACK = "127.0.0.1"

# Below the ports that Linux (32768-60999) and macOS (49152-65535) use for outgoing connections.
# Among those, a client that keeps reconnecting to a stopped server could get the server's own port,
# connect to itself and so prevent the server from starting again.
_LOWEST, _HIGHEST = 20000, 32767
_TRIES = 200

KAFKA_PORT, REDIS_PORT = 9092, 6379
"""The default ports of clients."""


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
    generator = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return tuple(found)
        port = generator.randint(_LOWEST, _HIGHEST)
        if port not in found and is_free(port):
            found.append(port)
    # No port of that range is free or allowed: let the system choose.
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return tuple(probe.getsockname()[1] for probe in probes)
