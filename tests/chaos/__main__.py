"""``python -m tests.chaos``: the real service under faults of every kind, and an audit at the end.

Trainers charge continuously. Faults happen one after another, some of them at the same time. At the
end all faults are repaired, and the workers decide all published requests. Then an auditor, which
shares no code with the workers, applies the log. State, decisions, rejects, odometer records and
the decisions that the trainers received must agree with the auditor's.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import FAULTS, suiting
from tests.chaos.service import ServiceUnderTest, Shape, service_under_test
from tests.chaos.trainers import (
    TrainerThread,
    check_received,
    trainers_of_every_kind,
    wait_for_decisions,
)
from tests.integration.service import Service

_PACE = 0.25
"""Seconds between two steps of a trainer."""
_TIMEOUT, _SECURE_TIMEOUT = 4.0, 15.0
"""Seconds after which a charge is repeated. Six clients of one process that log in again at
once, each with TLS, take some seconds. With a shorter timeout they would never receive an
answer.
"""
_LONGEST_GAP = 4.0
"""The longest time between two faults, in seconds; a third of them follow at once."""
_RECOVERS_WITHIN = 180.0
"""Seconds within which every trainer must receive decisions again after faults."""
_CALM_EVERY = 12
"""The number of faults after which every trainer must receive decisions again."""


def main() -> int:
    """Run the faults and the audit; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos",
        description="The real service under faults of every kind, and an audit at the end.",
        epilog="faults: " + ", ".join(FAULTS),
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of faults (default: 5)")
    parser.add_argument("--seed", type=int, default=None, help="of the order of faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--brokers", type=int, default=1, help="3: one may be lost")
    parser.add_argument("--redis", choices=["alone", "cluster"], default="alone")
    parser.add_argument("--secure", action="store_true", help="with logins, rights and signatures")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    options = parser.parse_args()
    has_cluster = options.redis == "cluster"
    if options.secure and has_cluster:
        parser.error("a secure service has one Redis: leave out --redis cluster (REDIS=cluster)")
    shape = Shape(options.workers, options.partitions, options.brokers, has_cluster, options.secure)
    kinds = [name for name in suiting(shape) if name in options.only]
    if not kinds:
        parser.error("none of these faults can happen to such a service")
    seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
    console = Console()
    console.print(f"seed {seed}, {options.minutes:g} minutes")
    directory = Path(tempfile.mkdtemp(prefix="chaos-"))
    console.print(f"logs and data are in {directory}")
    with service_under_test(directory, shape) as under_test:
        timeout = _SECURE_TIMEOUT if shape.is_secure else _TIMEOUT
        threads = trainers_of_every_kind(replace(under_test.trains, timeout=timeout), seed, _PACE)
        rng = random.Random(seed)
        try:
            counted = _unleash(under_test, threads, rng, options.minutes * 60, kinds, console)
        finally:
            for thread in threads:
                thread.stop(60.0)
        with closing(Service(under_test.stack, under_test.looks)) as service:
            console.print("all faults are repaired: audit")
            summary = _audited(service, under_test, threads)
    shutil.rmtree(directory)  # after a failure it stays
    console.print(_table("Faults", counted))
    console.print(_table("Audited, wrong: 0", summary))
    return 0


def _unleash(
    under_test: ServiceUnderTest,
    threads: list[TrainerThread[object]],
    rng: random.Random,
    seconds: float,
    kinds: list[str],
    console: Console,
) -> Counter[str]:
    counted: Counter[str] = Counter()
    for thread in threads:
        thread.start()
    wait_for_decisions(threads, _RECOVERS_WITHIN)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        kind = rng.choice(kinds)
        console.print(f"{time.strftime('%H:%M:%S')}  {kind}", highlight=False)
        FAULTS[kind](under_test, rng)
        counted[kind] += 1
        if rng.random() < 2 / 3:
            time.sleep(rng.uniform(0.0, _LONGEST_GAP))
        if counted.total() % _CALM_EVERY == 0:
            wait_for_decisions(threads, _RECOVERS_WITHIN)
    under_test.clock.write_text("0")
    wait_for_decisions(threads, _RECOVERS_WITHIN)
    return counted


def _audited(
    service: Service, under_test: ServiceUnderTest, threads: list[TrainerThread[object]]
) -> Counter[str]:
    audit = service.audit()
    received = check_received(audit, threads)
    users = sum(d.get("users", d.get("members", 0)) for d in audit.charged.values())
    return Counter(
        {
            "records of the log": len(service.log.records["norms"]),
            "records refused": len(audit.rejects),
            "decisions": len(audit.charged),
            "users decided": users,
            "steps received by trainers": received,
            "charges repeated": sum(thread.retried for thread in threads),
            "runs opened again": sum(thread.reopened for thread in threads),
            "steps decided but not received": sum(thread.unseen for thread in threads),
            "workers started again": sum(worker.restarts for worker in under_test.stack.workers),
        }
    )


def _table(title: str, counted: Counter[str]) -> Table:
    table = Table("", "", title=title, show_header=False)
    table.columns[1].justify = "right"
    for name, count in counted.items():
        table.add_row(name, f"{count:,}")
    return table


if __name__ == "__main__":
    sys.exit(main())
