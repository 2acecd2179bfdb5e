"""Trainers that charge continuously and record the decisions that they receive.

Each acts as a user's program would. It repeats a charge that was not answered. If that does not
help, it opens its run again. After a number of steps it continues with another dataset.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from kafka.errors import KafkaError
from numpy.typing import NDArray

from accounting import Gaussian, Laplace, Mechanism, PureDP
from streams.config import Config
from streams.records.signatures import Signer
from streams.sdk.client import Turnstile
from streams.sdk.decisions import StepDecision
from streams.sdk.errors import DecisionTimeout, ServiceUnavailable, TurnstileError
from streams.sdk.roster import Roster
from streams.sdk.roster_steps import RosterStep
from streams.sdk.run import Run
from tests.audit.auditor import Auditor

USERS = np.arange(120)
DRAWN = 40
"""The number of users in a step that is charged by norms."""
STEPS_OF_A_DATASET = 400

Policy = Mapping[str, Any]
Received = TypeVar("Received")

POLICIES: dict[str, Policy] = {
    # Two runs charge this dataset at the same time.
    "shared": {
        "measure": "zcdp",
        "budget": 0.8,
        "odometer_step": 0.07,
        "assume_independent_timing": True,
    },
    "clipped": {
        "measure": "renyi",
        "orders": [1.5, 3.7, 32.0],
        "budget": [0.9, 2.0, 17.0],
        "on_exhaustion": "clip",
    },
    "gaussian": {"measure": "gdp", "budget": 1.5},
}
SAMPLED: Policy = {"measure": "renyi", "epsilon": 4.0, "delta": 1e-6}


class TrainerThread(ABC, Generic[Received]):
    """A trainer in a thread.

    Attributes:
        received: (dataset, step) -> what the SDK returned.
    """

    def __init__(
        self, config: Config, dataset: str, run: str, seed: Sequence[int], pace: float
    ) -> None:
        self.dataset, self.name = dataset, run
        self.stopping = threading.Event()
        self.in_flight = False
        self.decided = self.retried = self.reopened = self.unseen = 0
        self.received: dict[tuple[str, int], Received] = {}
        self.error: BaseException | None = None
        self.random = np.random.default_rng(seed)
        self._config, self._pace = config, pace
        self._generation = 0
        self._thread = threading.Thread(target=self._train, name=f"{dataset}-{run}", daemon=True)

    @property
    def current(self) -> str:
        """Return the dataset that the trainer charges now."""
        return self.dataset if self._generation == 0 else f"{self.dataset}-{self._generation}"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, within: float) -> None:
        """Stop the thread after the current charge."""
        self.stopping.set()
        self._thread.join(within)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"

    @property
    def access(self) -> dict[str, Any]:
        """Return the access list of the trainer's datasets if it signs its requests."""
        key = self._config.request_key
        return {"allow": {Signer(key).public: ["charge", "manage"]}} if key else {}

    @abstractmethod
    def create(self, client: Turnstile) -> None:
        """Create the current dataset; do nothing if it exists."""

    @abstractmethod
    def prepare(self, client: Turnstile) -> Run:
        """Open the run, and enrol its users if it charges a roster."""

    @abstractmethod
    def charge(self, run: Run) -> Received:
        """Charge the next step. Called again with the same content until it is answered."""

    @abstractmethod
    def next_content(self, step: int) -> None:
        """Choose the content of the next step."""

    def _train(self) -> None:
        client = None
        try:
            client, run = self._open()
            while not self.stopping.wait(self._pace):
                if run.step >= STEPS_OF_A_DATASET:
                    self._generation += 1
                    client.close()
                    client, run = self._open()
                step = run.step
                self.next_content(step)
                while run.step == step and not self.stopping.is_set():
                    client, run = self._attempt(client, run)
                self.unseen += run.step > step and (self.current, step) not in self.received
        except BaseException as error:
            if not self.stopping.is_set():
                self.error = error
        finally:
            if client is not None:
                client.close()

    def _attempt(self, client: Turnstile, run: Run) -> tuple[Turnstile, Run]:
        self.in_flight = True
        try:
            step = run.step
            self.received[self.current, step] = self.charge(run)
            self.decided += 1
        except DecisionTimeout:
            self.retried += 1
            if self.retried % 3 == 0:  # as a restarted trainer does
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
                client = Turnstile(config=self._config)
                try:
                    self.create(client)
                    return client, self.prepare(client)
                except BaseException:
                    client.close()
                    raise
            except (DecisionTimeout, ServiceUnavailable, KafkaError):
                if self.stopping.is_set():
                    raise


@dataclass(frozen=True)
class ReceivedStep:
    """The content of a step charged by norms, and its decision."""

    users: NDArray[np.int64]
    norms: NDArray[np.float64]
    decision: StepDecision


