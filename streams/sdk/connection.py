"""A client's connection to the service: publish requests, and receive the partitions' answers.

``KafkaConnection`` reaches workers, and ``MemoryConnection`` ledgers in this process. Each has its
own way to publish. This module matches answers to waiting callers, and decisions to watched runs,
for both.
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
from typing import Any, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from accounting.exact.invalid_input import quoted
from streams.ledger.outputs import Channel
from streams.ledger.parts import Joined, joined
from streams.records import (
    MAX_QUOTED_BYTES,
    MAX_REQUEST_BYTES,
    Answer,
    Charge,
    ChargeRoster,
    Decision,
    Halted,
    Import,
    NormEvent,
    NormEvents,
    Rejected,
    Rejection,
    Request,
    RosterDecision,
    decode_answer,
    decode_request,
    encode,
)
from streams.records.digests import NO_TOPIC
from streams.sdk.decisions import UNREADABLE, Witness
from streams.sdk.errors import (
    DecisionTimeout,
    InvalidRequest,
    RequestRejected,
    Unusable,
    not_of_a_worker,
    refusal_of,
)
from streams.sdk.followers import Followed, Reading
from streams.sdk.observing import Headers, Observer
from streams.sdk.step_layout import Pseudonyms

logger = logging.getLogger("turnstile.sdk")

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True)
class Deadline:
    """The end of a call's waiting time, over all requests that the call makes.

    Attributes:
        seconds: the waiting time when the call began.
        at: the end, by the monotonic clock.
    """

    seconds: float
    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return a deadline so many seconds from now.

        Raises:
            InvalidRequest: the timeout is not finite or negative.
        """
        if not 0 <= seconds <= threading.TIMEOUT_MAX:
            raise InvalidRequest(
                f"timeout is {quoted(seconds)}; it must be finite seconds, at least 0"
            )
        return cls(seconds, monotonic() + seconds)

    def left(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self.at - monotonic())


class SignsRequests(Protocol):
    """Signs the requests of a connection, as ``RequestSigner`` does."""

    def sign(self, log: bytes, partition: int, request: bytes) -> bytes:
        """Return a request as a signed record, encoded."""


class PendingRequest:
    """Requests that are sent to some partitions, and their replies so far.

    Args:
        to_the_end: wait for all replies, even if one is a rejection.

    Attributes:
        observed: closed when all replies are received.
    """

    def __init__(
        self,
        key: Hashable,
        requests: Mapping[int, bytes],
        deadline: Deadline,
        headers: Headers | None = None,
        *,
        to_the_end: bool = False,
    ) -> None:
        self.key, self.requests, self.deadline = key, requests, deadline
        self.headers = headers or []
        self.observed = ExitStack()
        self._to_the_end = to_the_end
        self._replies: dict[int, Answer | RequestRejected] = {}
        # By partition and offset, the parts of an answer, by number.
        self._parts: dict[tuple[int, int], dict[int, Joined]] = {}
        self._failure: Exception | None = None
        self._done = threading.Event()

    def result(self, deadline: Deadline) -> dict[int, Answer | RequestRejected]:
        """Wait for and return the reply of every partition.

        Raises:
            RequestRejected: the first rejection, unless all replies are waited for.
            DecisionTimeout: some partitions did not reply in time.
            Exception: any other error that ended the wait.
        """
        self._done.wait(deadline.left())
        self.check()
        missing = sorted(self.requests.keys() - self._replies.keys())
        if missing:
            raise DecisionTimeout(
                f"no answer from partitions {missing} within {deadline.seconds:g} s. Repeat "
                "exactly the same request: it is decided once. Until then release nothing. If this "
                "continues, check with `turnstile status` whether workers are running"
            )
        return self._replies

    def check(self) -> None:
        """Raise the error that ended the wait, if one has."""
        if self._failure is not None:
            raise self._failure

    def fail(self, error: Exception) -> None:
        """End the wait with an error; the first error counts."""
        self._failure = self._failure or error
        self._done.set()

    def receive(self, reply: Answer | Rejected) -> None:
        """Receive a partition's reply; its first reply counts.

        A rejection counts only if it repeats exactly the record sent, not an earlier one for the
        same step.
        """
        sent = self.requests.get(reply.partition)
        if isinstance(reply, Rejected):
            if sent is None or sent[:MAX_QUOTED_BYTES] != reply.record:
                return
            refusal = refusal_of(reply)
            if not self._to_the_end:
                self.fail(refusal)
            self._replies.setdefault(reply.partition, refusal)
        elif sent is not None:
            if isinstance(reply, Joined) and reply.parts is not UNSET:
                parts = self._parts.setdefault((reply.partition, reply.offset), {})
                parts[reply.part or 0] = reply
                if len(parts) < reply.parts:
                    return
                try:
                    reply = joined([parts[number] for number in sorted(parts)])
                except ValueError as error:
                    self.fail(not_of_a_worker(reply.partition, str(error)))
                    return
            self._replies.setdefault(reply.partition, reply)
        if self._replies.keys() == self.requests.keys():
            self._done.set()


