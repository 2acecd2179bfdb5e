"""Fixtures: services on one shared broker and Redis, each with its own prefix."""

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
from tests.integration.service import IMPATIENT_WORKER, Life, Service, ServiceFactory, end_at_once
from tests.waiting import HANGS_AFTER

# Background jobs ignore SIGINT, and so would all processes that the tests start.
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        interrupts = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if interrupts else signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Raise the timeout of clients in tests, programs and commands, for busy machines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNSTILE_TIMEOUT", str(HANGS_AFTER))
        yield


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """Return a function that runs a program and returns its exit code, or 128 plus the signal."""

    def live(*command: object) -> int:
        words = [sys.executable, *map(str, command)]
        child = Child("The program", words, log=tmp_path / "program.log")
        code = child.wait(HANGS_AFTER)
        child.kill()
        print(*child.log_tail(), sep="\n")
        assert code is not None, child.explain("has not ended")
        return code

    return live


@pytest.fixture(scope="session")
def start_service(servers: LocalStack) -> ServiceFactory:
    """Return a context manager that starts workers under a new prefix."""

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
    """Start one service for the tests of a module; each test uses its own datasets."""
    with start_service() as service:
        yield service


@pytest.fixture
def name() -> str:
    """Return a dataset name that no other test uses."""
    return f"d{uuid4().hex[:10]}"


def _show_worker_logs(stack: LocalStack) -> None:
    """Add the workers' logs to the report of a failed test."""
    for log in sorted((stack.directory / "logs").glob("worker-*.log")):
        print(f"--- the end of {log.name}", *log.read_text().splitlines()[-60:], sep="\n")
