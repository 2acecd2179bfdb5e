"""Several queries side by side, as one query."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.records.users import UserIds
from streams.sdk.errors import InvalidRequest

Rows: TypeAlias = NDArray[np.float64]


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
