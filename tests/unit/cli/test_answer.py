"""Answers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from streams.answerer.published_answers import VERSION, PrivateAnswer
from streams.cli.topic_commands import Printer, line_of

BEGIN = datetime(2026, 11, 23, 1, 34, tzinfo=UTC)


def answer_at(seconds: float, window: float = 20.0, since: str | None = None) -> PrivateAnswer:
    """An answer to a window that begins so many seconds after BEGIN."""
    start = BEGIN + timedelta(seconds=seconds)
    start_text, end_text = (
        moment.isoformat().replace("+00:00", "Z")
        for moment in (start, start + timedelta(seconds=window))
    )
    return PrivateAnswer(
        v=VERSION,
        dataset="d",
        run="r",
        step=0,
        query="q",
        kind="count",
        start=start_text,
        end=end_text,
        value=8.0,
        lower=6.0,
        upper=10.0,
        coverage="admitted",
        confidence=0.95,
        noise_stddev=1.0,
        worst_case_left=0,
        exhaustible_since=since,
    )


def test_seconds_are_shown_only_if_needed() -> None:
    seconds = [line_of(answer_at(at)).split()[0] for at in (0, 20, 40)]
    assert seconds == ["2026-11-23T01:34:00", "2026-11-23T01:34:20", "2026-11-23T01:34:40"]
    parts = [line_of(answer_at(at, window=0.5)).split()[0] for at in (0, 0.5)]
    assert parts[1].startswith("2026-11-23T01:34:00.5")
    assert parts[0] != parts[1]
    assert line_of(answer_at(60, window=60)).split()[0] == "2026-11-23T01:35"


def test_line_contains_exhaustible_since() -> None:
    assert "2026-11-01T00:00" not in line_of(answer_at(0))
    assert "2026-11-01T00:00" in line_of(answer_at(0, since="2026-11-01T00:00:00Z"))
    assert "2026-11-01T00:00:20" in line_of(answer_at(0, since="2026-11-01T00:00:20Z"))


def test_exhaustible_since_is_explained_once(capsys: pytest.CaptureFixture[str]) -> None:
    print_answer = Printer(as_json=False)
    said = []
    for since in (None, "2026-11-01T00:00:00Z", "2026-11-01T00:00:00Z"):
        print_answer(answer_at(0, since=since))
        said.append(bool(capsys.readouterr().err))
    assert said == [False, True, False]


def test_json_output_has_no_notes(capfd: pytest.CaptureFixture[str]) -> None:
    Printer(as_json=True)(answer_at(0, since="2026-11-01T00:00:00Z"))
    assert capfd.readouterr().err == ""
