"""Follows the topic answers for the page that shows them.

The page receives the queries with the number of records of each, every second, and asks for the
answers to a query when that number has changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime
from functools import partial
from typing import Any, Final

from streams.answerer.answer_table import AnswerSeries, AnswerTable, shown_moment
from streams.answerer.published_answers import AnswerRecord, read_answers
from streams.config import Config
from streams.web.sources import Source, SourceThreads

MOST_WINDOWS: Final = 3000
"""The windows that are kept for each query of a run: eight years of days."""


class AnswerReader(SourceThreads):
    """Reads the published answers in a thread, from the first one on."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._topic = Source("answers", problem=None)
        self._forget()

    def start(self) -> None:
        """Start reading."""
        self.run(partial(self.repeat, self._topic, self._read))

    def add(self, record: AnswerRecord) -> None:
        """Add an answer or a correction."""
        with self._lock:
            self._table.add(record)
            self._records[record.dataset, record.query] += 1

    def overview(self) -> dict[str, Any]:
        """Return the queries in the order of their first answers, and what is wrong, if anything.

        A query's ``records`` changes whenever its answers do.
        """
        with self._lock:
            queries = [
                {"dataset": dataset, "query": query, "records": count}
                for (dataset, query), count in self._records.items()
            ]
        return {"problem": self._topic.problem, "queries": queries}

    def answers_to(self, dataset: str, query: str) -> dict[str, Any] | None:
        """Return the answers to a query, or None if there are none.

        Times are in ms since 1970, and as text in the time zone of the file of queries.
        """
        with self._lock:
            every = self._table.series()
        wanted = (one for one in every if (one.dataset, one.query) == (dataset, query))
        return next(map(_shown, wanted), None)

    def _forget(self) -> None:
        with self._lock:
            self._table = AnswerTable(MOST_WINDOWS)
            self._records = Counter[tuple[str, str]]()

    def _read(self) -> None:
        records = read_answers(self.config, follow=True, closed=self.closed)
        for number, record in enumerate(records):
            if not number:  # until then, the page shows the answers of the reading before
                self._forget()
                self._topic.answered()
            self.add(record)


def _shown(series: AnswerSeries) -> dict[str, Any]:
    windows, lines = series.windows, []
    for label in series.labels:
        rows = [
            next((row for row in window.rows if row.label == label), None) for window in windows
        ]
        numbers = {
            name: [row and getattr(row, name) for row in rows]
            for name in ("value", "lower", "upper")
        }
        lines.append({"label": None if label is None else str(label), **numbers})
    return {
        "dataset": series.dataset,
        "query": series.query,
        "unit": series.unit,
        "confidence": windows[-1].confidence,
        "name": [_text(window.start, window.end) for window in windows],
        "start": [_ms(window.start) for window in windows],
        "end": [_ms(window.end) for window in windows],
        "state": [w.rows[0].state if w.rows else "no key published" for w in windows],
        "can_miss_users": [window.can_miss_users for window in windows],
        "gaps": [
            {
                "start": _ms(gap.start),
                "end": _ms(gap.end),
                "name": f"{_text(*gap)} to {_text(*reversed(gap))}",
            }
            for gap in series.gaps
        ],
        "lines": lines,
    }


def _text(*moments: datetime) -> str:
    return shown_moment(*moments).replace("T", " ")


def _ms(moment: datetime) -> int:
    return round(1000 * moment.timestamp())
