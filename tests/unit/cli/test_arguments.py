"""Odd arguments end in a sentence and an exit code, never in a traceback."""

from __future__ import annotations

import re
import sys
from functools import cache
from io import StringIO

import pytest
from kafka.errors import KafkaTimeoutError

from streams.cli.commands import COMMANDS as COMMANDS_OF_TABLE
from streams.cli.main import main
from streams.cli.output import Exit
from tests.readme import TOP

# What somebody may type for a value by mistake, or a script with a variable that is not set.
ODD = [
    *("", " ", "-", "--", "--5", "-1", "0", "1e400", "nan", "inf", "1.5", "none", "a b", "a,b"),
    *("\udcff", "é", "x" * 300, "/", "/dev/null", "9" * 30, "{}", "\n", "%s", "../.."),
    *("redis://:secret@host:1?foo=1", "redis://:secret", "http://secret@host"),
]
# Commands that begin nothing, with options and places for a value. Settings are read in one place.
COMMANDS = {
    "worker": "--kafka --redis --prefix --timeout --config --log-level --partitions",
    "status": "--kafka --redis --prefix --timeout --config --delta",
    "doctor": "--worker --answerer",
    "top": "--worker",
    "dashboard": "--worker --certificate --key --listen",
    "portal": "--certificate --key --listen --url --most",
    "portal link": "--user --dataset --days --url",
    "portal revoke": "NAME",
    "completion": "NAME",
    "publish": "NAME",
    "dataset create": "NAME",
    "dataset create d --budget 1": "--measure --epsilon --delta --orders --odometer-step "
    "--on-exhaustion --user-ids --budget --allow",
    "dataset access": "NAME",
    "dataset access d": "--allow",
    "dataset show": "NAME",
    "dataset show d": "--delta",
    "dataset withdraw": "NAME",
    "run close": "NAME",
    "run close d": "NAME",
    "answers": "--dataset --run",
    "halts": "--dataset --run",
    "odometer": "--dataset --user --redis --delta",
    "rejects": "--dataset --reason",
}
# Those that would begin something: here only values which must not.
REFUSED = """
up --workers -1          | whole number from 0 to 100
up --workers 1.5         | whole number
up --workers ١           | whole number
up --workers 1000000     | whole number
up --workers=--          | argument --workers
up --partitions 0        | partitions is 0
up --partitions many     | partitions is 'many'
up --data=               | empty
up --data /dev/null      | The data directory cannot be used
up --data a,b            | comma
up --prefix a/b          | prefix
up --config /nowhere     | cannot read /nowhere
up --kafka localhost:1   | unrecognized arguments: --kafka
up --redis redis://host  | unrecognized arguments: --redis
up --work 2              | unrecognized arguments: --work
demo --workers 0         | whole number from 1 to 100
demo --seeds 0           | whole number from 1 to 1000
demo --data /nowhere     | contains no CDNOW_master.txt
demo --data=             | empty
demo --out /dev/null     | the plots cannot be written
demo --timeout nan       | timeout is nan
demo --data tests        | contains no CDNOW_master.txt
demo cifar               | invalid choice
demo --workers 1 --kafka localhost:1 | not allowed with argument
worker --log-level LOUD  | invalid choice
halts --redis redis://h  | unrecognized arguments: --redis
status nonsense          | unrecognized arguments: nonsense
"""
command_line = sys.modules["streams.cli.main"]
PARSER = cache(command_line.new_parser)


def test_every_command_has_a_function_and_says_what_it_prints() -> None:
    assert len(COMMANDS_OF_TABLE) >= 20
    for command in COMMANDS_OF_TABLE:
        assert callable(command.load())
        given = [names for argument in command.arguments for names in argument.names]
        assert "--json" not in given
        assert len(set(given)) == len(given)


TABLE = [tuple(map(str.strip, line.split("|"))) for line in REFUSED.strip().splitlines()]


def run(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[object, str]:
    """The exit code and all that was said."""
    try:
        code: object = main(given)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every address is one that nobody listens on, which is found out at once."""

    def unavailable(*_: object, **__: object) -> None:
        raise KafkaTimeoutError("nobody listens there")

    for client in ("KafkaConsumer", "KafkaProducer", "KafkaAdminClient"):
        monkeypatch.setattr(f"streams.kafka.clients.{client}", unavailable)
    monkeypatch.setattr("streams.sdk.kafka.sleep", lambda _: None)
    monkeypatch.setenv("TURNSTILE_TIMEOUT", "0.001")


@pytest.fixture(autouse=True)
def nothing_on_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO())


@pytest.fixture(autouse=True)
def one_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps nothing of what it has parsed, and takes longer to make than to use."""
    monkeypatch.setattr(command_line, "new_parser", PARSER)


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_values_of_every_option_end_in_a_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {Exit.REFUSED, Exit.USAGE, Exit.UNAVAILABLE, 75}
    for option in COMMANDS[command].split():
        for value in ODD:
            given = [value] if option == "NAME" else [f"{option}={value}"]
            code, said = run(capsys, *command.split(), *given)
            assert code in usual, (option, value, said)
            assert "Traceback" not in said, (option, value, said)
            assert "secret" not in said or option != "--redis", said


@pytest.mark.parametrize(("given", "message"), TABLE)
def test_what_a_command_would_ignore_or_cannot_do_is_refused_at_once(
    given: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = run(capsys, *given.split())
    assert message in said
    assert code in (Exit.USAGE, Exit.UNAVAILABLE)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "command", ["", *sorted({line.split()[0] for line in COMMANDS}), "up", "demo"]
)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = run(capsys, *command.split(), "--help")
    assert code == 0
    assert said.startswith(f"usage: turnstile {command}".rstrip())


def test_a_password_in_a_variable_is_never_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("redis://:secret@127.0.0.1:1/0", "redis://:secret", "redis://:sec ret@host"):
        monkeypatch.setenv("TURNSTILE_REDIS", url)
        for command in ("status", "dataset list", "dataset show d", "worker"):
            assert "ret" not in run(capsys, *command.split())[1]


def test_a_bug_says_where_it_is_and_no_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot use redis://:secret@host")

    monkeypatch.setattr("streams.cli.operations.read_overview", fail)
    code, said = run(capsys, "status")
    assert code == Exit.SOFTWARE
    assert "Traceback" in said
    assert "redis://***@host" in said
    assert "secret" not in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, script = run(capsys, "completion", shell)
    assert code == 0
    for command in COMMANDS:
        assert command.split()[0] in script


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    project = (TOP / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"', project, re.MULTILINE)[1]
    assert run(capsys, "--version") == (0, f"turnstile {version}\n")


def test_exit_codes_are_the_documented_ones(capsys: pytest.CaptureFixture[str]) -> None:
    _, said = run(capsys, "--help")
    documented = {
        int(code) for code in re.findall(r"\b(\d+) (?=[a-zA-Z(])", said.split("codes:")[1])
    }
    assert documented == {*Exit, 75}
