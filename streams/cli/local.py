"""The commands that run a whole installation on this machine: `up` and `demo`."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from streams.cli.output import Exit, note
from streams.config import Config
from streams.local import LocalStack
from streams.status import Unavailable, read_owners

_READY_WITHIN = 60.0
_POLL = 0.1


class _Stopped(Exception):
    """SIGTERM or SIGINT came."""


@contextmanager
def local_stack(config: Config, workers: int, data: Path | None) -> Iterator[LocalStack]:
    """A stack in which every partition is owned by one of its workers."""
    with LocalStack(
        workers=0,
        partitions=config.partitions,
        prefix=config.prefix,
        data=data,
        progress=note,
    ) as stack:
        here = replace(config, kafka=stack.kafka, redis=stack.redis)
        before = read_owners(here, config.partitions)  # of an earlier run on the same data
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
) -> int:
    """Run broker, Redis and workers; says where they are when all is ready."""
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, _stop)
    try:
        with local_stack(config, workers, data) as stack:
            on_ready({"kafka": stack.kafka, "redis": stack.redis, "workers": workers})
            while True:
                time.sleep(1)
                stack.check()
    except _Stopped:
        note("stopped")
    return Exit.OK


def run_demo_locally(options: argparse.Namespace, config: Config) -> int:
    """Run the demos: on a given broker if there is one, else on a stack of their own."""
    from streams.demo import run_demo

    if options.kafka:
        run_demo(options.kind, config, options.data, options.out)
        return Exit.OK
    with local_stack(config, options.workers, None) as stack:
        here = replace(config, kafka=stack.kafka, redis=stack.redis)
        run_demo(options.kind, here, options.data, options.out)
    return Exit.OK


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


def _stop(number: int, frame: FrameType | None) -> None:
    raise _Stopped
