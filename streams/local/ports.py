"""Free TCP ports on the loopback address, and those at which everybody looks first."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

LOOPBACK = "127.0.0.1"

# Below the ports that Linux (32768-60999) and macOS (49152-65535) hand to outgoing connections.
# Inside those, a client that keeps reconnecting to a stopped server can be given the server's own
# port, connect to itself and so keep the server from coming back.
_LOWEST, _HIGHEST = 20000, 32767
_TRIES = 200

KAFKA_PORT, REDIS_PORT = 9092, 6379
"""Where clients look for them if nobody says otherwise."""


def is_free(port: int) -> bool:
    """Whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do, so that connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> tuple[int, ...]:
    """Distinct free ports. Another process may still take one first: callers retry."""
    generator = random.SystemRandom()
    found: list[int] = []
    for _ in range(_TRIES):
        if len(found) == count:
            return tuple(found)
        port = generator.randint(_LOWEST, _HIGHEST)
        if port not in found and is_free(port):
            found.append(port)
    # That range is taken or forbidden here: let the system choose.
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def claim_known_ports() -> int | None:
    """The right to the ports at which everybody looks first, among the stacks of one user.

    Whoever has it still looks whether they are free; without it, two stacks that start together
    would both find them so.

    Returns:
        A descriptor, with which the right lasts, in whatever process it is open; None: another has
        it.
    """
    path = Path(tempfile.gettempdir(), f"turnstile-ports-{os.getuid()}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
