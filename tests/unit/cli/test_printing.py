"""Output is safe for terminals, and readable for programs."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest

from streams.cli.printing import JsonLines, note, show
from streams.worker.ports import Ending


def test_control_characters_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    odd = {"detail": "a\x1b[2Jb\nc\u202e", "users": ["\x07", 1]}
    for found in (odd, [odd], {**odd, "long": "-" * 80}):
        show("reject", found, as_json=False)
        said = capfd.readouterr().out
        assert "a\\x1b[2Jb\\nc\\u202e" in said
        assert "\\x07, 1" in said
        assert all(c.isprintable() or c == "\n" for c in said)


def test_links_are_not_broken_at_hyphens(capfd: pytest.CaptureFixture[str]) -> None:
    link = "http://localhost/#" + "-abc" * 100
    show("link", {"link": link, "days": 7}, as_json=False)
    assert link in capfd.readouterr().out.split()


@dataclass
class Record:
    name: str
    number: float | None
    items: list[int]


class Packed(msgspec.Struct, omit_defaults=True):
    name: str
    more: int | None = None


MANY = [Record("a", 12.5, list(range(12))), Record("bcd", None, [])]


def test_records_are_a_table_with_aligned_columns(capfd: pytest.CaptureFixture[str]) -> None:
    assert show("record", MANY, False) == 2
    assert show("record", MANY[:1], False, ["number", "name"], follow=True) == 1
    assert show("record", iter([]), False) == 0
    assert capfd.readouterr().out.splitlines() == [
        "name  number  items",
        "a       12.5  0, 1, 2, 3, 4, 5, 6, 7, ... 12 in all",
        "bcd        -  -",
        "number  name",
        "  12.5  a",
    ]


def test_json_has_every_field_of_every_kind_of_record(capfd: pytest.CaptureFixture[str]) -> None:
    found = [*MANY, {"name": "c", "items": {"x": b"y"}}, Packed("d")]
    assert show("record", found, True, ["name"]) == 4
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert lines == [
        {"type": "record", "name": "a", "number": 12.5, "items": list(range(12))},
        {"type": "record", "name": "bcd", "number": None, "items": []},
        {"type": "record", "name": "c", "items": {"x": "eQ=="}},
        {"type": "record", "name": "d"},
    ]


@pytest.mark.parametrize(
    ("columns", "first"), [(30, ["name", "a"]), (40, ["name", "number", "items"])]
)
def test_a_table_wider_than_the_terminal_is_wrapped_or_blocks(
    columns: int,
    first: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    show("record", MANY, False)
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == first
    assert "12 in all" in " ".join(" ".join(lines).split())


def test_followed_records_are_printed_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    printed = []

    def records() -> Iterator[Record]:
        for record in MANY:
            yield record
            printed.append(record.name in capfd.readouterr().out)

    show("record", records(), False, follow=True)
    assert printed == [True, True]


def test_json_is_utf8_on_every_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    show("event", {"user": "ü"}, as_json=True)
    show("event", {"user": "ü"}, as_json=False)
    assert written.getvalue() == '{"type":"event","user":"ü"}\nuser=\\xfc\n'.encode()


def test_notes_hide_passwords_and_need_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    note("Redis at redis://:secret@host does not answer")
    assert capsys.readouterr().err == "Redis at redis://***@host does not answer\n"
    gone = io.StringIO()
    gone.close()
    monkeypatch.setattr(sys, "stderr", gone)
    note("this is lost, and nothing fails")


def test_only_prose_is_wrapped_in_notes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    text = "for example: turnstile status --config operator.toml"
    for is_wrapped, longest in ((False, len(text)), (True, 20)):
        note(text, is_wrapped=is_wrapped)
        lines = capsys.readouterr().err.splitlines()
        assert max(map(len, lines)) <= longest
        assert " ".join(lines) == text


def test_json_log_has_the_reason_of_a_record_and_hides_passwords() -> None:
    try:
        raise OSError("redis://:secret@host is not there")
    except OSError:
        record = logging.LogRecord(
            "turnstile.worker", logging.ERROR, __file__, 1, "lost %s", ("redis://:secret@h",), None
        )
        record.exc_info = sys.exc_info()
    assert "reason" not in json.loads(JsonLines().format(record))
    record.reason = Ending.FENCED
    line = json.loads(JsonLines().format(record))
    assert line["reason"] == Ending.FENCED
    assert (line["level"], line["logger"], line["message"]) == (
        "ERROR",
        "turnstile.worker",
        "lost redis://***@h",
    )
    assert line["time"].endswith("+00:00")
    assert "redis://***@host is not there" in line["traceback"]
    assert "secret" not in str(line)
