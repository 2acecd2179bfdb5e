"""Where the windows of a query begin: pure functions between numbers and moments.

The time of a query is divided into panes, numbered from 0. Pane n lasts from ``begin(n)`` to
``begin(n + 1)``, and windows and blocks consist of consecutive panes. So panes tile time from
``start`` on without a gap or an overlap, whatever their lengths.

Panes have a fixed length, or consist of days or months in a time zone. Calendar panes begin with
the first moment of a local day. A day has 23 or 25 hours where the clock changes. A day that a
place has skipped, as Samoa did on 30 December 2011, has a pane of length 0.

The rules of time zones are the IANA database of the machine, or else of the package ``tzdata``.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

Unit: TypeAlias = Literal["ms", "d", "mo"]
"""The unit of a length: fixed milliseconds, or local days or months."""

DAY: Final = 86_400_000
_LAST_DAY: Final = date(9999, 12, 28).toordinal()  # later ones overflow in some time zones
NEVER: Final = 2**62
"""A time after all windows, in ms since 1970."""


@dataclass(frozen=True)
class Spacing:
    """The moments at which the panes of a query begin.

    Attributes:
        start: when pane 0 begins, in ms since 1970. For days and months, it is the first moment of
            a local day, and for months at most day 28 of a month.
        every: the length of a pane, in units.
        unit: fixed milliseconds, or local days or months.
        timezone: the IANA name of the time zone of days and months.
    """

    start: int
    every: int
    unit: Unit = "ms"
    timezone: str = "UTC"

    def begin(self, number: int) -> int:
        """Return when a pane begins, in ms since 1970."""
        if self.unit == "ms":
            return self.start + number * self.every
        first = _local_date(self.start, self.timezone)
        if self.unit == "d":
            day = first.toordinal() + number * self.every
        else:
            year, month = divmod(12 * first.year + first.month - 1 + number * self.every, 12)
            day = date(year, month + 1, first.day).toordinal() if year < 10_000 else _LAST_DAY + 1
        return _first_moment(day, self.timezone) if day <= _LAST_DAY else NEVER

    def last(self, time: int) -> int:
        """Return the number of the last pane that begins at a time or before it.

        It is negative for a time before the first pane.
        """
        if self.unit == "ms":
            return (time - self.start) // self.every
        if time < self.start:
            return -1
        time = min(time, (_LAST_DAY - _EPOCH) * DAY)
        first, local = (_local_date(moment, self.timezone) for moment in (self.start, time))
        if self.unit == "d":
            number = (local.toordinal() - first.toordinal()) // self.every
        else:
            number = (12 * (local.year - first.year) + local.month - first.month) // self.every
        # A month can begin on a later day, and a local date can be repeated.
        while self.begin(number) > time:
            number -= 1
        while self.begin(number + 1) <= time:
            number += 1
        return number

    def longest(self, panes: int) -> int:
        """Return a length that so many panes do not exceed: clocks change by a day at most."""
        if self.unit == "ms":
            return panes * self.every
        return (panes * self.every * (1 if self.unit == "d" else 31) + 1) * DAY


_EPOCH: Final = date(1970, 1, 1).toordinal()


def _local_date(time: int, timezone: str) -> date:
    return datetime.fromtimestamp(time // 1000, ZoneInfo(timezone)).date()


@lru_cache(maxsize=1 << 16)
def _first_moment(day: int, timezone: str) -> int:
    """Return the first moment of a local day, in ms since 1970.

    If the clock skips midnight, Python takes the offset before the change, which gives the moment
    of the change. If midnight comes twice, it takes the first one.
    """
    midnight = datetime.fromordinal(day).replace(tzinfo=ZoneInfo(timezone))
    return round(midnight.timestamp()) * 1000
