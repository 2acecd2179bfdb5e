"""Columns of Arrow, of Parquet files and of tables in memory: their types, and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from accounting.exact.invalid_input import quoted
from streams.answerer.event_input import Row

_TEXT: Final = ("is_string", "is_large_string", "is_string_view")
_TIME: Final = ("is_timestamp", "is_date")
_NUMBER: Final = ("is_integer", "is_floating", "is_decimal")
_ROLES: Final = {
    "integers": ("integers", ("is_integer",)),
    "text": ("text", _TEXT),
    "labels": ("text or integers", ("is_integer", *_TEXT)),
    "numbers": ("integers, floats or decimals", _NUMBER),
    "iso": ("timestamps, dates or ISO 8601 text", (*_TIME, *_TEXT)),
    "s": ("timestamps, dates or seconds since 1970", (*_TIME, *_NUMBER)),
    "ms": ("timestamps, dates or milliseconds since 1970", (*_TIME, *_NUMBER)),
}
"""The roles of a column, with what each needs and the types that fit, by ``pyarrow.types``."""


def misfit(schema: Any, roles: Iterable[tuple[str, str]]) -> str:
    """Return which column of a schema has a type that does not fit a role; empty if none has.

    Args:
        schema: of Arrow.
        roles: the columns, each with every role that it has.
    """
    for column, role in roles:
        type_ = schema.field(column).type
        if not _fits(type_, role):
            return (
                f"column {quoted(column)} has the type {str(type_)[:60]}, and the queries need "
                f"{_ROLES[role][0]} there: convert the column, or change the queries"
            )
    return ""


def rows_of(batches: Iterable[Any], wanted: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Yield the number and the wanted columns of each row of record batches."""
    number = 0
    for batch in batches:
        columns = [_values(batch.column(name)) for name in wanted]
        for values in zip(*columns, strict=True):
            number += 1
            row = dict(zip(wanted, values, strict=True))
            yield number, None if any(one is _GARBLED for one in values) else row


def _fits(type_: Any, role: str) -> bool:
    from pyarrow import types

    whole = type_.value_type if types.is_dictionary(type_) else type_
    return any(getattr(types, check)(whole) for check in _ROLES[role][1])


_GARBLED: Final = object()
_UNITS: Final = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 10**6)}


def _values(column: Any) -> list[Any]:
    """Return the values of a column: None for times that Python cannot hold, _GARBLED for text.

    ``to_pylist`` alone would raise for the whole column if one value is out of range.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        values = _values(column.dictionary)
        return [None if at is None else values[at] for at in column.indices.to_pylist()]
    if any(getattr(types, check)(column.type) for check in _TEXT):
        whole = column.cast(pa.large_binary()).to_pylist()
        return _each(whole, lambda value: value.decode(), _GARBLED)
    if types.is_date(column.type):
        days = types.is_date32(column.type)
        numbers = column.cast(pa.int32() if days else pa.int64()).to_pylist()
        return _each(numbers, lambda value: _moment(value * (86_400_000 if days else 1)))
    if types.is_timestamp(column.type):
        factor, divisor = _UNITS[column.type.unit]
        numbers = column.cast(pa.int64()).to_pylist()
        return _each(numbers, lambda value: _moment(value * factor // divisor))
    if types.is_float16(column.type):
        column = column.cast(pa.float32())
    found: list[Any] = column.to_pylist()
    return found


def _each(values: list[Any], convert: Callable[[Any], Any], otherwise: object = None) -> list[Any]:
    def converted(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except (OverflowError, UnicodeDecodeError):
            return otherwise

    return list(map(converted, values))


def _moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
