"""Workers, Redis and the broker die under load; what comes of the log stays the same."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaError

from accounting import Gaussian, Laplace, Mechanism, PureDP
from streams.local import LocalStack
from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, ServiceUnavailable, TurnstileError
from streams.sdk.run import Run, StepDecision
from streams.store.port import StoreUnavailable
from streams.store.redis_store import RedisStore
from tests.integration.service import IMPATIENT_WORKER, Service, eventually

ROUNDS = [2, 2, 2, 2, 2, 3, 2]
"""How many workers are killed before all that is charged is decided again."""
KILLS = sum(ROUNDS)
SEED = "PIPELINE_SEED"
"""An environment variable: the seed of a run to repeat; by default it is drawn and printed."""

_PACE = 0.1
"""Seconds between two steps: what matters is who dies while they are decided, not how many are."""

POLICIES: dict[str, dict[str, Any]] = {
    "shared": {"budget": 0.8, "odometer_step": 0.07},
    "clipped": {
        "measure": "renyi",
        "orders": [1.5, 3.7, 32.0],
        "budget": [0.9, 2.0, 17.0],
        "on_exhaustion": "clip",
    },
    "gaussian": {"measure": "gdp", "budget": 1.5},
}
LANES: dict[tuple[str, str], list[Mechanism]] = {
    ("shared", "training"): [Gaussian(2.0)],
    ("shared", "queries"): [Laplace(3.0), PureDP(), Gaussian(2.5)],
    ("clipped", "training"): [Gaussian(2.0), Gaussian(1.5)],
    ("gaussian", "training"): [Gaussian(1.5)],
}
USERS = np.array([*range(120)])


@dataclass
class Lane:
    """A trainer that charges step after step, whatever happens to the service."""

    config: Any
    dataset: str
    name: str
    mechanisms: list[Mechanism]
    stopping: threading.Event
    random: np.random.Generator
    in_flight: bool = False
    decided: int = 0
    retried: int = 0
    reopened: int = 0
    unheard: int = 0
    told: dict[int, tuple[np.ndarray, np.ndarray, StepDecision]] = field(default_factory=dict)
    error: BaseException | None = None

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name=f"{self.dataset}-{self.name}", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        client = None
        try:
            client, run = self._open()
            while not self.stopping.wait(_PACE):
                step = run.step
                users = self.random.choice(USERS, size=40, replace=False)
                norms = self.random.random(40).round(3)
                mechanism = self.mechanisms[step % len(self.mechanisms)]
                scale = 0.3 if isinstance(mechanism, PureDP) else 1.0
                while run.step == step and not self.stopping.is_set():
                    client, run = self._charge(client, run, users, norms * scale, mechanism)
                self.unheard += run.step > step and step not in self.told
        except BaseException as error:
            self.error = error
        finally:
            if client is not None:
                client.close()

    def _charge(
        self,
        client: Turnstile,
        run: Run,
        users: np.ndarray,
        norms: np.ndarray,
        mechanism: Mechanism,
    ) -> tuple[Turnstile, Run]:
        self.in_flight = True
        try:
            decision = run.charge(users, norms, mechanism=mechanism)
            self.told[decision.step] = users, norms, decision
            self.decided += 1
        except DecisionTimeout:
            self.retried += 1
            if self.retried % 3 == 0:  # as a trainer that is started again would
                client.close()
                self.reopened += 1
                return self._open()
        except (TurnstileError, KafkaError):
            client.close()
            self.reopened += 1
            return self._open()
        finally:
            self.in_flight = False
        return client, run

    def _open(self) -> tuple[Turnstile, Run]:
        while True:
            try:
                client = Turnstile(config=self.config)
                try:
                    return client, client.run(self.dataset, self.name)
                except BaseException:
                    client.close()
                    raise
            except (DecisionTimeout, ServiceUnavailable, KafkaError):
                if self.stopping.is_set():
                    raise


@dataclass
class Chaos:
    """Kills, at moments that a seed decides."""

    stack: LocalStack
    service: Service
    lanes: list[Lane]
    random: random.Random
    killed: list[int] = field(default_factory=list)
    killed_owners: int = 0

    def kill_a_worker(self) -> None:
        """SIGKILL while charges are in flight; to one that decides, unless none does now."""
        eventually(self._kill)
        pid = self.killed[-1]
        eventually(lambda: all(worker.pid != pid for worker in self.stack.workers))

    def _kill(self) -> bool:
        alive = {worker.pid: worker.index for worker in self.stack.workers if worker.running}
        alive = {pid: index for pid, index in alive.items() if pid and pid not in self.killed}
        owners = alive.keys() & self._owners()
        if not alive or not any(lane.in_flight for lane in self.lanes):
            return False
        pid = self.random.choice(sorted(owners or alive))
        if self.stack.workers[alive[pid]].pid != pid:
            return False
        self.stack.kill_worker(alive[pid])
        self.killed.append(pid)
        self.killed_owners += pid in owners
        return True

    def wait_for_decisions(self) -> None:
        """Wait until every lane has been told some more decisions."""
        goals = [lane.decided + self.random.randint(3, 12) for lane in self.lanes]
        eventually(
            lambda: (
                any(lane.error for lane in self.lanes)
                or all(lane.decided >= goal for lane, goal in zip(self.lanes, goals, strict=True))
            )
        )
        for lane in self.lanes:
            if lane.error is not None:
                raise lane.error

    def pause(self, longest: float) -> None:
        """Let a random while pass, so that the next fault comes at any moment."""
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


def test_nothing_is_lost_or_charged_twice_when_everything_dies_under_load(
    stack: LocalStack,
) -> None:
    seed = int(os.environ.get(SEED, random.SystemRandom().randrange(10**9)))
    print(f"{SEED}={seed}")
    service = Service(stack)
    for name, policy in POLICIES.items():
        service.client.create_dataset(name, **policy)
    stopping = threading.Event()
    config = replace(service.config, timeout=4.0)
    lanes = [
        Lane(config, dataset, run, mechanisms, stopping, np.random.default_rng((seed, number)))
        for number, ((dataset, run), mechanisms) in enumerate(LANES.items())
    ]
    threads = [lane.start() for lane in lanes]
    chaos = Chaos(stack, service, lanes, random.Random(seed))
    try:
        unleash(chaos)
    finally:
        stopping.set()
        for thread in threads:
            thread.join(60.0)
    for lane in lanes:
        print(
            f"{lane.dataset}/{lane.name}: {lane.decided} steps decided, {lane.retried} retries, "
            f"{lane.reopened} reopened, {lane.unheard} decided unheard"
        )
    print(f"{chaos.killed_owners} of {KILLS} kills hit an owner of partitions")
    assert not any(thread.is_alive() for thread in threads)
    assert len(set(chaos.killed)) == KILLS
    assert chaos.killed_owners >= len(ROUNDS)
    assert sum(worker.restarts for worker in stack.workers) >= KILLS
    assert_nothing_is_lost(Service(stack), lanes)


def unleash(chaos: Chaos) -> None:
    """Rounds: while steps are decided kill a worker, then others at any moment after that."""
    stack = chaos.stack
    disasters = {
        1: lambda: stack.restart_redis(kill=True),
        2: lambda: stack.restart_kafka(),
        4: lambda: stack.restart_redis(),
        5: lambda: stack.restart_redis(kill=True),
    }
    for number, kills in enumerate(ROUNDS):
        chaos.wait_for_decisions()
        chaos.pause(0.3)
        chaos.kill_a_worker()
        if number in disasters:
            disasters[number]()
        for _ in range(kills - 1):
            chaos.pause(3.0)
            chaos.kill_a_worker()
    chaos.wait_for_decisions()


def assert_nothing_is_lost(service: Service, lanes: list[Lane]) -> None:
    try:
        audit = service.audit()
        decisions = {
            (d["dataset"], d["run"], d["step"], d["partition"]): (place, d)
            for place, d in audit.charged.items()
        }
        for lane in lanes:
            assert lane.error is None
            assert len(lane.told) > len(ROUNDS)
            for step, (users, norms, told) in lane.told.items():
                parts = [
                    decisions[lane.dataset, lane.name, step, partition][1]
                    for partition in range(service.partitions)
                ]
                assert sum(part["users"] for part in parts) == len(users)
                left_out = {user for part in parts for user in part["halted"]}
                assert left_out == set(users[told.halted].tolist())
                clipped = sorted(grant for part in parts for grant in part["granted"])
                assert clipped == sorted(told.granted[told.admitted & (told.granted < norms)])
        for name in POLICIES:
            assert len(service.state(name)) == len(USERS)
        assert any(told.halted.any() for lane in lanes for _, _, told in lane.told.values())
    finally:
        service.close()
