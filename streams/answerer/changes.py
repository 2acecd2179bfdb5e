"""Changes of the file of a run: what stays, and where each query goes on.

The answered windows of a run are never answered again, whatever the files say:

1. A step that the earlier file has begun is completed as that file says.
2. The earlier file ends. Its open blocks are closed at once, with the windows that they have, so
   every correction follows one file, and is paid from the reserve of that file.
3. The next file begins. A query of the same name goes on with its next window. A new query begins
   with its first window that begins after the last one that was answered.

The amount that users can have spent by then is public (``Costs.paid``). The next file subtracts it.

All of this follows from the two files and the step between them. When to change a file must not
depend on data, like everything else in it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from streams.answerer.pricing import costs_of
from streams.answerer.queries import FilePlace, QueryFile, UnusableQueries
from streams.answerer.windows import Calendar, iso
from streams.records import Policy

_KEPT: Final = ("user", "integers", "time", "time_unit", "start", "by_arrival")
"""The settings of the input that decide which events a window has."""
_KEYS: Final = {"integers": "users", "by_arrival": "clock"}
_GRID: Final = ("window", "every", "unit")
_PRICES: Final = (
    *("noise", "active_windows", "share", "left_out", "block", "block_limit", "paid_blocks"),
    *("blocks", "sums", "first", "exhaustible_since"),
)


def check_change(before: QueryFile, after: QueryFile) -> None:
    """Check that a run can go on with another file.

    Raises:
        UnusableQueries: names the key that has to stay.
    """
    kept = [(name, getattr(before.source, name), getattr(after.source, name)) for name in _KEPT]
    for name, old, new in [*kept, ("timezone", before.timezone, after.timezone)]:
        if old != new:
            key = _KEYS.get(name, name)
            raise UnusableQueries(
                f"{key} is not the one with which run {after.run!r} began, so its windows would "
                f"have other events. Restore {key}, or give the file another run name",
                key,
            )
    queries = {query.name: query for query in before.queries}
    for query in after.queries:
        old = queries.get(query.name, query)
        for key in _GRID:
            if getattr(old, key) != getattr(query, key):
                raise UnusableQueries(
                    f"query {query.name!r}: {key} has changed, and the windows of a query keep "
                    "their length and distance in a run: give the query another name",
                    key,
                )


def ended(before: QueryFile, step: int, run: str, first: int) -> QueryFile:
    """Return a file that ends before a step.

    Args:
        before: the file.
        step: the next step by its own count.
        run: the run that closes its open blocks.
        first: the number of ``step`` in that run.
    """
    place, shift = before.place, first - step
    end = step if place.ended is None else place.ended
    place = replace(place, step=place.step + shift, ended=end + shift)
    return replace(before, run=run, place=place)


def continued(
    before: QueryFile, calendar: Calendar, after: QueryFile, policies: list[Policy] | None
) -> QueryFile:
    """Return the file that follows another one, with its place in the run.

    Args:
        before: the earlier file, which has ended, and which ``check_change`` allows to change.
        calendar: of that file; it is over.
        after: the file as it was read.
        policies: of all budgets that a charge has to fit; None to leave out what was paid.

    Raises:
        UnusableQueries: nothing is left for the corrections of the file.
    """
    since = calendar.reached()
    costs = None if policies is None else costs_of(before, policies)
    known = {query.name: number for number, query in enumerate(before.queries)}
    queries = []
    for query, spacing in zip(after.queries, after.spacings, strict=True):
        number, exhaustible = known.get(query.name), None
        if number is not None:
            first, exhaustible = calendar.numbers[number], before.queries[number].exhaustible_since
            if costs is not None and exhaustible is None:
                out = costs.worst_case.exhaustible_since(calendar, number, first - 1)
                exhaustible = None if out is None else calendar.window(number, out).start
        else:
            first = 0 if since is None else spacing.last(since - 1) + 1
        later = query.starting(max(first, query.first))
        queries.append(replace(later, exhaustible_since=exhaustible))
    paid = 0.0 if costs is None else costs.paid(before, calendar)
    return replace(after, queries=tuple(queries), place=FilePlace(calendar.step, since, paid))


def asks_the_same(one: QueryFile, other: QueryFile, name: str) -> bool:
    """Return whether a query of two files differs in its prices at most."""

    def asked(file: QueryFile) -> list[dict[str, Any]]:
        found = [vars(query) for query in file.queries if query.name == name]
        return [{key: query[key] for key in query if key not in _PRICES} for query in found]

    return asked(one) == asked(other)


def described(query_file: QueryFile) -> str:
    """Return where the queries of a file that follows another one begin, as text."""
    calendar = Calendar(query_file, query_file.place.step)
    begins = [
        f"{query.name} from {iso(calendar.window(number, query.first).start)}"
        for number, query in enumerate(query_file.queries)
    ]
    return ", ".join(begins)
