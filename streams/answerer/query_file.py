"""The file of queries, read and validated before anything is charged.

Everything in the file is public: labels, edges, bounds, noise and when windows begin. None of it
may be chosen by looking at the events that it is about.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo

from accounting.exact.invalid_input import quoted
from streams.answerer.file_tables import UNIT_MS, FileTable, Period
from streams.answerer.file_tables import UnusableQueries as UnusableQueries
from streams.answerer.spacing import NEVER, Spacing, Unit, spacing_of
from streams.toml import UnusableToml, read_toml

Kind: TypeAlias = Literal[
    "count",
    "distinct",
    "sum",
    "mean",
    "variance",
    "ratio",
    "histogram",
    "quantiles",
    "top",
    "threshold",
]
Of: TypeAlias = Literal["count", "distinct", "sum"]
Label: TypeAlias = str | int

KINDS: Final[tuple[str, ...]] = get_args(Kind)
_OF: Final[tuple[str, ...]] = get_args(Of)
MOST_LABELS: Final = 1024
MOST_KEY_BYTES: Final = 64
MOST_PANES: Final = 1024
_MOST_IN_BLOCK: Final = 1024
_MOST_QUERIES: Final = 100
_MOST_WINDOWS: Final = 1_000_000


@dataclass(frozen=True)
class Condition:
    """A condition on a column of an event.

    Attributes:
        column: its name.
        among: the allowed values; None for a range.
        at_least: the lower end of the range, inclusive.
        below: the upper end of the range, exclusive.
    """

    column: str
    among: tuple[Label, ...] | None = None
    at_least: float = -math.inf
    below: float = math.inf


@dataclass(frozen=True)
class Term:
    """The numerator or the denominator of a ratio.

    Attributes:
        of: what is added up: "count" of events, "distinct" users, or the "sum" of ``column``.
        column: the column with numbers.
        where: the conditions on its events, besides those of the query.
        each: the largest contribution of a user.
    """

    of: Of
    column: str
    where: tuple[Condition, ...]
    each: float


@dataclass(frozen=True)
class Source:
    """The source of events, and the columns with user and time.

    Attributes:
        topic: of Kafka; empty if a file is read.
        user: the column with the user's id.
        integers: whether ids are integers; else strings.
        time: the column with the time of the event.
        time_unit: "iso", "s" or "ms" since 1970.
        decimal: the decimal point of numbers in CSV: "." or ",".
        start: when the first windows begin, in ms since 1970.
        end: the last windows end by it, in ms since 1970; NEVER if the topic has no end.
        lateness: how long after the end of a window its events may arrive, in ms.
        by_arrival: whether the broker's clock decides which events are too late; else the latest
            event of each partition does.
        ahead: how far an event may be in the future of the broker's clock, in ms.
        idle: after so many ms without an event, a partition no longer delays windows.
    """

    topic: str
    user: str
    integers: bool
    time: str
    time_unit: str
    decimal: str
    start: int
    end: int
    lateness: int
    by_arrival: bool
    ahead: int
    idle: int

    @property
    def closed(self) -> int:
        """Return when all windows can be closed, in ms since 1970."""
        return self.end + self.lateness


@dataclass(frozen=True)
class Query:
    """One query, answered for every window.

    Attributes:
        name: of the query, unique in the file.
        kind: one of KINDS.
        of: what is added up: "count" of events, "distinct" users, or the "sum" of ``column``.
        column: the column with numbers.
        by: the column with labels; empty if there are none.
        labels: the values of ``by`` that are counted; others are not. Empty without ``by``, or if
            the keys of the groups are private.
        key_bytes: the longest private key of a group, in bytes; 0 for other keys.
        keys_below: private keys are integers from 0 to below this; 0 for other keys.
        edges: of the bins of a histogram, k + 1 for k bins.
        where: the conditions on events.
        window: its length.
        every: from the beginning of one window to the next; divides ``window``.
        unit: of both: ms, or days or months of the file's time zone.
        each: the largest contribution of a user to one number; 0 if ``clip`` is given.
        groups: the largest number of numbers that a user contributes to.
        clip: the largest L2 norm of a user's vector; 0 if ``each`` is given.
        terms: the numerator and the denominator of a ratio.
        lower, upper: of the values of means, variances and quantiles; of a sum, lower alone, which
            is -inf unless the file declares it.
        levels: between them, for quantiles.
        quantiles: the wanted quantiles, strictly between 0 and 1.
        most: the number of labels that a ``top`` names.
        threshold: of a ``threshold``.
        noise: standard deviation; 0 if it follows from the budget.
        active_windows: how many full windows each user's budget pays for, if ``noise`` is 0.
        share: the share of the budget for these windows, if ``noise`` is 0.
        left_out: the part of that share that is kept back for corrections; 0 for none.
        block: the number of windows that are corrected together; 0 without corrections.
        corrected: the number of windows that are corrected, from the first one on; 0 without
            corrections. The last block can be shorter than the others.
        running_total: whether the answers are added up from the first window on.
    """

    name: str
    kind: Kind
    of: Of
    window: int
    every: int
    unit: Unit = "ms"
    column: str = ""
    by: str = ""
    labels: tuple[Label, ...] = ()
    key_bytes: int = 0
    keys_below: int = 0
    edges: tuple[float, ...] = ()
    where: tuple[Condition, ...] = ()
    each: float = 0.0
    groups: int = 1
    clip: float = 0.0
    terms: tuple[Term, ...] = ()
    lower: float = 0.0
    upper: float = 0.0
    levels: int = 0
    quantiles: tuple[float, ...] = ()
    most: int = 0
    threshold: float = 0.0
    noise: float = 0.0
    active_windows: float = 0.0
    share: float = 0.0
    left_out: float = 0.0
    block: int = 0
    corrected: int = 0
    running_total: bool = False

    @property
    def panes(self) -> int:
        """Return the number of panes in a window; one window begins with each pane."""
        return self.window // self.every

    @property
    def conditions(self) -> list[Condition]:
        """Return the conditions of the query and of its terms."""
        return [*self.where, *(one for term in self.terms for one in term.where)]

    @property
    def is_never_negative(self) -> bool:
        """Return whether no user can add a negative number to a sum or a count."""
        return self.of != "sum" or self.lower >= 0.0

    @property
    def has_private_keys(self) -> bool:
        """Return whether the keys of the groups are private."""
        return bool(self.key_bytes or self.keys_below)

    @property
    def blocks(self) -> int:
        """Return the number of blocks that are corrected."""
        return -(-self.corrected // self.block) if self.block else 0

    def last_of(self, block: int) -> int:
        """Return the number of the last window of a block."""
        return min((block + 1) * self.block, self.corrected) - 1


@dataclass(frozen=True)
class QueryFile:
    """The content of a file of queries.

    Attributes:
        dataset: the dataset to charge.
        run: the run that charges it. Its steps are windows and blocks, in the order in which they
            close.
        confidence: of the intervals in answers.
        source: of the events.
        queries: in the order of the file.
        timezone: the IANA name of the time zone of days and months.
    """

    dataset: str
    run: str
    confidence: float
    source: Source
    queries: tuple[Query, ...]
    timezone: str = "UTC"

    @property
    def spacings(self) -> list[Spacing]:
        """Return the panes of each query."""
        start = self.source.start
        return [spacing_of(start, one.every, one.unit, self.timezone) for one in self.queries]

    @property
    def limits(self) -> list[int]:
        """Return by query the number of its first window that does not end by the end."""
        pairs = zip(self.queries, self.spacings, strict=True)
        return [spacing.last(self.source.end) - one.panes + 1 for one, spacing in pairs]

    def for_a_file(self) -> QueryFile:
        """Return the same queries for a file, whose events come in the order of their times.

        Raises:
            UnusableQueries: the input has no end.
        """
        found = replace(self, source=replace(self.source, by_arrival=False))
        _check_end(found)
        return found

    @property
    def digest(self) -> str:
        """Return a digest of all settings: a run has one file of queries."""
        content = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()


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
    file = FileTable("the file", content)
    given = file.take("query", [])
    if not isinstance(given, list) or not all(isinstance(query, dict) for query in given):
        raise file.fault("query", given, "tables, each under [[query]]")
    if not 1 <= len(given) <= _MOST_QUERIES:
        raise UnusableQueries(
            f"the file has {len(given)} queries; it must have 1 to {_MOST_QUERIES}, each under "
            "[[query]]",
            "query",
        )
    source = file.take("input", None)
    if not isinstance(source, dict):
        raise file.fault("input", source, "a table with the source of the events")
    zone = file.zone("timezone")
    dataset, run = file.name("dataset"), file.name("run")
    confidence = file.number("confidence", 0.95, above=0.0, below=1.0)
    events = _source(FileTable("[input]", source), zone)
    queries = tuple(
        _query(number, query, events, zone) for number, query in enumerate(given, start=1)
    )
    query_file = QueryFile(dataset, run, confidence, events, queries, zone or "UTC")
    file.finish()
    for query, spacing in zip(queries, query_file.spacings, strict=True):
        _check_start(query, spacing, query_file)
    _check_end(query_file)
    names = [query.name for query in query_file.queries]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UnusableQueries(
            f"two queries are named {quoted(min(twice))}; names must be unique", "name"
        )
    return replace(query_file, queries=_with_shares(queries))


def _with_shares(queries: tuple[Query, ...]) -> tuple[Query, ...]:
    """Return the queries, with equal parts of the rest of the budget for those without a share."""
    shares = sum(query.share for query in queries)
    if shares > 1.0:
        raise UnusableQueries(
            f"the shares of the queries sum to {shares:g}; at most 1 is allowed", "share"
        )
    is_open = [not query.noise and not query.share for query in queries]
    return tuple(
        replace(query, share=(1.0 - shares) / sum(is_open)) if takes_a_part else query
        for query, takes_a_part in zip(queries, is_open, strict=True)
    )


def _check_start(query: Query, spacing: Spacing, query_file: QueryFile) -> None:
    """Check that days begin with the first moment of a day, and months on a day they all have."""
    start, zone = query_file.source.start, ZoneInfo(query_file.timezone)
    local = datetime.fromtimestamp(start / 1000, zone)
    if spacing.begin(0) != start or (query.unit == "mo" and local.day > 28):
        allowed = "the first moment of a day" + (" up to the 28th" if query.unit == "mo" else "")
        raise UnusableQueries(
            f"[input]: start is {local.isoformat()}; query {query.name!r} has windows of whole "
            f"{'months' if query.unit == 'mo' else 'days'}, so it must be {allowed} in "
            f"{query_file.timezone}, as {local.date().replace(day=1)}",
            "start",
        )


def _check_end(query_file: QueryFile) -> None:
    """Check that the number of windows is public and bounded, before anything is charged.

    A topic whose windows close by the time of arrival needs no end.
    """
    source = query_file.source
    if source.end == NEVER:
        if source.by_arrival and source.topic:
            return
        raise UnusableQueries(
            '[input]: end is missing; with a file, without a topic, or with clock = "events", give '
            "the time by which the last windows end, as end = 2027-01-01. It is public: do not "
            "take it from the events",
            "end",
        )
    windows = sum(max(0, limit) for limit in query_file.limits)
    if not 1 <= windows <= _MOST_WINDOWS:
        raise UnusableQueries(
            f"[input]: {windows:,} windows end between start = {_utc(source.start)} and end = "
            f"{_utc(source.end)}; from 1 to {_MOST_WINDOWS:,} are allowed: change start, end or "
            "the windows",
            "end",
        )


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()


def _source(table: FileTable, zone: str | None) -> Source:
    clock = table.choice("clock", ("arrival", "events"), "arrival")
    source = Source(
        topic=table.text("topic", ""),
        user=table.text("user"),
        integers=table.choice("users", ("string", "integer"), "string") == "integer",
        time=table.text("time"),
        time_unit=table.choice("time_unit", ("iso", "s", "ms"), "iso"),
        decimal=table.choice("decimal", (".", ","), "."),
        start=table.moment("start", zone),
        end=table.moment("end", zone) if "end" in table.content else NEVER,
        lateness=table.duration("lateness", 0),
        by_arrival=clock == "arrival",
        ahead=table.duration("ahead", UNIT_MS["d"]),
        idle=table.duration("idle", UNIT_MS["m"]),
    )
    table.finish()
    return source


def _query(number: int, content: Mapping[str, Any], source: Source, zone: str | None) -> Query:
    name = content.get("name")
    table = FileTable(
        f"[[query]] {number}" + (f" ({name})" if isinstance(name, str) else ""), content
    )
    kind: Any = table.choice("kind", KINDS)
    of: Any = kind if kind in _OF else "count"
    if kind in ("top", "threshold"):
        of = table.choice("of", _OF, "count")
    window, unit = table.period("window", zone)
    every, parts = table.period("every", zone, Period(window, unit))
    if parts != unit or not 1 <= every <= window or window % every or window // every > MOST_PANES:
        raise table.fault(
            "every",
            content.get("every"),
            f"a duration that divides the window into at most {MOST_PANES} parts: months divide "
            "months and, in a time zone, days and weeks divide days and weeks",
        )
    panes = spacing_of(source.start, every, unit, zone or "UTC")
    settings: dict[str, Any] = {"where": _conditions(table)}
    numbers = of == "sum" or kind in ("mean", "variance", "histogram", "quantiles")
    if numbers:
        settings["column"] = table.text("column")
    if of == "sum":
        settings["lower"] = table.number("lower", -math.inf)
    if kind in ("count", "distinct", "sum", "mean", "variance", "ratio", "top"):
        _add_labels(table, settings, needed=kind == "top", has_keys=kind in _OF)
    if kind == "histogram":
        settings["edges"] = table.rising("edges", least=2, most=MOST_LABELS + 1)
    if kind == "ratio":
        settings["terms"] = _term(table, "numerator"), _term(table, "denominator")
    if kind in ("mean", "variance", "quantiles"):
        settings["lower"] = table.number("lower")
        settings["upper"] = table.number("upper", above=settings["lower"])
    if kind == "quantiles":
        settings["levels"] = table.whole("levels", 2, MOST_LABELS, 64)
        settings["quantiles"] = table.rising("quantiles", least=1, most=100)
        if not all(0.0 < part < 1.0 for part in settings["quantiles"]):
            raise table.fault("quantiles", content["quantiles"], "strictly between 0 and 1")
    if kind == "top":
        settings["most"] = table.whole("k", 1, len(settings["labels"]))
    if kind == "threshold":
        settings["threshold"] = table.number("threshold")
    _add_bounds(table, settings, kind, of)
    if ("noise" in content) == ("active_windows" in content):
        raise UnusableQueries(
            f"{table.where}: give either noise, a standard deviation in the units of the answer, "
            "or active_windows, the number of full windows that each user's budget pays for",
            "noise",
        )
    if "noise" in content:
        settings["noise"] = table.number("noise", above=0.0)
    else:
        settings["active_windows"] = table.number("active_windows", least=1.0)
        if "share" in content:
            settings["share"] = table.number("share", above=0.0, most=1.0)
        can_correct = kind in _OF and not settings.keys() & {"key_bytes", "keys_below"}
        if can_correct and table.flag("correct", False):
            if source.end == NEVER:
                raise table.fault("correct", True, "false, or [input] needs an end")
            windows = panes.last(source.end) - window // every + 1
            settings |= _correction(settings["active_windows"], windows)
    query = Query(
        name=table.name("name"),
        kind=kind,
        of=of,
        window=window,
        every=every,
        unit=unit,
        **settings,
    )
    can_add = kind in ("count", "sum") and window == every and not query.has_private_keys
    if can_add and (sums := table.take("sums", None)) is not None:
        if sums != ["all"]:
            raise table.fault("sums", sums, '["all"], for the running total')
        query = replace(query, running_total=True)
    table.finish()
    return query


def _correction(active: float, windows: int) -> dict[str, Any]:
    """Return how the answers of a query are corrected.

    With a share f for corrections, the variance of an answer is proportional to active / (1 - f),
    and that of its correction to missed / (block f), where missed is the number of windows that a
    user can be left out of. The share makes the sum of both least. Answers are corrected only if it
    is at most a half, and that sum is less than ``windows``, the variance with which no user is
    ever left out.

    Args:
        active: the active_windows of the query.
        windows: up to the end.
    """
    if windows <= active:
        return {}
    # As few equal blocks as have at most active_windows windows; the last one can be shorter.
    block = math.ceil(windows / math.ceil(windows / min(active, _MOST_IN_BLOCK)))
    answers, corrections = math.sqrt(active), math.sqrt((windows - active) / block)
    if corrections > answers or (answers + corrections) ** 2 >= windows:
        return {}
    left_out = corrections / (answers + corrections)
    return {"left_out": left_out, "block": block, "corrected": windows}


def _add_labels(table: FileTable, settings: dict[str, Any], needed: bool, has_keys: bool) -> None:
    if not needed and "by" not in table.content and "labels" not in table.content:
        return
    settings["by"] = table.text("by")
    for key, most in (("key_bytes", MOST_KEY_BYTES), ("keys_below", 2**53)):
        if has_keys and key in table.content and "labels" not in table.content:
            settings[key] = table.whole(key, 1 if key == "key_bytes" else 2, most)
            return
    labels = table.take("labels", None)
    if (
        not isinstance(labels, list)
        or not 1 <= len(labels) <= MOST_LABELS
        or not all(type(label) in (str, int) for label in labels)
        or len(set(labels)) < len(labels)
    ):
        raise table.fault(
            "labels",
            labels,
            f"a list of 1 to {MOST_LABELS} distinct strings or integers. They are published, "
            "whether any event has them or not, so do not take them from the events. If the keys "
            "are not known, give key_bytes, the longest key in bytes, or keys_below for integers, "
            "with a count, a distinct or a sum",
        )
    settings["labels"] = tuple(labels)


def _add_bounds(table: FileTable, settings: dict[str, Any], kind: Kind, of: Of) -> None:
    """Read the bounds on one user's contribution."""
    has_keys = bool(settings.keys() & {"key_bytes", "keys_below"})
    several = bool(settings.get("labels")) or has_keys or kind == "histogram"
    if kind in ("mean", "variance", "quantiles"):
        settings["each"] = table.number("each", above=0.0)
        return
    if several and (kind == "ratio" or "clip" not in table.content):
        if has_keys:
            numbers = MOST_LABELS
        else:
            numbers = len(settings.get("labels", ())) or len(settings["edges"]) - 1
        settings["groups"] = table.whole("groups", 1, numbers)
    if kind == "ratio":
        return
    if of == "distinct" and "clip" not in table.content:
        settings["each"] = 1.0
    elif ("each" in table.content) == ("clip" in table.content):
        raise UnusableQueries(
            f"{table.where}: give one bound on a user's contribution to a window: either each, the "
            "maximum per number, or clip, the largest L2 norm",
            "each",
        )
    else:
        bound = "clip" if "clip" in table.content else "each"
        settings[bound] = table.number(bound, above=0.0)
    if has_keys and settings.get("clip"):
        raise UnusableQueries(
            f"{table.where}: clip is {settings['clip']:g}; private keys need the bounds each and "
            "groups instead",
            "clip",
        )