class Connection(ABC):
    """Publishes requests, and delivers each answer to the caller that waits for it.

    It may be used from any thread of the process that opened it.

    Args:
        partitions: P, the number of partitions.
        timeout: seconds that a call waits by default.
        log: the id of the topic norms, 16 bytes, which signatures of requests cover.

    Attributes:
        largest_request: the maximum size of a request, signed or not.
        pseudonyms: makes pseudonyms of users; None if the log has their ids.
        signer: signs requests; None if they are not signed.
        where: the address of the service, for people.
        log_name: the name of the log in metrics.
    """

    where = log_name = "in memory"
    largest_request = MAX_REQUEST_BYTES

    def __init__(self, partitions: int, timeout: float, log: bytes = NO_TOPIC) -> None:
        self.partitions = partitions
        self.log = log
        self.pseudonyms: Pseudonyms | None = None
        self.signer: SignsRequests | None = None
        self._timeout = timeout
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._waiting: dict[Hashable, PendingRequest] = {}
        self._witnesses: WeakValueDictionary[tuple[str, str], Witness] = WeakValueDictionary()
        self._rejected: dict[int, int] = {}  # partition -> offset of the last rejected record
        self._broken: Exception | None = None
        self._observers: list[Observer] = []

    def observe(self, observer: Observer) -> None:
        """Register an observer that wraps every request."""
        self._observers.append(observer)

    @property
    def is_broken(self) -> bool:
        """Return whether answers can no longer be received, so that every request fails."""
        return self._broken is not None

    @abstractmethod
    def check_partitions(self) -> None:
        """Check that the number of partitions has not changed.

        Raises:
            PartitionsDisagree: it has.
            ServiceUnavailable: no broker answered, or no topics exist.
        """

    @abstractmethod
    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        """Yield the records that were published on a channel.

        Raises:
            ServiceUnavailable: no broker answered, or no topics exist.
            Unusable: the connection was closed.
        """

    @abstractmethod
    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        """Send each partition its request; answers are passed to ``_deliver``."""

    @abstractmethod
    def _flush(self, deadline: Deadline) -> None:
        """Wait until all that was published is stored in the log.

        Raises:
            DecisionTimeout: it was not stored in time.
        """

    def _why_silent(self) -> str:
        """Return a possible reason why no answer came; empty if none is known."""
        return ""

    @abstractmethod
    def _disconnect(self) -> None:
        """Release what was opened; called once, in the process that opened it."""

    def close(self) -> None:
        """Disconnect. Closing is idempotent."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        if os.getpid() == self._process:  # else the connections belong to the parent process
            self._disconnect()

    def check_usable(self) -> None:
        """Check that this process may use the connection.

        Raises:
            Unusable: it was closed, or opened in another process.
        """
        if self._closed.is_set():
            raise Unusable("this Turnstile is closed: open another one")
        if os.getpid() != self._process:
            raise Unusable(
                f"this Turnstile was opened in process {self._process} and used in process "
                f"{os.getpid()}: open one in each process"
            )

    def deadline(self, timeout: float | None) -> Deadline:
        """Return a deadline from now; None means the default timeout.

        Raises:
            InvalidRequest: the timeout is not finite or negative.
            Unusable: as ``check_usable``.
        """
        self.check_usable()
        return Deadline.after(self._timeout if timeout is None else timeout)

    def pause(self, seconds: float) -> None:
        """Sleep, so that other clients can proceed."""
        sleep(seconds)

    def new_token(self) -> str:
        """Return a unique string by which the answer to a request is recognised."""
        return uuid4().hex

    def now(self) -> int:
        """Return the time in microseconds: of two changes of an access list, the later counts."""
        return time_ns() // 1000

    def ask(
        self,
        requests: Mapping[int, Request],
        kind: type[A],
        deadline: Deadline,
        *,
        log: bytes | None = None,
    ) -> dict[int, A]:
        """Send each partition its request and return the answers by partition.

        Args:
            requests: by partition, with one token.
            log: the id of the log that the requests are signed for; by default the connection's.

        Raises:
            InvalidRequest: a request is too large; nothing was published.
            RequestRejected: the first rejection; other partitions may have accepted.
            ConflictingDecisions: an answer of another kind, which no worker has made.
            DecisionTimeout: not all partitions answered in time.
        """
        replies = self._ask(requests, kind, deadline, log=log)
        return {p: reply for p, reply in replies.items() if not isinstance(reply, RequestRejected)}

    def survey(
        self, requests: Mapping[int, Request], kind: type[A], deadline: Deadline
    ) -> dict[int, A | RequestRejected]:
        """Send requests as ``ask`` does, and return all replies, including rejections.

        Raises:
            ConflictingDecisions, DecisionTimeout: as ``ask``.
        """
        return self._ask(requests, kind, deadline, to_the_end=True)

    def _ask(
        self, requests: Mapping[int, Request], kind: type[A], deadline: Deadline, **how: Any
    ) -> dict[int, A | RequestRejected]:
        records = {partition: encode(request) for partition, request in requests.items()}
        keys = {key_of(request) for request in requests.values()}
        waiting = self.send(next(iter(keys), None), records, deadline, **how)
        found: dict[int, A | RequestRejected] = {}
        for partition, reply in self.receive(waiting, deadline).items():
            if not isinstance(reply, kind | RequestRejected):
                raise not_of_a_worker(partition, f"is no {kind.__name__}")
            found[partition] = reply
        return found

    def send(
        self,
        key: Hashable,
        requests: Mapping[int, bytes],
        deadline: Deadline,
        *,
        log: bytes | None = None,
        to_the_end: bool = False,
    ) -> PendingRequest:
        """Sign the requests and send each partition its own; ``receive`` returns the answers.

        Raises:
            InvalidRequest: a request is too large; nothing was published.
            DecisionTimeout: they could not be sent before the deadline.
        """
        self.check_usable()
        signed = self._signed(requests, log or self.log)
        if not signed:
            return PendingRequest(key, signed, deadline)
        with ExitStack() as observed:
            request = "charge" if isinstance(key, tuple) else "other"
            headers: Headers = []
            for observer in self._observers:
                headers += observed.enter_context(observer.asking(request))
            waiting = PendingRequest(key, signed, deadline, headers, to_the_end=to_the_end)
            with self._lock:
                self._waiting[key] = waiting
                if self._broken is not None:
                    waiting.fail(self._broken)
            try:
                self._publish(signed, waiting)
            except BaseException:
                self._forget(key)
                raise
            waiting.observed.push(observed.pop_all())
        return waiting

    def receive(
        self, waiting: PendingRequest, deadline: Deadline
    ) -> dict[int, Answer | RequestRejected]:
        """Return the replies to what was sent, by partition. Call it once for each ``send``.

        Raises:
            RequestRejected: the first rejection, unless all replies are waited for.
            DecisionTimeout: not all partitions answered in time.
        """
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
                self._forget(waiting.key)

    def post(self, records: Mapping[int, bytes], deadline: Deadline) -> None:
        """Sign records that no partition answers, send them, and wait until the log has them.

        Raises:
            InvalidRequest: a record is too large; nothing was published.
            DecisionTimeout: the log may not have all of them.
        """
        waiting = self.send(self.new_token(), records, deadline)
        with waiting.observed:
            try:
                self._flush(deadline)
                waiting.check()
            finally:
                self._forget(waiting.key)

    def watch(self, dataset: str, run: str) -> Witness:
        """Return the witness of a run, which sees its decisions as long as a caller holds it."""
        with self._lock:
            witness = self._witnesses.get((dataset, run)) or Witness(dataset, run)
            self._witnesses[dataset, run] = witness
            return witness

    def _signed(self, requests: Mapping[int, bytes], log: bytes) -> Mapping[int, bytes]:
        signer = self.signer
        if signer is not None:
            requests = {p: signer.sign(log, p, request) for p, request in requests.items()}
        for partition, request in requests.items():
            if len(request) > self.largest_request:
                raise InvalidRequest(
                    f"the request to partition {partition} takes {len(request)} bytes; it must be "
                    f"at most {self.largest_request}. Charge fewer users per step, enrol them in a "
                    "roster, collect their norms, or set fewer levels of a roster between two "
                    "steps. A new service can have more partitions"
                )
        return requests

    def _forget(self, key: Hashable) -> None:
        with self._lock:
            self._waiting.pop(key, None)

    def _deliver(self, channel: Channel, partition: int, value: bytes) -> None:
        """Receive an authentic record of a partition, from halts or rejects."""
        reply: Answer | Rejected
        try:
            if channel is Channel.REJECTS:
                reply = msgspec.msgpack.decode(value, type=Rejected)
            else:
                reply = decode_answer(value)
        except UNREADABLE as error:
            # No worker has written it, so it answers no request.
            logger.warning("skipped a record of %s %s: %s", channel.value, partition, error)
            return
        with self._lock:
            if isinstance(reply, Decision | RosterDecision | Halted):
                witness = self._witnesses.get((reply.dataset, reply.run))
                if witness is not None:
                    witness.see(reply)
            if isinstance(reply, Rejected):
                # A worker that takes over publishes rejections again, in the order of the log. They
                # must not answer a later request with the same content.
                if reply.offset <= self._rejected.get(partition, -1):
                    return
                self._rejected[partition] = reply.offset
            waiting = self._waiting.get(key_of(reply))
            if waiting is not None:
                waiting.receive(reply)

    def _break(self, error: Exception) -> None:
        """Fail all current and later requests, because answers can no longer be received."""
        with self._lock:
            self._broken = error
            for waiting in self._waiting.values():
                waiting.fail(error)


def step_key(dataset: str, run: str, attempt: int, step: int) -> Hashable:
    """Return the key that identifies the answers to one step."""
    return dataset, run, attempt, step


def key_of(record: Answer | Request | Rejected) -> Hashable:
    """Return the key under which a request's sender waits; None if there is none or it is
    unknown.
    """
    if isinstance(record, Halted | Import | NormEvent | NormEvents):
        return None  # no sender waits for it
    if isinstance(record, Decision | RosterDecision | Charge | ChargeRoster):
        return step_key(record.dataset, record.run, record.attempt, record.step)
    if not isinstance(record, Rejected) or record.request is not None:
        return record.request
    if record.dataset and record.run and record.attempt and record.step is not None:
        return step_key(record.dataset, record.run, record.attempt, record.step)
    try:
        # A worker that is older cannot read the request, and so cannot name its sender.
        return key_of(decode_request(record.record))
    except Rejection:
        return None
