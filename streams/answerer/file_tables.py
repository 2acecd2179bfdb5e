"""The tables of a file of queries: their keys are taken one by one, and checked.

An error names the table, the key, its value and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from accounting.exact.invalid_input import quoted
from streams.answerer.spacing import Unit

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PERIOD: Final = re.compile(r"([0-9]{1,9})(ms|s|m|h|d|w|mo)")
UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}


class UnusableQueries(ValueError):
    """The file of queries cannot be answered as it is. Nothing was charged.

    Attributes:
        key: the key in the file with the problem, if there is one.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class Period(NamedTuple):
    """A length of time.

    Attributes:
        length: in the unit.
        unit: fixed milliseconds, or days or months of the file's time zone.
    """

    length: int
    unit: Unit


_MISSING: Final[Any] = object()


class FileTable:
    """A table of the file whose keys are taken one by one; keys that remain are unknown."""

    def __init__(self, where: str, content: Mapping[str, Any]) -> None:
        self.where = where
        self.content = content
        self._left = dict(content)

    def fault(self, key: str, value: Any, allowed: str) -> UnusableQueries:
        """Return the error for a value of a key."""
        found = "is missing" if value is None or value is _MISSING else f"is {quoted(value)}"
        return UnusableQueries(f"{self.where}: {key} {found}; it must be {allowed}", key)

    def take(self, key: str, default: Any = _MISSING) -> Any:
        """Take the value of a key as it is."""
        return self._left.pop(key, default)

    def finish(self) -> None:
        """Check that every key was taken."""
        if self._left:
            known = sorted(self.content.keys() - self._left.keys())
            raise UnusableQueries(
                f"{self.where}: {quoted(min(self._left))} has no effect here: remove it. Used "
                f"keys are {', '.join(known)}",
                min(self._left),
            )

    def text(self, key: str, default: Any = _MISSING) -> str:
        """Take a string."""
        value = self.take(key, default)
        if not isinstance(value, str) or (default is _MISSING and not value):
            raise self.fault(key, value, "a string")
        return value

    def name(self, key: str) -> str:
        """Take the name of a dataset, a run or a query."""
        value = self.take(key)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            allowed = "1 to 128 letters, digits, dots, dashes and underscores"
            raise self.fault(key, value, allowed)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Take true or false."""
        value = self.take(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, value, "true or false")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: Any = _MISSING) -> str:
        """Take one of some words."""
        value = self.take(key, default)
        if value not in choices:
            raise self.fault(key, value, f"one of {', '.join(choices)}")
        return str(value)

    def number(
        self,
        key: str,
        default: Any = _MISSING,
        *,
        above: float = -math.inf,
        below: float = math.inf,
        least: float = -math.inf,
        most: float = math.inf,
    ) -> float:
        """Take a finite number within limits; a default needs to be within none of them."""
        value = self.take(key, default)
        if default is not _MISSING and value is default:
            return float(value)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not (above < value < below and least <= value <= most and abs(value) < 2.0**200)
        ):
            limits = [
                f"{word} {limit:g}"
                for word, limit in (
                    ("above", above),
                    ("below", below),
                    ("at least", least),
                    ("at most", most),
                )
                if math.isfinite(limit)
            ] or ["of at most 60 digits"]
            raise self.fault(key, value, " ".join(["a number", " and ".join(limits)]).strip())
        return float(value)

    def whole(self, key: str, least: int, most: int, default: Any = _MISSING) -> int:
        """Take a whole number within limits."""
        value = self.take(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.fault(key, value, f"a whole number from {least} to {most}")
        return value

    def rising(self, key: str, least: int, most: int) -> tuple[float, ...]:
        """Take a list of rising numbers."""
        value = self.take(key)
        if (
            not isinstance(value, list)
            or not least <= len(value) <= most
            or not all(isinstance(x, int | float) and math.isfinite(x) for x in value)
            or any(a >= b for a, b in pairwise(value))
        ):
            raise self.fault(key, value, f"a list of {least} to {most} numbers that rise")
        return tuple(map(float, value))

    def duration(self, key: str, default: int) -> int:
        """Take a duration, in ms."""
        given = self.content.get(key)
        found = self.period(key, None, Period(default, "ms"))
        if found.unit != "ms":
            raise self.fault(key, given, "a fixed length of time, as 30d: months differ")
        return found.length

    def period(self, key: str, zone: str | None, default: Any = _MISSING) -> Period:
        """Take a length of time; days and weeks are of the time zone, if the file has one."""
        value = self.take(key, default)
        if isinstance(value, Period):
            return value
        found = _PERIOD.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise self.fault(key, value, 'a number and a unit, as "90s", "6h", "1d", "1w", "1mo"')
        length = int(found[1])
        match found[2]:
            case "mo":
                return Period(length, "mo")
            case "d" | "w" as unit if zone is not None:
                return Period(length * (7 if unit == "w" else 1), "d")
            case unit:
                return Period(length * UNIT_MS[unit], "ms")

    def zone(self, key: str) -> str | None:
        """Take the name of a time zone; None if there is none."""
        value = self.take(key, None)
        if value is None:
            return None
        try:
            return ZoneInfo(value).key
        except (ValueError, TypeError, AttributeError, OSError, KeyError) as error:
            allowed = 'the IANA name of a time zone, as "Europe/Berlin"'
            raise self.fault(key, value, allowed) from error

    def moment(self, key: str, zone: str | None) -> int:
        """Take a moment, in ms since 1970; without an offset it is of the zone, or else UTC."""
        value, local = self.take(key), ZoneInfo(zone or "UTC")
        # The first and the last year overflow in some time zones.
        is_moment = isinstance(value, date) and 1 < value.year < 9999
        if is_moment and isinstance(value, datetime):
            moment = value if value.tzinfo else value.replace(tzinfo=local)
        elif is_moment:
            moment = datetime(value.year, value.month, value.day, tzinfo=local)
        else:
            raise self.fault(
                key,
                None if value is _MISSING else value,
                "a date or a time without quotes, as 2026-01-01, in the years 2 to 9998. It has no "
                "default, because the times of the events are data",
            )
        return math.floor(moment.timestamp() * 1000)
