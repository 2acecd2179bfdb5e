"""The answerer process: a Faust app that reads a topic of events.

Every instance is a consumer group of its own and reads all partitions, since a window needs all of
them. The journal, not Kafka's consumer groups, determines which instance answers. A second instance
takes over, and the first one ends at its next journal entry. The journal also contains the offsets
to read from: nothing is committed to Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from uuid import uuid4

from kafka import TopicPartition
from kafka.errors import KafkaError

from streams.answerer.answerer_metrics import AnswererMetrics, InputHealth
from streams.answerer.events import EventPlace
from streams.answerer.journal import JournalUnavailable, Superseded
from streams.answerer.kafka_journal import KafkaJournal
from streams.answerer.published_answers import AnswerRecord
from streams.answerer.query_file import QueryFile
from streams.answerer.query_keys import UnusableQueries
from streams.answerer.window_answering import Announce, Answering, opener
from streams.answerer.windows import InputState
from streams.config import Config, ConfigurationError
from streams.failures import Exit
from streams.kafka.answer_topics import ensure_answer_topics
from streams.kafka.batches import EventBatch
from streams.kafka.kafka_clients import new_admin, new_reader
from streams.kafka.private_names import check_private_names
from streams.kafka.topics import topic_id_of
from streams.sdk.client import Turnstile
from streams.sdk.errors import Fenced, InvalidRequest, RequestRejected, TurnstileError
from streams.sdk.observing import measure
from streams.worker.faust_app import EXIT_RESTART, TurnstileApp, run_app
from streams.worker.health import HealthServer
from streams.worker.ports import Ending

logger = logging.getLogger("turnstile.answer")

_LOG_APPEND_TIME = 1
_TICK_SECONDS = 0.5
_POLL_MS = 200
_FETCHED_RECORDS = 1024


class EventInbox:
    """Connects Faust to the answering: the ``Partitions`` of its app.

    Args:
        config: the address of Kafka.
        query_file: the file of queries.
        take_over: takes over the run.
        partitions: the number of partitions of the input.
        log: the name of the log that is charged.

    Attributes:
        answering: takes events and closes windows; None until the run is taken over.
    """

    def __init__(
        self,
        config: Config,
        query_file: QueryFile,
        take_over: Callable[[], Answering],
        partitions: int,
        log: str,
    ) -> None:
        self._config, self._query_file, self._take_over = config, query_file, take_over
        self.answering: Answering | None = None
        self._before = InputState(query_file)
        self.topic, self._by_arrival = query_file.source.topic, query_file.source.by_arrival
        self._idle = query_file.source.idle.ms
        self._partitions = partitions
        self._lock = asyncio.Lock()
        self.is_taken_over = False
        self._last_event = dict.fromkeys(range(partitions), time.monotonic())
        self.end_of: Callable[[int], int | None] = lambda partition: None
        self._clock: int | None = None
        self.metrics, self.watched = AnswererMetrics(self, log), InputHealth(self)

    @property
    def state(self) -> InputState:
        """Return the state of the input."""
        return self.answering.state if self.answering else self._before

    def partitions(self) -> Sequence[int]:
        """Return the partitions of the input."""
        return range(self._partitions)

    def source(self) -> tuple[str, str]:
        """Return the topic of the input, and the clock that closes windows."""
        return self.topic, "arrival" if self._by_arrival else "events"

    def clock(self) -> int | None:
        """Return the time that all partitions had reached at the last check, in ms."""
        return self._clock

    def decides(self, partition: int) -> bool:
        """Return True: the events of every partition are needed."""
        return True

    def has_room(self, partition: int) -> bool:
        """Return True: each event is processed as it arrives."""
        return True

    async def acquire(self, assigned: Collection[int]) -> Mapping[int, int]:
        """Return the offsets from which Faust has to read."""
        if not assigned:
            return {}
        if len(assigned) != self._partitions:
            raise UnusableQueries(
                f"topic {self.topic} had {self._partitions} partitions and now has "
                f"{len(assigned)}: start the answerer again"
            )
        async with self._lock:
            if not self.is_taken_over:
                await asyncio.to_thread(self._start)
                self.is_taken_over = True
            positions = self.state.positions
            return {partition: positions.get(partition, 0) for partition in assigned}

    def _start(self) -> None:
        self.answering = answering = self._take_over()
        places = [TopicPartition(self.topic, number) for number in range(self._partitions)]
        reader = new_reader(self._config, of_events=True)
        try:
            reader.assign(places)
            begins = reader.beginning_offsets(places)
            state, replay_until = answering.state, answering.replay_until
            for place in places:
                number = place.partition
                known = state.positions.get(number)
                if known is None:
                    state.positions[number] = begins[place]
                elif known < begins[place]:
                    raise UnusableQueries(
                        f"partition {number} of {self.topic} begins at offset {begins[place]}, but "
                        f"open windows need events from offset {known} on, which were deleted: "
                        "answer under another run name; users keep what they have spent"
                    )
                reader.seek(place, state.positions[number])
            while any(reader.position(p) < replay_until.get(p.partition, 0) for p in places):
                for records in reader.poll(timeout_ms=_POLL_MS).values():
                    for record in records:
                        if record.offset < replay_until.get(record.partition, 0):
                            self._take(record)
        finally:
            reader.close()
        answering.finish_closing()

    async def arrive(self, message: Any) -> None:
        """Process an event, and close the windows that are then due."""
        async with self._lock:
            self._last_event[message.partition] = time.monotonic()
            self._take(message)
            await self._close()

    async def tick(self) -> None:
        """Close the windows that are due by time alone."""
        async with self._lock:
            if self.is_taken_over:
                await self._close()

    def _take(self, record: Any) -> None:
        if record.timestamp_type != _LOG_APPEND_TIME and self._by_arrival:
            raise UnusableQueries(
                f"the senders set the time of the records of {self.topic}, so one sender could "
                "decide when windows close for all users. Set message.timestamp.type="
                "LogAppendTime for the topic, or, if its events are in the order of their times, "
                'set clock = "events" under [input]'
            )
        place = EventPlace(record.partition, record.offset)
        self.state.take(place, record.value, record.timestamp)

    async def _close(self) -> None:
        state, now = self.state, time.monotonic()
        quiet: dict[int, int | None] = {}
        for partition, heard in self._last_event.items():
            if 1000 * (now - heard) < self._idle:
                continue
            end = self.end_of(partition)
            if end is not None and state.positions.get(partition, 0) >= end:
                quiet[partition] = (
                    round(1000 * time.time()) - self._idle if self._by_arrival else None
                )
        self._clock = state.clock(self._partitions, quiet)
        if (
            not self._by_arrival
            and len(quiet) == self._partitions
            and 1000 * time.time() >= self._query_file.end
        ):
            # All events were read, so the public end, not the last event, closes the last windows.
            self._clock = self._query_file.closed
        clock = self._clock
        if self.answering is not None and state.is_due(clock):
            with self.metrics.close_seconds.time():
                await asyncio.to_thread(self.answering.close_due, clock)


def create_app(config: Config, inbox: EventInbox) -> TurnstileApp:
    """Return the Faust app of an answerer."""
    served = inbox.metrics.exposition, inbox.watched
    health = HealthServer(config.health, *served) if config.health else None

    async def connect() -> None:
        if health:
            await health.start()

    async def disconnect() -> None:
        if health:
            await health.stop()

    async def keep_time() -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            inbox.watched.views()  # so that waiting is noticed
            await inbox.tick()

    app = TurnstileApp(
        config,
        f"{config.prefix}answerer-{uuid4().hex[:12]}",
        at_once=_FETCHED_RECORDS,
        batch=EventBatch,
        topic=inbox.topic,
        partitions=inbox,
        take=inbox.arrive,
        connect=connect,
        disconnect=disconnect,
        end=_end,
    )
    inbox.end_of = app.end_of
    app.background("closing windows", keep_time)
    return app


class OutputClosed(Exception):
    """The reader of this process's standard output has closed it."""


