"""The metrics of a worker do not depend on which users were halted or whose bound rose."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.msgpack import decode

from streams.ledger.ledger import Channel
from streams.records import OdometerRecord, User
from streams.worker.heartbeat import BEAT_EVERY
from streams.worker.metrics import SECONDS, Metrics, PartitionsCollector
from streams.worker.ownership import OwnedPartitions
from tests.doubles.memory_broker import MemoryBroker, MemoryClient
from tests.examples import examples
from tests.simulation.clock import VirtualLoop
from tests.unit.ledger.roster_logs import LEVELS, RosterLog, prices
from tests.unit.worker.processors import Ends, Gate, Record, Store, world_of

USERS = list(range(1, 15))
KINDS = ("charges", "roster", "nested charges", "separated charges")
LITTLE, MORE, TOO_MUCH = 0, 4, 10
"""Levels of a norm: it costs nothing, raises the bound of a user, or fits into no budget."""
BUDGET = 0.02
SOME = st.sets(st.sampled_from(USERS))


def log_of(kind: str, halted: set[int], risen: set[int]) -> RosterLog:
    """Make a log whose second step halts some users and raises the bounds of others.

    All logs of one kind have as many records, and records of the same sizes.
    """
    log = RosterLog()
    log.create(budget=BUDGET)
    dataset = "inner" if kind == "nested charges" else "d"
    if dataset == "inner":
        log.create(name=dataset, budget=BUDGET, parents=["d"])
    log.open(dataset, **({"min_separation": 2} if kind == "separated charges" else {}))
    if kind == "roster":
        log.enrol(USERS)
    cost = dict.fromkeys(USERS, LITTLE) | dict.fromkeys(risen, MORE)
    for step, chosen in enumerate(({}, cost | dict.fromkeys(halted, TOO_MUCH), {})):
        levels = [chosen.get(user, LITTLE) for user in USERS]
        if kind == "roster":
            log.step(step, prices(), len(USERS), range(len(USERS)), levels)
        else:
            log.charge(step, USERS, [level / LEVELS for level in levels], dataset=dataset)
    return log


def raised_in(log: RosterLog) -> set[User]:
    """Return the users whose bound rose; that of a user who is halted would have risen."""
    outputs = [output for outputs in log.outputs for output in outputs]
    odometers = [output.value for output in outputs if output.channel is Channel.ODOMETER]
    return {decode(value, type=OdometerRecord).user for value in odometers}


async def _exposition(log: list[bytes]) -> list[bytes]:
    """What the metrics are after each record, and after the beat of the heart that follows."""
    broker, ends = MemoryBroker(1), Ends()
    gate = Gate(ends)
    store, client = Store(gate), MemoryClient(broker, gate)
    metrics = Metrics("t.norms@0123456789ab", asyncio.get_running_loop().time)
    world = replace(world_of("me", store, client, ends), committed=metrics.committed)
    owned = OwnedPartitions(world)
    metrics.register(PartitionsCollector("t.norms", "t.worker", owned))
    await owned.acquire([0])
    beating = asyncio.create_task(owned.keep_alive(lambda _: broker.norms(0).end))
    seen = []
    for value in log:
        offset = broker.norms(0).append(value)
        await owned.arrive(0, Record(offset, value))
        await asyncio.sleep(2 * BEAT_EVERY)
        ends.refuse()
        seen.append(_own(metrics.exposition()))
    beating.cancel()
    await owned.acquire([])
    return seen


def _own(exposition: bytes) -> bytes:
    """Leave out the metrics of the process."""
    lines = exposition.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(b"process_"))


@examples(10)
@pytest.mark.parametrize("kind", KINDS)
@given(halted=SOME, risen=SOME)
def test_metrics_do_not_depend_on_users(kind: str, halted: set[int], risen: set[int]) -> None:
    usual, found = log_of(kind, set(), set()), log_of(kind, halted, risen)
    assert (raised_in(usual), raised_in(found)) == (set(), risen - halted)
    exposed = [VirtualLoop().run_until_complete(_exposition(log.records)) for log in (usual, found)]
    assert exposed[0] == exposed[1]


@given(st.sampled_from(SECONDS), st.lists(st.floats(0.11, 1.0), min_size=1))
def test_metrics_round_times_to_buckets(bound: float, shares: list[float]) -> None:
    expositions = {_timed(bound), *(_timed(bound * share) for share in shares)}
    assert len(expositions) == 1


def _timed(seconds: float) -> bytes:
    """The metrics after one record whose write and whose decision took so long."""
    metrics = Metrics("log", lambda: seconds)
    metrics.committed(0, [Record(0)], [], seconds)
    return _own(metrics.exposition())
