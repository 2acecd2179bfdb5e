"""Rosters on the real broker and Redis: killed workers decide the same as one ledger in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaError

from streams.sdk.client import Turnstile
from streams.sdk.errors import DecisionTimeout, ServiceUnavailable, TurnstileError
from streams.sdk.memory import MemoryConnection
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.sdk.run import Run
from tests.audit.stored import state_of
from tests.integration.service import Service, ServiceFactory, eventually
from tests.waiting import HANGS_AFTER

pytestmark = pytest.mark.fault

USERS = list(range(300))
STEPS, KILLS = 48, 3
POLICIES: dict[str, dict[str, dict[str, Any]]] = {
    "own": {"own": {"measure": "renyi", "epsilon": 3.0, "delta": 1e-5}},
    "orders": {
        "orders": {"measure": "renyi", "orders": [8.0, 20.0], "epsilon": 3.0, "delta": 1e-5}
    },
    "clipped": {"clipped": {"measure": "zcdp", "budget": 1.0, "on_exhaustion": "clip"}},
    "nested": {
        "person": {"measure": "zcdp", "budget": 1.5},
        "tenant": {"measure": "renyi", "orders": [4.0], "budget": [5.0], "parents": ["person"]},
        "nested": {"measure": "renyi", "epsilon": 4.0, "delta": 1e-5, "parents": ["tenant"]},
    },
}
"""Create the dataset of this name, and its ancestors first."""


@pytest.fixture(scope="module")
def service(start_service: ServiceFactory) -> Iterator[Service]:
    with start_service(workers=2, partitions=3) as running:
        assert running.client  # the audit waits longer for topics than the trainers do
        yield running


class Trainer:
    """Charges a roster; the content of each step follows from its number. Retries until it is
    decided.
    """

    def __init__(self, turnstile: Turnstile, dataset: str, sampled: bool) -> None:
        self.turnstile, self.dataset, self.sampled = turnstile, dataset, sampled
        self.decided: list[tuple[Any, ...]] = []
        self.reopened = -1
        self.run, self.roster = self._opened()

    def steps(self, count: int) -> None:
        """Charge steps up to this count, and store their decisions."""
        while len(self.decided) < count:
            try:
                decided = self._charge(self.run.step)
            except DecisionTimeout:
                continue
            except (TurnstileError, KafkaError):
                self.run, self.roster = self._opened()
                continue
            self.decided.append(
                (
                    decided.step,
                    *(part.tolist() for part in (decided.halted, decided.readmitted)),
                    *(part.tolist() for part in (decided.clip_norms, decided.exhausted)),
                )
            )

    def _charge(self, step: int) -> RosterStep:
        coins = np.random.default_rng(step)
        if step % 7 == 3:
            self.roster.set_norms(coins.random(len(USERS)))
        else:
            positions = coins.choice(len(USERS), 12, replace=False)
            self.roster.observe(positions, coins.random(12))
        noise = (1.0, 2.0)[step // 9 % 2]
        rate = (0.05, 0.2)[step // 15 % 2] if self.sampled else 1.0
        return self.roster.charge(noise_stddev=noise, sampling_rate=rate)

    def _opened(self) -> tuple[Run, Roster]:
        self.reopened += 1
        while True:
            try:
                run = self.turnstile.run(self.dataset, "training", released=len(self.decided) - 1)
                return run, run.enrol(USERS, clip_norm=1.0, levels=20)
            except (DecisionTimeout, ServiceUnavailable, KafkaError):
                continue


@pytest.mark.parametrize("policy", POLICIES)
def test_killed_workers_decide_the_same_as_one_ledger(service: Service, policy: str) -> None:
    sampled = all(fields["measure"] == "renyi" for fields in POLICIES[policy].values())
    impatient, connection = service.turnstile(timeout=4.0), MemoryConnection(3, HANGS_AFTER)
    in_memory = Turnstile(connection=connection)
    for turnstile in (service.client, in_memory):
        for name, fields in POLICIES[policy].items():
            turnstile.create_dataset(name, **fields)
    real, reference = (Trainer(turnstile, policy, sampled) for turnstile in (impatient, in_memory))
    training = threading.Thread(target=real.steps, args=(STEPS,), daemon=True)
    training.start()
    dice = random.Random(policy)
    for kill in range(KILLS):
        reached = kill * STEPS // (KILLS + 1) + dice.randrange(STEPS // (KILLS + 1))
        eventually(lambda reached=reached: len(real.decided) >= reached or not training.is_alive())
        victim = dice.randrange(2)
        pid = service.stack.workers[victim].pid
        service.stack.workers[victim].kill()
        eventually(lambda victim=victim, pid=pid: service.stack.workers[victim].pid != pid)
    training.join(HANGS_AFTER)
    assert not training.is_alive()
    reference.steps(STEPS)
    assert real.decided == reference.decided
    assert any(halted for _, halted, *_ in real.decided)
    for name in POLICIES[policy]:
        rows = [state_of(ledger, name) for ledger in connection.ledgers]
        assert service.state(name) == {user: row for part in rows for user, row in part.items()}
    service.audit()
