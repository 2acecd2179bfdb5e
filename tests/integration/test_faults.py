"""Workers, Redis and the broker are killed under load, and no decision is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from streams.local import LocalStack
from streams.store.port import StoreUnavailable
from streams.store.redis_store import RedisStore
from tests.chaos.trainers import (
    POLICIES,
    USERS,
    NormTrainer,
    TrainerThread,
    check_received,
    trainers_of_every_kind,
)
from tests.integration.service import IMPATIENT_WORKER, Service, eventually
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

ROUNDS = [2, 2, 2, 2, 2, 3, 2]
"""The numbers of workers that are killed before all requests are decided again."""
KILLS = sum(ROUNDS)
SEED = "PIPELINE_SEED"
"""The environment variable with the seed of the run, which the run prints; by default 0."""

_PACE = 0.2
"""Seconds between two steps; more steps would not find more faults."""


@dataclass
class Chaos:
    """Kills processes at times that a seed determines."""

    stack: LocalStack
    service: Service
    trainers: list[TrainerThread[Any]]
    random: random.Random
    killed: list[int] = field(default_factory=list)
    killed_owners: int = 0

    def kill_a_worker(self) -> None:
        """Kill a worker with SIGKILL while charges are in flight; an owner, if there is one."""
        eventually(self._kill)
        pid = self.killed[-1]
        eventually(lambda: all(worker.pid != pid for worker in self.stack.workers))

    def _kill(self) -> bool:
        alive = {worker.pid: worker.index for worker in self.stack.workers if worker.running}
        alive = {pid: index for pid, index in alive.items() if pid and pid not in self.killed}
        owners = alive.keys() & self._owners()
        if not alive or not any(trainer.in_flight for trainer in self.trainers):
            return False
        pid = self.random.choice(sorted(owners or alive))
        if self.stack.workers[alive[pid]].pid != pid:
            return False
        self.stack.workers[alive[pid]].kill()
        self.killed.append(pid)
        self.killed_owners += pid in owners
        return True

    def wait_for_decisions(self) -> None:
        """Wait until every trainer has received some more decisions."""
        goals = [trainer.decided + self.random.randint(3, 12) for trainer in self.trainers]
        eventually(
            lambda: (
                any(trainer.error for trainer in self.trainers)
                or all(
                    trainer.decided >= goal
                    for trainer, goal in zip(self.trainers, goals, strict=True)
                )
            )
        )
        for trainer in self.trainers:
            if trainer.error is not None:
                raise trainer.error

    def pause(self, longest: float) -> None:
        """Sleep for a random time, so that the next fault comes at any moment."""
        time.sleep(self.random.uniform(0.0, longest))

    def _owners(self) -> set[int]:
        async def read() -> list[str]:
            async with RedisStore(self.service.redis, self.service.prefix) as store:
                return [await store.owner(p) for p in range(self.service.partitions)]

        try:
            return {int(owner.split(":")[1]) for owner in asyncio.run(read()) if owner}
        except StoreUnavailable:
            return set()


@pytest.fixture
def stack() -> Iterator[LocalStack]:
    with LocalStack(
        workers=2, partitions=4, prefix="faults.", worker_command=IMPATIENT_WORKER
    ) as running:
        yield running


def test_no_charge_is_lost_or_repeated_when_all_parts_are_killed_under_load(
    stack: LocalStack,
) -> None:
    seed = int(os.environ.get(SEED, 0))
    print(f"{SEED}={seed}")
    service = Service(stack)
    trainers = trainers_of_every_kind(replace(service.config, timeout=4.0), seed, _PACE)
    for trainer in trainers:
        trainer.start()
    chaos = Chaos(stack, service, trainers, random.Random(seed))
    try:
        unleash(chaos)
    finally:
        for trainer in trainers:
            trainer.stop(HANGS_AFTER)
    for trainer in trainers:
        print(
            f"{trainer.dataset}/{trainer.name}: {trainer.decided} steps decided, "
            f"{trainer.retried} retries, {trainer.reopened} reopened, {trainer.unseen} unseen"
        )
    print(f"{chaos.killed_owners} of {KILLS} kills hit an owner of partitions")
    assert len(set(chaos.killed)) == KILLS
    assert chaos.killed_owners >= len(ROUNDS)
    assert sum(worker.restarts for worker in stack.workers) >= KILLS
    assert_nothing_is_lost(Service(stack), trainers)


def unleash(chaos: Chaos) -> None:
    """Kill a worker while steps are decided, then others at random times; repeat."""
    stack = chaos.stack
    disasters = {
        1: (stack.redis_server.kill, stack.redis_server.start),
        2: (stack.broker.stop, stack.broker.start),
        4: (stack.redis_server.stop, stack.redis_server.start),
        5: (stack.redis_server.kill, stack.redis_server.start),
    }
    for number, kills in enumerate(ROUNDS):
        chaos.wait_for_decisions()
        chaos.pause(0.3)
        chaos.kill_a_worker()
        for step in disasters.get(number, ()):
            step()
        for _ in range(kills - 1):
            chaos.pause(3.0)
            chaos.kill_a_worker()
    chaos.wait_for_decisions()


def assert_nothing_is_lost(service: Service, trainers: list[TrainerThread[Any]]) -> None:
    try:
        assert check_received(service.audit(), trainers) > len(ROUNDS) * len(trainers)
        for name in POLICIES:
            assert len(service.state(name)) == len(USERS)
        assert any(
            step.decision.halted.any()
            for trainer in trainers
            if isinstance(trainer, NormTrainer)
            for step in trainer.received.values()
        )
    finally:
        service.close()
