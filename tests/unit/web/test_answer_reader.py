"""The reader behind the page with answers follows the topic, and reads again after a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from streams.answerer.published_answers import AnswerRecord
from streams.config import Config
from streams.sdk.errors import ServiceUnavailable, Unusable
from streams.web import answer_reader as module
from streams.web import sources
from streams.web.answer_reader import AnswerReader
from tests.unit.answerer.published import answer, correction, day, moment
from tests.waiting import eventually

BLOCK = [answer(at, 10.0, provisional_until=moment(2)) for at in range(2)]


def test_answers_after_a_failure_are_those_of_the_new_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sources, "_AGAIN_AFTER", 0.0)
    readings: list[list[AnswerRecord]] = [[*BLOCK, answer(4, 1.0)], BLOCK]
    is_back = threading.Event()

    def read(*_: Any, closed: threading.Event, **__: Any) -> Iterator[AnswerRecord]:
        if len(readings) == 1:
            is_back.wait()
        yield from readings.pop(0)
        if readings:
            raise ServiceUnavailable("no broker answers")
        closed.wait()

    monkeypatch.setattr(module, "read_answers", read)
    reader = AnswerReader(Config())
    reader.start()
    try:
        failed = eventually(lambda: reader.overview()["problem"] and reader.overview())
        assert failed["queries"] == [{"dataset": "shop", "query": "q", "records": 3}]
        is_back.set()
        eventually(lambda: reader.overview()["problem"] is None)
        eventually(lambda: reader.overview()["queries"][0]["records"] == 2)
    finally:
        is_back.set()
        reader.close()


def test_closing_ends_the_reading_without_an_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def read(*_: Any, closed: threading.Event, **__: Any) -> Iterator[AnswerRecord]:
        yield answer(0, 1.0)
        closed.wait()
        raise Unusable("closed")

    monkeypatch.setattr(module, "read_answers", read)
    reader = AnswerReader(Config())
    reader.start()
    eventually(lambda: reader.overview()["queries"])
    reader.close()
    assert caplog.records == []
    assert reader.overview()["problem"] is None


def test_answers_to_a_query_have_its_gaps_and_its_corrections() -> None:
    reader = AnswerReader(Config())
    for record in (
        *BLOCK,
        correction(BLOCK, 5.0),
        answer(4, 7.0, exhaustible_since="2026-01-05T00:00:00Z"),
    ):
        reader.add(record)
    shown = reader.answers_to("shop", "q")
    assert shown is not None
    (line,) = shown["lines"]
    assert (line["label"], line["value"], line["lower"]) == (
        None,
        [15.0, 15.0, 7.0],
        [12.0, 12.0, 5.0],
    )
    assert shown["state"] == ["corrected", "corrected", "admitted only since 2026-01-05"]
    assert shown["can_miss_users"] == [False, False, True]
    start, end = (1000 * day(at).timestamp() for at in (2, 4))
    name = "2026-01-03 to 2026-01-05"
    assert shown["gaps"] == [{"start": start, "end": end, "name": name}]
    assert reader.answers_to("shop", "another") is None


def test_a_label_is_null_in_windows_that_do_not_have_it() -> None:
    reader = AnswerReader(Config())
    for at, labels in enumerate((["tea", 7], ["salt", "tea"])):
        reader.add(answer(at, [5.0, 3.0], labels=labels, kind="top", query="top"))
    shown = reader.answers_to("shop", "top")
    assert shown is not None
    assert {line["label"]: line["value"] for line in shown["lines"]} == {
        "tea": [5.0, 3.0],
        "7": [3.0, None],
        "salt": [None, 5.0],
    }
