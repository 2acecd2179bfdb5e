"""A user id can be read from standard input, where others cannot see it."""

from __future__ import annotations

from argparse import Namespace
from io import StringIO
from typing import Any

import pytest

from streams.cli import subjects
from streams.cli.main import main
from streams.cli.printing import UnusableInput
from streams.cli.subjects import user_of
from streams.config import Config, Unavailable
from streams.failures import Exit


@pytest.mark.parametrize("given", ["ada\n", "ada", "ada\r\n", " ada \n", "-\n", "\u00ff #\n"])
def test_dash_reads_the_id_from_standard_input(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(given))
    assert user_of(Namespace(user="-")) == given.rstrip("\r\n")
    assert user_of(Namespace(user="eve")) == "eve"


@pytest.mark.parametrize("given", ["", "\n", "ada\neve\n", "ada\n\n"])
def test_standard_input_must_be_one_id(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", StringIO(given))
    with pytest.raises(UnusableInput):
        user_of(Namespace(user="-"))


@pytest.mark.parametrize("command", ["erase", "explain", "portal link"])
def test_id_is_read_before_the_service_is_asked(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNSTILE_PORTAL_KEY", "k" * 32)
    monkeypatch.setattr("sys.stdin", StringIO(""))
    assert main([*command.split(), "--user", "-"]) == Exit.USAGE


FOUND = {
    "it does not exist": ("nope", {"mine": None}, Exit.REFUSED),
    "it has nothing": ("mine", {"mine": None}, Exit.OK),
    "Redis is away": ("nope", Unavailable("away"), Exit.OK),
    "none was named": (None, {}, Exit.OK),
}


@pytest.mark.parametrize("case", FOUND)
def test_unknown_dataset_is_reported(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, found, code = FOUND[case]

    def read(_: Config) -> dict[str, Any]:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(subjects, "read_datasets", read)
    subjects.warn_of_absent(dataset, Config())
    assert bool(capsys.readouterr().err) == (code == Exit.REFUSED)
    assert subjects.nothing_of(dataset, "HALTs", Config()) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert bool(captured.err) == (dataset is not None)
