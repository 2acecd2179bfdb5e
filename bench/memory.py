"""The memory that a roster's user takes in a worker and in Redis.

One process enrols and charges the users and leaves the pages of all partitions in a Redis; another
one loads them, charges a step as a worker does after a restart, and tells what it takes.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from redis import Redis

from bench.report import section
from bench.servers import resident_bytes
from streams.ledger.ledger import Channel, Ledger
from streams.local.redis_server import RedisServer
from streams.records import ChargeRoster, encode
from streams.sdk.client import Turnstile
from streams.sdk.memory_connection import MemoryConnection
from streams.sdk.roster import Roster

PARTITIONS = 8
NOISE, RATE = 1.1, 1e-3
_STEPS = 50
_ADDRESS = ("population", "training")


class Memory(msgspec.Struct, frozen=True):
    """Bytes per user.

    Attributes:
        users: the number of members.
        ids: the kind of ids.
        worker: resident memory.
        redis: memory of Redis for the pages.
        pages: the pages as they were sent.
    """

    users: int
    ids: str
    worker: float
    redis: float
    pages: float


def measure(users: int, ids: str) -> Memory:
    """Measure a number of users with ids of a kind, "integers" or "strings"."""
    with TemporaryDirectory() as directory, RedisServer(directory) as server:
        pages = _in_a_process("keep", server.url, users, ids)
        redis = Redis.from_url(server.url)
        kept = sum(
            int(redis.memory_usage(f"pages-{partition}", samples=0) or 0)
            for partition in range(PARTITIONS)
        )
        worker = _in_a_process("load", server.url, users, ids)
    return Memory(users, ids, worker / users, kept / users, pages / users)


def _in_a_process(*arguments: object) -> int:
    command = [sys.executable, "-m", "bench.memory", *map(str, arguments)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def _keep(redis: Redis, users: int, ids: str) -> int:
    """Store the pages of a charged roster in Redis; return their bytes."""
    connection = MemoryConnection(PARTITIONS, timeout=3600.0)
    turnstile = Turnstile(connection=connection)
    turnstile.create_dataset(_ADDRESS[0], measure="renyi", epsilon=8.0, delta=1e-6)
    names = [f"user-{number:09d}" for number in range(users)] if ids == "strings" else None
    members = np.arange(users) if names is None else names
    roster = turnstile.run(*_ADDRESS).enrol(members, clip_norm=1.0)
    random = np.random.default_rng(users)
    for _ in range(2):
        _charge(roster, norms=random.random(users))
        for _ in range(_STEPS):
            _charge(roster)
    size = 0
    for partition, ledger in enumerate(connection.ledgers):
        for name in ledger.state.unmerged():
            if (page := ledger.state.take_page(name)) is not None:
                redis.hset(f"pages-{partition}", name, page)
                size += len(page)
    return size


def _charge(roster: Roster, **levels: Any) -> None:
    roster.charge(noise_stddev=NOISE, sampling_rate=RATE, **levels)


def _load(redis: Redis) -> int:
    """Return the resident bytes of the ledgers that continue from the pages."""
    before = resident_bytes(os.getpid())
    ledgers = [_woken(redis.hgetall(f"pages-{p}"), p) for p in range(PARTITIONS)]
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    taken = resident_bytes(os.getpid()) - before
    assert ledgers
    return taken


def _woken(pages: Mapping[bytes, bytes], partition: int) -> Ledger:
    """Return a ledger that has loaded its state and charged a step."""
    ledger = Ledger(partition, PARTITIONS)
    ledger.state.load({name.decode(): page for name, page in pages.items()})
    terms, run = ledger.state.rosters[_ADDRESS], ledger.state.runs[_ADDRESS]
    step = ChargeRoster(
        dataset=_ADDRESS[0],
        run=_ADDRESS[1],
        attempt=run.attempt,
        step=run.step + 1,
        members=len(ledger.state.rosters.members[_ADDRESS]),
        mechanism="poisson-gaussian",
        scale=NOISE,
        sampling_rate=RATE,
        cost_table_digest=terms.cost_table_digest,
    )
    outputs = ledger.apply(0, encode(step))
    if any(output.channel is Channel.REJECTS for output in outputs):
        raise AssertionError(f"the step is wrong: {outputs}")
    ledger.state.take_delta()
    return ledger


def lines(results: list[Memory]) -> list[str]:
    """Return the table of the report."""
    return section(
        "Memory for each user of a roster",
        f"Per-user orders, {PARTITIONS} partitions, levels at random, {2 * _STEPS + 2} steps. The "
        "worker has loaded the pages and charged a step; changes that are not merged yet come on "
        "top in Redis.",
        ["users", "ids", "worker", "Redis", "of it pages"],
        [
            [f"{r.users:,}", r.ids, *(f"{size:.0f} B" for size in (r.worker, r.redis, r.pages))]
            for r in results
        ],
    )


if __name__ == "__main__":
    _, task, url, count, kind = sys.argv
    client = Redis.from_url(url)
    print(_keep(client, int(count), kind) if task == "keep" else _load(client))
