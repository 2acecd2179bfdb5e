"""Output is safe for terminals, and readable for programs."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from streams.cli.printing import JsonLines, note, show
from streams.worker.ports import Ending


def test_control_characters_are_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    show("reject", {"detail": "a\x1b[2Jb\nc\u202e", "users": ["\x07", 1]}, as_json=False)
    assert capfd.readouterr().out == "detail=a\\x1b[2Jb\\nc\\u202e  users=\\x07,1\n"


def test_none_is_shown_as_a_dash(capfd: pytest.CaptureFixture[str]) -> None:
    show("step", {"halted": 0, "halted_users": [], "step": None}, as_json=False)
    assert capfd.readouterr().out == "halted=0  halted_users=-  step=-\n"


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


def test_json_log_has_the_reason_of_a_record_that_has_one() -> None:
    record = logging.LogRecord("turnstile.worker", logging.CRITICAL, __file__, 1, "it", (), None)
    assert "reason" not in json.loads(JsonLines().format(record))
    record.reason = Ending.FENCED
    assert json.loads(JsonLines().format(record))["reason"] == Ending.FENCED


def test_json_log_hides_passwords() -> None:
    try:
        raise OSError("redis://:secret@host is not there")
    except OSError:
        record = logging.LogRecord(
            "turnstile.worker", logging.ERROR, __file__, 1, "lost %s", ("redis://:secret@h",), None
        )
        record.exc_info = sys.exc_info()
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["logger"], line["message"]) == (
        "ERROR",
        "turnstile.worker",
        "lost redis://***@h",
    )
    assert line["time"].endswith("+00:00")
    assert "redis://***@host is not there" in line["traceback"]
    assert "secret" not in str(line)
