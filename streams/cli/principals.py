"""`turnstile principal` and `turnstile operator`: whose signed requests count."""

from __future__ import annotations

import argparse

from streams.cli.output import Exit, note, show
from streams.config import Config
from streams.operations.principals import read_principals
from streams.sdk.client import Turnstile


def add(options: argparse.Namespace, config: Config) -> int:
    """Have a principal be known by a key."""
    with Turnstile(config=config) as turnstile:
        turnstile.add_principal(options.name, options.public_key, creates=options.creates)
    added = {"principal": options.name, "public_key": options.public_key}
    show({**added, "creates": options.creates}, options.json)
    return Exit.OK


def remove(options: argparse.Namespace, config: Config) -> int:
    """Have a principal be known no more."""
    with Turnstile(config=config) as turnstile:
        turnstile.remove_principal(options.name)
    show({"principal": options.name, "removed": True}, options.json)
    return Exit.OK


def bind(options: argparse.Namespace, config: Config) -> int:
    """Bind the operator, or the one after it."""
    with Turnstile(config=config) as turnstile:
        turnstile.bind_operator(successor=options.successor, also=options.also or ())
    show({"bound": options.successor or "the key of operator_key"}, options.json)
    return Exit.OK


def listed(options: argparse.Namespace, config: Config) -> int:
    """The operator and all principals, as Redis shows them."""
    known = read_principals(config)
    everywhere = tuple(range(known.partitions))
    halves = [where for where in known.operators.values() if where != everywhere]
    halves += [each.partitions for each in known.principals if each.partitions != everywhere]
    for key, where in known.operators.items():
        show({"operator": key, **_where(where, everywhere)}, options.json)
    for each in known.principals:
        row = {"principal": each.name, "public_key": each.public_key, "creates": each.creates}
        show({**row, **_where(each.partitions, everywhere)}, options.json)
    if not known.operators:
        note("turnstile: no operator is bound: everybody may create datasets")
    if halves:
        note(
            "turnstile: not all partitions know the same: add or remove the principal again, which "
            "completes it"
        )
    return Exit.OK


def _where(partitions: tuple[int, ...], everywhere: tuple[int, ...]) -> dict[str, object]:
    return {} if partitions == everywhere else {"only_in_partitions": list(partitions)}
