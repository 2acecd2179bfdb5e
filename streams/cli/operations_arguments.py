"""The arguments of the commands for those who keep the service running."""

from __future__ import annotations

import argparse
from typing import Any

from streams.cli.options import OBSERVER, Later, add_delta, address_of, verb

doctor = Later("streams.cli.doctor")
status = Later("streams.cli.status")


def add_workers(command: argparse.ArgumentParser) -> None:
    """Let a command be told where workers answer over HTTP."""
    command.add_argument(
        "--worker",
        type=address_of,
        action="append",
        metavar="HOST:PORT",
        help="where a worker answers /metrics, its TURNSTILE_HEALTH; again for more",
    )


def add_operations(verbs: Any) -> None:
    """Add them."""
    shown = verb(
        verbs,
        "status",
        status.status,
        "partitions, owners, lag, users",
        OBSERVER,
        "Exit code 69 if a partition is not decided. With --json one object for each partition; "
        "`turnstile dataset list --json` has the datasets.",
    )
    add_delta(shown)
    examined = verb(
        verbs,
        "doctor",
        doctor.doctor,
        "look for what is wrong, or could go wrong, and say what to do",
        OBSERVER,
        "It asks Kafka, Redis, the workers and this machine, and changes nothing. Exit code 1 if "
        "something is wrong; warnings are 0.",
    )
    add_workers(examined)
