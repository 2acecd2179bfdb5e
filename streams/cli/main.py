"""Runs one command: parses its arguments, loads its settings, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from itertools import groupby
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import Any

from streams.cli.commands import WORDS, Command, commands_of
from streams.cli.options import setting_option
from streams.cli.printing import close_unwritable_outputs, note
from streams.config import Config, ConfigurationError, lacking, release
from streams.failures import Exit, Failure

_EXTRAS = {
    **dict.fromkeys(("aiohttp", "aiokafka", "faust", "prometheus_client", "redis"), "service"),
    "cryptography": "secure",
    "matplotlib": "plot",
    "pyarrow": "report",
    "trustme": "local",
}
"""The extras of packages that clients lack."""

_EPILOG = """\
A dataset is named DATASET, and a run DATASET/RUN. `turnstile COMMAND --help`
has the options of a command.

Settings come from options, then from environment variables (TURNSTILE_KAFKA
and so on), then from the TOML file that --config or TURNSTILE_CONFIG names.
docs/reference/settings.md lists all of them. Put passwords into a variable or
a file: other users of this machine can read options.

exit codes: 0 done; 1 rejected, or verify or doctor found something;
2 unusable arguments or input; 69 Kafka, Redis or the workers do not answer,
or status found a problem; 70 a bug or contradicting decisions;
75 (worker only) restart it; 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        return _run(arguments)
    finally:
        close_unwritable_outputs()


def _run(arguments: Sequence[str] | None) -> int:
    options = parse(arguments)
    command: Command = options.command
    given = {name: getattr(options, name) for name in command.settings if name != "config"}
    if hasattr(options, "kafka"):  # the demo takes it as one of two places
        given["kafka"] = options.kafka
    try:
        # A command without settings may be the one that makes them usable.
        config = Config.load(options.config, **given) if command.settings else Config()
        if config.budgets and not hasattr(options, "budgets"):
            raise ConfigurationError(
                f"`turnstile {command.name}` is for a service, and budgets is {config.budgets!r}: "
                "remove this setting (TURNSTILE_BUDGETS)"
            )
        try:
            if config.budgets:
                _warn_of_moved(config)
            return command.function(options, config)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _EXTRAS:
                raise
            problem = lacking(f"`turnstile {command.name}`", extra := _EXTRAS[package], error)
            # Pages are served by aiohttp, whatever they show.
            if "budgets" in command.settings and extra == "service" and package != "aiohttp":
                problem = ConfigurationError(f"{problem}, or give --budgets FILE")
            raise problem from error
    except Failure as error:
        note(": ".join(["turnstile", *getattr(error, "__notes__", ()), str(error)]))
        return error.exit_code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.OK  # the reader (head, less) has read enough
    except Exception:
        note(traceback.format_exc())
        note("turnstile: this is a bug; the lines above say where")
        return Exit.SOFTWARE


def _warn_of_moved(config: Config) -> None:
    """Print a warning if a service continues the budgets of the file in the settings."""
    from streams.sdk.budget_file import BudgetFile
    from streams.sdk.errors import FileProblem, UnusableFile

    try:
        with closing(BudgetFile(config.budgets, config.timeout, writable=False)) as file:
            file.check_moved()
    except UnusableFile as error:
        if error.problem is FileProblem.MOVED:  # the command reports the other problems
            note(f"turnstile: {error}. What the file shows is outdated")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of one command; exit with code 2 if they are unusable."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = new_parser(given[0] if given else None)
    options = parser.parse_args(given)
    for name, value in vars(options).items():
        if value in ([], [[]]) and name != "datasets":
            # argparse before Python 3.13 reads `--name=--` so
            parser.error(f"argument --{name.replace('_', '-')}: expected a value")
    return options


class _Overview(argparse.ArgumentParser):
    """The parser of all commands; its help lists them by what they are for."""

    commands: Sequence[Command] = ()

    def format_help(self) -> str:
        """Return the help, with every command below the heading of its group."""
        names = max(len(command.name) for command in self.commands)
        fit = TextWrapper(get_terminal_size((100, 24)).columns, subsequent_indent=" " * (names + 4))
        parts = [self.format_usage(), f"\n{self.description}\n\n"]
        for title, commands in groupby(self.commands, key=lambda command: command.group):
            lines = (fit.fill(f"  {one.name:{names}}  {one.summary}") for one in commands)
            parts.append("\n".join([f"{title}:", *lines, "\n"]))
        return "".join([*parts, self.epilog or ""])


def new_parser(word: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the commands beside the one with this first word, or of all."""
    parser = _Overview(
        prog="turnstile",
        description="Individual privacy accounting on Kafka: norms in, admissions and HALTs out.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.commands = commands_of(word)
    parser.add_argument("--version", action="version", version=f"%(prog)s {release()}")
    parsers: dict[str, argparse.ArgumentParser] = {"": parser}
    places = {"": _place(parser, "COMMAND")}
    for command in parser.commands:
        above, _, name = command.name.rpartition(" ")
        if above not in places:
            if above in WORDS:
                parsers[above] = places[""].add_parser(above, help=WORDS[above])
            # A command with further commands can be called without them.
            places[above] = _place(parsers[above], "COMMAND" if above in WORDS else "[COMMAND]")
        parsers[command.name] = _add(command, name, places[above], parsers[above])
    return parser


def _place(parser: argparse.ArgumentParser, metavar: str) -> Any:
    """Return where the commands below a parser are added."""
    required = metavar == "COMMAND"
    kind = argparse.ArgumentParser
    return parser.add_subparsers(metavar=metavar, required=required, parser_class=kind)


def _add(
    command: Command, name: str, place: Any, above: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = place.add_parser(
        name,
        help=command.summary,
        description=f"{command.summary} {command.more}",
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    groups: dict[str, Any] = {"": parser}
    for argument in (*map(setting_option, command.settings), *command.arguments):
        rivals = argument.rivals
        if rivals not in groups:
            groups[rivals] = parser.add_mutually_exclusive_group()
        groups[rivals].add_argument(*argument.names, **argument.given)
    if command.lines:
        parser.add_argument("--json", action="store_true", help="print JSON Lines")
    # Defaults of a command may not replace what was given before its last word.
    given = {option for action in above._actions for option in action.option_strings}
    for action in parser._actions:
        if above.get_default("command") and given & {*action.option_strings}:
            action.default = argparse.SUPPRESS
    return parser
