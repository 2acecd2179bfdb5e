"""Turn purchases into the examples of a model that is trained again after every period.

The model predicts, at the start of a period, which recent customers buy in it. A customer has an
example in a period after buying on any of the 91 days before it. Half of CDNOW's customers buy once
and are gone after 13 weeks; a few have an example in every period.

Whether a customer has an example, and which one, depends on that customer's purchases alone. No row
of features is longer than 1, so no gradient of logistic regression is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from streams.demo.purchases import Purchases

WEEKS: Final = 13
"""A customer has examples for this long after a purchase."""

Features: TypeAlias = Literal["history", "summary"]
"""The features of a customer.

- history: for each of the last 13 weeks, whether the customer bought, and for how many dollars;
- summary: five figures that marketing uses, such as recency, frequency and spending.
"""


@dataclass(frozen=True, eq=False)
class TrainingPeriod:
    """The examples of one period, one per recent customer.

    Attributes:
        users: (n,), customer ids, ascending.
        rows: (n, d), features from before the period; no row is longer than 1.
        bought: (n,), whether the customer bought in the period. Known when the period ends.
    """

    users: NDArray[np.int64]
    rows: NDArray[np.float64]
    bought: NDArray[np.bool_]

    def only(self, kept: NDArray[np.bool_]) -> TrainingPeriod:
        """Return the examples of some customers, selected by a mask (n,)."""
        return TrainingPeriod(self.users[kept], self.rows[kept], self.bought[kept])


def split_periods(
    purchases: Purchases, days: int, features: Features = "history"
) -> list[TrainingPeriod]:
    """Return the examples of every whole period of this many days but the first."""
    starts = range(days, purchases.days - days + 1, days)
    return [_period(purchases, start, days, features) for start in starts]


def _period(purchases: Purchases, start: int, days: int, features: Features) -> TrainingPeriod:
    earlier, ends = purchases.day < start, start + days
    recent = earlier & (purchases.day >= start - 7 * WEEKS)
    users, place = np.unique(purchases.customers[recent], return_inverse=True)
    week = (start - 1 - purchases.day[recent]) // 7
    cells, size = place.ravel() * WEEKS + week, len(users) * WEEKS
    times = np.bincount(cells, minlength=size).reshape(-1, WEEKS)
    spent = np.bincount(cells, purchases.values[recent], size).astype(np.float64)
    dollars = spent.reshape(-1, WEEKS)
    within = (purchases.day >= start) & (purchases.day < ends)
    bought = np.isin(users, purchases.customers[within])
    if features == "history":
        seen = np.hstack([times > 0, np.log1p(dollars) / 4.0])
    else:
        seen = _summary(purchases, start, users, times, dollars)
    rows = np.hstack([np.ones((len(users), 1)), seen])
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
    # Rounding may leave a row longer than 1, in its last bits.
    return TrainingPeriod(users, rows * (1.0 - 2.0**-50), bought)


def _summary(
    purchases: Purchases,
    start: int,
    users: NDArray[np.int64],
    times: NDArray[np.int64],
    dollars: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return recency, recent purchases, all purchases, dollars and age, each from -1 to 1."""
    known = (purchases.day < start) & np.isin(purchases.customers, users)
    place, day = np.searchsorted(users, purchases.customers[known]), purchases.day[known]
    first = np.full(len(users), start)
    np.minimum.at(first, place, day)
    columns = (
        1.0 - 2.0 * (times > 0).argmax(axis=1) / WEEKS,
        np.log2(times.sum(axis=1)) / 2.0 - 0.5,
        np.log2(np.bincount(place, minlength=len(users))) / 3.0 - 0.5,
        np.log(np.maximum(dollars.sum(axis=1), 1.0) / 40.0) / 2.0,
        (start - first) / 365.0 - 0.5,
    )
    return np.asarray(np.clip(np.column_stack(columns), -1.0, 1.0))
