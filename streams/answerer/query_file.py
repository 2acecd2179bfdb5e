"""The file of queries, read and validated before anything is charged.

Everything in the file is public: labels, edges, bounds, noise and when windows begin. None of it
may be chosen by looking at the events that it is about. msgspec checks each key (``query_keys``),
and this module what concerns the whole file.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from accounting.exact.invalid_input import quoted, shortened
from streams.answerer.kinds import KINDS, AnyQuery, Kind
from streams.answerer.query_keys import (
    Duration,
    FileTable,
    Name,
    Of,
    RuleBroken,
    Text,
    UnusableQueries,
)
from streams.answerer.spacing import NEVER, Spacing
from streams.records.terms import choices_of
from streams.toml import UnusableToml, read_toml

MOST_PANES: Final = 1024
_MOST_IN_BLOCK: Final = 1024
_MOST_WINDOWS: Final = 1_000_000


class Moment:
    """A date or a time of the file, without quotes; without an offset it is of the time zone."""

    def __init__(self, value: Any) -> None:
        # The first and the last year overflow in some time zones.
        if not isinstance(value, date) or not 1 < value.year < 9999:
            raise ValueError(
                "it must be a date or a time without quotes, as 2026-01-01, in the years 2 to "
                "9998. It has no default, because the times of the events are data"
            )
        day = datetime(value.year, value.month, value.day)
        self.value = value if isinstance(value, datetime) else day

    def ms(self, zone: str) -> int:
        """Return the moment in ms since 1970."""
        value = self.value if self.value.tzinfo else self.value.replace(tzinfo=ZoneInfo(zone))
        return math.floor(value.timestamp() * 1000)


class TimeZone:
    """A time zone by its IANA name."""

    def __init__(self, value: Any) -> None:
        try:
            self.name = ZoneInfo(value).key
        except (ValueError, TypeError, AttributeError, OSError, KeyError) as error:
            raise ValueError(
                'it must be the IANA name of a time zone, as "Europe/Berlin"'
            ) from error


class EventSource(FileTable):
    """The source of events, and the columns with user and time.

    Attributes:
        user: the column with the user's id.
        time: the column with the event's time.
        start: when the first windows begin: a date or time without quotes, in ``timezone``.
        end: when the last windows end; required for a file, a plan, corrections and
            ``clock = "events"``.
        topic: the Kafka topic of the events; needed without ``--input``.
        users: the type of the ids: ``"string"`` or ``"integer"``.
        time_unit: ``"iso"`` (ISO 8601), or ``"s"`` or ``"ms"`` since 1970.
        decimal: the decimal point of a CSV file: ``"."`` or ``","``.
        clock: the clock that closes windows: ``"arrival"`` for that of the broker, ``"events"`` for
            the latest event of each partition.
        lateness: how long after its end a window waits for late events.
        ahead: how far an event may be in the future of the broker's clock.
        idle: after this time without events, a partition no longer delays windows.
    """

    user: Text
    time: Text
    start: Moment
    end: Moment | None = None
    topic: str = ""
    users: Literal["string", "integer"] = "string"
    time_unit: Literal["iso", "s", "ms"] = "iso"
    decimal: Literal[".", ","] = "."
    clock: Literal["arrival", "events"] = "arrival"
    lateness: Duration = Duration("0ms")
    ahead: Duration = Duration("1d")
    idle: Duration = Duration("1m")

    @property
    def by_arrival(self) -> bool:
        """Return whether the broker's clock decides which events are too late."""
        return self.clock == "arrival"


class _Content(FileTable):
    """The content of a file, as it is written."""

    dataset: Name
    run: Name
    input: EventSource
    query: Annotated[tuple[AnyQuery, ...], Meta(min_length=1, max_length=100)]
    confidence: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.95
    timezone: TimeZone | None = None


