"""One broker and one Redis for all tests here; workers under a prefix of their own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams.local import LocalStack, LocalStackError
from streams.local.broker import JVM_OPTIONS, KafkaBroker
from streams.local.jars import kafka_classpath
from streams.local.java import find_java
from tests.integration.preloaded import preloaded
from tests.integration.service import IMPATIENT_WORKER, Service, ServiceFactory, eventually

# Whoever runs the tests in the background ignores SIGINT, and so would all that they start.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        interrupts = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if interrupts else signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _quick_brokers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Brokers map the classes that one has loaded before them: half of what their start takes.

    The virtual machine does without an archive that is not of its own version and class path, and
    brokers start without one where none can be made.
    """
    with pytest.MonkeyPatch.context() as patch:
        with suppress(LocalStackError, OSError):
            kept = Path(request.config.cache.mkdir("kafka-classes"))
            archive = _archive_of_classes(kept, tmp_path_factory.mktemp("classes"))
            patch.setenv("JAVA_TOOL_OPTIONS", f"-XX:SharedArchiveFile={archive}")
        yield


def _archive_of_classes(kept: Path, scratch: Path) -> Path:
    """The archive in a folder; made now, by a broker, if it is not there."""
    what = [str(find_java().resolve()), *map(str, kafka_classpath())]
    name = hashlib.sha256("\n".join(what).encode()).hexdigest()[:16]
    archive = kept / f"{name}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # whoever runs beside this one waits for it, once
        if not archive.exists():
            draft = archive.with_suffix(".draft")
            options = (*JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={draft}")
            broker = KafkaBroker(scratch, jvm_options=options)
            broker.start()
            try:
                os.kill(broker.pid, signal.SIGTERM)
                eventually(lambda: not broker.running, 120.0)  # a stop would cut it off in writing
            finally:
                broker.stop()
            draft.replace(archive)
    return archive


@pytest.fixture(scope="session", autouse=True)
def _quick_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Workers are forked: most of what their start takes are imports."""
    with (
        preloaded(tmp_path_factory.mktemp("workers")) as forked,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("streams.local.workers.Child", forked)
        yield


@pytest.fixture(scope="session")
def servers() -> Iterator[LocalStack]:
    """A broker and a Redis, without workers."""
    with LocalStack(workers=0) as running:
        yield running
        running.broker.kill()  # nobody needs it again
        running.redis_server.kill()


@pytest.fixture(scope="session")
def start_service(servers: LocalStack) -> ServiceFactory:
    """Starts workers under a new prefix; a context manager."""

    @contextmanager
    def start(
        workers: int = 1, partitions: int = 3, own_redis: bool = False, **options: Any
    ) -> Iterator[Service]:
        prefix = f"test-{uuid4().hex[:8]}."
        with LocalStack(
            kafka=servers.kafka,
            redis=None if own_redis else servers.redis,
            prefix=prefix,
            workers=workers,
            partitions=partitions,
            **{"worker_command": IMPATIENT_WORKER, **options},
        ) as stack:
            service = Service(stack)
            try:
                yield service
            except BaseException:
                _show_worker_logs(stack)
                raise
            finally:
                service.close()
                for worker in stack.workers:  # an end in order takes seconds, and others test it
                    worker.terminate()
                    worker.hasten()

    return start


@pytest.fixture(scope="module")
def shared(start_service: ServiceFactory) -> Iterator[Service]:
    """One service for the tests of a module, each under datasets of its own."""
    with start_service() as service:
        yield service


@pytest.fixture
def name() -> str:
    """A dataset that nobody else uses."""
    return f"d{uuid4().hex[:10]}"


def _show_worker_logs(stack: LocalStack) -> None:
    """What the workers said, in the report of the test that failed: the files go with the stack."""
    for log in sorted((stack.directory / "logs").glob("worker-*.log")):
        print(f"--- the end of {log.name}", *log.read_text().splitlines()[-60:], sep="\n")
