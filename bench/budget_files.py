"""The time of a charge of one user in memory and in a budget file, alone and in turn with another.

The clients in turn are two of one process, which share nothing but the file.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bench.report import section, spread
from streams.sdk.client import Turnstile
from streams.sdk.run import Run

NOISE = 100.0


@dataclass
class Charging:
    """Milliseconds of each charge."""

    users: int  # who were charged before
    clients: str
    wall: list[float]
    processor: list[float]


def measure(users: int, charges: int) -> list[Charging]:
    """Measure charges in memory, of one client of a file, and of two in turn."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "budgets.db"
        alone = Turnstile.open(path, partitions=1)
        clients = {
            "in memory": [Turnstile.in_memory()],
            "file, one client": [alone],
            "file, two clients in turn": [alone, Turnstile.open(path)],
        }
        return [_measure(users, name, charges, each) for name, each in clients.items()]


def _measure(users: int, name: str, charges: int, clients: list[Turnstile]) -> Charging:
    clients[0].create_dataset("d", measure="zcdp", budget=1e4, assume_independent_timing=True)
    runs = [
        client.run("d", f"{name.replace(', ', '-').replace(' ', '-')}-{number}")
        for number, client in enumerate(clients)
    ]
    runs[0].charge(np.arange(users), np.ones(users), noise_stddev=NOISE)
    found = Charging(users, name, [], [])
    for number in range(charges):
        wall, processor = time.perf_counter(), time.process_time()
        _charge(runs[number % len(runs)])
        found.wall.append(1e3 * (time.perf_counter() - wall))
        found.processor.append(1e3 * (time.process_time() - processor))
    return found


def _charge(run: Run) -> None:
    assert run.charge([1], [1.0], noise_stddev=NOISE).admitted.all()


def lines(results: list[Charging]) -> list[str]:
    """Return a table for the report."""
    return section(
        "Charges of one user without a service",
        "Milliseconds; median (smallest to largest).",
        ["users before", "", "wall", "processor"],
        [[f"{r.users:,}", r.clients, spread(r.wall), spread(r.processor)] for r in results],
    )
