"""How long decisions pause while the workers are restarted one after another.

    python -m bench.rolling

Two workers share 16 partitions on a real broker and a real Redis. A client charges steps of users
of all partitions, each as soon as the one before was decided. Meanwhile each worker in turn is
stopped with SIGTERM and, when the other one decides all partitions, started again. Both change the
owners of partitions. A pause is the longest time between two decisions meanwhile.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from itertools import pairwise
from typing import Self

import numpy as np

from bench.report import spread
from bench.servers import wait_until
from streams import Turnstile
from streams.config import Config
from streams.local import LocalStack
from streams.operations.status import read_owners

_WITHIN = 120.0
_SETTLED = 100  # decisions, after owners have changed


class Client:
    """Charges steps in a thread until the block ends; notes when each was decided."""

    def __init__(self, config: Config, users: int) -> None:
        self.decided: list[float] = []
        self.error: Exception | None = None
        self._config, self._users = config, users
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._charge)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def check(self) -> None:
        """Raise the error that ended the client, if there is one."""
        if self.error is not None:
            raise self.error

    def longest(self, begin: float) -> float:
        """Return the seconds without a decision at most, since a time."""
        since = [at for at in self.decided if at > begin]
        return max(after - at for at, after in pairwise([begin, *since]))

    def _charge(self) -> None:
        ids, norms = np.arange(self._users), np.full(self._users, 0.1)
        try:
            with Turnstile(config=self._config) as turnstile:
                turnstile.create_dataset("rolling", measure="zcdp", budget=1e5)
                run = turnstile.run("rolling", "r")
                while not self._stopping.is_set():
                    run.charge(ids, norms, noise_stddev=2.0)
                    self.decided.append(time.monotonic())
        except Exception as error:
            self.error = error


def measure(stack: LocalStack, users: int, rounds: int) -> list[str]:
    """Restart each worker once per round; return the lines of the report."""
    config = Config(
        kafka=stack.kafka, redis=stack.redis, prefix=stack.prefix, partitions=stack.partitions
    )
    workers = len(stack.workers)
    steady: list[float] = []
    pauses: dict[str, list[float]] = {"stops": [], "starts": []}

    def settle(owners: int) -> None:
        wait_until(
            lambda: len({*read_owners(config, stack.partitions)}) == owners, _WITHIN, client.check
        )
        goal = len(client.decided) + _SETTLED
        wait_until(lambda: len(client.decided) >= goal, _WITHIN, client.check)

    with Client(config, users) as client:
        settle(workers)
        for _ in range(rounds):
            for worker in stack.workers:
                changes = ("stops", worker.stop, workers - 1), ("starts", worker.start, workers)
                for what, change, owners in changes:
                    steady += (b - a for a, b in pairwise(client.decided[-_SETTLED:]))
                    began = time.monotonic()
                    change()
                    settle(owners)
                    pauses[what].append(client.longest(began))
    return [
        "| between two decisions | median (smallest to largest) |",
        "| --- | --- |",
        f"| while no worker stops or starts | {spread([1000 * s for s in steady], 1)} ms |",
        *(f"| longest while a worker {what} | {spread(seen)} s |" for what, seen in pauses.items()),
    ]


def main() -> None:
    """Read the arguments, measure, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.rolling")
    parser.add_argument("--rounds", type=int, default=5, help="restarts of each worker")
    parser.add_argument("--users", type=int, default=64, help="per step")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    with LocalStack(workers=2, partitions=16, prefix="rolling.") as stack:
        print(*measure(stack, options.users, options.rounds), sep="\n")


if __name__ == "__main__":
    main()
