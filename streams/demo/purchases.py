"""The CDNOW purchase log (Fader and Hardie): who bought on which day. One customer is one user."""

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


@dataclass(frozen=True, eq=False)
class Purchases:
    """Buyers by day.

    Attributes:
        first_day: the day of ``buyers[0]``.
        buyers: for each day, without gaps, the distinct ids of the customers who bought.
        customers: how many there are in all.
    """

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
    return Purchases(first, buyers, len(set().union(*by_day.values())))
