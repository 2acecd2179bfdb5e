"""What each command does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import IO, Any

import msgspec

from accounting.units import from_units_down
from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.schemas import Policy, User
from streams.sdk.client import Turnstile
from streams.sdk.run import Run
from streams.status import DatasetStatus, Unavailable, read_datasets, read_partitions

__all__ = [
    "Unavailable",
    "UnusableInput",
    "dataset_create",
    "dataset_list",
    "dataset_show",
    "demo",
    "halts",
    "odometer",
    "publish",
    "status",
    "up",
    "worker",
]

_IDLE = 2.0
"""Seconds without a record after which a command that does not follow has seen everything."""


class UnusableInput(ValueError):
    """A file that cannot be read as what it should be."""


class PublishedStep(msgspec.Struct, forbid_unknown_fields=True):
    """One line of the file that `turnstile publish` charges."""

    dataset: str
    run: str
    users: list[User]
    norms: list[float]
    noise_stddev: float
    clip_norm: float | None = None


def up(options: argparse.Namespace, config: Config) -> int:
    """Run broker, Redis and workers in the foreground."""
    from streams.cli.local import run_until_stopped

    return run_until_stopped(
        config,
        workers=options.workers,
        data=options.data,
        on_ready=lambda addresses: show(addresses, options.json),
    )


def demo(options: argparse.Namespace, config: Config) -> int:
    """Run a demo against a given broker, or against a local one that it starts."""
    from streams.cli.local import run_demo_locally

    return run_demo_locally(options, config)


def worker(options: argparse.Namespace, config: Config) -> int:
    """Run a worker in the foreground."""
    from streams.worker.app import run_worker

    run_worker(config, options.log_level)
    return Exit.OK


def dataset_create(options: argparse.Namespace, config: Config) -> int:
    """Create a dataset, or check that it exists under this policy."""
    with Turnstile(config=config) as turnstile:
        policy = turnstile.create_dataset(
            options.name,
            measure=options.measure,
            epsilon=options.epsilon,
            delta=options.delta,
            budget=_one_or_many(options.budget),
            orders=options.orders,
            odometer_step=_one_or_many(options.odometer_step),
            on_exhaustion=options.on_exhaustion,
        )
    show(_policy(policy), options.json)
    return Exit.OK


def dataset_show(options: argparse.Namespace, config: Config) -> int:
    """One dataset: policy, users, how many are exhausted."""
    datasets = read_datasets(config)
    if options.name not in datasets:
        note(f"turnstile: there is no dataset {options.name!r}")
        return Exit.REFUSED
    show(_dataset(datasets[options.name]), options.json)
    return Exit.OK


def dataset_list(options: argparse.Namespace, config: Config) -> int:
    """All datasets."""
    for _, dataset in sorted(read_datasets(config).items()):
        show(_dataset(dataset), options.json)
    return Exit.OK


def publish(options: argparse.Namespace, config: Config) -> int:
    """Charge the steps of a file, in order, and show each decision."""
    runs: dict[tuple[str, str], Run] = {}
    with Turnstile(config=config) as turnstile, _open(options.file) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                step = msgspec.json.decode(line, type=PublishedStep)
            except msgspec.DecodeError as error:
                raise UnusableInput(f"{options.file}, line {number}: {error}") from error
            key = step.dataset, step.run
            if key not in runs:
                runs[key] = turnstile.run(*key)
            decision = runs[key].charge(
                step.users, step.norms, noise_stddev=step.noise_stddev, clip_norm=step.clip_norm
            )
            halted = [u for u, out in zip(step.users, decision.halted.tolist(), strict=True) if out]
            show(
                {
                    "dataset": step.dataset,
                    "run": step.run,
                    "step": decision.step,
                    "users": len(step.users),
                    "admitted": int(decision.admitted.sum()),
                    "halted": halted,
                    "exhausted": int(decision.exhausted.sum()),
                },
                options.json,
            )
    return Exit.OK


def halts(options: argparse.Namespace, config: Config) -> int:
    """HALT events, from the first that Kafka still has."""
    with Turnstile(config=config) as turnstile:
        idle = None if options.follow else _IDLE
        for halt in turnstile.halts(
            options.dataset, run=options.run, since="earliest", idle_timeout=idle
        ):
            show(asdict(halt), options.json)
    return Exit.OK


def odometer(options: argparse.Namespace, config: Config) -> int:
    """Odometer checkpoints."""
    user: User | None = options.user
    if isinstance(user, str) and user.lstrip("-").isdecimal():
        user = int(user)
    with Turnstile(config=config) as turnstile:
        idle = None if options.follow else _IDLE
        for checkpoint in turnstile.odometer(options.dataset, user=user, idle_timeout=idle):
            show(
                {
                    "dataset": checkpoint.dataset,
                    "user": checkpoint.user,
                    "bound": checkpoint.bound,
                    "partition": checkpoint.partition,
                    "offset": checkpoint.offset,
                },
                options.json,
            )
    return Exit.OK


def status(options: argparse.Namespace, config: Config) -> int:
    """Every partition: who owns it, how far it is, what it holds."""
    behind = False
    for partition in read_partitions(config):
        show(asdict(partition), options.json)
        behind = behind or partition.problem is not None
    return Exit.UNAVAILABLE if behind else Exit.OK


def _dataset(dataset: DatasetStatus) -> dict[str, Any]:
    return {**_policy(dataset.policy), "users": dataset.users, "exhausted": dataset.exhausted}


def _policy(policy: Policy) -> dict[str, Any]:
    in_measure = [float(from_units_down(units)) for units in policy.budget]
    name = "budget_mu_squared" if policy.measure == "gdp" else "budget"
    return {
        "dataset": policy.dataset,
        "measure": policy.measure,
        name: in_measure if policy.measure == "renyi" else in_measure[0],
        "orders": policy.orders or None,
        "on_exhaustion": policy.on_exhaustion,
        "partitions": policy.partitions,
    }


def _one_or_many(numbers: list[float] | None) -> float | list[float] | None:
    return numbers[0] if numbers and len(numbers) == 1 else numbers


@contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        lines = open(name, "rb")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UnusableInput(f"cannot read {name}: {error}") from error
    with lines:
        yield lines
