"""Published answers, for tests of what shows them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from streams.answerer.published_answers import CorrectedWindow, Correction, PrivateAnswer
from streams.answerer.windows import iso

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def day(number: int) -> datetime:
    """Return the start of a day, counted from BEGIN."""
    return BEGIN + timedelta(days=number)


def moment(number: int) -> str:
    """Return the start of a day, as records have it."""
    return iso(int(day(number).timestamp() * 1000))


def answer(number: int, value: Any, **fields: Any) -> PrivateAnswer:
    """Return the answer for a day, plus or minus 2 for each number."""
    several = isinstance(value, list)
    given: dict[str, Any] = {
        "v": 1,
        "dataset": "shop",
        "run": "r",
        "step": number,
        "query": "q",
        "kind": "count",
        "start": moment(number),
        "end": moment(number + 1),
        "value": value,
        "lower": [one - 2.0 for one in value] if several else (value or 0.0) - 2.0,
        "upper": [one + 2.0 for one in value] if several else (value or 0.0) + 2.0,
        "coverage": "admitted",
        "confidence": 0.95,
        "noise_stddev": 1.0,
        "worst_case_left": 1,
        "exhaustible_since": None,
    }
    return PrivateAnswer(**{**given, **fields})


def correction(answers: list[PrivateAnswer], added: float) -> Correction:
    """Return the correction of a block of answers with one number each."""
    windows = []
    for one in answers:
        assert isinstance(one.value, float)
        value = one.value + added
        windows.append(
            CorrectedWindow(
                one.step, one.start, one.end, one.value, value, value - 3.0, value + 3.0
            )
        )
    return Correction(
        v=1,
        dataset="shop",
        run="r",
        step=1000 + answers[-1].step,
        query="q",
        kind="count",
        start=answers[0].start,
        end=answers[-1].end,
        windows=windows,
        left_out=added * len(answers),
        left_out_stddev=1.0,
        shared_stddev=1.0 / len(answers),
        coverage="all",
        confidence=0.95,
    )
