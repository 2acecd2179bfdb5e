"""Trainers that charge step after step, whatever happens, and note what they are told.

Each goes on as its users would: it repeats a charge that was not answered, opens its run again when
that does not help, and begins another dataset when it has charged one for long enough.
"""

from __future__ import annotations

import threading
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
from tests.integration.service import eventually

USERS = np.arange(120)
DRAWN = 40
"""Users of a step that is charged by norms."""
STEPS_OF_A_DATASET = 400

Policy = Mapping[str, Any]
Heard = TypeVar("Heard")

POLICIES: dict[str, Policy] = {
    # Charged by two runs side by side.
    "shared": {"budget": 0.8, "odometer_step": 0.07, "assume_independent_timing": True},
    "clipped": {
        "measure": "renyi",
        "orders": [1.5, 3.7, 32.0],
        "budget": [0.9, 2.0, 17.0],
        "on_exhaustion": "clip",
    },
    "gaussian": {"measure": "gdp", "budget": 1.5},
}
SAMPLED: Policy = {"measure": "renyi", "epsilon": 4.0, "delta": 1e-6}


class Lane(ABC, Generic[Heard]):
    """One trainer, in a thread.

    Attributes:
        told: (dataset, step) -> what the SDK returned.
    """

    def __init__(
        self, config: Config, dataset: str, run: str, seed: Sequence[int], pace: float
    ) -> None:
        self.dataset, self.name = dataset, run
        self.stopping = threading.Event()
        self.in_flight = False
        self.decided = self.retried = self.reopened = self.unheard = 0
        self.told: dict[tuple[str, int], Heard] = {}
        self.error: BaseException | None = None
        self.random = np.random.default_rng(seed)
        self._config, self._pace = config, pace
        self._generation = 0
        self._thread = threading.Thread(target=self._train, name=f"{dataset}-{run}", daemon=True)

    @property
    def current(self) -> str:
        """The dataset that it charges now."""
        return self.dataset if self._generation == 0 else f"{self.dataset}-{self._generation}"

    def start(self) -> None:
        """Begin to train."""
        self._thread.start()

    def stop(self, within: float) -> None:
        """End after the charge that is under way."""
        self.stopping.set()
        self._thread.join(within)
        assert not self._thread.is_alive(), f"{self._thread.name} does not end"

    @property
    def access(self) -> dict[str, Any]:
        """The access list of its datasets, if it signs its requests."""
        key = self._config.request_key
        return {"allow": {Signer(key).public: ["charge", "manage"]}} if key else {}

    @abstractmethod
    def create(self, client: Turnstile) -> None:
        """Create the dataset that is charged now; again if it is there."""

    @abstractmethod
    def prepare(self, client: Turnstile) -> Run:
        """Open the run, and what belongs to it."""

    @abstractmethod
    def charge(self, run: Run) -> Heard:
        """Charge the next step; called again with the same content until it is answered."""

    @abstractmethod
    def next_content(self, step: int) -> None:
        """Choose what the next step charges."""

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
                self.unheard += run.step > step and (self.current, step) not in self.told
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
            self.told[self.current, step] = self.charge(run)
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
class StepTold:
    """What a lane charged by norms, and what it was told."""

    users: NDArray[np.int64]
    norms: NDArray[np.float64]
    decision: StepDecision


class NormLane(Lane[StepTold]):
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
        """With the budget that it is within, if there is one."""
        policy = dict(self._policy)
        if self._parent is not None:
            outer, of_outer = self._parent
            client.create_dataset(outer, **of_outer, **self.access)
            policy["parent"] = outer
        client.create_dataset(self.current, **policy, **self.access)

    def prepare(self, client: Turnstile) -> Run:
        """The run alone."""
        return client.run(self.current, self.name)

    def next_content(self, step: int) -> None:
        """Other users, norms, and the next mechanism."""
        self._mechanism = self._mechanisms[step % len(self._mechanisms)]
        scale = 0.3 if isinstance(self._mechanism, PureDP) else 1.0
        self._users = self.random.choice(USERS, size=DRAWN, replace=False)
        self._norms = self.random.random(DRAWN).round(3) * scale

    def charge(self, run: Run) -> StepTold:
        """These users, by these norms."""
        users, norms = self._users, self._norms
        return StepTold(users, norms, run.charge(users, norms, mechanism=self._mechanism))


