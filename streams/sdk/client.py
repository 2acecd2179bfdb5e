"""Turnstile: what a trainer or a query answerer talks to."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from kafka.errors import KafkaError

from streams.config import Config
from streams.normal_form import normal_form
from streams.schemas import Answer, Measure, OdometerCheckpoint, OnExhaustion, Policy, User, UserIds
from streams.sdk.asking import Deadline
from streams.sdk.connecting import (
    check_partitions,
    publishing_error,
    reaching_kafka,
    wait_for_topics,
)
from streams.sdk.datasets import create, policy_from, withdraw
from streams.sdk.errors import RequestRejected, Unusable
from streams.sdk.followers import Halt, Reading, Since, follow_decisions, follow_odometer, halts_of
from streams.sdk.opening import close_run, open_run
from streams.sdk.replies import Replies, Waiting
from streams.sdk.run import Run
from streams.sdk.witness import Witness
from streams.topics.clients import new_producer
from streams.topics.topics import NORMS


class Turnstile:
    """A connection to the service: create datasets, charge runs, follow HALTs and odometers.

    Blocking, usable from any thread of the process that opened it; needs no event loop. Settings
    come from the arguments, then ``TURNSTILE_*`` variables, then the TOML file ``config``.

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
        self._process = os.getpid()
        self._closed = threading.Event()
        self._closing = threading.Lock()
        self.partitions = wait_for_topics(self.config)
        with reaching_kafka(self.config), ExitStack() as opened:
            self._replies = Replies(self.config, self.partitions)
            opened.callback(self._replies.close)
            self._producer = new_producer(self.config)
            opened.callback(self._producer.close)
            self._producer.partitions_for(self.config.topic(NORMS))  # no charge waits for this
            opened.pop_all()

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
        """Disconnect. What was charged stays charged; who follows HALTs or odometers is told."""
        with self._closing:
            if self._closed.is_set():
                return
            self._closed.set()
            if os.getpid() == self._process:  # else the connections belong to the parent process
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
        user_ids: UserIds | None = None,
        timeout: float | None = None,
    ) -> Policy:
        """Fix the policy of a dataset. Doing it again with the same policy is fine, and completes
        what somebody else has left half-made.

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
            user_ids: "integer", "string", "one-kind" (whichever comes first) or "mixed". 1 and
                "1" are two users with a budget each, so mixed ids must be wanted. None: what the
                dataset has, or "one-kind" for a new one.
            timeout: seconds to wait for all partitions.

        Returns:
            The policy as the partitions hold it.

        Raises:
            InvalidRequest: arguments that make no policy.
            PolicyChanged: the dataset exists under another policy.
            DecisionTimeout: not all partitions answered; try again.
        """
        deadline = self.deadline(timeout)
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
            user_ids=user_ids,
        )
        check_partitions(self.config, self.partitions)
        return create(self, policy, deadline)

    def withdraw_dataset(self, name: str, *, timeout: float | None = None) -> None:
        """Take back a dataset that nobody has used, half-made or not; fine if there is none.

        Raises:
            InvalidRequest: a name that no dataset can have.
            DatasetInUse: a run of it was opened.
            DecisionTimeout: not all partitions answered; try again.
        """
        withdraw(self, name, self.deadline(timeout))

    def run(
        self,
        dataset: str,
        name: str,
        *,
        released: int | None = None,
        timeout: float | None = None,
    ) -> Run:
        """Begin a run, or resume it: a new attempt, which fences every earlier one.

        A trainer that resumes says which step it has ``released`` last, and loads its own
        checkpoint after this call. A step that was charged and did not go out is handed back:
        ``run.step`` is that step, and charging it with the same users and norms returns the
        decision that was made, charged once. So write down what is released before it leaves, or
        in one file with the model that it changed: a step that went out and is not written down
        would be released twice for one charge.

        Args:
            dataset: what the run charges.
            name: of the run.
            released: the last step that was released or given up, -1 for none. None: every step
                that all partitions have decided is behind, released or not.
            timeout: seconds to wait for all partitions.

        Raises:
            InvalidRequest: a name that no dataset or run can have, or ``released`` is not the last
                step that was decided, nor the one before it.
            PartitionsDisagree: the dataset is half-made, has two policies, or partitions were
                added; nothing can be charged.
            RunIsClosed: the run was closed.
            RequestRejected: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again.
        """
        deadline = self.deadline(timeout)
        check_partitions(self.config, self.partitions)
        return open_run(self, dataset, name, released=released, deadline=deadline)

    def close_run(self, dataset: str, name: str, *, timeout: float | None = None) -> bool:
        """End a run for good, as ``Run.close`` does, without charging it again first.

        It completes a closing that reached only some partitions, and fences a trainer that is at
        work on the run.

        Returns:
            Whether there was such a run; if not, nothing was closed.

        Raises:
            InvalidRequest: a name that no dataset or run can have.
            Fenced: a trainer opened the run meanwhile; try again.
            RequestRejected: the dataset does not exist.
            DecisionTimeout: not all partitions answered; try again.
        """
        return close_run(self, dataset, name, self.deadline(timeout))

    def halts(
        self,
        dataset: str | None = None,
        *,
        run: str | None = None,
        since: Since | None = None,
        follow: bool = True,
        idle_timeout: float | None = None,
    ) -> Iterator[Halt]:
        """HALT events as they come, for ever; with ``follow=False`` those that there are.

        Args:
            dataset: of this dataset only.
            run: of runs of this name only.
            since: "earliest", from the first that Kafka still has, or "latest", from now on, which
                is what following means if this is not given.
            follow: wait for more. Otherwise the loop ends with what was published before this
                call.
            idle_timeout: following ends when none came for so many seconds.

        Raises:
            ServiceUnavailable: no broker, or no topics.
            ConflictingDecisions: somebody else than the workers writes decisions.
            Unusable: the Turnstile was closed.
        """
        since = since or ("latest" if follow else "earliest")
        decisions = follow_decisions(self._reading(since, follow, idle_timeout), dataset, run)
        return (halt for decision in decisions for halt in halts_of(decision))

    def odometer(
        self,
        dataset: str | None = None,
        *,
        user: User | None = None,
        since: Since = "earliest",
        follow: bool = True,
        idle_timeout: float | None = None,
    ) -> Iterator[OdometerCheckpoint]:
        """Odometer checkpoints as they come, for ever; with ``follow=False`` those that there are.

        A user's spend is at most ``bound``, and at most one odometer step without a checkpoint. A
        later checkpoint of a user replaces the ones before. Each is for its own user's eyes alone.

        Args:
            dataset: of this dataset only.
            user: of this user only.
            since: "earliest", from the first that Kafka still has, or "latest", from now on.
            follow: wait for more. Otherwise the loop ends with what was published before this
                call.
            idle_timeout: following ends when none came for so many seconds.

        Raises:
            ServiceUnavailable: no broker, or no topics.
            Unusable: the Turnstile was closed.
        """
        user = normal_form(user) if isinstance(user, str) else user
        checkpoints = follow_odometer(self._reading(since, follow, idle_timeout))
        return (
            checkpoint
            for checkpoint in checkpoints
            if dataset in (None, checkpoint.dataset) and user in (None, checkpoint.user)
        )

    def deadline(self, timeout: float | None) -> Deadline:
        """From now, for the parts of the SDK; None means the Turnstile's own time."""
        self._check_usable()
        return Deadline.after(self.config.timeout if timeout is None else timeout)

    def ask(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer]:
        """Publish requests and wait for all answers, for the parts of the SDK; see ``Asks``."""
        replies = self._exchange(key, requests, Waiting(frozenset(requests)), deadline)
        return {p: reply for p, reply in replies.items() if not isinstance(reply, RequestRejected)}

    def survey(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        """The same, but refusals are replies like others; see ``Asks``."""
        waiting = Waiting(frozenset(requests), to_the_end=True)
        return self._exchange(key, requests, waiting, deadline)

    def watch(self, dataset: str, run: str) -> Witness:
        """Who sees the decisions of a run, for the parts of the SDK; see ``Asks``."""
        return self._replies.watch(dataset, run)

    def _exchange(
        self, key: Hashable, requests: Mapping[int, bytes], waiting: Waiting, deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        self._check_usable()
        if not requests:
            return {}
        topic = self.config.topic(NORMS)
        self._replies.expect(key, waiting)
        try:
            for partition, request in requests.items():
                sent: Any = self._producer.send(topic, value=request, partition=partition)
                sent.add_errback(waiting.fail)
            return waiting.result(deadline)
        except KafkaError as error:
            raise publishing_error(error) from error
        finally:
            self._replies.forget(key)

    def _reading(self, since: Since, follow: bool, idle_timeout: float | None) -> Reading:
        self._check_usable()
        return Reading(self.config, since, follow, idle_timeout, self._closed)

    def _check_usable(self) -> None:
        if self._closed.is_set():
            raise Unusable("this Turnstile is closed: open another one")
        if os.getpid() != self._process:
            raise Unusable(
                f"this Turnstile was opened in process {self._process}: open one in each process"
            )
