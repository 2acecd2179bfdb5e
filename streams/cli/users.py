"""The user that a command is about: `--user ID`, or `--user -` for an id on standard input.

Other users of the machine can read a command line in the list of processes, and shells keep it in
their history. Standard input keeps an id out of both.
"""

from __future__ import annotations

import argparse
import re
import sys

from streams.cli.output import UnusableInput
from streams.config import Config
from streams.normal_form import normal_form
from streams.schemas import User
from streams.sdk.pseudonyms import Pseudonyms


def user_of(options: argparse.Namespace) -> str:
    """Return the id that was given, from standard input where that was asked for.

    Raises:
        UnusableInput: standard input is not one line with an id.
    """
    given: str = options.user
    if given != "-":
        return given
    lines = sys.stdin.read().splitlines()
    if len(lines) != 1 or not lines[0]:
        raise UnusableInput(
            f"--user - reads one id from standard input, and there are {len(lines)} lines: give "
            "one line with the id"
        )
    return lines[0]


def ids(text: str, config: Config) -> dict[User, User]:
    """Return the ids that a text may mean: as the log has them -> as they are shown.

    Digits may be an integer or a string. A client with a pseudonym key has one user for both.
    """
    if config.pseudonym_key:
        return {int(Pseudonyms(config.pseudonym_key).of([text])[0]): text}
    meant: dict[User, User] = {text: text, normal_form(text): text}
    if re.fullmatch(r"-?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
        meant[int(text)] = int(text)
    return meant
