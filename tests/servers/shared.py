"""One broker and one Redis that the tests of all processes share.

The first process that needs them starts them, and stops them when no other process uses them. Tests
that stop or change a server start their own.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streams.local import LocalStack


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock on a file; it is released if the process ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """Start a broker and a Redis without workers, or use those of another process."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the folder of all processes of this run
    gate, users, told = (folder / f"servers.{part}" for part in ("gate", "users", "json"))
    with users.open("w") as mine:
        with locked(gate):
            started = None if told.exists() else LocalStack(workers=0)
            if started:
                started.start()
                told.write_text(json.dumps({"kafka": started.kafka, "redis": started.redis}))
            fcntl.flock(mine, fcntl.LOCK_SH)
        with LocalStack(workers=0, **json.loads(told.read_text())) as found:
            yield found
    if started:
        with locked(gate), locked(users):  # all other processes have released theirs
            told.unlink()
            started.broker.kill()  # quicker than a stop
            started.redis_server.kill()
            started.stop()