class NormTrainer(TrainerThread[ReceivedStep]):
    """Charges random users by random norms."""

    def __init__(
        self,
        *arguments: Any,
        policy: Policy,
        mechanisms: Sequence[Mechanism] = (Gaussian(2.0),),
        parent: tuple[str, Policy] | None = None,
    ) -> None:
        super().__init__(*arguments)
        self._policy, self._mechanisms, self._parent = policy, mechanisms, parent
        self._users: NDArray[np.int64]
        self._norms: NDArray[np.float64]
        self._mechanism: Mechanism

    def create(self, client: Turnstile) -> None:
        """Create the dataset, and its parent first if it has one."""
        policy = dict(self._policy)
        if self._parent is not None:
            outer, of_outer = self._parent
            client.create_dataset(outer, **of_outer, **self.access)
            policy["parents"] = outer
        client.create_dataset(self.current, **policy, **self.access)

    def prepare(self, client: Turnstile) -> Run:
        """Open the run."""
        # The run of the dataset before may still hold the budget of their parent.
        return client.run(self.current, self.name, take_over=self._parent is not None)

    def next_content(self, step: int) -> None:
        """Choose random users and norms, and the next mechanism."""
        self._mechanism = self._mechanisms[step % len(self._mechanisms)]
        scale = 0.3 if isinstance(self._mechanism, PureDP) else 1.0
        self._users = self.random.choice(USERS, size=DRAWN, replace=False)
        self._norms = self.random.random(DRAWN).round(3) * scale

    def charge(self, run: Run) -> ReceivedStep:
        """Charge the chosen users and norms."""
        users, norms = self._users, self._norms
        return ReceivedStep(users, norms, run.charge(users, norms, mechanism=self._mechanism))


class RosterTrainer(TrainerThread[RosterStep]):
    """Charges a roster; some levels change at every step."""

    def __init__(self, *arguments: Any, policy: Policy = SAMPLED) -> None:
        super().__init__(*arguments)
        self._policy = policy
        self._roster: Roster

    def create(self, client: Turnstile) -> None:
        """Create a dataset with per-user Rényi orders."""
        client.create_dataset(self.current, **self._policy, **self.access)

    def prepare(self, client: Turnstile) -> Run:
        """Open the run and enrol all users."""
        run = client.run(self.current, self.name)
        self._roster = run.enrol(USERS, clip_norm=1.0)
        return run

    def next_content(self, step: int) -> None:
        """Change the levels of a few users."""
        drawn = self.random.choice(len(USERS), size=6, replace=False)
        self._roster.observe(np.sort(drawn), self.random.random(6))

    def charge(self, run: Run) -> RosterStep:
        """Charge the roster."""
        return self._roster.charge(noise_stddev=1.2, sampling_rate=0.02)


def trainers_of_every_kind(config: Config, seed: int, pace: float) -> list[TrainerThread[Any]]:
    """Return a trainer for each way to charge: measures, clipping, nesting, rosters."""

    def place(number: int, dataset: str, run: str) -> tuple[Any, ...]:
        return config, dataset, run, (seed, number), pace

    queries = (Laplace(3.0), PureDP(), Gaussian(2.5))
    return [
        NormTrainer(*place(0, "shared", "training"), policy=POLICIES["shared"]),
        NormTrainer(*place(1, "shared", "queries"), policy=POLICIES["shared"], mechanisms=queries),
        NormTrainer(
            *place(2, "clipped", "training"),
            policy=POLICIES["clipped"],
            mechanisms=(Gaussian(2.0), Gaussian(1.5)),
        ),
        NormTrainer(
            *place(3, "gaussian", "training"),
            policy=POLICIES["gaussian"],
            mechanisms=(Gaussian(1.5),),
        ),
        NormTrainer(
            *place(4, "inner", "training"),
            policy={"measure": "zcdp", "budget": 5.0},
            parent=("everything", {"measure": "zcdp", "budget": 20.0}),
        ),
        RosterTrainer(*place(5, "sampled", "training")),
    ]


def wait_for_decisions(trainers: Sequence[TrainerThread[Any]], within: float = 120.0) -> None:
    """Wait until every trainer has received three more decisions, for so many seconds at most."""
    goals = [trainer.decided + 3 for trainer in trainers]
    deadline = time.monotonic() + within
    while True:
        for trainer in trainers:
            if trainer.error is not None:
                raise trainer.error
        behind = [
            f"{trainer.current}/{trainer.name}"
            for trainer, goal in zip(trainers, goals, strict=True)
            if trainer.decided < goal
        ]
        if not behind:
            return
        assert time.monotonic() < deadline, f"not decided within {within:g} s: {behind}"
        time.sleep(0.2)


def check_received(audit: Auditor, trainers: Sequence[TrainerThread[Any]]) -> int:
    """Assert that the received decisions agree with the log; return their number."""
    decisions = {
        (d["dataset"], d["run"], d["step"], d["partition"]): d for d in audit.charged.values()
    }
    steps = 0
    for trainer in trainers:
        if trainer.error is not None:
            raise trainer.error
        for (dataset, step), received in trainer.received.items():
            parts = [
                decisions[dataset, trainer.name, step, partition]
                for partition in range(audit.partitions)
            ]
            (_check_roster if isinstance(received, RosterStep) else _check_norms)(received, parts)
            steps += 1
    return steps


def _check_norms(received: ReceivedStep, parts: Sequence[Mapping[str, Any]]) -> None:
    decision = received.decision
    assert sum(part["users"] for part in parts) == len(received.users)
    left_out = {user for part in parts for user in part["halted"]}
    assert left_out == set(received.users[decision.halted].tolist())
    granted = sorted(grant for part in parts for grant in part["granted"])
    clipped = decision.admitted & (decision.granted < received.norms)
    assert granted == sorted(decision.granted[clipped])


def _check_roster(received: RosterStep, parts: Sequence[Mapping[str, Any]]) -> None:
    assert sum(part["members"] for part in parts) == len(USERS)
    for positions, name in ((received.halted, "halted"), (received.readmitted, "readmitted")):
        assert len(positions) == sum(len(part[name]) for part in parts)