def _end(_: Ending, why: str, error: BaseException | None = None) -> NoReturn:
    """End this process without any clean-up; the next answerer continues from the journal.

    The type of the error decides the exit status.
    """
    if isinstance(error, OutputClosed):
        os._exit(Exit.OK)  # without a message, like any command in front of `head`
    refused = isinstance(error, Superseded | Fenced | RequestRejected)
    usage = isinstance(error, UnusableQueries | InvalidRequest | ConfigurationError)
    expected = refused or usage or isinstance(error, JournalUnavailable | TurnstileError)
    logger.critical("the answerer stops: %s", why, exc_info=None if expected else error)
    logging.shutdown()
    for output in (sys.stdout, sys.stderr):
        with suppress(OSError):
            output.flush()
    os._exit(Exit.USAGE if usage else Exit.REFUSED if refused else EXIT_RESTART)


@contextmanager
def _or_end() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        _end(Ending.FAILED, str(error), error)


def run_answerer(
    config: Config,
    query_file: QueryFile,
    announce: Announce,
    log_level: str = "INFO",
    *,
    charge_again: bool = False,
    take_over: bool = False,
) -> NoReturn:
    """Answer until this process is stopped or superseded, or an unexpected error occurs."""
    for chatty in ("kafka", "aiokafka", "faust", "mode", "streams.worker"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)  # this module logs what matters
    with _or_end():
        check_private_names()
        ensure_answer_topics(config)
        source, partitions = _describe_input(config, query_file.source.topic)
        turnstile = Turnstile(config=config)
        journal = KafkaJournal(config, query_file.dataset)

        def published(record: AnswerRecord) -> None:
            inbox.metrics.answers.inc()
            try:
                announce(record)
            except BrokenPipeError as error:
                raise OutputClosed(
                    "standard output was closed, so no answers are printed"
                ) from error

        def take_over_run() -> Answering:
            return Answering(
                query_file,
                source,
                opener(turnstile, query_file, take_over=take_over),
                journal,
                published,
                charge_again=charge_again,
            )

        inbox = EventInbox(config, query_file, take_over_run, partitions, turnstile.log_name)
        measure(turnstile, inbox.metrics.registry)
        app = create_app(config, inbox)
    run_app(app, log_level)
    raise SystemExit(0)


def _describe_input(config: Config, topic: str) -> tuple[str, int]:
    """Return the identity of the topic, and its number of partitions.

    Raises:
        UnusableQueries: the topic does not exist.
        TopicsUnavailable: no broker answered.
    """
    if not topic:
        raise UnusableQueries(
            "[input]: topic is missing; name the topic of the events, or give a file with --input"
        )
    try:
        admin = new_admin(config)
        try:
            found = [entry for entry in admin.describe_topics([topic]) if entry["partitions"]]
        finally:
            admin.close()
    except KafkaError as error:
        raise UnusableQueries(f"[input]: topic {topic!r} cannot be read: {error!r}") from error
    if not found:
        raise UnusableQueries(
            f"[input]: topic {topic!r} does not exist at {config.kafka}: create it, or correct the "
            "name"
        )
    return f"topic:{topic}:{topic_id_of(found[0]).hex()}", len(found[0]["partitions"])
