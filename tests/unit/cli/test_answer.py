"""Answers as people read them when they are published."""

from __future__ import annotations

import msgspec
import pytest

from streams.answerer.published_answers import AnswerRecord, WindowsSum
from streams.cli.answer_commands import Printer
from tests.unit.answerer.published import answer, correction, moment

BLOCK = [answer(at, 1234.5678, provisional_until=moment(3)) for at in range(2)]
TOTAL = msgspec.structs.replace(
    answer(4, 9.0, query="sum"), sums=[WindowsSum(start=moment(0), value=40, lower=30, upper=50)]
)
PRINTED: list[tuple[AnswerRecord, list[str]]] = [
    (BLOCK[0], ["2026-01-01", "q", "234.6", "provisional", "2026-01-04"]),
    (correction(BLOCK, 0.1), ["2026-01-01", "2026-01-02", "corrected"]),
    (answer(0, [1.5, -2.5], labels=["north", 7], query="by"), ["north", "1.5", "7", "-2.5"]),
    (answer(0, 9.0, kind="threshold", query="is", above=True), ["is", "above"]),
    (answer(0, [], labels=[], query="found"), ["found", "no"]),
    (TOTAL, ["2026-01-05", "9.0", "2026-01-01", "total", "40", "30", "50"]),
]


@pytest.mark.parametrize(("record", "words"), PRINTED)
def test_an_answer_is_printed_with_what_is_special_about_it(
    record: AnswerRecord, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    Printer(as_json=False)(record)
    said = iter(capfd.readouterr().out.replace(",", " ").split())
    assert all(word in said for word in words), "in this order"


def test_missing_users_are_explained_once_and_never_in_json(
    capfd: pytest.CaptureFixture[str],
) -> None:
    since = answer(5, 7.0, exhaustible_since=moment(2))
    for as_json, explained in ((False, [False, True, False]), (True, [False, False, False])):
        printed = Printer(as_json)
        for record, is_explained in zip((answer(1, 7.0), since, since), explained, strict=True):
            printed(record)
            assert bool(capfd.readouterr().err) == is_explained
