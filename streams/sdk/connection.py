"""What the SDK needs of the service: to publish requests and to hear what the partitions answer.

``KafkaConnection`` reaches workers, ``MemoryConnection`` ledgers in this process. Both publish in a
way of their own; who waits for which answer, and who watches which run, is here once for both.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic, sleep, time_ns
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec

from streams.ledger.outputs import Channel
from streams.schemas import (
    MAX_REQUEST_BYTES,
    Answer,
    Charge,
    ChargeRoster,
    Decision,
    Halted,
    Rejected,
    Rejection,
    Request,
    RosterDecision,
    decode_answer,
    decode_request,
)
from streams.sdk.errors import (
    DecisionTimeout,
    InvalidRequest,
    RequestRejected,
    Unusable,
    refusal_of,
)
from streams.sdk.followers import UNREADABLE, Followed, Reading, Witness
from streams.sdk.observing import Headers, Observer
from streams.sdk.pseudonyms import Pseudonyms
from streams.wire.chain import NO_TOPIC
from streams.wire.requests import RequestSigner

logger = logging.getLogger("turnstile.sdk")


@dataclass(frozen=True)
class Deadline:
    """Until when to wait, over all the questions that a call asks.

    Attributes:
        seconds: how long that was when the call began.
        at: when it is over, by the monotonic clock.
    """

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """A deadline so many seconds from now.

        Raises:
            InvalidRequest: nothing that can be waited for.
        """
        if not 0 <= seconds <= threading.TIMEOUT_MAX:
            raise InvalidRequest(f"timeout is {seconds}; it must be finite seconds, at least 0")
        return cls(seconds, monotonic() + seconds)

    def left(self) -> float:
        """Seconds until then."""
        return max(0.0, self.at - monotonic())


class Waiting:
    """Requests that were sent to some partitions, and what they reply.

    Args:
        requests: by partition.
        to_the_end: wait for all of them, even if one refuses.
    """

    def __init__(self, requests: Mapping[int, bytes], *, to_the_end: bool = False) -> None:
        self.requests = requests
        self.headers: Headers = []  # of the records, for whoever observes
        self.observed = ExitStack()  # from before they are sent until all is heard
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
        missing = sorted(self.requests.keys() - self._replies.keys())
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

    def hear(self, reply: Answer | Rejected) -> None:
        """Take what one partition says; its first reply counts.

        A refusal is one of exactly what was sent, not of what was sent for the same step before.
        """
        sent = self.requests.get(reply.partition)
        if isinstance(reply, Rejected):
            if sent != reply.record:
                return
            refusal = refusal_of(reply)
            if not self._to_the_end:
                self.fail(refusal)
            self._replies.setdefault(reply.partition, refusal)
        elif sent is not None:
            self._replies.setdefault(reply.partition, reply)
        if self._replies.keys() == self.requests.keys():
            self._done.set()


class Connection(ABC):
    """Publishes requests, and hands each answer to whoever waits for it.

    Usable from any thread of the process that opened it.

    Args:
        partitions: P, how many there are.
        timeout: seconds that a call waits if it does not say how long.
        log: the 16 bytes of the id of norms, for which requests are signed.

    Attributes:
        pseudonyms: by which the log knows users; None if it knows their ids.
        signer: who signs requests; None if nobody does.
        where: the service is, for people.
        log_name: the name of the log in metrics.
    """

    where = log_name = "in memory"

    def __init__(self, partitions: int, timeout: float, log: bytes = NO_TOPIC) -> None:
        self.partitions = partitions
        self.log = log
        self.pseudonyms: Pseudonyms | None = None
        self.signer: RequestSigner | None = None
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._waiting: dict[Hashable, Waiting] = {}
        self._witnesses: WeakValueDictionary[tuple[str, str], Witness] = WeakValueDictionary()
        self._broken: Exception | None = None
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Let somebody stand around every request from now on."""
        self._observers.append(observer)

    @abstractmethod
    def check_partitions(self) -> None:
        """Check that P is what it was.

        Raises:
            PartitionsDisagree: it is not.
            ServiceUnavailable: no broker, or no topics.
        """

    @abstractmethod
    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        """What was published on a channel.

        Raises:
            ServiceUnavailable: no broker, or no topics.
            Unusable: this was closed.
        """

    @abstractmethod
    def _publish(self, waiting: Waiting) -> None:
        """Send each partition its request; what comes back of them goes to ``_hear``."""

    def _why_silent(self) -> str:
        """What is known of why no answer came; empty if nothing is."""
        return ""

    @abstractmethod
    def _disconnect(self) -> None:
        """Give back what was opened; called once, in the process that opened it."""

    def close(self) -> None:
        """Disconnect; doing it again is fine."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        if os.getpid() == self._process:  # else the connections belong to the parent process
            self._disconnect()

    def check_usable(self) -> None:
        """Refuse who may not use this.

        Raises:
            Unusable: it was closed, or opened in another process.
        """
        if self._closed.is_set():
            raise Unusable("this Turnstile is closed: open another one")
        if os.getpid() != self._process:
            raise Unusable(
                f"this Turnstile was opened in process {self._process}: open one in each process"
            )

    def deadline(self, timeout: float | None) -> Deadline:
        """From now; None means the usual time.

        Raises:
            InvalidRequest: nothing that can be waited for.
            Unusable: as ``check_usable``.
        """
        self.check_usable()
        return Deadline.after(self._timeout if timeout is None else timeout)

    def pause(self, seconds: float) -> None:
        """Wait, to give way to others."""
        sleep(seconds)

    def new_token(self) -> str:
        """A string that nobody else uses, by which an answer is recognised."""
        return uuid4().hex

    def now(self) -> int:
        """The time in microseconds, by which of two words of an operator the later one counts."""
        return time_ns() // 1000

    def ask(
        self,
        key: Hashable,
        requests: Mapping[int, bytes],
        deadline: Deadline,
        *,
        signer: RequestSigner | None = None,
    ) -> dict[int, Answer]:
        """Send each partition its request; the answers by partition.

        Args:
            key: by what the answers are recognised.
            requests: by partition.
            deadline: until when to wait.
            signer: who signs them; that of the connection if it is not given.

        Raises:
            InvalidRequest: a request is too large to be signed; nothing was published.
            RequestRejected: of the partition that refused first; others may have agreed.
            DecisionTimeout: not all answered in time.
        """
        return self.receive(key, self.send(key, Waiting(requests), signer), deadline)

    def survey(
        self, key: Hashable, requests: Mapping[int, bytes], deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        """The same, but waits for every partition, whether it agrees or refuses.

        Raises:
            DecisionTimeout: not all answered in time.
        """
        return self._receive(key, self.send(key, Waiting(requests, to_the_end=True)), deadline)

    def send(self, key: Hashable, waiting: Waiting, signer: RequestSigner | None = None) -> Waiting:
        """Sign the requests and send each partition its own; ``receive`` has the answers.

        Raises:
            InvalidRequest: a request is too large to be signed; nothing was published.
        """
        self.check_usable()
        waiting.requests = self._signed(waiting.requests, signer or self.signer)
        if not waiting.requests:
            return waiting
        with ExitStack() as observed:
            request = "charge" if isinstance(key, tuple) else "other"
            for observer in self._observers:
                waiting.headers += observed.enter_context(observer.asking(request))
            with self._lock:
                self._waiting[key] = waiting
                if self._broken is not None:
                    waiting.fail(self._broken)
            try:
                self._publish(waiting)
            except BaseException:
                self._forget(key)
                raise
            waiting.observed = observed.pop_all()
        return waiting

    def receive(self, key: Hashable, waiting: Waiting, deadline: Deadline) -> dict[int, Answer]:
        """The answers to what was sent, by partition; they can be asked for once.

        Raises:
            RequestRejected, DecisionTimeout: as ``ask``.
        """
        replies = self._receive(key, waiting, deadline)
        return {p: reply for p, reply in replies.items() if not isinstance(reply, RequestRejected)}

    def watch(self, dataset: str, run: str) -> Witness:
        """Who sees every decision of this run, for as long as somebody holds it."""
        with self._lock:
            witness = self._witnesses.get((dataset, run)) or Witness(dataset, run)
            self._witnesses[dataset, run] = witness
            return witness

    def _signed(
        self, requests: Mapping[int, bytes], signer: RequestSigner | None
    ) -> Mapping[int, bytes]:
        if signer is None:
            return requests
        signed = {p: signer.sign(self.log, p, request) for p, request in requests.items()}
        for partition, request in signed.items():
            if len(request) > MAX_REQUEST_BYTES:
                raise InvalidRequest(
                    f"what partition {partition} is asked takes {len(request)} bytes with its "
                    f"signature; it must be at most {MAX_REQUEST_BYTES}. Charge fewer users in one "
                    "step, or use more partitions for a new service"
                )
        return signed

    def _receive(
        self, key: Hashable, waiting: Waiting, deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        if not waiting.requests:
            return {}
        with waiting.observed:
            try:
                return waiting.result(deadline)
            except DecisionTimeout as error:
                if why := self._why_silent():
                    raise DecisionTimeout(f"{error}. {why}") from None
                raise
            finally:
                self._forget(key)

    def _forget(self, key: Hashable) -> None:
        with self._lock:
            self._waiting.pop(key, None)

    def _hear(self, channel: Channel, partition: int, value: bytes) -> None:
        """Take what was published by a partition, on halts or rejects, and is believed."""
        reply: Answer | Rejected
        try:
            if channel is Channel.REJECTS:
                reply = msgspec.msgpack.decode(value, type=Rejected)
            else:
                reply = decode_answer(value)
        except UNREADABLE as error:
            # Not written by a worker: it admits nobody, and answers nobody.
            logger.warning("skipped a record of %s %s: %s", channel.value, partition, error)
            return
        with self._lock:
            if isinstance(reply, Decision | RosterDecision | Halted):
                witness = self._witnesses.get((reply.dataset, reply.run))
                if witness is not None:
                    witness.see(reply)
            waiting = self._waiting.get(key_of(reply))
            if waiting is not None:
                waiting.hear(reply)

    def _break(self, error: Exception) -> None:
        """Nothing can be heard any more: whoever waits is told, and whoever asks from now on."""
        with self._lock:
            self._broken = error
            for waiting in self._waiting.values():
                waiting.fail(error)


def step_key(dataset: str, run: str, attempt: int, step: int) -> Hashable:
    """By what the answers to one step are recognised."""
    return dataset, run, attempt, step


def key_of(record: Answer | Request | Rejected) -> Hashable:
    """By what the sender of a request waits for this; None if nobody does, or it cannot be told."""
    if isinstance(record, Halted):
        return None  # it comes beside a decision, for those who follow
    if isinstance(record, Decision | RosterDecision | Charge | ChargeRoster):
        return step_key(record.dataset, record.run, record.attempt, record.step)
    if not isinstance(record, Rejected) or record.request is not None:
        return record.request
    if record.dataset and record.run and record.attempt and record.step is not None:
        return step_key(record.dataset, record.run, record.attempt, record.step)
    try:
        # A worker that could not read the request, because it is older, cannot name the sender.
        return key_of(decode_request(record.record))
    except Rejection:
        return None
