"""Events of users: JSON or MessagePack records, or the rows of a file.

Unreadable events are counted and skipped, since one bad event must not stop the others. Ids are
normalised and checked as the dataset requires, so that no charge of a window is rejected for an id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from accounting.exact.invalid_input import quoted
from streams.answerer.query_file import EventSource
from streams.answerer.query_keys import number_of
from streams.records import User
from streams.records.codec import first_reserved
from streams.records.users import normal_form

_LONGEST_ID: Final = 256
_LARGEST_MS: Final = 2**53
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JSON: Final = msgspec.json.Decoder(dict[str, Any])
_MSGPACK: Final = msgspec.msgpack.Decoder(dict[str, Any])


class SkipReason(StrEnum):
    """Why an event does not count."""

    UNREADABLE = "unreadable record, or longer than 64 KiB"
    NO_EVENT = "unreadable row, or no JSON or MessagePack object"
    NO_USER = "no valid user id"
    NO_TIME = "no valid time"
    AHEAD = "after the last window, or in the future"
    BEFORE = "before the first window"
    TOO_LATE = "too late for all of its windows"
    LATE = "too late for some of its windows"
    INCOMPLETE = "required number missing"


class EventPlace(NamedTuple):
    """The position of an event in the input."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An action of a user at a time, with all other columns."""

    user: User
    time: int
    columns: Mapping[str, Any]


def decoded(value: bytes | None, source: EventSource) -> UserEvent | SkipReason:
    """Return an event from a Kafka record; unreadable ones have a placeholder value.

    Args:
        value: of the record.
        source: names the columns with user and time.
    """
    if not value:
        return SkipReason.NO_EVENT
    if value[0] == 0:  # no event begins with this byte; see streams.kafka.batches
        return SkipReason.UNREADABLE
    columns = columns_of(value)
    return SkipReason.NO_EVENT if columns is None else event_of(columns, source)


def columns_of(value: bytes) -> dict[str, Any] | None:
    """Return the columns of a JSON or MessagePack object; None if it is none."""
    try:
        return (_JSON if value.lstrip()[:1] == b"{" else _MSGPACK).decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return None


def event_of(columns: Mapping[str, Any], source: EventSource) -> UserEvent | SkipReason:
    """Return an event from its columns."""
    user = _user_of(columns.get(source.user), source)
    if user is None:
        return SkipReason.NO_USER
    time = _time_of(columns.get(source.time), source)
    if time is None:
        return SkipReason.NO_TIME
    return UserEvent(user, time, columns)


def _user_of(value: Any, source: EventSource) -> User | None:
    if source.users == "integer":
        return value if type(value) is int and -(2**63) <= value < 2**63 else None
    if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_ID:
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    name = normal_form(value)
    if first_reserved([name]) is not None:  # the charge of the window would be rejected
        return None
    return name if 1 <= len(name) <= _LONGEST_ID else None


def _time_of(value: Any, source: EventSource) -> int | None:
    if isinstance(value, datetime | date):
        ms = _ms(value)
        return None if math.isnan(ms) else ms  # the NaT of pandas is a datetime
    if source.time_unit == "iso":
        try:
            return _ms(datetime.fromisoformat(value))
        except (TypeError, ValueError, OverflowError):
            return None
    number = number_of(value)
    if number is None:
        return None
    time = number * (1000.0 if source.time_unit == "s" else 1.0)
    return math.floor(time) if abs(time) < _LARGEST_MS else None


def _ms(moment: datetime | date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def skipped_text(
    skipped: Mapping[SkipReason, int], incomplete: Mapping[tuple[str, str], int]
) -> str:
    """Return the number of skipped events by reason, as text; empty if there are none."""
    reasons = []
    for why, count in sorted(skipped.items()):
        text = f"{why}: {count:,}"
        if why is SkipReason.INCOMPLETE:
            where = (
                f"{times:,} in column {quoted(column)} of query {query!r}"
                for (query, column), times in sorted(incomplete.items())
            )
            text += f" ({', '.join(where)})"
        reasons.append(text)
    return ", ".join(reasons)
