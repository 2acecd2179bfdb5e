"""Services on the broker and the Redis of all tests, under prefixes of their own."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from streams.local import Child, LocalStack
from tests.integration.preloaded import preloaded
from tests.integration.service import IMPATIENT_WORKER, Life, Service, ServiceFactory, end_at_once
from tests.waiting import HANGS_AFTER

# Whoever runs the tests in the background ignores SIGINT, and so would all that they start.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        interrupts = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if interrupts else signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def forked(quick_brokers: None) -> Iterator[type[Child]]:
    """Children that are forked; workers are: most of what their start takes are imports."""
    with preloaded() as forked, pytest.MonkeyPatch.context() as patch:
        patch.setattr("streams.local.workers.Child", forked)
        yield forked


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Clients of tests, also in programs and commands, wait for what a busy machine does late."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNSTILE_TIMEOUT", str(HANGS_AFTER))
        yield


@pytest.fixture
def life(forked: type[Child], tmp_path: Path) -> Life:
    """Runs a program of ours to its end; its exit code, 128 plus the signal if one ended it."""

    def live(*command: object) -> int:
        words = [sys.executable, *map(str, command)]
        child = forked("The program", words, log=tmp_path / "program.log")
        code = child.wait(HANGS_AFTER)
        child.kill()
        print(*child.log_tail(), sep="\n")
        assert code is not None, child.explain("has not ended")
        return code

    return live


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
                end_at_once(stack)

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
