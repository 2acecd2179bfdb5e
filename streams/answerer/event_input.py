"""Events that are read whole before anything is charged: of files, or of tables.

There are two kinds of faults. A fault of the *schema* (no header, a missing column, a column whose
type is no id, time or number) follows from no row, so the input is refused. A fault of a *row* is
counted by its reason: this row does not count, and the other rows do. Whether to go on
without them is for a person to decide, so that no row decides whether anything is published.

An input can grow: it *continues* another one if it begins with the same parts. So one file is added
for each day, and the files of earlier days must stay as they were.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from accounting.exact.invalid_input import quoted
from streams.answerer.events import SkipReason, UserEvent, event_of, skipped_text
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import Label, Range, UnusableQueries, labels_in

_REMEDIES: Final = {
    SkipReason.NO_EVENT: "each row must be UTF-8, with as many cells as the header, or a JSON "
    "object without NaN",
    SkipReason.NO_USER: 'ids must be as `users` under [input] says: "integer" needs 12, not 12.0; '
    "text needs 1 to 256 characters, and does not begin with erased:",
    SkipReason.NO_TIME: "times must be as `time_unit` under [input] says: ISO 8601 is "
    "2026-01-31T09:30:00",
    SkipReason.INCOMPLETE: "numbers must be written like 1234.5, or in CSV with `decimal` = ',' "
    "under [input] like 1234,5, and not be empty",
}
"""The reasons that a person has to accept."""

Row: TypeAlias = Mapping[str, Any] | None
"""The wanted columns of a row; None if it cannot be read."""


class EventRows:
    """The events in the rows of a file or of a table.

    Args:
        name: what messages call it.
        query_file: names the columns; its input has an end.

    Attributes:
        source: identifies the content; subclasses set it.
        events: those that can count, in the order of their times.
        skipped: the number of rows that do not count, or not for all queries, by reason.
        incomplete: the number of rows without a number, by query and column.
    """

    source: str

    def __init__(self, name: str, query_file: QueryFile) -> None:
        self._name, self._query_file = name, query_file
        self._roles = _roles_of(query_file)
        self._wanted = list(dict.fromkeys(column for column, _ in self._roles))
        self.events: list[UserEvent] = []
        self.skipped: Counter[SkipReason] = Counter()
        self.incomplete: Counter[tuple[str, str]] = Counter()
        self._rows, self._first, self._seen = 0, dict[SkipReason, int](), set[str]()

    def _take(self, rows: Iterable[tuple[int, Row]]) -> None:
        query_file = self._query_file
        limits = zip(query_file.spacings, query_file.queries, query_file.limits, strict=True)
        end = max(spacing.begin(limit + one.panes - 1) for spacing, one, limit in limits)
        for number, columns in rows:
            self._rows += 1
            event = SkipReason.NO_EVENT if columns is None else event_of(columns, query_file.source)
            why: SkipReason | None = None if isinstance(event, UserEvent) else event
            if columns is not None:
                self._seen |= columns.keys()
            if isinstance(event, UserEvent):
                if event.time < query_file.start or event.time >= end:
                    why = SkipReason.AHEAD if event.time >= end else SkipReason.BEFORE
                else:
                    self.events.append(event)
                    lacks = [one for one in query_file.queries if one.added(event.columns) is None]
                    why = SkipReason.INCOMPLETE if lacks else None
                    self.incomplete.update((query.name, query.column) for query in lacks)
            if why is not None:
                self.skipped[why] += 1
                self._first.setdefault(why, number)
        self.events.sort(key=lambda event: event.time)

    @property
    def needs_acceptance(self) -> bool:
        """Return whether rows cannot be read. Rows before the start or after the end can be.

        That no row has a column is reported alone: one row with it would change whether to ask.
        """
        return bool(self.skipped.keys() & _REMEDIES.keys())

    @property
    def _absent(self) -> list[str]:
        """Return the columns that no row of a file without a schema has."""
        return [name for name in self._wanted if self._seen and name not in self._seen]

    def report(self) -> str:
        """Return what does not count, for the operator only: it is data about users.

        It is empty if everything counts.
        """
        if not self.skipped and not self._absent:
            return ""
        many = f"{self._name} has {self._rows:,} rows"
        lines = [f"{many}. These do not count, or not for every query:"]
        for why, first in sorted(self._first.items()):
            only = {why: self.skipped[why]}
            text = f"  {skipped_text(only, self.incomplete)}; the first is row {first:,}"
            lines.append(f"{text}; {_REMEDIES[why]}" if why in _REMEDIES else text)
        lines += [f"  no row has a column {quoted(name)}" for name in self._absent]
        return "\n".join(lines)

    def _fault(self, problem: str) -> UnusableQueries:
        return UnusableQueries(f"{self._name}: {problem}")

    def _check_names(self, names: list[str]) -> None:
        for name in self._wanted:
            if (count := names.count(name)) != 1:
                raise self._fault(
                    f"it has {count or 'no'} columns {quoted(name)}, and must have one. Its first "
                    f"columns are {', '.join(map(quoted, names[:20]))}"
                )


class EventInput:
    """The events of several files or tables, one after the other.

    Args:
        parts: at least one. An input that continues another one begins with its parts.

    Attributes:
        source: identifies the content.
        continues: the sources of the inputs that this one begins with.
        events: of each part in the order of their times.
        needs_acceptance: whether a part has rows that cannot be read.
    """

    def __init__(self, parts: Sequence[EventRows]) -> None:
        self._parts = parts
        self.events = [event for part in parts for event in part.events]
        self.needs_acceptance = any(part.needs_acceptance for part in parts)
        joined, sources = hashlib.sha256(), list[str]()
        for number, part in enumerate(parts, 1):
            joined.update(part.source.encode())
            sources.append(f"parts:{number}:{joined.hexdigest()}" if number > 1 else part.source)
        *self.continues, self.source = sources

    def report(self) -> str:
        """Return what does not count, for the operator only: it is data about users.

        It is empty if everything counts.
        """
        return "\n".join(filter(None, (part.report() for part in self._parts)))


def _roles_of(query_file: QueryFile) -> list[tuple[str, str]]:
    """Return the columns that are read, each with every role that it has."""
    source = query_file.source
    roles = [(source.user, "integers" if source.users == "integer" else "text")]
    roles.append((source.time, source.time_unit))
    for query in query_file.queries:
        roles += [
            (column, "numbers" if isinstance(wanted, Range) else _role_of(labels_in(wanted)))
            for column, wanted in query.conditions
        ]
        roles += [(column, "numbers") for column in query.number_columns]
        if query.by:
            keys = ("",) if query.key_bytes else (0,)
            roles.append((query.by, _role_of(query.labels or keys)))
    return list(dict.fromkeys(roles))


def _role_of(labels: Iterable[Label]) -> str:
    kinds = set(map(type, labels))
    return "labels" if len(kinds) > 1 else "text" if str in kinds else "integers"
