"""The commands that run parts of a service: a worker, or all of it on this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING
from uuid import uuid4

from streams.cli.commands import command
from streams.cli.options import BROKER, OBSERVER, arg, flag, log_level, setting_option, whole
from streams.cli.printing import UnusableInput, note, say, show, show_table, start_log, tell
from streams.cli.table_files import check_file
from streams.config import Config, Unavailable
from streams.failures import Exit
from streams.kafka.topics import ensure_topics
from streams.local import LocalStack
from streams.local.server_process import LOOPBACK, free_ports
from streams.operations.status import read_owners, topics_of

if TYPE_CHECKING:
    from streams.demo.purchases import Purchases
    from streams.demo.revenue import Summary

_DEMO_WORKERS = 2
_READY_WITHIN = 60.0
_POLL = 0.1


@command(
    "up",
    ("prefix", "config", "partitions"),
    arg("--workers N", "", whole(0, 100), default=1),
    flag(
        "--secure",
        "with TLS, logins, rights and signed decisions; prints the settings of each role",
    ),
    arg("--data DIR", "keep the data and the ports here"),
    flag(
        "--free-ports",
        "use other ports than 9092 and 6379, which the broker and Redis use if they are free",
    ),
    lines=("service",),
)
def up(options: argparse.Namespace, config: Config) -> int:
    """Run a local broker, Redis and workers.

    It starts its own broker and Redis. To use others, start `turnstile worker`. The data are
    readable by their owner only.
    """

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
    if roles:
        show("role", [{"role": role, "settings": path} for role, path in roles.items()], False)
        note(f"\nfor example: turnstile status --config {roles['operator']}")
        note("a dataset that only the trainer's key charges and manages:")
        create = "turnstile dataset create NAME --epsilon 1 --delta 1e-5"
        public = shlex.quote(roles["trainer"].removesuffix(".toml") + ".public")
        note(f"  {create} --allow $(cat {public}):charge,manage --config {roles['trainer']}")
        return
    if options.data is None:
        note("\nWhen this command ends, all budgets are deleted: --data DIR keeps them")
    note("\nFor other commands, in another terminal:")
    for name, value in (("KAFKA", stack.kafka), ("REDIS", stack.redis), ("PREFIX", config.prefix)):
        if value != Config.prefix:
            say(f"export TURNSTILE_{name}={shlex.quote(value)}")


@command("topics create", BROKER, lines=("topics",))
def topics_create(options: argparse.Namespace, config: Config) -> int:
    """Create the missing topics, if workers have no right to; may be repeated."""
    from streams.kafka.answer_topics import ANSWER_TOPICS, ensure_answer_topics
    from streams.kafka.topics import TOPICS, ensure_topics

    partitions = ensure_topics(config)
    ensure_answer_topics(config)
    topics = [config.topic(name) for name in (*TOPICS, *ANSWER_TOPICS)]
    shown = {"kafka": config.kafka, "topics": topics, "partitions": partitions}
    show("topics", shown, options.json)
    return Exit.OK


@command("worker", (*OBSERVER, "partitions", "health", "log_format"), log_level("INFO"))
def worker(options: argparse.Namespace, config: Config) -> int:
    """Run one worker; start more to scale, at most one for each partition.

    Its log goes to standard error.
    """
    from streams.worker.app import run_worker

    start_log(options.log_level, config.log_format)
    run_worker(config, options.log_level)
    return Exit.OK


@command(
    "demo",
    ("prefix", "timeout", "config"),
    arg("--data DIR", "the folder with the CDNOW log (default: a simulated shop)"),
    arg("--out DIR", "the folder for the plot", default=Path("out")),
    arg(
        "--seeds N",
        "the number of noise seeds; results are means with standard errors",
        whole(1, 1000),
        default=5,
    ),
    setting_option("kafka", rivals="place"),
    arg("--workers N", "(default 2)", whole(1, 100), rivals="place"),
    lines=("demo",),
)
def demo(options: argparse.Namespace, config: Config) -> int:
    """Compare individual accounting with the strongest baselines.

    It answers the daily revenue of a shop, as `turnstile answer` does, under individual accounting
    and under baselines with the same guarantee. The demo starts a broker, Redis and workers, unless
    --kafka names a broker with running workers.
    """
    from streams.demo.purchases import PURCHASES_FILE, load_purchases, simulated_purchases

    # Everything that can be wrong is checked before anything is started.
    import_module("matplotlib")
    purchases = load_purchases(options.data) if options.data else simulated_purchases()
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnusableInput(f"cannot write the plot: {error}; give --out a folder") from error
    check_file(options.out / "revenue.svg")
    if options.kafka:
        summary = _compared(config, purchases, options)
    else:
        workers = options.workers or _DEMO_WORKERS
        with stopped_by_signals(), local_stack(config, workers, None) as stack:
            here = replace(config, kafka=stack.kafka, redis=stack.redis)
            summary = _compared(here, purchases, options)
    if options.json:
        show("demo", summary, as_json=True)
        return Exit.OK
    for line in _DEMO.format_map(summary).splitlines():
        say(line)
    show_table(
        ("accounting", "cap", "active days", "noise", "typical error (RMSE)"),
        [
            (
                row["accounting"],
                f"${row['cap']:g}",
                row["active_days"],
                row["noise_stddev"],
                " ± ".join(f"${row[name]:,.0f}" for name in row if name.startswith("root_mean")),
            )
            for row in summary["results"]
        ],
    )
    say("")
    for line in (summary["finding"] + _WORK.format_map(summary["service"])).splitlines():
        say(line)
    say(f"Plot: {summary['plot']}. Input of the service: purchases.csv, revenue-queries.toml.")
    if options.data is None:
        tell(
            "The shop is simulated by models that were fitted to CDNOW. For CDNOW itself, give "
            f"--data a folder with {PURCHASES_FILE}; the wheel of Lifetimes 0.11.3 contains it: "
            "pip download --no-deps Lifetimes==0.11.3"
        )
    return Exit.OK


_DEMO = """
{title}: {users:,} users, {steps} days
In every row, each user has epsilon {epsilon:g}, delta {delta:g} for all answers together.

