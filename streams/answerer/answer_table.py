"""Published answers as a table, with one row for each number of each window.

    table = AnswerTable()
    for record in read_answers(config):
        table.add(record)
    rows = list(table.rows())

A correction replaces the values of its windows; ``raw_value`` keeps the answer. Every column comes
from the topic ``answers``, whose records are public. The table has no number of admitted users, and
nothing from the answerer's journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

import msgspec

from streams.answerer.published_answers import (
    AnswerRecord,
    CorrectedWindow,
    Correction,
    Kind,
    PrivateAnswer,
)
from streams.answerer.query_keys import Label

_UNITS: Final[dict[str, str]] = {
    "count": "events",
    "distinct": "users",
    "histogram": "events",
    "top": "value",
    "threshold": "value",
}
"""The units of kinds that are not named like them."""
_OF_EVENTS: Final = ("mean", "variance", "ratio", "quantiles")
"""Kinds whose numbers do not grow with the length of a window."""
_LENGTHS: Final = ("week", "day", "hour", "minute", "second", "millisecond")


class AnswerRow(msgspec.Struct, frozen=True):
    """One number of one window.

    Times have the time zone of the record, which is UTC or that of the file of queries. A column
    that does not apply is None.
    """

    dataset: str
    run: str
    step: int
    query: str
    kind: Kind
    start: datetime
    """The first moment of the window."""
    end: datetime
    """The first moment after the window."""
    label: Label | None
    """The label, if the answer has several numbers."""
    value: float | None
    """The corrected value, or the answer's. None if the noise allows no estimate."""
    raw_value: float | None
    """The value of the answer."""
    corrected: bool
    """True if ``value``, ``lower`` and ``upper`` are about all users, from a correction."""
    lower: float | None
    """The lower end of the interval. None if the noise of a ratio leaves no ends."""
    upper: float | None
    """The upper end of the interval."""
    confidence: float
    """The probability that all intervals of one window hold together."""
    noise_stddev: float | None
    """The standard deviation of the noise in the answer's noisy sum. None if the answer was
    not read."""
    shared_stddev: float | None
    """The standard deviation of the error that all windows of the block share. None if the value is
    not corrected."""
    block_end: datetime | None
    """The end of the block of windows that is corrected together."""
    provisional: bool
    """True if a correction follows at ``block_end``."""
    exhaustible_since: datetime | None
    """The start of the first window from which users can be missing. None if it has not come."""
    above: bool | None
    """True if the noisy value is above the threshold."""

    @property
    def can_miss_users(self) -> bool:
        """Return whether users can be missing, because their budgets are exhausted."""
        return not self.corrected and (self.provisional or self.exhaustible_since is not None)

    @property
    def state(self) -> str:
        """Return what is special about the number, for people; empty if nothing is."""
        parts = [] if self.above is None else ["above" if self.above else "not above"]
        if self.corrected:
            parts.append("corrected")
        elif self.block_end is not None:
            parts.append(f"provisional until {shown_moment(self.block_end)}")
        elif self.exhaustible_since is not None:
            parts.append(f"admitted only since {shown_moment(self.exhaustible_since)}")
        return ", ".join(parts)


COLUMNS = AnswerRow.__struct_fields__


class AnsweredWindow(NamedTuple):
    """A window with its rows: one, or one for each label. Private keys can have none."""

    start: datetime
    end: datetime
    kind: Kind
    confidence: float
    rows: tuple[AnswerRow, ...]

    @property
    def can_miss_users(self) -> bool:
        """Return whether users can be missing, because their budgets are exhausted."""
        return any(row.can_miss_users for row in self.rows)


class UnansweredTime(NamedTuple):
    """A stretch of time between two windows that no window covers."""

    start: datetime
    end: datetime


class AnswerSeries(NamedTuple):
    """The answers to one query, over all runs that asked it.

    Attributes:
        windows: in the order of their starts. If runs answered a window again, only the latest
            answer is here.
        gaps: the times between the first and the last window that no window covers.
    """

    dataset: str
    query: str
    kind: Kind
    windows: Sequence[AnsweredWindow]
    gaps: Sequence[UnansweredTime]

    @property
    def labels(self) -> list[Label | None]:
        """Return the labels in the order in which they first appear; [None] for single numbers."""
        return list(dict.fromkeys(row.label for window in self.windows for row in window.rows))

    @property
    def unit(self) -> str:
        """Return the unit of the numbers, such as "users per day"."""
        window = self.windows[-1]
        per = "in each" if self.kind in _OF_EVENTS else "per"
        return (
            f"{_UNITS.get(self.kind, self.kind)} {per} {length_in_words(window.start, window.end)}"
        )


