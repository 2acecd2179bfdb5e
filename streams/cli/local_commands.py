"""The commands that run parts of a service: a worker, or all of it on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from streams.cli.printing import Exit, note, say, show, start_log
from streams.config import Config, Unavailable
from streams.kafka.topics import ensure_topics
from streams.local import LocalFailure, LocalStack, LocalStackError
from streams.local.launch_errors import how_to_install
from streams.local.server_process import LOOPBACK, free_ports
from streams.operations.status import read_owners, topics_of

if TYPE_CHECKING:
    from streams.demo.revenue_summary import Summary

_DEMO_WORKERS = 2
_READY_WITHIN = 60.0
_POLL = 0.1


def up(options: argparse.Namespace, config: Config) -> int:
    """Run a broker, Redis and workers in the foreground."""

    for name in ("kafka", "redis"):
        if getattr(config, name) != getattr(Config, name):
            note(f"the setting {name} is ignored: `up` starts its own, see below")

    secure = options.secure
    # Clients that use the default ports have no login.
    known_ports = not (options.free_ports or secure)
    health = [f"{LOOPBACK}:{port}" for port in free_ports(options.workers)]
    try:
        with (
            stopped_by_signals(),
            local_stack(
                config, options.workers, options.data, secure, known_ports, health
            ) as stack,
        ):
            _show_addresses(stack, config, options, health)
            while True:
                time.sleep(1)
                stack.check()
    except SignalReceived:
        note("stopped")
    return Exit.OK


def _show_addresses(
    stack: LocalStack, config: Config, options: argparse.Namespace, health: Sequence[str]
) -> None:
    addresses = {
        "kafka": stack.kafka,
        "redis": stack.redis,
        "workers": options.workers,
        "health": list(health),
    }
    roles = {role: str(path) for role, path in getattr(stack, "roles", {}).items()}
    if options.json:
        show("service", {**addresses, **({"roles": roles} if options.secure else {})}, True)
        return
    show("service", addresses, False)
    for role, path in roles.items():
        show("role", {"role": role, "config": path}, False)
    if roles:
        note(f"\nfor example: turnstile status --config {roles['operator']}")
        note("a dataset that only the trainer's key charges and manages:")
        create = "turnstile dataset create NAME --epsilon 1 --delta 1e-5"
        public = shlex.quote(roles["trainer"].removesuffix(".toml") + ".public")
        note(f"  {create} --allow $(cat {public}):charge,manage --config {roles['trainer']}")
        return
    note("\nFor other commands, in another terminal:")
    say(f"export TURNSTILE_KAFKA={shlex.quote(stack.kafka)}")
    say(f"export TURNSTILE_REDIS={shlex.quote(stack.redis)}")
    if config.prefix != Config.prefix:
        say(f"export TURNSTILE_PREFIX={shlex.quote(config.prefix)}")


def topics_create(options: argparse.Namespace, config: Config) -> int:
    """Create the missing topics."""
    from streams.kafka.answer_topics import ANSWER_TOPICS, ensure_answer_topics
    from streams.kafka.topics import TOPICS, ensure_topics

    partitions = ensure_topics(config)
    ensure_answer_topics(config)
    topics = [config.topic(name) for name in (*TOPICS, *ANSWER_TOPICS)]
    shown = {"kafka": config.kafka, "topics": topics, "partitions": partitions}
    show("topics", shown, options.json)
    return Exit.OK


def worker(options: argparse.Namespace, config: Config) -> int:
    """Run a worker in the foreground."""
    from streams.worker.app import run_worker

    start_log(options.log_level, config.log_format)
    run_worker(config, options.log_level)
    return Exit.OK


def demo(options: argparse.Namespace, config: Config) -> int:
    """Run the demo."""
    from streams.demo.entry import check_demo

    check_demo(options.data, options.out)  # before anything is started
    if options.kafka:
        summary = _run_demo(options, config)
    else:
        workers = options.workers or _DEMO_WORKERS
        with stopped_by_signals(), local_stack(config, workers, None) as stack:
            here = replace(config, kafka=stack.kafka, redis=stack.redis)
            summary = _run_demo(options, here)
    if options.json:
        show("demo", summary, as_json=True)
    return Exit.OK


def _run_demo(options: argparse.Namespace, config: Config) -> Summary:
    from streams.demo.entry import run_demo

    echo = _note_lines if options.json else None
    return run_demo(config, options.data, options.out, seeds=options.seeds, echo=echo)


def _note_lines(thing: object) -> None:
    """Print lines of text on standard error, and no tables: the JSON has their figures."""
    if isinstance(thing, str):
        note(thing)


_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask a program to end: from Ctrl-C, a supervisor, a closed terminal."""


class SignalReceived(KeyboardInterrupt):
    """SIGINT, SIGTERM or SIGHUP has arrived."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Raise ``SignalReceived`` at the first signal that asks to stop, and ignore later ones."""

    def stop(number: int, frame: FrameType | None) -> None:
        for later in heeded:
            signal.signal(later, signal.SIG_IGN)
        with suppress(OSError):  # not note(): printing is not reentrant
            os.write(2, b"stopping\n")
        raise SignalReceived

    # Ignored signals stay ignored, as under nohup.
    heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
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
    health: Sequence[str] = (),
) -> Iterator[LocalStack]:
    """Start a stack and wait until one of its workers owns each partition.

    Args:
        config: the prefix, and the partitions of topics that do not exist yet.
        workers: the number of workers.
        data: a directory to keep; None for a temporary one.
        secure: whether the servers have logins and encryption.
        known_ports: whether the servers may take the default ports.
        health: the address of each worker's health endpoint; none if it is empty.
    """
    kind = _secure_stack() if secure else LocalStack
    with kind(
        workers=0,
        partitions=config.partitions,
        prefix=config.prefix,
        known_ports=known_ports,
        data=data,
        progress=note,
    ) as stack:
        here = replace(config, kafka=stack.kafka, redis=stack.redis)
        if roles := getattr(stack, "roles", None):  # this one may read the state
            here = Config.load(roles["operator"], {})
            partitions = topics_of(here).partitions  # a secure stack has created the topics
        else:
            # A directory that is kept may have topics with another number of partitions.
            partitions = ensure_topics(here)
        here = replace(here, partitions=partitions)
        before = read_owners(here, partitions)  # from an earlier run on the same data
        note(f"Starting {workers} worker{'s' if workers != 1 else ''}")
        for number in range(workers):
            stack.start_worker(*health[number : number + 1])
        if workers:
            _wait_for_owners(stack, here, before, workers)
        yield stack


def _secure_stack() -> type[LocalStack]:
    """Return the class of stacks with logins and rights.

    Raises:
        LocalStackError: the package for certificates is not installed.
    """
    try:
        from streams.local.secure import SecureStack
    except ImportError as error:
        what = "Certificates and keys need a package that is not installed"
        how = how_to_install("local")
        raise LocalStackError(
            LocalFailure.NOT_INSTALLED, f"{what} ({error}): {how} installs it."
        ) from error
    return SecureStack


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