"""
_WORK = """
The service admitted {admitted:,} contributions in {seconds:.0f} s, and left out {halted:,} of users
whose budget was exhausted. Kafka has {halt_events:,} HALT events and {odometer_records:,} odometer
records."""


def _compared(config: Config, purchases: Purchases, options: argparse.Namespace) -> Summary:
    """Run the comparison on a service."""
    from streams.answerer.kafka_journal import KafkaJournal
    from streams.demo.revenue import compare_accountings
    from streams.kafka.answer_topics import ensure_answer_topics
    from streams.sdk.client import Turnstile

    note(f"Answering the revenue of {purchases.days} days")
    dataset = f"demo-revenue-{uuid4().hex[:8]}"  # an earlier demo has spent its budgets
    ensure_answer_topics(config)
    with Turnstile(config=config) as turnstile, closing(KafkaJournal(config, dataset)) as journal:
        return compare_accountings(
            turnstile, dataset, journal, purchases, options.out, seeds=options.seeds
        )


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
        data: a directory to keep; None for a temporary one.
        secure: whether the servers have logins and encryption.
        known_ports: whether the servers may take the default ports.
        health: the address of each worker's health endpoint; none if it is empty.
    """
    kind = LocalStack
    if secure:
        from streams.local.secure import SecureStack  # needs trustme

        kind = SecureStack
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
        # A directory that is kept may have topics with another number of partitions. A secure stack
        # has created the topics.
        partitions = topics_of(here).partitions if roles else ensure_topics(here)
        here = replace(here, partitions=partitions)
        before = read_owners(here, partitions)  # from an earlier run on the same data
        note(f"Starting {workers} worker{'s' if workers != 1 else ''}")
        for number in range(workers):
            stack.start_worker(*health[number : number + 1])
        if workers:
            _wait_for_owners(stack, here, before, workers)
        yield stack


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