class Blocks(NamedTuple):
    """The blocks of a query whose answers are corrected; all 0 without corrections.

    Attributes:
        left_out: the part of the query's share that is kept back for corrections.
        size: the number of windows that are corrected together.
        windows: the number of windows that are corrected, from the first one on. The last block can
            be shorter than the others.
    """

    left_out: float = 0.0
    size: int = 0
    windows: int = 0

    @property
    def number(self) -> int:
        """Return the number of blocks."""
        return -(-self.windows // self.size) if self.size else 0

    def last_of(self, block: int) -> int:
        """Return the number of the last window of a block."""
        return min((block + 1) * self.size, self.windows) - 1


@dataclass(frozen=True)
class QueryFile:
    """The content of a file of queries, with what follows from it.

    Attributes:
        dataset: the dataset to charge.
        run: the run that charges it. Its steps are windows and blocks, in the order in which they
            close.
        confidence: of the intervals in answers.
        source: of the events.
        queries: in the order of the file.
        shares: by query, the share of the budget for its windows, if its noise follows from it.
        blocks: by query.
        zone: the IANA name of the time zone of days and months; None for days of 24 hours in UTC.
    """

    dataset: str
    run: str
    confidence: float
    source: EventSource
    queries: tuple[Kind, ...]
    shares: tuple[float, ...]
    blocks: tuple[Blocks, ...]
    zone: str | None

    @property
    def timezone(self) -> str:
        """Return the IANA name of the time zone."""
        return self.zone or "UTC"

    @cached_property
    def start(self) -> int:
        """Return when the first windows begin, in ms since 1970."""
        return self.source.start.ms(self.timezone)

    @cached_property
    def end(self) -> int:
        """Return by when the last windows end, in ms since 1970; NEVER without an end."""
        return self.source.end.ms(self.timezone) if self.source.end else NEVER

    @property
    def closed(self) -> int:
        """Return when all windows can be closed, in ms since 1970."""
        return self.end + self.source.lateness.ms

    @cached_property
    def spacings(self) -> list[Spacing]:
        """Return the panes of each query."""
        panes = [(one.every or one.window).within(self.zone) for one in self.queries]
        return [Spacing(self.start, every, unit, self.timezone) for every, unit in panes]

    @cached_property
    def limits(self) -> list[int]:
        """Return by query the number of its first window that does not end by the end."""
        pairs = zip(self.queries, self.spacings, strict=True)
        return [spacing.last(self.end) - one.panes + 1 for one, spacing in pairs]

    @property
    def digest(self) -> str:
        """Return a digest of all settings: a run has one file of queries."""
        settings = [getattr(self, one.name) for one in fields(self)]
        written = msgspec.json.encode(settings, enc_hook=_encoded, order="sorted")
        return hashlib.sha256(written).hexdigest()

    def for_a_file(self) -> QueryFile:
        """Return the same queries for a file, whose events come in the order of their times.

        Raises:
            UnusableQueries: the input has no end.
        """
        found = replace(self, source=msgspec.structs.replace(self.source, clock="events"))
        _check_end(found)
        return found


def read_query_file(path: Path) -> QueryFile:
    """Read the queries of a TOML file.

    Raises:
        UnusableQueries: it cannot be read, or a query cannot be answered; names the line or the
            key, and what is allowed.
    """
    try:
        content = read_toml(path)
    except UnusableToml as error:
        raise UnusableQueries(str(error)) from error
    try:
        return parse_queries(content)
    except UnusableQueries as error:
        raise UnusableQueries(f"{path}: {error}", error.key) from error


def parse_queries(content: Mapping[str, Any]) -> QueryFile:
    """Return the queries in the tables of a file.

    Raises:
        UnusableQueries: names the key.
    """
    try:
        found = msgspec.convert(dict(content), _Content, dec_hook=_decoded)
    except msgspec.ValidationError as error:
        raise _unusable(content, error) from error
    file = QueryFile(
        found.dataset,
        found.run,
        found.confidence,
        found.input,
        found.query,
        _shares_of(found.query),
        (Blocks(),) * len(found.query),
        found.timezone.name if found.timezone else None,
    )
    for number in range(len(file.queries)):
        _check_windows(file, number)
    _check_end(file)
    names = [query.name for query in file.queries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UnusableQueries(
            f"two queries are named {quoted(min(twice))}; names must be unique", "name"
        )
    return replace(file, blocks=tuple(map(_blocks_of, file.queries, file.limits)))


def _decoded(type_: Any, value: Any) -> Any:
    return type_(value)


def _encoded(value: Any) -> str:
    return str(next(iter(vars(value).values())))


_STEPS: Final = re.compile(r"\[([0-9]+)\]|\.([a-z_]+)")
_FIELD: Final = re.compile(r"Object (?:contains|missing) (\w+) field `(.*)`", re.DOTALL)
_CHOICES: Final = {
    "kind": tuple(KINDS),
    "of": choices_of(Of),
    **{one.name: choices_of(one.type) for one in msgspec.structs.fields(EventSource)},
}


def _unusable(value: Any, error: msgspec.ValidationError) -> UnusableQueries:
    """Return an error of msgspec as one that names the table, the key and the value.

    Args:
        value: the content of the file.
        error: ends with the path to the value, as in "- at `$.query[0].numerator.each`".
    """
    text, _, path = str(error).partition(" - at `$")
    path, _, in_where = path.partition("[...]")
    where, key, steps = "the file", "", _STEPS.findall(path)
    if isinstance(rule := error.__cause__, RuleBroken):
        text, steps = str(rule), [*steps, ("", rule.key)]
    elif field := _FIELD.fullmatch(text):
        text = "remove it: there is no such key" if field[1] == "unknown" else "it is required"
        steps = [*steps, ("", field[2])]
    elif in_where:
        text = "conditions are text, an integer, a list of them, or { at_least = 1, below = 2 }"
    for index, name in steps:
        if not index:
            where = {"": where, "input": "[input]"}.get(key, f"{where}, {key}")
            key, value = name, value.get(name)
            continue
        value = value[int(index)]
        if key == "query":
            named = value.get("name") if isinstance(value, dict) else None
            shown = f" ({shortened(named)})" if isinstance(named, str) else ""
            where, key = f"[[query]] {int(index) + 1}{shown}", ""
    if text.startswith("Invalid") and key in _CHOICES:
        text = f"it must be one of {', '.join(_CHOICES[key])}"
    elif "matching regex" in text:
        text = "it must have 1 to 128 letters, digits, dots, dashes and underscores"
    if not key:
        return UnusableQueries(f"{where}: {text}")
    found = "is missing" if value is None else f"is {quoted(value)}"
    if text.startswith("remove"):
        found = "has no effect"
        tables: list[Any] = [_Content, EventSource, *KINDS.values()]
        known = {name for table in tables for name in table.__struct_fields__}
        if key in known:
            text = "remove it: it is a key of another table or of another kind"
        elif meant := get_close_matches(key, sorted(known), 1):
            text = f"there is no such key; is {meant[0]} meant?"
    return UnusableQueries(f"{where}: {shortened(key)} {found}: {text}", key)


def _shares_of(queries: Sequence[Kind]) -> tuple[float, ...]:
    """Return the shares of the queries: equal parts of the rest for those that give none."""
    shares = sum(query.share for query in queries)
    if shares > 1.0:
        raise UnusableQueries(
            f"the shares of the queries sum to {shares:g}; at most 1 is allowed", "share"
        )
    is_open = [not query.noise and not query.share for query in queries]
    return tuple(
        (1.0 - shares) / sum(is_open) if takes_a_part else query.share
        for query, takes_a_part in zip(queries, is_open, strict=True)
    )


def _check_windows(file: QueryFile, number: int) -> None:
    """Check that windows fit their panes, and begin with the first moment of a day.

    Months begin on a day that they all have.
    """
    query = file.queries[number]
    (window, unit), (every, parts) = (
        one.within(file.zone) for one in (query.window, query.every or query.window)
    )
    if parts != unit or not 1 <= every <= window or window % every or window // every > MOST_PANES:
        raise UnusableQueries(
            f"[[query]] {number + 1} ({query.name}): every is {(query.every or query.window).text} "
            f"and window is {query.window.text}; every must divide the window into at most "
            f"{MOST_PANES:,} parts: months divide months and, in a time zone, days and weeks "
            "divide days and weeks",
            "every",
        )
    local = datetime.fromtimestamp(file.start / 1000, ZoneInfo(file.timezone))
    if file.spacings[number].begin(0) != file.start or (unit == "mo" and local.day > 28):
        allowed = "the first moment of a day" + (" up to the 28th" if unit == "mo" else "")
        raise UnusableQueries(
            f"[input]: start is {local.isoformat()}; query {query.name!r} has windows of whole "
            f"{'months' if unit == 'mo' else 'days'}, so it must be {allowed} in "
            f"{file.timezone}, as {local.date().replace(day=1)}",
            "start",
        )


def _check_end(file: QueryFile) -> None:
    """Check that the number of windows is public and bounded, before anything is charged.

    A topic whose windows close by the time of arrival needs no end.
    """
    source = file.source
    if file.end == NEVER:
        if source.by_arrival and source.topic and not any(one.correct for one in file.queries):
            return
        raise UnusableQueries(
            '[input]: end is missing; with a file, without a topic, with clock = "events", or with '
            "corrections, give the time by which the last windows end, as end = 2027-01-01. It is "
            "public: do not take it from the events",
            "end",
        )
    windows = sum(max(0, limit) for limit in file.limits)
    if not 1 <= windows <= _MOST_WINDOWS:
        raise UnusableQueries(
            f"[input]: {windows:,} windows end between start = {_utc(file.start)} and end = "
            f"{_utc(file.end)}; from 1 to {_MOST_WINDOWS:,} are allowed: change start, end or "
            "the windows",
            "end",
        )


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _blocks_of(query: Kind, windows: int) -> Blocks:
    """Return how the answers of a query are corrected.

    With a share f for corrections, the variance of an answer is proportional to active / (1 - f),
    and that of its correction to missed / (block f), where missed is the number of windows that a
    user can be left out of. The share makes the sum of both least. Answers are corrected only if it
    is at most a half, and that sum is less than ``windows``, the variance with which no user is
    ever left out.

    Args:
        query: has ``active_windows``.
        windows: up to the end.
    """
    active = query.active_windows
    if not query.correct or windows <= active:
        return Blocks()
    # As few equal blocks as have at most active_windows windows; the last one can be shorter.
    size = math.ceil(windows / math.ceil(windows / min(active, _MOST_IN_BLOCK)))
    answers, corrections = math.sqrt(active), math.sqrt((windows - active) / size)
    if corrections > answers or (answers + corrections) ** 2 >= windows:
        return Blocks()
    return Blocks(corrections / (answers + corrections), size, windows)
