"""The registry of commands: ``@command`` adds a function, whose docstring is the help.

To add a command, write its function in one of the modules in ``MODULES``. `make reference` updates
the tables in the documentation.
"""

from __future__ import annotations

import argparse
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Final, TypeAlias

from streams.cli.options import Argument
from streams.config import Config

Function: TypeAlias = Callable[[argparse.Namespace, Config], int]

MODULES: Final[Mapping[str, tuple[str, str]]] = {
    "local_commands": ("serve", "up demo worker topics"),
    "page_commands": ("serve", "gateway portal dashboard"),
    "dataset_commands": ("datasets and runs", "dataset run runs erase balance"),
    "step_commands": ("datasets and runs", "publish"),
    "topic_commands": ("follow what was decided", "halts odometer rejects"),
    "answer_commands": ("answer queries", "answer answers"),
    "operator_commands": ("operate", "status doctor trim acl keys"),
    "log_commands": ("audit", "verify backup statement import"),
    "loss_commands": ("audit", "explain report"),
}
"""For each module in ``streams.cli``, the part of ``--help`` with its commands, and the first words
of them. A module is imported only if one of its commands is called: `turnstile status`, which is
called every few seconds, does not import what other commands need."""

WORDS: Final = {
    "dataset": "create, show, list, withdraw or close datasets, and set their access lists",
    "run": "close runs",
    "topics": "create the topics, if workers may not",
    "keys": "create keys for signatures",
}
"""The help of words that are followed by a command."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        name: its words, for example "dataset create".
        group: the part of ``--help`` that lists it.
        summary: one sentence about it.
        more: further sentences for its ``--help``.
        settings: the settings that it reads, and that options can replace.
        arguments: its other arguments.
        lines: the types of the lines that it prints with ``--json``. Without any it has no
            ``--json``.
    """

    name: str
    group: str
    function: Function
    summary: str
    more: str
    settings: tuple[str, ...]
    arguments: tuple[Argument, ...]
    lines: tuple[str, ...]


_REGISTERED: Final[dict[str, list[Command]]] = defaultdict(list)


def command(
    name: str, settings: tuple[str, ...], *arguments: Argument, lines: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Register a function as a command with these attributes of ``Command``."""

    def register(function: Function) -> Function:
        module = function.__module__.rpartition(".")[2]
        summary, _, more = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        _REGISTERED[module].append(
            Command(name, MODULES[module][0], function, summary, more, settings, arguments, lines)
        )
        return function

    return register


def commands_of(word: str | None = None) -> list[Command]:
    """Return the commands in the module that has this first word; all if none has it."""
    found = [module for module, (_, words) in MODULES.items() if word in words.split()]
    modules = found or list(MODULES)
    for module in modules:
        import_module(f"streams.cli.{module}")
    return [one for module in modules for one in _REGISTERED[module]]
