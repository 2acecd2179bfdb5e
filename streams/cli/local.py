"""The commands that run a whole installation on this machine: `up` and `demo`."""

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


class Stopped(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP came."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """The first signal that asks to stop raises ``Stopped``.

    Later ones find that already under way: while a stack stops they make it faster (see
    ``LocalStack.stop``), and nothing else ever interrupts it.
    """
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            with suppress(OSError):  # not note(): what is being printed just now may not be entered
                os.write(2, b"stopping; once more, and everything is killed\n")
            raise Stopped

    # What is ignored stays so: under nohup the terminal may go.
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
    """A stack in which every partition is owned by one of its workers."""
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
        before = read_owners(here, config.partitions)  # of an earlier run on the same data
        note(f"Starting {workers} worker{'s' if workers != 1 else ''}")
        for _ in range(workers):
            stack.start_worker()
        if workers:
            _wait_for_owners(stack, here, before, workers)
            stack.settle()
        elif secure:
            note("No operator is bound as long as no worker decides: start this once with one")
        yield stack


def run_until_stopped(
    config: Config,
    workers: int,
    data: Path | None,
    on_ready: Callable[[Mapping[str, Any]], None],
    secure: bool = False,
    known_ports: bool = False,
) -> int:
    """Run broker, Redis and workers; says where they are when all is ready."""
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
    except Stopped:
        note("stopped")
    return Exit.OK


def _secure_stack() -> type[LocalStack]:
    """The stack with logins and rights.

    Raises:
        LocalStackError: what it makes certificates with is not installed.
    """
    try:
        from streams.local.secure_stack import SecureStack
    except ImportError as error:
        what = "Certificates and keys need a package that is not installed"
        how = how_to_install("local,secure")
        raise LocalStackError(f"{what} ({error}): {how} brings it.") from error
    return SecureStack


def _observed_by(stack: LocalStack, config: Config) -> Config:
    """The settings of whoever may look at the state, where not everybody may."""
    if roles := getattr(stack, "roles", None):
        return Config.load(roles["operator"], {})
    return replace(config, kafka=stack.kafka, redis=stack.redis)


def _roles(stack: LocalStack) -> dict[str, str]:
    """Which settings to use as whom."""
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
