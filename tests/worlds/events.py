"""Queries, events of ordinary users, and the events with which one user tries to stand out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from streams import Turnstile
from streams.answerer.published_answers import AnswerRecord, PrivateAnswer
from tests.worlds.neighbours import Fact, Noisy, public

DAY = 86_400_000
DAYS = 6  # that are answered
END = "1970-01-07"
USER = 99

NOISY = frozenset({"value", "lower", "upper", "above", "labels", "left_out", "raw"})
"""Fields that follow from a noisy sum. Of lists the length is compared."""
MOST = {"buyers": 1.0, "spent": 4.0}
"""By query, the L2 norm of what one user can add to an answer."""

_FILE = """
dataset = "d"
run = "r"

[input]
topic = "events"
user = "u"
users = "integer"
time = "t"
time_unit = "ms"
start = 1970-01-01
lateness = "1h"
idle = "1m"
"""
_QUERIES = """
[[query]]
name = "buyers"
kind = "distinct"
window = "6h"
active_windows = 6
share = 0.5
correct = true

[[query]]
name = "spent"
kind = "sum"
column = "x"
by = "c"
labels = ["a", "b"]
each = 4.0
groups = 1
window = "2d"
noise = 4.0

[[query]]
name = "mean"
kind = "mean"
column = "x"
lower = 0.0
upper = 10.0
each = 2
window = "1d"
noise = 4.0

[[query]]
name = "sizes"
kind = "quantiles"
column = "x"
lower = 0.0
upper = 10.0
levels = 4
quantiles = [0.5]
each = 2
window = "3d"
noise = 4.0

[[query]]
name = "best"
kind = "top"
by = "c"
labels = ["a", "b", "z"]
k = 2
each = 1
groups = 1
window = "3d"
noise = 4.0

[[query]]
name = "busy"
kind = "threshold"
threshold = 5.0
each = 2
window = "1d"
noise = 4.0
"""


_KEYS = """
[[query]]
name = "pages"
kind = "count"
by = "page"
keys_below = 20
each = 1
groups = 1
window = "1d"
noise = 4.0
"""


def queries(**source: str) -> str:
    """Return a file with most kinds of queries whose noise does not follow the data.

    Args:
        source: further keys of its input, as text.
    """
    asked = _QUERIES if "end" in source else _QUERIES.replace("correct = true\n", "")
    return _file(source) + asked


def key_query(**source: str) -> str:
    """Return a file with a query by private keys: which keys get noise is noisy."""
    return _file(source) + _KEYS


def _file(source: Mapping[str, str]) -> str:
    return _FILE + "".join(f"{name} = {value}\n" for name, value in source.items())


def service() -> Turnstile:
    """Return a service in memory with the dataset of these queries."""
    turnstile = Turnstile.in_memory(partitions=2)
    turnstile.create_dataset("d", measure="gdp", epsilon=2.0, delta=1e-5, user_ids="integer")
    return turnstile


def event(user: Any, time: Any, **columns: Any) -> dict[str, Any]:
    """Return an event; its time is in days."""
    moment = round(time * DAY) if isinstance(time, int | float) else time
    return {"u": user, "t": moment, "x": 2.5, "c": "a", "page": 3, **columns}


OTHERS = [
    event(user, day + user / 10, x=float(user), c="ab"[user % 2], page=day)
    for day in range(DAYS)
    for user in range(7)
    if (day + user) % 3
]

USUAL: dict[str, list[dict[str, Any]]] = {
    "one event": [event(USER, 2.5)],
    "an event every day": [event(USER, day + 0.5) for day in range(DAYS)],
    "very many events": [event(USER, 0.001 * number, page=number % 25) for number in range(3_000)],
    "the largest amounts": [event(USER, 1.5, x=1e308), event(USER, 1.6, x=-1e308)],
    "a huge integer": [event(USER, 1.5, x=10**400)],
    "the only one with a label": [event(USER, 1.5, c="z", page=17)],
    "unknown labels": [event(USER, 1.5, c="nobody has it", page=10**12)],
    "a very long label": [event(USER, 1.5, c="a" * 10_000, page="9" * 10_000)],
    "labels of other types": [event(USER, 1.5, c=[1], page={"a": 1}), event(USER, 1.6, c=None)],
    "amounts that are no numbers": [event(USER, 1.5, x="much"), event(USER, 1.6, x=None)],
    "before the start": [event(USER, -3.5), event(USER, -(10.0**5))],
    "times that are none": [event(USER, "soon"), event(USER, None), event(USER, "1e999")],
    "ids in odd forms": [
        event(user, 2.5) for user in ("99", "", " 99 ", 99.0, True, None, 2**63, [99])
    ],
    "a very long id": [event("x" * 100_000, 2.5)],
    "columns are missing": [{"u": USER, "t": 2 * DAY}, {"u": USER}, {"t": 2 * DAY}, {}],
}
"""By name, the events of the user; none is later than the last window."""

LATE: dict[str, list[dict[str, Any]]] = {
    "an event after the end": [event(USER, DAYS + 0.5)],
    "an event far after the end": [event(USER, DAYS + 45)],
    "an event of the year 9999": [event(USER, 2_932_800)],
}


def answers(records: Iterable[AnswerRecord]) -> Iterator[Fact]:
    """Yield what is public of answers and corrections."""
    for record in records:
        shown = public(msgspec.to_builtins(record), NOISY)
        if record.query == "pages":  # the number of keys is noisy, too
            shown = {name: value for name, value in shown.items() if name not in NOISY}
        yield Fact("answer", shown)
        if record.query in MOST and isinstance(record, PrivateAnswer):
            yield Fact(f"{record.query} {record.step}", Noisy(record.value, MOST[record.query]))
