"""Load the CDNOW purchase log, or simulate a shop like it.

CDNOW (Fader and Hardie) is public but has no licence for redistribution, so it is not shipped.
Without the file, the demo simulates a shop from the two models that were fitted to this log, with
the published estimates. BG/NBD (Fader, Hardie and Lee 2005, "Counting your customers" the easy way)
says when customers buy: each at a gamma-distributed rate, and after each repeat purchase a customer
leaves with a beta-distributed probability. The gamma-gamma model (Fader, Hardie and Lee 2005, "RFM
and CLV") says how much they spend. One customer is one user.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from streams.config import ConfigurationError

PURCHASES_FILE: Final = "CDNOW_master.txt"

# The published estimates for CDNOW; rates are purchases per week.
_RATE_SHAPE, _RATE_WEEKS, _LEAVE_A, _LEAVE_B = 0.243, 4.414, 0.793, 2.426
_SPEND_SHAPE, _SPEND_Q, _SPEND_DOLLARS = 6.25, 3.74, 15.44
# As in CDNOW, all customers come in the first 12 weeks of 18 months.
_CUSTOMERS, _FIRST_DAYS, _DAYS = 23_570, 84, 546
_FIRST_DAY: Final = date(1997, 1, 1)
_DAYS_PER_WEEK: Final = 7
_SHOP_SEED: Final = 1997  # The shop is the same in every run; only the noise has other seeds.


@dataclass(frozen=True, eq=False)
class Purchases:
    """The purchases of a shop, at most one per customer and day, by customer and then by day.

    Attributes:
        first_day: the date of day 0.
        customers: (n,), the id of the customer.
        day: (n,), the number of the day.
        values: (n,), what the customer bought on this day in total.
    """

    name: str
    first_day: date
    days: int
    customers: NDArray[np.int64]
    day: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def users(self) -> int:
        """The number of customers."""
        return len(np.unique(self.customers))

    @property
    def totals(self) -> NDArray[np.float64]:
        """The true total of every day, (days,)."""
        return self.sum_by_day(self.values)

    def sum_by_day(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the daily sums (days,) of one value per purchase, (n,)."""
        return np.bincount(self.day, values, self.days).astype(np.float64)


def load_purchases(
    path: Path,
    column: Literal["CDs", "dollars"] = "dollars",
    *,
    first_day: date = _FIRST_DAY,
    days: int = _DAYS,
) -> Purchases:
    """Read lines of customer id, date as YYYYMMDD, number of CDs and dollars, after a header.

    Args:
        path: the file, or a folder that contains ``PURCHASES_FILE`` at any depth.
        column: the value of a purchase.
        first_day: the date of day 0.
        days: the number of days. Like ``first_day`` it is fixed without the data, because a single
            customer can have the first or the last purchase. Other purchases are left out.

    Raises:
        ConfigurationError: the file cannot be read or contains something else.
    """
    file = next(iter(sorted(path.rglob(PURCHASES_FILE))), path) if path.is_dir() else path
    try:
        _, *lines = file.read_text(encoding="ascii").splitlines()
        table = np.array([line.split() for line in lines if line.strip()], dtype=np.float64)
        ids, dates, discs, dollars = table.T
        moments = [datetime.strptime(f"{one:.0f}", "%Y%m%d").date() for one in dates]
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read purchases from {file}: {error}; give {PURCHASES_FILE}, or a folder that "
            "contains it"
        ) from error
    day = np.array([(moment - first_day).days for moment in moments])
    kept = (day >= 0) & (day < days)
    if not kept.any():
        raise ConfigurationError(f"{file} contains no purchases of these {days} days")
    values = discs if column == "CDs" else dollars
    return _by_day("CDNOW", first_day, ids[kept], day[kept], values[kept], days)


def simulated_purchases(customers: int = _CUSTOMERS, days: int = _DAYS) -> Purchases:
    """Return a shop drawn from the models that were fitted to CDNOW; always the same one."""
    random = np.random.default_rng(_SHOP_SEED)
    rates = random.gamma(_RATE_SHAPE, 1.0 / _RATE_WEEKS, customers) / _DAYS_PER_WEEK
    leaving = random.beta(_LEAVE_A, _LEAVE_B, customers)
    spending = random.gamma(_SPEND_Q, 1.0 / _SPEND_DOLLARS, customers)
    ids, times = np.arange(customers), random.uniform(0.0, min(_FIRST_DAYS, days), customers)
    bought = [(ids, times)]
    while len(ids):
        with np.errstate(over="ignore", divide="ignore"):
            times = times + random.standard_exponential(len(ids)) / rates[ids]
        ids, times = ids[times < days], times[times < days]
        bought.append((ids, times))
        stays = random.random(len(ids)) >= leaving[ids]
        ids, times = ids[stays], times[stays]
    all_ids, all_times = (np.concatenate(parts) for parts in zip(*bought, strict=True))
    dollars = np.round(random.gamma(_SPEND_SHAPE, 1.0 / spending[all_ids]), 2)
    return _by_day("a simulated shop", _FIRST_DAY, all_ids, all_times, dollars, days)


def _by_day(
    name: str,
    first_day: date,
    customers: NDArray[np.generic],
    times: NDArray[np.generic],
    values: NDArray[np.float64],
    days: int,
) -> Purchases:
    """Add up the purchases of one customer on one day."""
    keys = np.column_stack([customers, np.floor(times)]).astype(np.int64)
    rows, place = np.unique(keys, axis=0, return_inverse=True)
    sums = np.bincount(place.ravel(), values).astype(np.float64)
    ids, day = rows.T
    return Purchases(name, first_day, days, ids, day, sums)
