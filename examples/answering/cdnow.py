"""Writes the CDNOW purchase log (Fader and Hardie) as events.

    python cdnow.py CDNOW_master.txt > events.csv

The cohort of a customer is the fortnight of the first purchase. All first purchases are in
the first twelve weeks.
"""

from __future__ import annotations

import csv
import sys
from datetime import datetime

FIRST = datetime(1997, 1, 1)


def main(path: str) -> None:
    """Write one line for each purchase, in the order of time."""
    with open(path, encoding="ascii") as lines:
        rows = [line.split() for line in lines][1:]
    events = sorted(
        (datetime.strptime(day, "%Y%m%d"), int(customer), int(discs), float(dollars))
        for customer, day, discs, dollars in filter(None, rows)
    )
    cohorts: dict[int, int] = {}
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["customer", "time", "discs", "dollars", "cohort"])
    for time, customer, discs, dollars in events:
        cohort = cohorts.setdefault(customer, (time - FIRST).days // 14 + 1)
        out.writerow([customer, time.date().isoformat(), discs, f"{dollars:.2f}", cohort])


if __name__ == "__main__":
    main(sys.argv[1])