class AnswerTable:
    """Collects answers and corrections.

    Args:
        most: the windows that are kept for each query of a run, the newest ones; None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._runs: dict[tuple[str, str, str], dict[int, AnsweredWindow]] = {}

    def add(self, record: AnswerRecord) -> None:
        """Add an answer, or replace the values of the windows of a correction."""
        name = record.dataset, record.query, record.run
        windows = self._runs.setdefault(name, {})
        if isinstance(record, PrivateAnswer):
            windows[record.step] = _answered(record)
        else:
            for window in record.windows:
                windows[window.step] = _corrected(record, window, windows.get(window.step))
        while self._most is not None and len(windows) > self._most:
            del windows[min(windows)]

    def rows(self) -> Iterator[AnswerRow]:
        """Yield the rows by query, and then in the order of steps and labels."""
        for windows in self._runs.values():
            for _, window in sorted(windows.items()):
                yield from window.rows

    def series(self) -> list[AnswerSeries]:
        """Return the answers to each query, in the order in which the queries first appeared."""
        latest: dict[tuple[str, str], dict[datetime, AnsweredWindow]] = {}
        for (dataset, query, _), runs in self._runs.items():
            chosen = latest.setdefault((dataset, query), {})
            chosen.update((window.start, window) for window in runs.values())
        found = []
        for (dataset, query), chosen in latest.items():
            windows = [chosen[start] for start in sorted(chosen)]
            gaps = list(gaps_of([(window.start, window.end) for window in windows]))
            found.append(AnswerSeries(dataset, query, windows[-1].kind, windows, gaps))
        return found


def length_in_words(start: datetime, end: datetime) -> str:
    """Return the length of a window, such as "day" or "4 weeks".

    Months, and days on which the clocks change, count as such.
    """
    start, end = start.replace(tzinfo=None), end.replace(tzinfo=None)
    months = 12 * (end.year - start.year) + end.month - start.month
    if start == start.replace(day=1, hour=0, minute=0) and end == start.replace(
        year=start.year + (start.month + months - 1) // 12,
        month=(start.month + months - 1) % 12 + 1,
    ):
        return "month" if months == 1 else f"{months} months"
    length = end - start
    units = ((name, timedelta(**{f"{name}s": 1})) for name in _LENGTHS)
    name, unit = next((name, unit) for name, unit in units if length % unit == timedelta())
    number = length // unit
    return name if number == 1 else f"{number:,} {name}s"


def shown_moment(*moments: datetime) -> str:
    """Return the first of some moments as text, as precisely as the most precise one needs."""
    shown = [f"{moment:%Y-%m-%dT%H:%M:%S.%f}"[:-3] for moment in moments]
    for zeros in (".000", ":00", "T00:00"):
        if not all(text.endswith(zeros) for text in shown):
            break
        shown = [text.removesuffix(zeros) for text in shown]
    return shown[0]


def gaps_of(windows: Sequence[tuple[datetime, datetime]]) -> Iterator[UnansweredTime]:
    """Yield the times between windows that none of them covers.

    Args:
        windows: start and end, in the order of starts.
    """
    covered = windows[0][1] if windows else None
    for start, end in windows:
        assert covered is not None
        if start > covered:
            yield UnansweredTime(covered, start)
        covered = max(covered, end)


def _answered(answer: PrivateAnswer) -> AnsweredWindow:
    until, since = answer.provisional_until, answer.exhaustible_since
    return _window(
        answer,
        answer,
        answer.value,
        step=answer.step,
        corrected=False,
        noise_stddev=answer.noise_stddev,
        shared_stddev=None,
        block_end=None if until is None else datetime.fromisoformat(until),
        provisional=until is not None,
        exhaustible_since=None if since is None else datetime.fromisoformat(since),
        above=answer.above,
    )


def _corrected(
    correction: Correction, window: CorrectedWindow, answered: AnsweredWindow | None
) -> AnsweredWindow:
    first = answered.rows[0] if answered and answered.rows else None
    return _window(
        correction,
        window,
        window.raw,
        step=window.step,
        corrected=True,
        noise_stddev=first.noise_stddev if first else None,
        shared_stddev=correction.shared_stddev,
        block_end=datetime.fromisoformat(correction.end),
        provisional=False,
        exhaustible_since=first.exhaustible_since if first else None,
        above=None,
    )


def _window(
    record: AnswerRecord,
    window: PrivateAnswer | CorrectedWindow,
    raw: float | Sequence[float | None] | None,
    **columns: Any,
) -> AnsweredWindow:
    """Return the rows of a window of a record, with the columns that all of them share."""
    start, end = map(datetime.fromisoformat, (window.start, window.end))
    labels = [None] if record.labels is None else record.labels
    numbers = map(_listed, (window.value, raw, window.lower, window.upper))
    rows = (
        AnswerRow(
            dataset=record.dataset,
            run=record.run,
            query=record.query,
            kind=record.kind,
            start=start,
            end=end,
            label=label,
            value=value,
            raw_value=own,
            lower=lower,
            upper=upper,
            confidence=record.confidence,
            **columns,
        )
        for label, value, own, lower, upper in zip(labels, *numbers, strict=True)
    )
    return AnsweredWindow(start, end, record.kind, record.confidence, tuple(rows))


def _listed(numbers: float | Sequence[float | None] | None) -> Sequence[float | None]:
    return numbers if isinstance(numbers, Sequence) else [numbers]
