"""What commands have in common: settings that options may set, and which values options take.

An odd value ends here, before anything is started.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from streams.schemas import DELTA, Name, Right
from streams.wire.signatures import InvalidKey, public_bytes

SETTING: Final[dict[str, dict[str, Any]]] = {
    "kafka": {"metavar": "HOST:PORT", "help": "bootstrap servers"},
    "redis": {"metavar": "URL", "help": "redis://host:port/db"},
    "prefix": {"help": "of the topics and Redis keys (default turnstile.)"},
    "timeout": {"type": float, "metavar": "S", "help": "seconds to wait (default 30)"},
    "config": {"type": str, "metavar": "FILE", "help": "a TOML file with settings"},
    "partitions": {"metavar": "P", "help": "partitions of new topics (default 4)"},
    "health": {
        "metavar": "HOST:PORT",
        "help": "answer /healthz, /metrics and the like there",
    },
}
SETTINGS: Final = (*SETTING, "log_format")
"""What an option may set in place of a variable or a file."""

CLIENT: Final = ("kafka", "prefix", "timeout", "config")
OBSERVER: Final = ("kafka", "redis", "prefix", "timeout", "config")


class Later:
    """A module of commands that is imported when one of them is called.

    No command waits for what the others need: `turnstile status` is asked every few seconds.
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Callable[..., int]:
        def command(*given: Any) -> int:
            code: int = getattr(import_module(self._module), name)(*given)
            return code

        command.__module__, command.__name__ = self._module, name
        return command


def verb(
    verbs: Any,
    name: str,
    handler: Callable[..., int],
    summary: str,
    settings: tuple[str, ...],
    more: str = "",
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        verbs: to which it is added.
        name: of the command.
        handler: what it does.
        summary: a line about it.
        settings: that may be given as options.
        more: what else its help says.
    """
    command: argparse.ArgumentParser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {more}".strip(),
        allow_abbrev=False,
    )
    command.set_defaults(handler=handler)
    for setting in settings:
        command.add_argument(f"--{setting}", **SETTING[setting])
    command.add_argument("--json", action="store_true", help="one JSON object a line")
    return command


def access_entry(text: str) -> tuple[str, list[Right]]:
    """Takes a public key and its rights, as KEY:charge,manage."""
    key, _, rights = text.rpartition(":")
    given = rights.split(",")
    try:
        public_bytes(key)
    except InvalidKey as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not set(given) <= set(get_args(Right)):
        known = " and ".join(get_args(Right))
        raise argparse.ArgumentTypeError(f"{text!r}: the rights are {known}, with a comma between")
    return key, [right for right in get_args(Right) if right in given]


def add_allow(command: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the option for an access list."""
    command.add_argument(
        "--allow",
        type=access_entry,
        nargs="+",
        action="extend",
        required=required,
        metavar="KEY:RIGHTS",
        help="a public key and its rights, as KEY:charge,manage; requests about the dataset have "
        "to be signed by one of these keys",
    )


def whole(least: int, most: int) -> Callable[[str], int]:
    """Takes whole numbers of a range."""

    def parse(text: str) -> int:
        number = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} to {most}")
        return number

    return parse


def delta_of(text: str) -> float:
    """A number above 0 and below 1."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0 and below 1")
    return number


def number_above_0(text: str) -> float:
    """A finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def add_delta(command: argparse.ArgumentParser) -> None:
    """Let a command be told at which delta epsilons are asked for."""
    command.add_argument(
        "--delta",
        type=delta_of,
        default=DELTA,
        metavar="D",
        help=f"at which epsilons are told (default {DELTA:g})",
    )


def add_take_over(command: argparse.ArgumentParser) -> None:
    """Add the option that takes a budget over from the run that holds it."""
    command.add_argument(
        "--take-over",
        action="store_true",
        help="take the budget from the run that holds it; that run cannot charge any more",
    )


def add_user(command: argparse.ArgumentParser, what: str, *, required: bool = True) -> None:
    """Add the option that names a user (``streams.cli.users``); ``what`` explains digits."""
    command.add_argument(
        "--user",
        required=required,
        metavar="ID",
        help=f"the id, or - to read it from standard input; {what}",
    )


def address_of(text: str) -> str:
    """host:port."""
    host, _, port = text.rpartition(":")
    is_port = re.fullmatch(r"[0-9]{1,5}", port) is not None and 0 < int(port) < 2**16
    if not is_port or not re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", host):
        raise argparse.ArgumentTypeError(f"{text!r} is no address: give host:port")
    return text


def path_of(text: str) -> Path:
    """A path that is not empty."""
    if not text.strip():  # a variable that is not set, and not the folder that one is in
        raise argparse.ArgumentTypeError("it is empty; give a path")
    return Path(text)


def name_of(text: str) -> str:
    """The name of a dataset or a run."""
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name: 1 to 128 letters, digits, dots, dashes and underscores, "
            "the first a letter or a digit"
        ) from None
