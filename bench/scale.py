"""How what a partition costs grows: with users, runs, datasets and partitions.

    python -m bench.scale                # in this process, by processor time
    python -m bench.scale --only users --users 10000000
    python -m bench.scale --service      # a real broker, Redis and workers, by the clock
    python -m bench.scale --service --partitions 128 256 --workers 1 2 4
    python -m bench.scale --service --partitions 16 --enrolled 10000000

Without `--service` there is no broker and no Redis. The figures are CPU seconds of a worker's
computation, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from types import SimpleNamespace

import numpy as np
import redis
from rich.console import Console
from rich.table import Table

from bench.servers import resident_bytes, wait_until
from streams import Turnstile
from streams.config import Config
from streams.ledger.ledger import Ledger, ledger_of
from streams.local import LocalStack
from streams.operations.status import read_owners
from streams.records import Charge, CreateDataset, OpenRun, Policy, encode

_A_RECORD = 4096
_UNIT = 2**44
_TOPIC = bytes(range(16))
_FEW_USERS, _STEPS = 20, 30
_ENROLLED_AT_ONCE = 65_536
_ACQUIRED_WITHIN = 600.0  # seconds


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale")
    parser.add_argument("--users", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--datasets", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument(
        "--only", choices=("users", "runs", "datasets"), help="of what is measured in this process"
    )
    parser.add_argument("--service", action="store_true")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--enrolled", type=int, default=_FEW_USERS, help="users of the service")
    options = parser.parse_args()
    console = Console(width=110)
    if options.service:
        shapes = [(p, w) for p in options.partitions for w in options.workers]
        rows = (_service(*shape, options.enrolled) for shape in shapes)
        console.print(_table("A step of 20 users", _SERVICE, rows))
        return
    parts = {
        "users": (_USERS, _users, options.users),
        "runs": (_RUNS, _runs, options.runs),
        "datasets": (_DATASETS, _datasets, options.datasets),
    }
    for part in [options.only] if options.only else parts:
        names, measure, counts = parts[part]
        console.print(_table(f"{part} of a partition", names, map(measure, counts)))


_USERS = (
    "users",
    "decided/s, new",
    "decided/s, known",
    "empty step us",
    "page B/user",
    "load us/user",
)


def _users(count: int) -> Sequence[object]:
    ledger = _ledger()
    _create(ledger, "d")
    _open(ledger, "d", "r")
    ids = np.random.default_rng(count).permutation(count).astype(np.int64)
    records = [ids[at : at + _A_RECORD] for at in range(0, count, _A_RECORD)]
    new = _seconds(lambda: [_charge(ledger, "d", "r", users) for users in records])
    again = records[: max(8, min(64, len(records)))]
    known = _seconds(lambda: [_charge(ledger, "d", "r", users) for users in again])
    empty = _seconds(lambda: [_charge(ledger, "d", "r", ids[:0]) for _ in range(200)]) / 200
    pages, load = _acquired(ledger)
    return (
        f"{count:,}",
        f"{count / new:,.0f}",
        f"{sum(map(len, again)) / known:,.0f}",
        f"{empty * 1e6:.0f}",
        f"{pages / count:.1f}",
        f"{load / count * 1e6:.3f}",
    )


_RUNS = ("runs", "open us", "step us", "page B/run", "load us/run")


def _runs(count: int) -> Sequence[object]:
    """Open runs, each of which has decided a step of 20 users."""
    ledger, users = _ledger(), np.arange(_FEW_USERS)
    _create(ledger, "d")
    opened = _seconds(lambda: [_open(ledger, "d", f"r{n}") for n in range(count)])
    step = _seconds(lambda: [_charge(ledger, "d", f"r{n}", users) for n in range(count)])
    pages, load = _acquired(ledger)
    each = (opened, step, load)
    opened, step, load = (seconds / count * 1e6 for seconds in each)
    return f"{count:,}", f"{opened:.0f}", f"{step:.0f}", f"{pages / count:.0f}", f"{load:.1f}"


_DATASETS = ("datasets", "create us", "step us", "page B/dataset", "load us/dataset")


def _datasets(count: int) -> Sequence[object]:
    """Datasets with a run each, which has decided a step of 20 users."""
    ledger, users = _ledger(), np.arange(_FEW_USERS)
    create = _seconds(lambda: [_create(ledger, f"d{n}") for n in range(count)])
    for number in range(count):
        _open(ledger, f"d{number}", "r")
    step = _seconds(lambda: [_charge(ledger, f"d{n}", "r", users) for n in range(count)])
    pages, load = _acquired(ledger)
    create, step, load = (seconds / count * 1e6 for seconds in (create, step, load))
    return f"{count:,}", f"{create:.0f}", f"{step:.0f}", f"{pages / count:.0f}", f"{load:.0f}"


_SERVICE = (
    "partitions",
    "workers",
    "users",
    "p50 ms",
    "p90 ms",
    "decisions/s",
    "acquired s",
    "MB/worker",
    "Redis MB",
)


def _service(partitions: int, workers: int, enrolled: int) -> Sequence[object]:
    """Steps of 20 users, one after the other, over all partitions of a real service.

    All users are charged once before. Afterwards all workers are killed, and acquire again.
    """
    users = np.arange(_FEW_USERS)
    with (
        LocalStack(workers=workers, partitions=partitions) as stack,
        Turnstile(stack.kafka, prefix=stack.prefix, timeout=120.0) as client,
    ):
        client.create_dataset("d", measure="zcdp", budget=1e5)
        run = client.run("d", "r")
        for first in range(0, enrolled, _ENROLLED_AT_ONCE):
            some = np.arange(first, min(first + _ENROLLED_AT_ONCE, enrolled))
            run.charge(some, np.ones(len(some)), noise_stddev=100.0)
        for _ in range(3):
            run.charge(users, np.ones(_FEW_USERS), noise_stddev=100.0)
        took = []
        for _ in range(_STEPS):
            began = time.perf_counter()
            run.charge(users, np.ones(_FEW_USERS), noise_stddev=100.0)
            took.append((time.perf_counter() - began) * 1e3)
        resident = [resident_bytes(worker.pid) for worker in stack.workers if worker.pid]
        with redis.Redis.from_url(stack.redis) as server:
            kept = server.info("memory")["used_memory"]
        acquired = _seconds_to_acquire(stack)
    p90 = sorted(took)[int(0.9 * len(took))]
    rate = partitions * len(took) / (sum(took) / 1e3)
    return (
        partitions,
        workers,
        f"{enrolled:,}",
        f"{median(took):.1f}",
        f"{p90:.1f}",
        f"{rate:,.0f}",
        f"{acquired:.1f}",
        f"{median(resident) / 1e6:.0f}",
        f"{kept / 1e6:.1f}",
    )


def _seconds_to_acquire(stack: LocalStack) -> float:
    """From the death of all workers until others own every partition, their start included."""
    config = Config(kafka=stack.kafka, redis=stack.redis, prefix=stack.prefix)
    before, began = read_owners(config, stack.partitions), time.perf_counter()
    for worker in stack.workers:
        worker.kill()

    def is_acquired() -> bool:
        owners = read_owners(config, stack.partitions)
        return all(now != old for now, old in zip(owners, before, strict=True))

    wait_until(is_acquired, _ACQUIRED_WITHIN, stack.check)
    return time.perf_counter() - began


def _ledger() -> Ledger:
    return Ledger(0, 1, _TOPIC)


def _apply(ledger: Ledger, value: bytes) -> None:
    ledger.apply(ledger.chain.last + 1, value)
    ledger.state.take_delta()


def _create(ledger: Ledger, name: str) -> None:
    policy = Policy(
        dataset=name,
        partitions=1,
        measure="zcdp",
        budget=[1000 * _UNIT],
        odometer_step=[_UNIT],
        user_ids="integer",
        assume_independent_timing=True,  # so that many runs charge it
    )
    _apply(ledger, encode(CreateDataset(request="t", policy=policy)))


def _open(ledger: Ledger, dataset: str, run: str) -> None:
    _apply(ledger, encode(OpenRun(dataset=dataset, run=run, attempt=1, request="t")))


def _charge(ledger: Ledger, dataset: str, run: str, users: np.ndarray) -> None:
    step = ledger.state.runs[dataset, run].step + 1
    charge = Charge(
        dataset=dataset,
        run=run,
        attempt=1,
        step=step,
        users=users.astype("<i8").tobytes(),
        norms=np.ones(len(users)).tobytes(),
        scale=100.0,
    )
    _apply(ledger, encode(charge))


def _acquired(ledger: Ledger) -> tuple[int, float]:
    """The bytes of all pages, and the seconds to have a ledger of them."""
    pages = {name: ledger.state.take_page(name) or b"" for name in ledger.state.unmerged()}
    kept = SimpleNamespace(pages=pages, changes=[])
    load = _seconds(lambda: ledger_of(kept, 0, 1, _TOPIC, ledger.chain))
    return sum(map(len, pages.values())), load


def _seconds(work: Callable[[], object]) -> float:
    """Of the processor, on this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _table(title: str, names: Sequence[str], rows: Iterator[Sequence[object]] | Sequence) -> Table:
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    return table


if __name__ == "__main__":
    main()
