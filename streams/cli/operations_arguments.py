"""The arguments of the commands for those who keep the service running."""

from __future__ import annotations

from typing import Any

from streams.cli.options import OBSERVER, Later, add_delta, verb

status = Later("streams.cli.status")


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
