"""The connection to the workers over Kafka: a producer, and one thread that reads all answers.

Errors of the Kafka client never leave the SDK; they become its own.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from time import monotonic, sleep
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError

from streams.config import Config, redact
from streams.kafka.admittance import check_admittance
from streams.kafka.authentic import WORKERS, RecordVerifier, Signers, verifier_of
from streams.kafka.kafka_clients import new_admin, new_producer, new_reader
from streams.kafka.results import NoBroker, TopicsSeen, TopicsUnavailable, UnusableTopics, log_name
from streams.kafka.security import NotAdmitted, explained, is_refusal
from streams.kafka.topics import NORMS, find_topics
from streams.ledger.outputs import Channel
from streams.records import MAX_RECORD_BYTES
from streams.records.json_outputs import to_msgpack
from streams.sdk.connection import Connection, Deadline, PendingRequest
from streams.sdk.errors import (
    DecisionTimeout,
    PartitionsDisagree,
    ServiceUnavailable,
    TurnstileError,
    Unusable,
)
from streams.sdk.followers import Followed, Reading

_TOPICS_POLL = 0.2
_REPLIES_POLL_MS = 50  # closing may have to wait this long
_REPLIES_WAIT_MS = 500  # how long a broker may hold a fetch without records
_READING_POLL_MS = 200
_LINGER_MS = 1
"""How long a record waits for those of the other partitions. Without it a charge is sent in several
produce requests, and the workers fetch, decide and answer each by itself."""


class KafkaConnection(Connection):
    """A connection to the workers of a service.

    Raises:
        ServiceUnavailable: no broker answered, or no topics exist, within ``config.timeout``.
    """

    largest_request = MAX_RECORD_BYTES

    def __init__(self, config: Config) -> None:
        seen = _wait_for_topics(config)
        super().__init__(seen.partitions, config.timeout, seen.topic)
        self._config = config
        self.where = f"at {redact(config.kafka)}, topics {config.prefix}*"
        self._verifier = verifier_of(config, seen.topic)
        self._norms = config.topic(NORMS)
        self.log_name = log_name(self._norms, seen.topic)
        self._channels = {
            config.topic(channel.value): channel for channel in (Channel.HALTS, Channel.REJECTS)
        }
        self._opening = threading.Lock()
        self._producer: KafkaProducer | None = None

    def _open(self) -> KafkaProducer:
        """Open the producer and the reader of answers, at the first charge.

        A client that only follows needs no right to write.

        Raises:
            ServiceUnavailable: no broker answered.
        """
        with self._opening, reaching_kafka(self._config), ExitStack() as opened:
            if self._producer is not None:
                return self._producer
            self.check_usable()
            consumer = new_reader(self._config, fetch_max_wait_ms=_REPLIES_WAIT_MS)
            opened.callback(consumer.close)
            places = [
                TopicPartition(topic, partition)
                for topic in self._channels
                for partition in range(self.partitions)
            ]
            # Fix the positions before anything is published, so that no answer is missed.
            consumer.assign(places)
            consumer.seek_to_end(*places)
            for place in places:
                consumer.position(place)
            producer = new_producer(self._config, _LINGER_MS if self.partitions > 1 else 0)
            opened.callback(producer.close)
            producer.partitions_for(self._norms)  # fetch the metadata now, not in the first charge
            opened.pop_all()
            self._consumer, self._producer = consumer, producer
            self._thread = threading.Thread(
                target=self._listen, args=(consumer,), name="turnstile-replies", daemon=True
            )
            self._thread.start()
            return producer

    def check_partitions(self) -> None:
        """Check that the topics still have P partitions. An added partition has no state of its
        users.

        Raises:
            PartitionsDisagree: partitions were added.
            ServiceUnavailable: no broker answered within ``config.timeout``, or the topics are
                missing.
        """
        partitions = _wait_for_topics(self._config).partitions
        if partitions != self.partitions:
            raise PartitionsDisagree(
                f"the topics have {partitions} partitions, but had {self.partitions} when this "
                "Turnstile was opened. Never add partitions: some users' state would be looked for "
                "in the wrong one",
                None,
            )

    def read(self, channel: Channel, reading: Reading) -> Iterator[Followed]:
        """Yield the records of a topic."""
        self.check_usable()
        return read_topic(self._config, channel, reading, self._closed)

    def _why_silent(self) -> str:
        return self._verifier.why_silent() if self._verifier else ""

    def _publish(self, requests: Mapping[int, bytes], waiting: PendingRequest) -> None:
        producer = self._open()
        try:
            for partition, request in requests.items():
                sent: Any = producer.send(
                    self._norms, value=request, partition=partition, headers=waiting.headers
                )
                sent.add_errback(lambda error: waiting.fail(publishing_error(error)))
        except KafkaError as error:
            raise publishing_error(error) from error

    def _flush(self, deadline: Deadline) -> None:
        try:
            self._open().flush(timeout=deadline.left())
        except KafkaError as error:
            raise publishing_error(error) from error

    def _listen(self, consumer: KafkaConsumer) -> None:
        try:
            while not self._closed.is_set():
                for place, records in consumer.poll(timeout_ms=_REPLIES_POLL_MS).items():
                    for record in filter(believing(self._verifier), records):
                        value = to_msgpack(record.value or b"")
                        self._deliver(self._channels[place.topic], place.partition, value)
        except Exception as error:
            broken = ServiceUnavailable(
                f"reading answers has failed: {explained(error)}. Open another Turnstile, and the "
                "run again"
            )
            broken.__cause__ = error
            self._break(broken)

    def _disconnect(self) -> None:
        with self._opening:
            if self._producer is not None:
                self._producer.close()
                self._thread.join()
                self._consumer.close()


def believing(verifier: RecordVerifier | None) -> Callable[[Any], bool]:
    """Return a filter for authentic records: all, or those that a trusted key has signed."""
    if verifier is None:
        return lambda record: True
    return lambda record: verifier.admits(
        record.topic, record.partition, (record.key, record.value), record.headers
    )


def read_topic(
    config: Config, channel: Channel, reading: Reading, closed: threading.Event | None = None
) -> Iterator[Followed]:
    """Yield the authentic records of one of the workers' topics, until ``closed`` is set.

    Records in JSON are yielded in MessagePack.

    Raises:
        ServiceUnavailable: no broker answered, or the topic does not exist.
        Unusable: the Turnstile that reads was closed.
    """
    return _in_msgpack(read_signed(config, config.topic(channel.value), WORKERS, reading, closed))


def _in_msgpack(records: Iterator[Followed]) -> Iterator[Followed]:
    for record in records:
        yield Followed(record.partition, to_msgpack(record.value), record.written)


def read_signed(
    config: Config,
    name: str,
    signers: Signers,
    reading: Reading,
    closed: threading.Event | None = None,
) -> Iterator[Followed]:
    """Yield the records of the topic ``name`` that ``signers`` signed, or all if no key is
    required.

    Raises:
        ServiceUnavailable, Unusable: as ``read_topic``.
    """
    with reaching_kafka(config), ExitStack() as opened:
        check_admittance(config)
        verifier = None
        if getattr(config, signers.trust_store):
            verifier = verifier_of(config, _wait_for_topics(config).topic, signers)
        consumer = new_reader(config)
        opened.callback(consumer.close)
        partitions = consumer.partitions_for_topic(name)
        if not partitions:
            raise ServiceUnavailable(
                f"topic {name} does not exist: start the first {signers.who}, which creates it"
            )
        places = [TopicPartition(name, partition) for partition in sorted(partitions)]
        consumer.assign(places)
        if reading.since == "earliest":
            consumer.seek_to_beginning(*places)
        else:
            consumer.seek_to_end(*places)
        ends = {} if reading.follow else consumer.end_offsets(places)
        for place in places:
            consumer.position(place)
        opened.pop_all()
    stopping = closed or threading.Event()
    return _poll(config, consumer, ends, reading, stopping, believing(verifier))


def _poll(
    config: Config,
    consumer: KafkaConsumer,
    ends: dict[TopicPartition, int],
    reading: Reading,
    closed: threading.Event,
    is_believed: Callable[[Any], bool],
) -> Iterator[Followed]:
    idle_ms = 0.0
    absence = Absence(
        config.kafka,
        lambda: consumer.end_offsets(
            list(consumer.assignment()), timeout_ms=int(1000 * ANSWERS_WITHIN)
        ),
    )
    allowed_ms = math.inf if reading.idle_timeout is None else 1000 * reading.idle_timeout
    try:
        while idle_ms < allowed_ms if reading.follow else _is_behind(config, consumer, ends):
            with reaching_kafka(config):
                polled = consumer.poll(timeout_ms=_READING_POLL_MS)
            began = monotonic()
            absence.note(has_arrived=bool(polled))
            idle_ms += _READING_POLL_MS + 1000 * (monotonic() - began)
            if polled:
                idle_ms = 0.0
            for place, records in polled.items():
                for record in records:
                    if record.offset < ends.get(place, math.inf) and is_believed(record):
                        value = record.value or b""
                        yield Followed(place.partition, value, record.timestamp / 1000)
            if closed.is_set():
                raise Unusable("this Turnstile was closed: open another one to read on")
    finally:
        consumer.close()


def _is_behind(config: Config, consumer: KafkaConsumer, ends: dict[TopicPartition, int]) -> bool:
    with reaching_kafka(config):
        return any(consumer.position(place) < end for place, end in ends.items())


@contextmanager
def reaching_kafka(config: Config) -> Iterator[None]:
    """Convert errors of the Kafka client to the SDK's own.

    Raises:
        ServiceUnavailable: instead of any KafkaError, and if the broker rejects this client.
    """
    try:
        yield
    except NotAdmitted as error:
        raise ServiceUnavailable(str(error), error.reason) from error
    except KafkaError as error:
        raise ServiceUnavailable(
            f"Kafka at {config.kafka} does not answer: {explained(error, 'Is the broker up?')}"
        ) from error


def publishing_error(error: KafkaError) -> TurnstileError:
    """Return the error for a request that may not have been published."""
    if error.retriable:
        raised: TurnstileError = DecisionTimeout(
            f"could not publish to Kafka in time: {error}. Repeat exactly the same request: it is "
            "decided once. Until then release nothing"
        )
    else:
        raised = ServiceUnavailable(
            f"Kafka rejects the record: {explained(error)}. Release nothing. Fix the cause, then "
            "open another Turnstile, and the run again"
        )
    raised.__cause__ = error
    return raised


def _wait_for_topics(config: Config) -> TopicsSeen:
    """Return the topics as soon as a broker shows them.

    The client asks one broker, chosen at random. That broker may be the one that is down, so the
    question is repeated until another one answers.

    Raises:
        ServiceUnavailable: no answer within ``config.timeout``, unusable topics, or no rights.
    """
    deadline = monotonic() + config.timeout
    while True:
        try:
            return _find_topics(config)
        except (KafkaError, TopicsUnavailable) as error:
            is_final = isinstance(error, UnusableTopics) or is_refusal(error)
            if is_final or monotonic() > deadline:
                if isinstance(error, NotAdmitted):
                    raise ServiceUnavailable(str(error), error.reason) from error
                raise ServiceUnavailable(_why_no_topics(config, error)) from error
            sleep(_TOPICS_POLL)


def _why_no_topics(config: Config, error: Exception) -> str:
    """Say whether no broker answers, or which topics the broker lacks."""
    if isinstance(error, UnusableTopics | NoBroker):
        return str(error)
    if isinstance(error, TopicsUnavailable) or is_refusal(error):
        what = explained(error, "Is a worker running, and is the prefix the same?")
        return f"Kafka at {config.kafka} does not offer the topics {config.prefix}*: {what}"
    what = explained(error, "Is the broker up?")
    return f"no Kafka broker at {config.kafka}: {what}"


def _find_topics(config: Config) -> TopicsSeen:
    admin = new_admin(config)
    try:
        return find_topics(admin, config)
    finally:
        admin.close()


logger = logging.getLogger("turnstile.sdk")

ASK_AFTER = 3.0
"""Seconds without a record between two questions to the broker."""
ANSWERS_WITHIN = 2.0
"""Seconds within which the broker must answer."""
_AWAY = "Kafka at %s does not answer; no new records are read until it does"
_BACK = "Kafka at %s answers again; reading continues"


class Absence:
    """Logs when Kafka becomes unreachable and when it is back.

    Args:
        where: the address of Kafka, for people.
        ask: asks the broker; raises KafkaError if no answer comes in time.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self, where: str, ask: Callable[[], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._where, self._ask, self._clock = where, ask, clock
        self._known = clock()  # when it last answered, or was last asked
        self._is_away = False

    def note(self, *, has_arrived: bool) -> None:
        """Note whether a record arrived. If none did for some time, ask the broker."""
        if not has_arrived:
            if self._clock() - self._known < ASK_AFTER:
                return
            with suppress(KafkaError):
                self._ask()
                has_arrived = True
        self._known = self._clock()
        if has_arrived == self._is_away:
            self._is_away = not has_arrived
            logger.warning(_BACK if has_arrived else _AWAY, self._where)
