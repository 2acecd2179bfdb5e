"""Events of users in JSON, MessagePack, or rows of a file.

Unreadable events are counted and skipped, since one bad event must not stop the others. Ids are
normalised and checked as the dataset requires, so that no charge of a window is rejected for an id.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from streams.answerer.questions import Source
from streams.records import User
from streams.records.users import normal_form

_LONGEST_ID: Final = 256
_LARGEST_MS: Final = 2**53
_JSON: Final = msgspec.json.Decoder(dict[str, Any])
_MSGPACK: Final = msgspec.msgpack.Decoder(dict[str, Any])


class UnreadableEvent(StrEnum):
    """Why an event was passed over."""

    BATCH = "a batch of records that cannot be read"
    NO_EVENT = "no JSON or MessagePack object"
    NO_USER = "no id of a user"
    NO_TIME = "no time"
    AHEAD = "a time in the future"
    BEFORE = "before the first window"
    TOO_LATE = "too late for all of its windows"
    LATE = "too late for some of its windows"
    INCOMPLETE = "no such number in it"


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An action of a user at a time, with all other columns."""

    user: User
    time: int
    columns: Mapping[str, Any]


class EventReader:
    """Reads events.

    Args:
        source: names the columns with user and time.
        text: whether all columns are text, as in CSV.
    """

    def __init__(self, source: Source, text: bool = False) -> None:
        self._source = source
        self.text = text

    def decode(self, value: bytes | None) -> UserEvent | UnreadableEvent:
        """Return an event from a Kafka record; unreadable batches have a placeholder value."""
        if not value:
            return UnreadableEvent.NO_EVENT
        if value[0] == 0:  # no event begins with this byte; see streams.kafka.batches
            return UnreadableEvent.BATCH
        try:
            columns = (_JSON if value[:1] == b"{" else _MSGPACK).decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
            return UnreadableEvent.NO_EVENT
        return self.event_of(columns)

    def event_of(self, columns: Mapping[str, Any]) -> UserEvent | UnreadableEvent:
        """Return an event from its columns."""
        user = self._user(columns.get(self._source.user))
        if user is None:
            return UnreadableEvent.NO_USER
        time = self._time(columns.get(self._source.time))
        if time is None:
            return UnreadableEvent.NO_TIME
        return UserEvent(user, time, columns)

    def _user(self, value: Any) -> User | None:
        if self._source.integers:
            if self.text and isinstance(value, str):
                try:
                    value = int(value)
                except ValueError:
                    return None
            return value if type(value) is int and -(2**63) <= value < 2**63 else None
        if not isinstance(value, str) or not 1 <= len(value) <= _LONGEST_ID:
            return None
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        name = normal_form(value)
        return name if 1 <= len(name) <= _LONGEST_ID else None

    def _time(self, value: Any) -> int | None:
        if isinstance(value, datetime | date):
            return _ms(value)
        if self._source.time_unit == "iso":
            try:
                return _ms(datetime.fromisoformat(value))
            except (TypeError, ValueError, OverflowError):
                return None
        number = number_of(value, self.text)
        if number is None:
            return None
        time = number * (1000.0 if self._source.time_unit == "s" else 1.0)
        return math.floor(time) if abs(time) < _LARGEST_MS else None


def number_of(value: Any, text: bool) -> float | None:
    """Return a finite number, from text if all columns are text; None if it is none."""
    if text and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _ms(moment: datetime | date) -> int:
    if not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return math.floor(aware.timestamp() * 1000)
