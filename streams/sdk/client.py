"""Turnstile: what a trainer or a query answerer talks to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Any
from uuid import uuid4

import msgspec
from kafka.errors import KafkaError

from streams.config import Config
from streams.kafka_clients import new_admin, new_producer
from streams.schemas import (
    Answer,
    CreateDataset,
    Measure,
    Name,
    OdometerCheckpoint,
    OnExhaustion,
    OpenRun,
    Policy,
    Reason,
    Request,
    RunOpened,
    User,
    encode,
)
from streams.sdk.datasets import policy_from
from streams.sdk.errors import DecisionTimeout, Fenced, InvalidCharge, ServiceUnavailable
from streams.sdk.followers import Halt, Since, follow_decisions, follow_odometer, halts_of
from streams.sdk.replies import Replies
from streams.sdk.run import Run
from streams.topics import NORMS, TopicsUnavailable, partition_count

_TOPICS_POLL = 0.2
_OPENINGS = 10


class Turnstile:
    """A connection to the service: create datasets, charge runs, follow HALTs and odometers.

    Blocking, usable from any thread; needs no event loop. Settings come from the arguments, then
    ``TURNSTILE_*`` variables, then the TOML file ``config``.

    Args:
        kafka: bootstrap servers, ``host:port``, comma separated.
        config: a TOML file, or a ``Config``.
        timeout: seconds until a charge without all its decisions raises.

    Raises:
        ServiceUnavailable: no broker, or no topics within ``timeout``.
    """

    def __init__(
        self,
        kafka: str | None = None,
        *,
        config: Config | str | None = None,
        timeout: float | None = None,
        prefix: str | None = None,
    ) -> None:
        if isinstance(config, Config):
            self.config = config
        else:
            self.config = Config.load(config, kafka=kafka, timeout=timeout, prefix=prefix)
        self.partitions = self._wait_for_topics()
        self._replies = Replies(self.config, self.partitions)
        self._producer = new_producer(self.config)
        self._closing = threading.Lock()
        self._closed = False

    def __enter__(self) -> Turnstile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect. What was charged stays charged."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._producer.close()
                self._replies.close()

    def create_dataset(
        self,
        name: str,
        *,
        measure: Measure = "zcdp",
        epsilon: float | None = None,
        delta: float | None = None,
        budget: float | Sequence[float] | None = None,
        orders: Sequence[float] | None = None,
        odometer_step: float | Sequence[float] | None = None,
        on_exhaustion: OnExhaustion = "halt",
        timeout: float | None = None,
    ) -> Policy:
        """Fix the policy of a dataset. Doing it again with the same policy is fine.

        Args:
            name: letters, digits, dots, dashes and underscores.
            measure: how losses add up: "zcdp", "gdp", "renyi" or "approx-dp".
            epsilon: with delta, the guarantee of every user; the budget follows from it.
            delta: see epsilon.
            budget: or the budget itself: rho for zcdp, mu for gdp, one number per order for
                renyi.
            orders: Renyi orders above 1, for renyi.
            odometer_step: how finely the odometer counts, in the unit of the budget; an eighth
                of the budget by default.
            on_exhaustion: "halt" leaves a user out of a step that does not fit; "clip" grants the
                norm that still fits (budget-aware clipping, Feldman and Zrnic, Algorithm 7).
            timeout: seconds to wait for all partitions.

        Raises:
            InvalidCharge: arguments that make no policy.
            PolicyChanged: the dataset exists under another policy.
            DecisionTimeout: not all partitions answered; try again.
        """
        policy = policy_from(
            name,
            partitions=self.partitions,
            measure=measure,
            epsilon=epsilon,
            delta=delta,
            budget=budget,
            orders=orders,
            odometer_step=odometer_step,
            on_exhaustion=on_exhaustion,
        )
        token = uuid4().hex
        request = CreateDataset(request=token, policy=policy)
        self.ask(token, dict.fromkeys(range(self.partitions), request), timeout)
        return policy

    def run(self, dataset: str, name: str, *, timeout: float | None = None) -> Run:
        """Begin a run, or resume it: a new attempt, which fences every earlier one.

        Raises:
            InvalidCharge: a name that no dataset or run can have.
            Refusal: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again.
        """
        try:
            msgspec.convert([dataset, name], list[Name])
        except msgspec.ValidationError as error:
            # The refusal of such a record could not name the request, so nobody would hear of it.
            raise InvalidCharge(f"dataset {dataset!r} or run {name!r}: {error}") from error
        attempt = 1
        for _ in range(_OPENINGS):
            token = uuid4().hex
            request = OpenRun(dataset=dataset, run=name, attempt=attempt, request=token)
            try:
                answers = self.ask(token, dict.fromkeys(range(self.partitions), request), timeout)
            except Fenced as fenced:
                # An earlier attempt has this number, or another trainer opens the run right now.
                attempt = (fenced.current_attempt or attempt) + 1
                continue
            opened = {p: answer for p, answer in answers.items() if isinstance(answer, RunOpened)}
            return Run(self, opened)
        raise Fenced(Reason.OLDER_ATTEMPT, "other trainers keep opening this run", -1)

    def halts(
        self,
        dataset: str | None = None,
        *,
        run: str | None = None,
        since: Since = "latest",
        idle_timeout: float | None = None,
    ) -> Iterator[Halt]:
        """Follow HALT events, for ever or until none came for ``idle_timeout`` seconds."""
        decisions = follow_decisions(self.config, since, idle_timeout)
        return (
            halt
            for decision in decisions
            if dataset in (None, decision.dataset) and run in (None, decision.run)
            for halt in halts_of(decision)
        )

    def odometer(
        self,
        dataset: str | None = None,
        *,
        user: User | None = None,
        since: Since = "earliest",
        idle_timeout: float | None = None,
    ) -> Iterator[OdometerCheckpoint]:
        """Follow odometer checkpoints: a user's spend is at most ``bound``. A user without a
        checkpoint has spent at most one odometer step. Each is for its own user's eyes alone."""
        checkpoints = follow_odometer(self.config, since, idle_timeout)
        return (
            checkpoint
            for checkpoint in checkpoints
            if dataset in (None, checkpoint.dataset) and user in (None, checkpoint.user)
        )

    def ask(
        self, key: object, requests: Mapping[int, Request], timeout: float | None
    ) -> dict[int, Answer]:
        """Publish a request to each of these partitions and wait for all their answers."""
        timeout = self.config.timeout if timeout is None else timeout
        began = monotonic()
        waiting = self._replies.expect(key, frozenset(requests))
        try:
            topic = self.config.topic(NORMS)
            for partition, request in requests.items():
                sent: Any = self._producer.send(topic, value=encode(request), partition=partition)
                sent.add_errback(waiting.fail)
            return waiting.result(max(0.0, timeout - (monotonic() - began)))
        except KafkaError as error:
            raise DecisionTimeout(f"could not publish to Kafka: {error}; try again") from error
        finally:
            self._replies.forget(key)

    def _wait_for_topics(self) -> int:
        deadline = monotonic() + self.config.timeout
        while True:
            try:
                return self._count_partitions()
            except (KafkaError, TopicsUnavailable) as error:
                if monotonic() > deadline:
                    raise ServiceUnavailable(
                        f"Kafka at {self.config.kafka} does not offer the topics "
                        f"{self.config.prefix}*: {error}. Is the broker up and a worker running?"
                    ) from error
                sleep(_TOPICS_POLL)

    def _count_partitions(self) -> int:
        admin = new_admin(self.config)
        try:
            return partition_count(admin, self.config)
        finally:
            admin.close()
