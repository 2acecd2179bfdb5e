"""The arguments of the commands for those who keep the service running."""

from __future__ import annotations

import argparse
from typing import Any

from streams.cli.options import OBSERVER, Later, add_delta, address_of, name_of, verb
from streams.cli.serving import add_serving

completion = Later("streams.cli.completion")
dashboard = Later("streams.cli.dashboard")
doctor = Later("streams.cli.doctor")
runs = Later("streams.cli.runs")
status = Later("streams.cli.status")
top = Later("streams.cli.top")

SHELLS = ("bash", "zsh", "fish")


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
    listed = verb(
        verbs,
        "runs",
        runs.runs,
        "how far each run is, open, interrupted or closed, and how many users are halted",
        OBSERVER,
        "As the owners of the partitions last said, which they do every two seconds; no state is "
        "read. Users are those of the last step, or of the roster. How many are halted is data "
        "about people: publish nothing of it.",
    )
    listed.add_argument("--dataset", type=name_of, help="of this dataset only")
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
    examined.add_argument(
        "--answerer",
        type=address_of,
        action="append",
        metavar="HOST:PORT",
        help="where an answerer answers /metrics, its --health; again for more",
    )
    watched = verb(
        verbs,
        "top",
        top.top,
        "the service in a terminal: partitions, runs, workers, what is refused",
        OBSERVER,
        "q or Ctrl-C ends it. With --json, or where nobody can press a key, it is shown once. Exit "
        "code 69 if something is wrong at the end.",
    )
    page = verb(
        verbs,
        "dashboard",
        dashboard.dashboard,
        "the service in a browser, live and read-only, until Ctrl-C or SIGTERM",
        OBSERVER,
        "Everybody on this machine sees the state of the service. Numbers of users, runs, spending "
        "and rejected records need the password in TURNSTILE_DASHBOARD_PASSWORD_FILE. Without one "
        "the command makes a password and prints it. If other machines reach the page, it needs a "
        "password for everything, and TLS.",
    )
    add_serving(page, "127.0.0.1:8480")
    add_delta(page)
    add_workers(page)
    watched.add_argument("--once", action="store_true", help="show it once")
    add_delta(watched)
    add_workers(watched)


def add_completion(verbs: Any) -> None:
    """Add the command that completes the others."""
    completed = verb(
        verbs,
        "completion",
        completion.completion,
        "print a script that completes commands and options in a shell",
        (),
        "bash: `turnstile completion bash > ~/.local/share/bash-completion/completions/turnstile`. "
        "zsh: into a file _turnstile in a directory of fpath. "
        "fish: `turnstile completion fish > ~/.config/fish/completions/turnstile.fish`.",
    )
    completed.add_argument("shell", choices=SHELLS)
