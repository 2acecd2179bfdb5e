"""Watches a service continuously, and returns its last known state at any time.

Each source has its own thread, so a source that does not answer does not delay the others. Its last
facts are kept and marked as old, and it is asked again.

    source    read             contents
    Kafka     every second     the topics, and where the log ends
    Redis     every second     three small keys of each partition
    workers   every 2 seconds  /healthz and /metrics, if their addresses are known
    halts     as written       steps of runs, from 64 records of each partition before the end
    rejects   as written       reason and record, from 200 of each partition before the end
    odometer  as written       the spent shares of the budgets, from the beginning

The first three contain no data about people. The others do, and are returned separately.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from threading import Event

from kafka import TopicPartition

from streams.config import Config, failure_of
from streams.kafka.authentic import verifier_of
from streams.kafka.clients import new_reader
from streams.kafka.topics import Topics
from streams.ledger.outputs import Channel
from streams.operations.endpoints import ask_workers
from streams.operations.facts import NOT_YET, ServiceFacts, Side
from streams.operations.status import Unavailable, look_at, read_glances
from streams.sdk.errors import ServiceUnavailable
from streams.sdk.followers import Followed
from streams.sdk.kafka import believing, reaching_kafka

_POLL_MS = 500


def tail(
    config: Config, channel: Channel, log: bytes, back: int | None, closed: Event
) -> Iterator[Followed | None]:
    """Yield records with valid signatures, and None whenever all present records were read.

    Args:
        config: the settings with the brokers.
        channel: the topic.
        log: the topic id of norms, for which the records are signed.
        back: the number of records before the end of each partition to begin with; None: all.
        closed: set by the caller to end the iteration.

    Raises:
        ServiceUnavailable: Kafka does not answer at the start, or denies access.
    """
    is_believed = believing(verifier_of(config, log))
    name = config.topic(channel.value)
    with reaching_kafka(config):
        consumer = new_reader(config)
    try:
        with reaching_kafka(config):
            numbers = sorted(consumer.partitions_for_topic(name) or ())
            places = [TopicPartition(name, number) for number in numbers]
            consumer.assign(places)
            starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            for place in places:
                start = starts[place] if back is None else ends[place] - back
                consumer.seek(place, max(starts[place], start))
        while not closed.is_set():
            with reaching_kafka(config):
                polled = consumer.poll(timeout_ms=_POLL_MS)
            for place, records in polled.items():
                for record in records:
                    if record.value is not None and is_believed(record):
                        yield Followed(place.partition, record.value, record.timestamp / 1000)
            if not polled or all(consumer.position(place) >= ends[place] for place in places):
                yield None
    finally:
        consumer.close()


logger = logging.getLogger("turnstile.watching")

_ANSWERS_WITHIN = 5.0
_AGAIN_AFTER = 3.0
_BACK = {Channel.HALTS: 64, Channel.REJECTS: 200, Channel.ODOMETER: None}


class Watch:
    """Observes a service.

    Attributes:
        facts: what is known now; any thread may read them.
    """

    def __init__(
        self,
        config: Config,
        workers: Sequence[str],
        delta: float,
        channels: Sequence[Channel] = tuple(_BACK),
    ) -> None:
        """Prepare the watch.

        Args:
            config: the settings with the service's addresses.
            workers: host:port of the known workers' HTTP servers.
            delta: the delta of the epsilons.
            channels: the topics that are followed.
        """
        # An outage is shown soon.
        self._config = replace(config, timeout=min(config.timeout, _ANSWERS_WITHIN))
        self.facts = ServiceFacts(delta, [channel.value for channel in channels])
        self._channels = channels
        self._addresses = workers
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the threads."""
        followers = {
            Channel.HALTS: self.facts.follow_halts,
            Channel.REJECTS: self.facts.follow_rejects,
            Channel.ODOMETER: self.facts.follow_odometer,
        }
        work: list[Callable[[], None]] = [self._look_at_kafka, self._look_at_redis]
        if self._addresses:
            work.append(self._look_at_workers)
        work += [partial(self._follow, channel, followers[channel]) for channel in self._channels]
        for one in work:
            thread = threading.Thread(target=one, name="turnstile-watch", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _ANSWERS_WITHIN)

    def is_complete(self) -> bool:
        """Return whether every source has answered, or why it does not is known."""
        return self.facts.is_complete() and (bool(self.facts.workers) or not self._addresses)

    def _look_at_kafka(self) -> None:
        with Topics(self._config) as topics:

            def look() -> None:
                before = self.facts.glances
                self.facts.see_kafka(*look_at(topics, self._config), before)

            self._repeat("Kafka", look, 1.0)

    def _look_at_redis(self) -> None:
        def look() -> None:
            kafka = self.facts.kafka
            count = len(kafka[1]) if kafka else len(self.facts.glances or ()) or 1
            glances = read_glances(self._config, count)
            if kafka is not None:
                self.facts.see_redis(glances, kafka[1])

        while self.facts.sides["Kafka"].problem == NOT_YET and not self._closed.is_set():
            self._closed.wait(0.02)  # Kafka has the number of partitions
        self._repeat("Redis", look, 1.0)

    def _look_at_workers(self) -> None:
        while not self._closed.is_set():
            self.facts.workers = ask_workers(self._addresses)
            self._closed.wait(2.0)

    def _repeat(self, name: str, look: Callable[[], None], every: float) -> None:
        side = self.facts.sides[name]
        while not self._closed.is_set():
            try:
                look()
                side.problem, side.seen = None, time.monotonic()
            except Unavailable as error:
                side.problem = str(error)
            except Exception as error:  # the other sources continue
                logger.error("%s: %s", name, failure_of(error))
                side.problem = f"it failed: {type(error).__name__}"
            self._closed.wait(every)

    def _follow(self, channel: Channel, follow: Callable[[Iterator[Followed]], None]) -> None:
        """Read a topic until the watch is closed; record errors, and try again."""
        side = self.facts.sides[channel.value]
        while not self._closed.is_set():
            kafka = self.facts.kafka
            if kafka is None or self.facts.glances is None:  # the policies come first
                if kafka is None and self.facts.sides["Kafka"].problem != NOT_YET:
                    side.problem = "not read, since Kafka does not answer"
                self._closed.wait(0.05)
                continue
            try:
                records = tail(self._config, channel, kafka[0].topic, _BACK[channel], self._closed)
                follow(self._noted(side, records))
            except ServiceUnavailable as error:
                side.problem = str(error)
            except Exception as error:  # the other sources continue
                logger.error("reading %s: %s", channel.value, failure_of(error))
                side.problem = f"it failed: {type(error).__name__}"
            self._closed.wait(_AGAIN_AFTER)

    def _noted(self, side: Side, records: Iterator[Followed | None]) -> Iterator[Followed]:
        for record in records:
            if record is None:  # all present records were read
                side.problem, side.seen = None, time.monotonic()
            else:
                yield record
