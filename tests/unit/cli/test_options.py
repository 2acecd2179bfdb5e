"""Odd arguments end with a message and an exit code, never with a traceback."""

from __future__ import annotations

import re
import sys
from io import StringIO

import pytest
from kafka.errors import KafkaTimeoutError

from streams.cli.commands import commands_of
from streams.cli.main import main
from streams.failures import Exit
from tests.readme import TOP

# Values that a person mistypes, or a script gives if a variable is not set.
ODD = [
    *("", " ", "-", "--", "--5", "-1", "0", "1e400", "nan", "inf", "1.5", "none", "a b", "a,b"),
    *("\udcff", "é", "x" * 300, "/", "/dev/null", "9" * 30, "{}", "\n", "%s", "../.."),
    *("redis://:secret@host:1?foo=1", "redis://:secret", "http://secret@host"),
]
# Commands that start nothing, and their options. NAME stands for a positional argument.
COMMANDS = {
    "worker": "--kafka --redis --prefix --timeout --config --log-level --partitions",
    "status": "--kafka --redis --prefix --timeout --config --delta",
    "doctor": "--worker --answerer",
    "dashboard": "--worker --certificate --key --listen",
    "gateway": "--certificate --key --listen --url --most --largest",
    "portal": "--certificate --key --listen --url",
    "portal link": "NAME --user --days --url",
    "portal revoke": "NAME",
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
    "answers": "NAME",
    "halts": "NAME",
    "balance d --user u": "--user --redis --prefix --config",
    "odometer": "NAME --user --redis --delta",
    "rejects": "NAME --reason",
}
# Commands that would start something, with arguments that are rejected.
REFUSED = {
    "up --workers=": "-1 1.5 ١ 1000000 --",
    "up --partitions=": "0 many",
    "up --data=": " /dev/null a,b",
    "up --": "prefix=a/b config=/nowhere kafka=localhost:1 redis=redis://host work=2",
    "demo --workers=": "0",
    "demo --data=": " /nowhere tests",
    "demo --": "seeds=0 out=/dev/null timeout=nan",
    "demo --workers 1 ": "--kafka=localhost:1",
    "demo ": "cifar",
    "worker ": "--log-level=LOUD",
    "halts ": "--redis=redis://h",
    "status ": "nonsense",
}
command_line = sys.modules["streams.cli.main"]
PARSER = command_line.new_parser()


def test_every_command_has_a_function() -> None:
    commands = commands_of()
    assert len(commands) >= 20
    for command in commands:
        first = command.name.split()[0]
        assert command in commands_of(first), "the index of modules has its first word"
        assert len(commands_of(first)) < len(commands)
        given = [names for argument in command.arguments for names in argument.names]
        assert "--json" not in given
        assert len(set(given)) == len(given)


def run(capsys: pytest.CaptureFixture[str], *given: str) -> tuple[object, str]:
    """Return the exit code and both outputs."""
    try:
        code: object = main(given)
    except SystemExit as end:
        code = end.code
    captured = capsys.readouterr()
    return code, captured.out + captured.err


@pytest.fixture(autouse=True)
def no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection to Kafka fail at once, and standard input empty."""

    def unavailable(*_: object, **__: object) -> None:
        raise KafkaTimeoutError("no broker")

    for client in ("KafkaConsumer", "KafkaProducer", "KafkaAdminClient"):
        monkeypatch.setattr(f"streams.kafka.kafka_clients.{client}", unavailable)
    monkeypatch.setattr("streams.sdk.kafka_connection.sleep", lambda _: None)
    monkeypatch.setenv("TURNSTILE_TIMEOUT", "0.001")
    monkeypatch.setattr("sys.stdin", StringIO())
    # To make the parser takes longer than to use it.
    monkeypatch.setattr(command_line, "new_parser", lambda word=None: PARSER)


@pytest.mark.parametrize("command", COMMANDS)
def test_odd_option_values_never_raise(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    usual = {Exit.REFUSED, Exit.USAGE, Exit.UNAVAILABLE, 75}
    for option in COMMANDS[command].split():
        for value in ODD:
            given = [value] if option == "NAME" else [f"{option}={value}"]
            code, said = run(capsys, *command.split(), *given)
            assert code in usual, (option, value, said)
            assert "Traceback" not in said, (option, value, said)
            assert "secret" not in said or option != "--redis", said


@pytest.mark.parametrize("command", REFUSED)
def test_unusable_arguments_are_rejected(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for value in REFUSED[command].split(" "):
        code, said = run(capsys, *f"{command}{value}".split())
        assert code in (Exit.USAGE, Exit.UNAVAILABLE), value
        assert "Traceback" not in said


def test_password_in_a_variable_is_not_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("redis://:secret@127.0.0.1:1/0", "redis://:secret", "redis://:sec ret@host"):
        monkeypatch.setenv("TURNSTILE_REDIS", url)
        for command in ("status", "dataset list", "dataset show d", "worker"):
            assert "ret" not in run(capsys, *command.split())[1]


@pytest.mark.parametrize(
    ("package", "extra"), [("redis", "service"), ("cryptography", "secure"), ("trustme", "local")]
)
def test_the_extra_of_a_missing_package_is_named(
    package: str,
    extra: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.part")

    monkeypatch.setattr("streams.records.signatures.new_keys", fail)
    code, said = run(capsys, "keys", "new")
    assert code == Exit.USAGE
    assert f"extra `{extra}`" in said


def test_traceback_of_a_bug_hides_passwords(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("cannot use redis://:secret@host")

    monkeypatch.setattr("streams.cli.operator_commands.read_overview", fail)
    code, said = run(capsys, "status")
    assert code == Exit.SOFTWARE
    assert "Traceback" in said
    assert "redis://***@host" in said
    assert "secret" not in said


def test_version_and_exit_codes_are_the_documented_ones(capsys: pytest.CaptureFixture[str]) -> None:
    project = (TOP / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.*)"', project, re.MULTILINE)[1]
    assert run(capsys, "--version") == (0, f"turnstile {version}\n")
    _, said = run(capsys, "--help")
    documented = re.findall(r"\b(\d+) (?=[a-zA-Z(])", said.split("codes:")[1])
    assert set(map(int, documented)) == {*Exit, 75}
