"""Waiting for answers: one background thread reads `halts` and `rejects` for all that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from weakref import WeakValueDictionary

import msgspec
from kafka import TopicPartition

from streams.config import Config
from streams.schemas import (
    Answer,
    Charge,
    Decision,
    Rejected,
    Rejection,
    Request,
    decode_answer,
    decode_request,
)
from streams.sdk.asking import Deadline, step_key
from streams.sdk.errors import DecisionTimeout, RequestRejected, ServiceUnavailable, refusal_of
from streams.sdk.witness import Witness
from streams.topics.clients import new_reader
from streams.topics.topics import HALTS, REJECTS

logger = logging.getLogger("turnstile.sdk")

_POLL_MS = 500
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError)
"""What decoding a record raises that no worker has written; TypeError if it has no value."""


class Waiting:
    """One request, sent to some partitions, and what they reply.

    Args:
        partitions: those that were asked.
        to_the_end: wait for all of them, even if one refuses.
    """

    def __init__(self, partitions: frozenset[int], *, to_the_end: bool = False) -> None:
        self._partitions = partitions
        self._to_the_end = to_the_end
        self._replies: dict[int, Answer | RequestRejected] = {}
        self._failure: Exception | None = None
        self._done = threading.Event()

    def result(self, deadline: Deadline) -> dict[int, Answer | RequestRejected]:
        """The reply of every partition.

        Raises:
            RequestRejected: of the first partition that refused, unless all are waited for.
            DecisionTimeout: some did not reply in time.
            Exception: whatever else ended the wait.
        """
        self._done.wait(deadline.left())
        if self._failure is not None:
            raise self._failure
        missing = sorted(self._partitions - self._replies.keys())
        if missing:
            raise DecisionTimeout(
                f"no answer from partitions {missing} within {deadline.seconds:g} s. Ask exactly "
                "the same again: it is decided once. Until then release nothing. If it goes on, "
                "`turnstile status` says whether workers are running"
            )
        return self._replies

    def fail(self, error: Exception) -> None:
        """End the wait with an error; the first one counts."""
        self._failure = self._failure or error
        self._done.set()

    def reply(self, partition: int, reply: Answer | RequestRejected) -> None:
        """Take what one partition says; its first reply counts."""
        if partition not in self._partitions:
            return
        self._replies.setdefault(partition, reply)
        if isinstance(reply, RequestRejected) and not self._to_the_end:
            self.fail(reply)
        if self._replies.keys() == self._partitions:
            self._done.set()


class Replies:
    """The thread, who is waiting for what, and who watches which run.

    Raises:
        KafkaError: no broker.
    """

    def __init__(self, config: Config, partitions: int) -> None:
        self._halts = config.topic(HALTS)
        self._waiting: dict[Hashable, Waiting] = {}
        self._witnesses: WeakValueDictionary[tuple[str, str], Witness] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._broken: ServiceUnavailable | None = None
        self._consumer = new_reader(config, fetch_max_wait_ms=_POLL_MS)
        places = [
            TopicPartition(config.topic(name), partition)
            for name in (HALTS, REJECTS)
            for partition in range(partitions)
        ]
        try:
            # The positions are fixed before anything is published, so that no answer is missed.
            self._consumer.assign(places)
            self._consumer.seek_to_end(*places)
            for place in places:
                self._consumer.position(place)
        except BaseException:
            self._consumer.close()
            raise
        self._thread = threading.Thread(target=self._run, name="turnstile-replies", daemon=True)
        self._thread.start()

    def expect(self, key: Hashable, waiting: Waiting) -> None:
        """Begin to wait; call before publishing."""
        with self._lock:
            self._waiting[key] = waiting
            if self._broken is not None:
                waiting.fail(self._broken)

    def forget(self, key: Hashable) -> None:
        """Stop waiting."""
        with self._lock:
            self._waiting.pop(key, None)

    def watch(self, dataset: str, run: str) -> Witness:
        """Who sees the decisions of this run, for as long as somebody holds it."""
        with self._lock:
            witness = self._witnesses.get((dataset, run)) or Witness(dataset, run)
            self._witnesses[dataset, run] = witness
            return witness

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
                        except UNREADABLE as error:
                            # Not written by a worker: it admits nobody, and answers nobody.
                            logger.warning("skipped a record of %s: %s", place, error)
        except Exception as error:
            self._broken = ServiceUnavailable(
                f"answers can no longer be read: {error}. Open another Turnstile and the run again"
            )
            self._broken.__cause__ = error
            with self._lock:
                for waiting in self._waiting.values():
                    waiting.fail(self._broken)

    def _dispatch(self, is_answer: bool, value: bytes) -> None:
        if is_answer:
            answer = decode_answer(value)
            if isinstance(answer, Decision):
                self._see(answer)
            self._deliver(_key_of(answer), answer.partition, answer)
        else:
            rejected = msgspec.msgpack.decode(value, type=Rejected)
            self._deliver(rejected_key(rejected), rejected.partition, refusal_of(rejected))

    def _see(self, decision: Decision) -> None:
        with self._lock:
            witness = self._witnesses.get((decision.dataset, decision.run))
        if witness is not None:
            witness.see(decision)

    def _deliver(self, key: Hashable, partition: int, reply: Answer | RequestRejected) -> None:
        with self._lock:
            waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.reply(partition, reply)


def _key_of(record: Answer | Request) -> Hashable:
    if isinstance(record, Decision | Charge):
        return step_key(record.dataset, record.run, record.attempt, record.step)
    return record.request


def rejected_key(rejected: Rejected) -> Hashable:
    """By what the sender of a refused request waits; None if it cannot be told."""
    if rejected.request is not None:
        return rejected.request
    if rejected.dataset and rejected.run and rejected.attempt and rejected.step is not None:
        return step_key(rejected.dataset, rejected.run, rejected.attempt, rejected.step)
    try:
        # A worker that could not read the request, because it is older, cannot name the sender.
        return _key_of(decode_request(rejected.record))
    except Rejection:
        return None