class RosterLane(Lane[RosterStep]):
    """Charges a roster, some of whose levels move at every step."""

    def __init__(self, *arguments: Any, policy: Policy = SAMPLED) -> None:
        super().__init__(*arguments)
        self._policy = policy
        self._roster: Roster

    def create(self, client: Turnstile) -> None:
        """The per-user order."""
        client.create_dataset(self.current, **self._policy, **self.access)

    def prepare(self, client: Turnstile) -> Run:
        """The run, and everybody enrolled."""
        run = client.run(self.current, self.name)
        self._roster = run.enrol(USERS, clip_norm=1.0)
        return run

    def next_content(self, step: int) -> None:
        """Other levels for a few."""
        drawn = self.random.choice(len(USERS), size=6, replace=False)
        self._roster.observe(np.sort(drawn), self.random.random(6))

    def charge(self, run: Run) -> RosterStep:
        """All of the roster, at the levels that they have."""
        return self._roster.charge(noise_stddev=1.2, sampling_rate=0.02)


def lanes_of_a_training(config: Config, seed: int, pace: float) -> list[Lane[Any]]:
    """One for each way of charging that there is: measures, clipping, nesting, rosters."""

    def place(number: int, dataset: str, run: str) -> tuple[Any, ...]:
        return config, dataset, run, (seed, number), pace

    queries = (Laplace(3.0), PureDP(), Gaussian(2.5))
    return [
        NormLane(*place(0, "shared", "training"), policy=POLICIES["shared"]),
        NormLane(*place(1, "shared", "queries"), policy=POLICIES["shared"], mechanisms=queries),
        NormLane(
            *place(2, "clipped", "training"),
            policy=POLICIES["clipped"],
            mechanisms=(Gaussian(2.0), Gaussian(1.5)),
        ),
        NormLane(
            *place(3, "gaussian", "training"),
            policy=POLICIES["gaussian"],
            mechanisms=(Gaussian(1.5),),
        ),
        NormLane(
            *place(4, "inner", "training"),
            policy={"budget": 5.0},
            parent=("everything", {"budget": 20.0}),
        ),
        RosterLane(*place(5, "sampled", "training")),
    ]


def wait_for_decisions(lanes: list[Lane[Any]]) -> None:
    """Wait until every lane has been told three more."""
    goals = [lane.decided + 3 for lane in lanes]
    eventually(
        lambda: (
            any(lane.error for lane in lanes)
            or all(lane.decided >= goal for lane, goal in zip(lanes, goals, strict=True))
        ),
        120.0,
    )
    for lane in lanes:
        if lane.error is not None:
            raise lane.error


def check_told(audit: Auditor, lanes: Sequence[Lane[Any]]) -> int:
    """Assert that every lane was told what the log says; how many steps that were."""
    decisions = {
        (d["dataset"], d["run"], d["step"], d["partition"]): d for d in audit.charged.values()
    }
    steps = 0
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
        for (dataset, step), told in lane.told.items():
            parts = [
                decisions[dataset, lane.name, step, partition]
                for partition in range(audit.partitions)
            ]
            (_check_roster if isinstance(told, RosterStep) else _check_norms)(told, parts)
            steps += 1
    return steps


def _check_norms(told: StepTold, parts: Sequence[Mapping[str, Any]]) -> None:
    decision = told.decision
    assert sum(part["users"] for part in parts) == len(told.users)
    left_out = {user for part in parts for user in part["halted"]}
    assert left_out == set(told.users[decision.halted].tolist())
    granted = sorted(grant for part in parts for grant in part["granted"])
    clipped = decision.admitted & (decision.granted < told.norms)
    assert granted == sorted(decision.granted[clipped])


def _check_roster(told: RosterStep, parts: Sequence[Mapping[str, Any]]) -> None:
    assert sum(part["members"] for part in parts) == len(USERS)
    for positions, name in ((told.halted, "halted"), (told.readmitted, "readmitted")):
        assert len(positions) == sum(len(part[name]) for part in parts)
