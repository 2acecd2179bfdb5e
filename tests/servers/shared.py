"""One broker and one Redis that the tests of all processes share.

The first process that needs them starts them, and stops them when no other process uses them. Tests
that stop or change a server start their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from streams.local import LocalStack, LocalStackError
from streams.local.broker import JVM_OPTIONS, KafkaBroker
from streams.local.kafka_runtime import find_java, kafka_classpath
from tests.waiting import eventually


@contextmanager
def locked(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a lock on a file; it is released if the process ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, how)
        yield


@pytest.fixture(scope="session")
def quick_brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Let brokers map an archive of loaded classes, which halves their start time.

    The virtual machine ignores an archive of another version or class path. Without an archive,
    or without pytest's cache to keep it in, brokers start more slowly.
    """
    cache = getattr(request.config, "cache", None)
    with pytest.MonkeyPatch.context() as patch:
        with suppress(LocalStackError, OSError):
            if cache is None:
                raise OSError("pytest runs without its cache")
            kept = Path(cache.mkdir("kafka-classes"))
            archive = _archive_of_classes(kept, tmp_path_factory.mktemp("classes"))
            patch.setenv("JAVA_TOOL_OPTIONS", f"-XX:SharedArchiveFile={archive}")
        yield


def _archive_of_classes(kept: Path, scratch: Path) -> Path:
    """Return the archive in a folder; if it is missing, create it with a broker."""
    what = [str(find_java().resolve()), *map(str, kafka_classpath())]
    name = hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
    archive = kept / f"{name}.jsa"
    with locked(archive.with_suffix(".lock")):  # other processes wait for this one
        if not archive.exists():
            draft = archive.with_suffix(".draft")
            options = (*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={draft}")
            broker = KafkaBroker(scratch, jvm_options=options)
            broker.start()
            try:
                os.kill(broker.pid, signal.SIGTERM)
                eventually(lambda: not broker.running)  # ``stop`` could kill it while it writes
            finally:
                broker.stop()
            draft.replace(archive)
    return archive


@pytest.fixture(scope="session")
def servers(quick_brokers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
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
