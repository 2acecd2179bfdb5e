"""Who bought on which day: the CDNOW purchase log, or a shop that was simulated to be like it.

CDNOW (Fader and Hardie) is public, and comes with no licence to hand it on, so it is not shipped:
who has the file gives it. Without it the demo draws a shop from the model that Fader, Hardie and
Lee ("Counting your customers" the easy way, 2005) fitted to that log, BG/NBD, with their estimates:
a customer buys at a rate of its own, a gamma variable, and after each repeat purchase stays away
for good with a probability of its own, a beta variable. One customer is one user.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from streams.demo.errors import DemoError

PURCHASES_FILE: Final = "CDNOW_master.txt"
_FIELDS: Final = 4
_DAYS_OF_A_WEEK: Final = 7
# Their estimates for CDNOW; rates are purchases a week.
_SHAPE, _WEEKS, _A, _B = 0.243, 4.414, 0.793, 2.426
# As in CDNOW: so many customers, all of whom came in the first twelve weeks of eighteen months.
_CUSTOMERS, _FIRST_DAYS, _DAYS = 23_570, 84, 546
_SEED_OF_THE_SHOP: Final = 1997  # of the data, not of the noise: the shop is the same every time


@dataclass(frozen=True, eq=False)
class Purchases:
    """Buyers by day.

    Attributes:
        name: of the shop.
        first_day: the day of ``buyers[0]``.
        buyers: for each day, without gaps, the distinct ids of the customers who bought.
        customers: how many there are in all.
    """

    name: str
    first_day: date
    buyers: list[NDArray[np.int64]]
    customers: int


def load_purchases(path: Path) -> Purchases:
    """Read lines of customer id, date as YYYYMMDD, number of CDs and value, after a header.

    Raises:
        DemoError: there is no such file, or it is something else.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DemoError(f"cannot read {path}: {error}") from error
    by_day: dict[date, set[int]] = {}
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split()
        if not fields:
            continue
        try:
            customer, day = int(fields[0]), datetime.strptime(fields[1], "%Y%m%d").date()
        except (IndexError, ValueError):
            fields = []
        if len(fields) != _FIELDS:
            raise DemoError(f"{path}, line {number}: {line!r} is not customer, date, CDs, value")
        by_day.setdefault(day, set()).add(customer)
    if not by_day:
        raise DemoError(f"{path} has no purchases")
    first = min(by_day)
    days = (max(by_day) - first).days + 1
    buyers: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * days
    for day, customers in by_day.items():
        buyers[(day - first).days] = np.array(sorted(customers), dtype=np.int64)
    return Purchases("CDNOW", first, buyers, len(set().union(*by_day.values())))


def simulated_purchases(
    customers: int = _CUSTOMERS, days: int = _DAYS, seed: int = _SEED_OF_THE_SHOP
) -> Purchases:
    """A shop that nobody bought in, by the model that was fitted to CDNOW."""
    random = np.random.default_rng(seed)
    rates = random.gamma(_SHAPE, 1.0 / _WEEKS, customers) / _DAYS_OF_A_WEEK
    ends = random.beta(_A, _B, customers)
    ids, times = np.arange(customers), random.uniform(0.0, _FIRST_DAYS, customers)
    bought = [(ids, times)]
    while len(ids):
        with np.errstate(over="ignore", divide="ignore"):
            times = times + random.standard_exponential(len(ids)) / rates[ids]
        within = times < days
        ids, times = ids[within], times[within]
        bought.append((ids, times))
        stays = random.random(len(ids)) >= ends[ids]
        ids, times = ids[stays], times[stays]
    every_id = np.concatenate([ids for ids, _ in bought])
    every_day = np.floor(np.concatenate([times for _, times in bought])).astype(np.int64)
    buyers = [np.unique(every_id[every_day == day]) for day in range(days)]
    return Purchases("a simulated shop", date(1997, 1, 1), buyers, customers)
