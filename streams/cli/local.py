"""Runs a complete installation on this machine, for the commands `up` and `demo`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from streams.cli.output import Exit, note
from streams.config import Config
from streams.local import LocalStack, LocalStackError
from streams.local.errors import how_to_install
from streams.local.signals import STOPPING
from streams.operations.errors import Unavailable
from streams.operations.status import read_owners

_READY_WITHIN = 60.0
_POLL = 0.1


class SignalReceived(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP has arrived."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise ``SignalReceived`` at the first signal that asks to stop.

    Later signals do not raise. While a stack is stopping they kill its processes (see
    ``LocalStack.stop``).
    """
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            with suppress(OSError):  # not note(): printing is not reentrant
                os.write(2, b"stopping; send the signal again to kill all processes\n")
            raise SignalReceived

    # Ignored signals stay ignored, as under nohup.
    heeded = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def local_stack(
    config: Config,
    workers: int,
    data: Path | None,
    secure: bool = False,
    known_ports: bool = False,
) -> Iterator[LocalStack]:
    """Start a stack and wait until one of its workers owns each partition."""
    kind = _secure_stack() if secure else LocalStack
    with kind(
        workers=0,
        partitions=config.partitions,
        prefix=config.prefix,
        known_ports=known_ports,
        data=data,
        progress=note,
    ) as stack:
        here = replace(_observed_by(stack, config), partitions=config.partitions)
        before = read_owners(here, config.partitions)  # from an earlier run on the same data
        note(f"Starting {workers} worker{'s' if workers != 1 else ''}")
        for _ in range(workers):
            stack.start_worker()
        if workers:
            _wait_for_owners(stack, here, before, workers)
        yield stack


def run_until_stopped(
    config: Config,
    workers: int,
    data: Path | None,
    on_ready: Callable[[Mapping[str, Any]], None],
    secure: bool = False,
    known_ports: bool = False,
) -> int:
    """Run a broker, a Redis and workers; call ``on_ready`` with their addresses."""
    try:
        with (
            stopped_by_signals(),
            local_stack(config, workers, data, secure, known_ports) as stack,
        ):
            on_ready(
                {
                    "kafka": stack.kafka,
                    "redis": stack.redis,
                    "workers": workers,
                    **({"roles": _roles(stack)} if secure else {}),
                }
            )
            while True:
                time.sleep(1)
                stack.check()
    except SignalReceived:
        note("stopped")
    return Exit.OK


def _secure_stack() -> type[LocalStack]:
    """Return the class of stacks with logins and rights.

    Raises:
        LocalStackError: the package for certificates is not installed.
    """
    try:
        from streams.local.secure_stack import SecureStack
    except ImportError as error:
        what = "Certificates and keys need a package that is not installed"
        how = how_to_install("local,secure")
        raise LocalStackError(f"{what} ({error}): {how} installs it.") from error
    return SecureStack


def _observed_by(stack: LocalStack, config: Config) -> Config:
    """Return the settings of a role that may read the state."""
    if roles := getattr(stack, "roles", None):
        return Config.load(roles["operator"], {})
    return replace(config, kafka=stack.kafka, redis=stack.redis)


def _roles(stack: LocalStack) -> dict[str, str]:
    """Return the settings file of each role, if the stack has roles."""
    return {role: str(path) for role, path in getattr(stack, "roles", {}).items()}


def _wait_for_owners(stack: LocalStack, config: Config, before: list[str], workers: int) -> None:
    deadline = time.monotonic() + _READY_WITHIN
    while True:
        stack.check()
        owners = read_owners(config, config.partitions)
        fresh = all(now and now != old for now, old in zip(owners, before, strict=True))
        if fresh and len(set(owners)) == min(workers, config.partitions):
            return
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the workers were not ready within {_READY_WITHIN:.0f} s; see the logs in "
                f"{stack.directory / 'logs'}"
            )
        time.sleep(_POLL)
