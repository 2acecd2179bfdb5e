"""The arguments of commands: the values that they take, and the options that replace settings.

An unusable value ends the command before anything is started.
"""

from __future__ import annotations

import argparse
import re
from argparse import BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from accounting.exact.invalid_input import quoted
from streams.config import Config, is_address
from streams.kafka.access import ROLES
from streams.records import DELTA, Name, Right
from streams.records.decision_ids import DecisionId
from streams.records.signatures import InvalidKey, public_bytes
from streams.records.terms import TERMS, choices_of

CLIENT: Final = ("kafka", "prefix", "timeout", "config")
OBSERVER: Final = ("kafka", "redis", "prefix", "timeout", "config")
FILE_CLIENT: Final = (*CLIENT, "budgets")
FILE_OBSERVER: Final = (*OBSERVER, "budgets")
BROKER: Final = ("kafka", "prefix", "timeout", "config", "partitions")

_SETTINGS = {setting.name: setting for setting in fields(Config)}


@dataclass(frozen=True)
class Argument:
    """An argument of a command.

    Attributes:
        names: the name of a positional argument, or the names of an option.
        given: the other parameters of ``ArgumentParser.add_argument``.
        rivals: the name of a group of arguments of which at most one may be given.
    """

    names: tuple[str, ...]
    given: dict[str, Any]
    rivals: str = ""


def value_of(kind: Any, what: str) -> Callable[[str], Any]:
    """Return a parser of values of a type; ``what`` continues "is not"."""

    def parse(text: str) -> Any:
        try:
            return msgspec.convert(text, kind, strict=False)
        except (msgspec.ValidationError, UnicodeEncodeError):
            raise argparse.ArgumentTypeError(f"{quoted(text)} is not {what}") from None

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""
    kind = Annotated[int, Meta(ge=least, le=most)]
    return value_of(kind, f"a whole number from {least} to {most}")


delta_of: Final = value_of(Annotated[float, Meta(gt=0.0, lt=1.0)], "a number above 0 and below 1")
name_of: Final = value_of(
    Name,
    "a name: give 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or a "
    "digit",
)
hex_id_of: Final = value_of(
    Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")],
    "an id: give the 32 digits that an earlier command has printed",
)


def decision_id_of(text: str) -> DecisionId:
    """Parse LOG/PARTITION/OFFSET, the id of a decision."""
    try:
        return DecisionId.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: {error}") from None


def run_of(text: str) -> tuple[str, str | None]:
    """Parse DATASET or DATASET/RUN into the names of the dataset and of the run."""
    dataset, slash, run = text.partition("/")
    return name_of(dataset), name_of(run) if slash else None


def address_of(text: str) -> str:
    """Parse host:port."""
    if not is_address(text):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not an address: give host:port")
    return text


