"""The user and the dataset that a command is about."""

from __future__ import annotations

import argparse
import re
import sys

from streams.cli.printing import UnusableInput, note
from streams.config import Config, Unavailable
from streams.failures import Exit
from streams.kafka.kafka_clients import new_admin
from streams.operations.status import read_datasets
from streams.records import User
from streams.records.users import normal_form
from streams.sdk.client import Turnstile
from streams.sdk.step_layout import Pseudonyms


def client_of(config: Config) -> Turnstile:
    """Open a client of the service, or of a budget file.

    A client waits for a broker that is starting for as long as for decisions. A person should not,
    so look for the broker first.

    Raises:
        TopicsUnavailable: no broker answers, or it rejects this user.
    """
    if not config.budgets:
        new_admin(config).close()
    return Turnstile(config=config)


def user_of(options: argparse.Namespace) -> str:
    """Return the id of ``--user ID``, or read it from standard input for ``--user -``.

    Other users of the machine can read command lines in the list of processes, and shells keep
    them in their history. Standard input keeps an id out of both.

    Raises:
        UnusableInput: standard input is not one line with an id.
    """
    given: str = options.user
    if given != "-":
        return given
    lines = sys.stdin.read().splitlines()
    if len(lines) != 1 or not lines[0]:
        raise UnusableInput(
            f"--user - reads one id from standard input, which has {len(lines)} lines: give one "
            "line with the id"
        )
    return lines[0]


def ids(text: str, config: Config) -> dict[User, User]:
    """Return the ids that a text can mean, as the log has them, and as they are shown.

    Digits can be an integer or a string. With a pseudonym key, both are the same user.
    """
    if config.pseudonym_key:
        return {Pseudonyms(config.pseudonym_key).of_user(text): text}
    meant: dict[User, User] = {text: text, normal_form(text): text}
    if (number := integer_of(text)) is not None:
        meant[number] = number
    return meant


def integer_of(text: str) -> int | None:
    """Return the id of 64 bits that digits mean; None for another text."""
    is_integer = re.fullmatch(r"-?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63
    return int(text) if is_integer else None


def kind_of(user: User) -> str:
    """Return the kind of an id, as programs read it."""
    return "string" if isinstance(user, str) else "integer"


def nothing_of(dataset: str | None, what: str, config: Config) -> Exit:
    """Print why nothing is shown about a dataset, and return the exit code.

    It does not exist, or has nothing of this kind. If Redis does not answer, the dataset is
    assumed to exist.
    """
    if dataset is None:
        return Exit.OK
    if is_known_absent(dataset, config):
        return no_dataset(dataset)
    note(f"turnstile: dataset {dataset!r} has no {what}")
    return Exit.OK


def warn_of_absent(dataset: str | None, config: Config) -> None:
    """Print a warning if a dataset to follow does not exist: it may be mistyped, or come later."""
    if dataset is not None and is_known_absent(dataset, config):
        note(f"turnstile: dataset {dataset!r} does not exist yet; waiting for it")


def is_known_absent(dataset: str, config: Config) -> bool:
    """Return whether a dataset certainly does not exist."""
    try:
        return dataset not in read_datasets(config)
    except Unavailable:
        return False


def no_dataset(dataset: str) -> Exit:
    """Print that a dataset does not exist, and return the exit code."""
    note(f"turnstile: dataset {dataset!r} does not exist; `turnstile dataset list` shows all")
    return Exit.REFUSED
