"""Columns of a frame by their names, and several queries side by side.

A frame is an object with named columns: of pandas, polars or Arrow, or a mapping of names to
columns. Users and values come from one frame, so a user and a value always belong to the same row,
however the frame was sorted or filtered before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.records.users import UserIds
from streams.sdk.arguments import read_numbers, read_users
from streams.sdk.errors import InvalidRequest

Rows: TypeAlias = NDArray[np.float64]


def read_frame(frame: Any, user: str, value: str | Sequence[str]) -> tuple[UserIds, Rows]:
    """Return the distinct users of a frame, and the sum of each user's rows: (n,) for one column,
    (n, d).

    Raises:
        InvalidRequest: the frame or a column is missing, or its content is invalid.
    """
    names = [value] if isinstance(value, str) else list(value)
    if not names:
        raise InvalidRequest("value names no column")
    ids = read_users(_column(frame, user))
    columns = [read_numbers(name, _column(frame, name))[0] for name in names]
    for name, column in zip(names, columns, strict=True):
        if column.shape != (len(ids),):
            raise InvalidRequest(
                f"column {name!r} has shape {column.shape}; it must be ({len(ids)},), as {user!r}"
            )
        if not np.isfinite(column).all():
            raise InvalidRequest(
                f"column {name!r} has missing or infinite values: leave those rows out"
            )
    users, places = ids.distinct()
    rows = np.zeros((len(users), len(names)))
    with np.errstate(over="ignore"):
        np.add.at(rows, places, np.column_stack(columns))
    return users, rows[:, 0] if isinstance(value, str) else rows


def side_by_side(
    queries: Mapping[str, tuple[UserIds, Rows]], scales: Mapping[str, float]
) -> tuple[UserIds, Rows, dict[str, slice]]:
    """Join several queries: one row per user, with the contributions to all queries side by side.

    Contributions are in units of the query's scale.

    Returns:
        The users, their rows, and the columns of each query.

    Raises:
        InvalidRequest: a query contains a user twice.
    """
    joined = reduce(UserIds.join, (ids for ids, _ in queries.values()), UserIds([]))
    users, places = joined.distinct()
    widths = {n: rows.shape[1] if rows.ndim == 2 else 1 for n, (_, rows) in queries.items()}
    joint = np.zeros((len(users), sum(widths.values())))
    columns, first, begin = {}, 0, 0
    for name, (ids, rows) in queries.items():
        mine = places[begin : begin + len(ids)]
        if len(np.unique(mine)) < len(ids):
            raise InvalidRequest(f"query {name!r} has a user twice: add its contributions up first")
        columns[name] = slice(first, first + widths[name])
        joint[mine, columns[name]] = rows.reshape(len(ids), widths[name]) / scales.get(name, 1.0)
        first, begin = first + widths[name], begin + len(ids)
    return users, joint, columns


def _column(frame: Any, name: str) -> Any:
    if isinstance(frame, Mapping):
        names = list(frame)
    elif hasattr(frame, "column_names"):
        names = list(frame.column_names)
    elif hasattr(type(frame), "columns"):
        names = list(frame.columns)
    else:
        raise InvalidRequest(
            f"frame is a {type(frame).__name__}: give a frame of pandas, polars or Arrow, or a "
            "mapping of names to columns"
        )
    if names.count(name) != 1:
        found = "twice" if name in names else "not"
        raise InvalidRequest(
            f"column {name!r} is {found} in the frame, which has {', '.join(map(repr, names))}"
        )
    return frame[name]
