"""Runs one command: parses its arguments, loads its settings, and turns errors into exit codes."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streams.answerer.journal import JournalUnavailable, Superseded
from streams.answerer.query_keys import UnusableQueries
from streams.cli.commands import COMMANDS, GROUPS, Command
from streams.cli.options import setting_option
from streams.cli.printing import Exit, UnusableInput, close_unwritable_outputs, note, say
from streams.config import Config, ConfigurationError, Unavailable, lacking, release
from streams.demo.demo_error import DemoError
from streams.ledger.partition_errors import PartitionError
from streams.local.launch_errors import LocalStackError
from streams.replay.archive import BrokenLog, CannotMove, UnreadableService
from streams.replay.receipts import UnusableReceipt
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    InvalidRequest,
    ServiceUnavailable,
    TurnstileError,
)

_EPILOG = """\
Settings come from options, then from environment variables (TURNSTILE_KAFKA and so on), then from
the TOML file that --config or TURNSTILE_CONFIG names. docs/reference/settings.md lists all of them.
Put passwords into a variable or a file: other users of this machine can read options.

exit codes: 0 done; 1 rejected, or verify or doctor found something; 2 unusable arguments or input;
69 Kafka, Redis or the workers do not answer, or status found a problem; 70 a bug or contradicting
decisions; 75 (worker only) restart it; 130 interrupted
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
        return command.load()(options, config)
    except _FAILURES as error:
        note(": ".join(["turnstile", *getattr(error, "__notes__", ()), str(error)]))
        return next(code for code, kinds in _EXITS.items() if isinstance(error, kinds))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.OK  # the reader (head, less) has read enough
    except Exception:
        note(traceback.format_exc())
        note("turnstile: this is a bug; the lines above say where")
        return Exit.SOFTWARE


_EXITS: Final[Mapping[Exit, tuple[type[Exception], ...]]] = {
    Exit.USAGE: (
        *(ConfigurationError, DemoError, InvalidRequest, UnusableInput, UnusableQueries),
        UnusableReceipt,
    ),
    Exit.UNAVAILABLE: (
        *(DecisionTimeout, JournalUnavailable, LocalStackError, PartitionError),
        *(ServiceUnavailable, Unavailable, UnreadableService),
    ),
    Exit.SOFTWARE: (ConflictingDecisions,),
    Exit.REFUSED: (BrokenLog, CannotMove, Superseded, TurnstileError),
}
"""The errors of each exit code. The first code with a class of an error counts."""
_FAILURES: Final = tuple(kind for kinds in _EXITS.values() for kind in kinds)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of one command; exit with code 2 if they are unusable."""
    parser = new_parser()
    options = parser.parse_args(arguments)
    for name, value in vars(options).items():
        if value in ([], [[]]):  # argparse before Python 3.13 reads `--name=--` so
            parser.error(f"argument --{name.replace('_', '-')}: expected a value")
    return options


def new_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands in the table."""
    parser = argparse.ArgumentParser(
        prog="turnstile",
        description="Individual privacy accounting on Kafka: norms in, admissions and HALTs out.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {release()}")
    parsers = {"": parser}
    places: dict[str, Any] = {"": parser.add_subparsers(title="commands", **_REQUIRED)}
    for command in COMMANDS:
        above, _, name = command.name.rpartition(" ")
        if above not in places:
            group = parsers.get(above) or places[""].add_parser(above, help=GROUPS[above])
            # A command with further commands can be called without them.
            below = {"metavar": "[COMMAND]"} if above in parsers else _REQUIRED
            places[above] = group.add_subparsers(**below)
        parsers[command.name] = _add(command, name, places[above], parsers.get(above))
    return parser


_REQUIRED: dict[str, Any] = {"required": True, "metavar": "COMMAND"}


def _add(
    command: Command, name: str, place: Any, above: argparse.ArgumentParser | None
) -> argparse.ArgumentParser:
    summary = command.summary
    parser: argparse.ArgumentParser = place.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}. {command.more}".strip(),
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
    if above is not None and (defaults := above.get_default("command")):
        _keep_options_of(parser, defaults)
    return parser


def _keep_options_of(parser: argparse.ArgumentParser, above: Command) -> None:
    """Keep the defaults of a command from replacing options before its last word."""
    names = {name for argument in above.arguments for name in argument.names}
    names |= {"--json", *(f"--{setting.replace('_', '-')}" for setting in above.settings)}
    for action in parser._actions:
        if names & set(action.option_strings):
            action.default = argparse.SUPPRESS


def completion(options: argparse.Namespace, _: Config) -> int:
    """Print the completion script of one shell."""
    try:
        import shtab
    except ImportError as error:
        raise lacking("completion", "completion", error) from error
    say(shtab.complete(new_parser(), options.shell))
    return Exit.OK
