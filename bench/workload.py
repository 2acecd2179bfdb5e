"""One partition's log, record by record, with what a worker has to answer to each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from kafka import KafkaProducer
from numpy.typing import NDArray

from accounting import MEASURES, Gaussian
from streams.ledger.ledger import Channel, Ledger, Output
from streams.records import (
    MAX_REQUEST_BYTES,
    Charge,
    CreateDataset,
    OpenRun,
    Policy,
    Request,
    encode,
)
from streams.records.packing import pack_norms
from streams.records.users import UserIds

USERS_PER_STEP = 4096
BUDGET_STEPS = 1000
"""A budget is spent after this many steps of the largest norm."""
ODOMETER_STEPS = 8
CLIP_NORM = 1.0
NOISE_STDDEV = 10.0
_DATASET, _RUN = "population", "training"


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """A record, what applying it changes, and what is published for it."""

    value: bytes
    changes: bytes
    outputs: list[Output]

    @property
    def decision(self) -> bytes:
        """What goes to the topic `halts`."""
        return next(o.value for o in self.outputs if o.channel is Channel.HALTS)

    @property
    def odometers(self) -> int:
        """How many records go to the topic `odometer`."""
        return sum(o.channel is Channel.ODOMETER for o in self.outputs)


class Workload:
    """The records of a topic with one partition, and the ledger that has applied them all.

    Users have random ids. When they are enrolled, each is charged a random part of the budget, so
    that odometers rise and budgets end as often as they do in the middle of a long training.
    """

    def __init__(self, users: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._ids = _distinct(self._random, users)
        self._ledger = Ledger(partition=0, partitions=1)
        self._step = 0
        self.next = 0
        self.users_per_step = min(USERS_PER_STEP, users)

    def enrolment(self, of_budget: float = 1.0) -> list[Applied]:
        """Create the dataset, open the run, charge every user for the first time.

        Args:
            of_budget: the largest part of it that is spent.
        """
        dearest = MEASURES["zcdp"].charge_units(Gaussian(NOISE_STDDEV), np.array([CLIP_NORM]))
        budget = BUDGET_STEPS * int(dearest[0])
        policy = Policy(
            dataset=_DATASET,
            partitions=1,
            measure="zcdp",
            budget=[budget],
            odometer_step=[budget // ODOMETER_STEPS],
        )
        records: list[Request] = [
            CreateDataset(request="create", policy=policy),
            OpenRun(dataset=_DATASET, run=_RUN, attempt=1, request="open"),
        ]
        for start in range(0, len(self._ids), USERS_PER_STEP):
            users = self._ids[start : start + USERS_PER_STEP]
            spent = self._random.uniform(0, of_budget, len(users))
            records.append(self._charge(users, np.sqrt(spent * BUDGET_STEPS) * CLIP_NORM, None))
        return [self._apply(record) for record in records]

    def steps(self, count: int) -> list[Applied]:
        """The next steps: random distinct users with random norms."""
        return [self._apply(self._random_step()) for _ in range(count)]

    def _random_step(self) -> Charge:
        size = self.users_per_step
        chosen = self._random.choice(len(self._ids), size, replace=False, shuffle=False)
        return self._charge(self._ids[chosen], self._random.uniform(0, CLIP_NORM, size), CLIP_NORM)

    def _charge(
        self, users: NDArray[np.int64], norms: NDArray[np.float64], clip_norm: float | None
    ) -> Charge:
        charge = Charge(
            dataset=_DATASET,
            run=_RUN,
            attempt=1,
            step=self._step,
            users=UserIds(users).pack(),
            norms=pack_norms(norms),
            scale=NOISE_STDDEV,
            clip_norm=clip_norm,
        )
        self._step += 1
        return charge

    def _apply(self, request: Request) -> Applied:
        value = encode(request)
        outputs = self._ledger.apply(self.next, value)
        self.next += 1
        if any(output.channel is Channel.REJECTS for output in outputs):
            raise AssertionError(f"the workload is wrong: {outputs}")
        return Applied(value, encode(self._ledger.state.take_delta()), outputs)


def produce(kafka: str, topic: str, records: Sequence[Applied]) -> None:
    """Append records to partition 0 of a topic."""
    producer = KafkaProducer(
        bootstrap_servers=kafka.split(","),
        acks="all",
        enable_idempotence=True,
        linger_ms=5,
        batch_size=1024 * 1024,
        max_request_size=MAX_REQUEST_BYTES + 1024 * 1024,
    )
    try:
        sent = [producer.send(topic, value=record.value, partition=0) for record in records]
        producer.flush()
        for future in sent:
            future.get(timeout=60)
    finally:
        producer.close()


def _distinct(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    ids = np.unique(random.integers(-(2**63), 2**63 - 1, count + count // 8 + 8, dtype=np.int64))
    chosen: NDArray[np.int64] = random.permutation(ids)[:count]
    return chosen