def _term(table: FileTable, key: str) -> Term:
    """Read the numerator or the denominator of a ratio."""
    given = table.take(key, None)
    if not isinstance(given, dict):
        raise table.fault(key, given, 'a table, as { where = { type = "view" }, each = 10 }')
    inner = FileTable(f"{table.where}, {key}", given)
    of: Any = inner.choice("of", _OF, "sum" if "column" in given else "count")
    column = inner.text("column") if of == "sum" else ""
    each = 1.0 if of == "distinct" else inner.number("each", above=0.0)
    term = Term(of, column, _conditions(inner), each)
    inner.finish()
    return term


def _conditions(table: FileTable) -> tuple[Condition, ...]:
    given = table.take("where", {})
    if not isinstance(given, dict):
        raise table.fault("where", given, 'a table, as { region = "north" }')
    return tuple(_condition(table, column, wanted) for column, wanted in given.items())


def _condition(table: FileTable, column: str, wanted: Any) -> Condition:
    if type(wanted) in (str, int):
        return Condition(column, (wanted,))
    if isinstance(wanted, list) and wanted and all(type(one) in (str, int) for one in wanted):
        return Condition(column, tuple(wanted))
    if isinstance(wanted, dict) and wanted and wanted.keys() <= {"at_least", "below"}:
        inner = FileTable(f"{table.where}, where.{column}", wanted)
        return Condition(
            column,
            None,
            inner.number("at_least", -math.inf),
            inner.number("below", math.inf),
        )
    raise table.fault(
        f"where.{column}",
        wanted,
        "a string, an integer, a list of them, or { at_least = ..., below = ... }",
    )
