"""Waiting for answers: one background thread reads `halts` and `rejects` for all that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from typing import Any

import msgspec
from kafka import TopicPartition

from streams.config import Config
from streams.kafka_clients import new_reader
from streams.schemas import (
    Answer,
    DatasetCreated,
    Decision,
    Rejected,
    RunOpened,
    decode_answer,
)
from streams.sdk.errors import (
    ConflictingDecisions,
    DecisionTimeout,
    ServiceUnavailable,
    refusal_of,
)
from streams.topics import HALTS, REJECTS

logger = logging.getLogger("turnstile.sdk")

_POLL_MS = 500


def step_key(dataset: str, run: str, attempt: int, step: int) -> Hashable:
    """By what the answers to one step are recognised."""
    return dataset, run, attempt, step


class Waiting:
    """One request, sent to some partitions, and the answers that have come."""

    def __init__(self, partitions: frozenset[int]) -> None:
        self._partitions = partitions
        self._answers: dict[int, Answer] = {}
        self._failure: Exception | None = None
        self._done = threading.Event()

    def result(self, timeout: float) -> dict[int, Answer]:
        """The answer of every partition.

        Raises:
            Refusal: a partition refused.
            DecisionTimeout: some did not answer in time.
            ConflictingDecisions: one answered twice, differently.
        """
        self._done.wait(timeout)
        if self._failure is not None:
            raise self._failure
        missing = sorted(self._partitions - self._answers.keys())
        if missing:
            raise DecisionTimeout(
                f"no answer from partitions {missing} within {timeout} s: "
                "is a worker running? Nothing may be released; try the same step again"
            )
        return self._answers

    def fail(self, error: Exception) -> None:
        """End the wait with an error; the first one counts."""
        self._failure = self._failure or error
        self._done.set()

    def answer(self, answer: Answer) -> None:
        """Take one partition's answer; the same one again is no news."""
        before = self._answers.setdefault(answer.partition, answer)
        if isinstance(answer, Decision) and before != answer:
            self.fail(
                ConflictingDecisions(
                    f"partition {answer.partition} decided step {answer.step} of run "
                    f"{answer.run!r} in two ways: {before} and {answer}"
                )
            )
        if self._answers.keys() >= self._partitions:
            self._done.set()


class Replies:
    """The thread, and who is waiting for what."""

    def __init__(self, config: Config, partitions: int) -> None:
        self._halts = config.topic(HALTS)
        self._waiting: dict[Hashable, Waiting] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._broken: ServiceUnavailable | None = None
        self._consumer = new_reader(config, fetch_max_wait_ms=_POLL_MS)
        places = [
            TopicPartition(config.topic(name), partition)
            for name in (HALTS, REJECTS)
            for partition in range(partitions)
        ]
        # The positions are fixed before anything is published, so that no answer is missed.
        self._consumer.assign(places)
        self._consumer.seek_to_end(*places)
        for place in places:
            self._consumer.position(place)
        self._thread = threading.Thread(target=self._run, name="turnstile-replies", daemon=True)
        self._thread.start()

    def expect(self, key: Hashable, partitions: frozenset[int]) -> Waiting:
        """Begin to wait; call before publishing."""
        waiting = Waiting(partitions)
        with self._lock:
            self._waiting[key] = waiting
            if self._broken is not None:
                waiting.fail(self._broken)
        return waiting

    def forget(self, key: Hashable) -> None:
        """Stop waiting."""
        with self._lock:
            self._waiting.pop(key, None)

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                for place, records in self._consumer.poll(timeout_ms=_POLL_MS).items():
                    for record in records:
                        try:
                            self._dispatch(place.topic == self._halts, record.value)
                        except msgspec.DecodeError as error:
                            # Not written by a worker: it admits nobody, and answers nobody.
                            logger.warning("skipped a record of %s: %s", place, error)
        except Exception as error:
            self._broken = ServiceUnavailable(f"answers can no longer be read: {error}")
            self._broken.__cause__ = error
            with self._lock:
                for waiting in self._waiting.values():
                    waiting.fail(self._broken)

    def _dispatch(self, is_answer: bool, value: bytes) -> None:
        if is_answer:
            answer = decode_answer(value)
            waiting = self._find(_key_of(answer))
            if waiting:
                waiting.answer(answer)
            return
        rejected = msgspec.msgpack.decode(value, type=Rejected)
        waiting = self._find(rejected.request) or self._find(_rejected_step(rejected))
        if waiting:
            waiting.fail(refusal_of(rejected))

    def _find(self, key: Any) -> Waiting | None:
        with self._lock:
            return self._waiting.get(key)


def _key_of(answer: Answer) -> Hashable:
    match answer:
        case DatasetCreated() | RunOpened():
            return answer.request
        case Decision():
            return step_key(answer.dataset, answer.run, answer.attempt, answer.step)


def _rejected_step(rejected: Rejected) -> Hashable:
    return rejected.dataset, rejected.run, rejected.attempt, rejected.step