def url_of(text: str) -> str:
    """Parse the URL of a page."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not the URL of a page: give one like https://privacy.example.org/"
        )
    return text


def path_of(text: str) -> Path:
    """Parse a path; an empty one comes from a variable that is not set."""
    if not text.strip() or "\0" in text:
        raise argparse.ArgumentTypeError("the path is empty or has a NUL character; give a path")
    return Path(text)


def role_of(text: str) -> tuple[str, str]:
    """Parse ROLE=User:NAME into the role and the name."""
    found = re.fullmatch(rf"({'|'.join(ROLES)})=User:([A-Za-z0-9._=, @/-]+)", text)
    if not found:
        raise argparse.ArgumentTypeError(
            f"{quoted(text)} is not ROLE=User:NAME with a role of {', '.join(ROLES)}"
        )
    return found[1], found[2]


def access_entry(text: str) -> tuple[str, list[Right]]:
    """Parse a public key and its rights, as KEY:charge,manage."""
    key, _, rights = text.rpartition(":")
    given = rights.split(",")
    try:
        public_bytes(key)
    except InvalidKey as error:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: {error}") from None
    if not set(given) <= set(get_args(Right)):
        known = " and ".join(get_args(Right))
        raise argparse.ArgumentTypeError(
            f"{quoted(text)}: the rights are {known}; separate them by commas"
        )
    return key, [right for right in get_args(Right) if right in given]


_PARSED: Final[Mapping[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("FILE", "DIR", "RECEIPT", "COPY", "QUERIES.toml"), path_of),
    **dict.fromkeys(("DELTA", "RATE"), delta_of),
    "LOG": hex_id_of,
    "DATASET": name_of,
    "DATASET/RUN": run_of,
    "HOST:PORT": address_of,
    "URL": url_of,
    "ROLE=User:NAME": role_of,
}
"""How the value of each placeholder is parsed."""


def arg(
    name: str,
    help_: str,
    type_: Callable[[str], Any] | None = None,
    *,
    rivals: str = "",
    **given: Any,
) -> Argument:
    """Declare an argument.

    Args:
        name: the name of a positional argument or of an option, which a placeholder may follow:
            "--data DIR".
        help_: what it is. The default value is appended.
        type_: parses the value; without it the placeholder decides.
        rivals: the name of a group of arguments of which at most one may be given.
        given: other parameters of ``ArgumentParser.add_argument``.
    """
    name, _, metavar = name.partition(" ")
    if metavar:
        given["metavar"] = metavar
    if parse := type_ or _PARSED.get(metavar):
        given["type"] = parse
    if (default := given.get("default")) is not None and default != (None, None):
        help_ = f"{help_} (default {default})".lstrip()
    return Argument((name,), {"help": help_, **given}, rivals)


def flag(name: str, help_: str, *, rivals: str = "") -> Argument:
    """Declare an option without a value."""
    return Argument((name,), {"action": "store_true", "help": help_}, rivals)


def setting_option(name: str, *, rivals: str = "") -> Argument:
    """Declare the option that replaces a setting, or ``--config``."""
    if name == "config":
        return arg("--config FILE", "a TOML file with settings")
    setting = _SETTINGS[name]
    default = f" (default {setting.default})" if setting.default != "" else ""
    given = {key: setting.metadata[key] for key in ("metavar", "choices") if setting.metadata[key]}
    option = f"--{name.replace('_', '-')}"
    return arg(option, setting.metadata["help"] + default, rivals=rivals, **given)


_PARSED_TERMS: Final[Mapping[str, dict[str, Any]]] = {
    "parents": {"action": "append"},
    "share_of": {},
    "allow": {"type": access_entry, "nargs": "+", "action": "extend"},
}
"""How the options of terms that are no words, numbers or truth values are read."""


def term_option(term: str, **given: Any) -> Argument:
    """Declare the option for a term of a new dataset; its type says which values it takes."""
    kind, row = TERMS[term]
    given |= {"dest": term, **_PARSED_TERMS.get(term, {})}
    if choices := choices_of(kind):
        given["choices"] = choices
    elif kind is bool:
        given["action"] = "store_true"
    elif bool in get_args(kind):
        given["action"] = BooleanOptionalAction
    elif term not in _PARSED_TERMS:
        given["type"] = float
        if Sequence[float] in get_args(kind):
            given["nargs"] = "+"
    if isinstance(row.default, str):
        given["default"] = row.default
    return arg(row.option or f"--{term.replace('_', '-')}", row.help, **given)


OF_DATASET: Final = arg("dataset DATASET", "the name of the dataset")
OF_RUN: Final = arg("of DATASET/RUN", "the names of the dataset and of the run")
ONLY_DATASET: Final = arg("dataset DATASET", "only this dataset", nargs="?")
ONLY_RUN: Final = arg(
    "of DATASET/RUN",
    "only this dataset (DATASET) or only this run",
    nargs="?",
    default=(None, None),
)
FOLLOW: Final = flag("--follow", "wait for more")
TAKE_OVER: Final = flag(
    "--take-over", "take the budget from the run that holds it; that run cannot charge any more"
)
AT_DELTA: Final = arg("--delta DELTA", "the delta of the epsilons that are shown", default=DELTA)
EPSILONS_AT_DELTA: Final = arg(
    "--delta DELTA",
    "the delta of the epsilons that are shown; without it only amounts are shown, because a "
    "dataset has no delta of its own",
)
SIGNING_KEY: Final = arg("--key FILE", "a key of `turnstile keys new`, which signs the receipt")
PAGE_URL: Final = arg("--url URL", "the page's URL for browsers, behind a proxy")
WORKERS: Final = arg(
    "--worker HOST:PORT",
    "the TURNSTILE_HEALTH address of a worker; may be given several times",
    action="append",
)


def user_option(digits: str, *, required: bool = True) -> Argument:
    """Declare the option for a user; ``digits`` says what an id of digits means."""
    help_ = f"the id, or - to read it from standard input; {digits}"
    return arg("--user ID", help_, required=required)


def page_options(listen: str) -> tuple[Argument, ...]:
    """Declare the options for the address of a page, and for TLS."""
    return (
        arg("--listen HOST:PORT", "the address of the page", default=listen),
        arg("--certificate FILE", "the certificate for TLS (PEM)"),
        arg("--key FILE", "the key of the certificate, if it is in another file"),
        PAGE_URL,
    )


def log_level(default: str) -> Argument:
    """Declare the option for the level of a log."""
    levels = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
    return arg("--log-level", "", str.upper, choices=levels, default=default)
