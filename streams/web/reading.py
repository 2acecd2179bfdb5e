"""Reads the content of the portal: the topics odometer and halts, and the policies of datasets.

Each source has a thread:

    odometer   the offsets of each user's odometer records, from the beginning of the topic
    halts      the HALTs of each user
    Redis      the policies of all datasets

An odometer record is read by its offset when its user opens the page, which takes milliseconds
regardless of the number of records. Until a topic has been read to the end it had at the start, the
portal shows nothing of it, because the rest of the topic may report more spending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from msgspec import UnsetType

from streams.config import Config, Unavailable, failure_of
from streams.kafka.authentic import verifier_of
from streams.kafka.kafka_clients import new_admin, new_reader
from streams.kafka.results import TopicsSeen, TopicsUnavailable
from streams.kafka.security import explained
from streams.kafka.topics import find_topics
from streams.ledger.outputs import Channel
from streams.operations.status import DatasetStatus, datasets_of, read_glances
from streams.records import (
    Decision,
    Halted,
    OdometerRecord,
    Policy,
    User,
    odometer_key,
)
from streams.records.users import partitions_of
from streams.sdk.decisions import UNREADABLE, whole_answer
from streams.sdk.errors import ServiceUnavailable
from streams.sdk.kafka_connection import believing, reaching_kafka
from streams.web.indexes import Episode, HaltIndex, IndexFull, OdometerIndex, some

logger = logging.getLogger("turnstile.portal")

MOST_POINTS = 64
"""Maximum number of odometer records per user and dataset that are read, including the newest."""
_ANSWERS_WITHIN = 5.0
_AGAIN_AFTER = 3.0
_CHECK_INTERVAL = 5.0  # seconds
_POLL_MS = 200
_CACHED = 2**14  # odometer records
_A_FEW_BYTES = 64 * 1024
_KEY = msgspec.json.Decoder(tuple[str, int | str])


class Point(NamedTuple):
    """An odometer record: a bound on the spending at a time."""

    offset: int  # in norms; a later record has a higher one
    time: float  # seconds since 1970
    bound: tuple[float, ...]
    order: float | None


class _Found(NamedTuple):
    """A record. Without a point and no tombstone, it is unreadable or has no valid signature."""

    key: bytes
    point: Point | None = None
    is_tombstone: bool = False


@dataclass(frozen=True)
class Account:
    """The account of a user in a dataset.

    Attributes:
        points: the odometer records in order; none until the bound exceeds the first tick.
        is_erased: whether the user was erased; then there are no points.
        is_doubtful: whether the newest odometer record is missing, unreadable or has no valid
            signature, so that the bound is unknown.
    """

    points: tuple[Point, ...] = ()
    is_erased: bool = False
    is_doubtful: bool = False


class NotYet(Exception):
    """A topic has not been read completely.

    Attributes:
        done: the share that was read, 0 to 1.
    """

    def __init__(self, done: float) -> None:
        super().__init__(f"{done:.0%} of the topic was read")
        self.done = done


class _Followed:
    """A topic that is read from its beginning.

    Attributes:
        done: the share of the topic that was read, 0 to 1.
        as_of: all records before this time were read, in seconds since 1970, or None.
        answered: the time of the brokers' last answer, or None.
    """

    def __init__(self) -> None:
        self.done = 0.0
        self.as_of: float | None = None
        self.answered: float | None = None
        self._problem: str | None = None

    @property
    def is_well(self) -> bool:
        """Return whether the brokers answered the last request."""
        return self._problem is None

    def note(self, problem: str | None) -> None:
        """Keep the outcome of a request to the brokers; log the first of several failures."""
        if problem is None:
            self.answered = time.time()
        elif self._problem is None:
            logger.warning("the portal shows outdated data: %s", problem)
        self._problem = problem


class RecordReader:
    """Reads from ``start`` to ``close``. Any thread may query it."""

    def __init__(self, config: Config, most: int) -> None:
        """Describe the reader; ``start`` starts it.

        Args:
            config: of the service.
            most: maximum number of odometer records in the index.
        """
        self._config = replace(config, timeout=min(config.timeout, _ANSWERS_WITHIN))
        self._index, self._halted = OdometerIndex(most), HaltIndex()
        self._datasets: dict[str, DatasetStatus] = {}
        self._topics: TopicsSeen | None = None
        self._believes: dict[Channel, Callable[[Any], bool]] = {}
        self._sides = {channel: _Followed() for channel in (Channel.ODOMETER, Channel.HALTS)}
        self._has_reported_full = False
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._fetching = threading.Lock()
        self._fetcher: KafkaConsumer | None = None
        self._read: OrderedDict[tuple[int, int], _Found] = OrderedDict()

    def start(self) -> None:
        """Start reading."""
        for work in (
            partial(self._follow, Channel.ODOMETER, self._see_odometer),
            partial(self._follow, Channel.HALTS, self._see_answer),
            self._read_datasets,
        ):
            thread = threading.Thread(target=work, name="turnstile-portal", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _ANSWERS_WITHIN)
        with self._fetching:
            if self._fetcher is not None:
                self._fetcher.close()

    @property
    def as_of(self) -> float | None:
        """All records before this time were read, in seconds since 1970; None until then."""
        times = [side.as_of for side in self._sides.values()]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    @property
    def is_away(self) -> bool:
        """Return whether Kafka did not answer the last request."""
        return not all(side.is_well for side in self._sides.values())

    @property
    def answered(self) -> float | None:
        """The time of Kafka's last answer, in seconds since 1970, or None."""
        times = [side.answered for side in self._sides.values() if side.answered is not None]
        return max(times, default=None)

    @property
    def halts_since(self) -> float | None:
        """No HALT after this time is missing, in seconds since 1970; None without a record."""
        return self._halted.since

    def policy(self, dataset: str) -> Policy | None:
        """Return the policy of a dataset, or None if it is unknown."""
        found = self._datasets.get(dataset)
        return None if found is None else found.policy

    def is_closed(self, dataset: str) -> bool:
        """Return whether a dataset is closed."""
        return dataset in self._datasets and self._datasets[dataset].closed

    def episodes(self, user: User) -> list[Episode]:
        """Return the HALTs of a user by run, the latest first.

        Raises:
            NotYet: the topic halts has not been read completely.
        """
        return self._halted.of(self._home_of(user, Channel.HALTS), user)

    def accounts(self, user: User, datasets: Collection[str]) -> dict[str, Account]:
        """Return the accounts of a user by dataset.

        Args:
            user: the id in the log.
            datasets: the wanted datasets; if empty, all.

        Raises:
            NotYet: the topic odometer has not been read completely.
            IndexFull: there are too many users.
            ServiceUnavailable: Kafka does not answer.
        """
        partition = self._home_of(user, Channel.ODOMETER)
        accounts: dict[str, Account] = {}
        try:
            known = self._index.of(partition, user)
        except IndexFull as error:
            if not self._has_reported_full:
                logger.critical("the portal shows no data: %s", error)
            self._has_reported_full = True
            raise
        for dataset, offsets in known.items():
            if datasets and dataset not in datasets:
                continue
            key = odometer_key(dataset, user)
            read = self._records(partition, some(offsets, MOST_POINTS))
            accounts[dataset] = _account_of(key, offsets, read)
        return accounts

    def _home_of(self, user: User, channel: Channel) -> int:
        """Return the partition of a user; raise ``NotYet`` until the topic was read completely."""
        done = self._sides[channel].done
        if self._topics is None or done < 1.0:
            raise NotYet(done)
        return int(partitions_of([user], self._topics.partitions)[0])

    def _records(self, partition: int, offsets: Sequence[int]) -> dict[int, _Found]:
        """Return the odometer records at these offsets that still exist."""
        with self._fetching:
            missing = [at for at in offsets if (partition, at) not in self._read]
            try:
                self._fetch(partition, missing)
            except KafkaError as error:
                raise ServiceUnavailable(f"Kafka does not answer: {error}") from error
            known = self._read
            read = {at: known[partition, at] for at in offsets if (partition, at) in known}
            while len(self._read) > _CACHED:
                self._read.popitem(last=False)
            return read

    def _fetch(self, partition: int, offsets: list[int]) -> None:
        if not offsets:
            return
        if self._fetcher is None:
            self._fetcher = new_reader(
                self._config,
                auto_offset_reset="none",
                max_partition_fetch_bytes=_A_FEW_BYTES,
                max_poll_records=MOST_POINTS,
            )
        place = TopicPartition(self._config.topic(Channel.ODOMETER.value), partition)
        self._fetcher.assign([place])
        wanted, deadline = sorted(offsets), time.monotonic() + _ANSWERS_WITHIN
        while wanted:
            self._fetcher.seek(place, wanted[0])
            records = self._fetcher.poll(timeout_ms=_POLL_MS).get(place, ())
            for record in records:
                if record.offset in wanted:
                    is_believed = self._believes[Channel.ODOMETER](record)
                    self._read[partition, record.offset] = _found_in(record, is_believed)
            # Compaction has deleted the offsets that were passed and not found.
            last = max((record.offset for record in records), default=-1)
            wanted = [offset for offset in wanted if offset > last]
            if wanted and time.monotonic() > deadline:
                raise ServiceUnavailable(f"Kafka at {self._config.kafka} does not answer")

    def _follow(self, channel: Channel, see: Callable[[Any], None]) -> None:
        """Read a topic until ``close``; after an error, read it again from the beginning."""
        side = self._sides[channel]
        while not self._closed.is_set():
            side.done = 0.0
            try:
                with reaching_kafka(self._config):
                    if self._topics is None:
                        with closing(new_admin(self._config)) as admin:
                            self._topics = find_topics(admin, self._config)
                    verifier = verifier_of(self._config, self._topics.topic)
                    self._believes[channel] = believing(verifier)
                    self._read_on(channel, side, see)
            except (ServiceUnavailable, TopicsUnavailable) as error:
                side.note(str(error))
            except Exception as error:  # the portal keeps running
                logger.error("reading %s failed: %s", channel.value, failure_of(error))
                side.note(f"reading {channel.value} failed: {type(error).__name__}")
            self._closed.wait(_AGAIN_AFTER)

    def _read_on(self, channel: Channel, side: _Followed, see: Callable[[Any], None]) -> None:
        name = self._config.topic(channel.value)
        # If an offset no longer exists, raise, and read everything again instead of skipping.
        consumer = new_reader(self._config, auto_offset_reset="none")
        try:
            places = [TopicPartition(name, p) for p in sorted(consumer.partitions_for_topic(name))]
            consumer.assign(places)
            starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            for place in places:
                consumer.seek(place, starts[place])
            (self._index if channel is Channel.ODOMETER else self._halted).clear()
            total = sum(ends[place] - starts[place] for place in places)
            checked = time.monotonic()
            while not self._closed.is_set():
                began = time.time()
                polled = consumer.poll(timeout_ms=_POLL_MS)
                for records in polled.values():
                    for record in records:
                        see(record)
                left = sum(max(0, ends[place] - consumer.position(place)) for place in places)
                if side.done < 1.0:
                    side.done = 1.0 - left / total if left else 1.0
                if time.monotonic() > checked + _CHECK_INTERVAL or side.as_of is None:
                    checked = time.monotonic()
                    try:
                        ends = consumer.end_offsets(places)  # a poll does not report failures
                        side.note(None)
                    except KafkaError as error:
                        side.note(explained(error))
                    left = sum(max(0, ends[p] - consumer.position(p)) for p in places)
                if not left and side.is_well:
                    side.as_of = began
        finally:
            consumer.close()

    def _see_odometer(self, record: Any) -> None:
        try:
            dataset, user = _KEY.decode(record.key or b"")
        except UNREADABLE:
            return  # no worker wrote this record
        self._index.add(record.partition, dataset, user, record.offset)

    def _see_answer(self, record: Any) -> None:
        if record.value is None or not self._believes[Channel.HALTS](record):
            return
        try:
            answer = whole_answer(record.value)
        except (*UNREADABLE, ValueError) as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)
            return
        if isinstance(answer, Decision | Halted):
            self._halted.see(answer, record.timestamp / 1000)

    def _read_datasets(self) -> None:
        has_warned = False
        while not self._closed.is_set():
            if self._topics is not None:
                try:
                    glances = read_glances(self._config, self._topics.partitions)
                    self._datasets |= datasets_of(glances)
                except Unavailable as error:
                    if not has_warned:
                        logger.warning("the portal hides new datasets: %s", error)
                    has_warned = True
            self._closed.wait(_CHECK_INTERVAL if self._topics is not None else 0.1)


def _found_in(record: Any, is_believed: bool) -> _Found:
    key = record.key or b""
    if not is_believed:
        return _Found(key)
    if record.value is None:
        return _Found(key, is_tombstone=True)
    try:
        read = msgspec.msgpack.decode(record.value, type=OdometerRecord)
    except UNREADABLE:
        return _Found(key)
    order = None if isinstance(read.order, UnsetType) else read.order
    return _Found(key, Point(read.offset, record.timestamp / 1000, tuple(read.bound), order))


def _account_of(key: bytes, offsets: Sequence[int], read: Mapping[int, _Found]) -> Account:
    """Return the account that the records of one key describe.

    Args:
        key: of the user's records; other keys are of users with the same hash.
        offsets: in the index.
        read: the records at these offsets, or at some of them and the last one.
    """
    own = [found for found in read.values() if found.key == key]
    if any(found.is_tombstone for found in own):
        return Account(is_erased=True)  # no record follows, and earlier ones do not count
    points = {found.point.offset: found.point for found in own if found.point is not None}
    last = read.get(offsets[-1])
    if last is None:  # compacted, so a newer record exists that was not read yet
        return Account(is_doubtful=True)
    if len(read) < len(offsets) and (last.key != key or last.point is None):
        return Account(is_doubtful=True)  # an offset that was not read may have a newer record
    return Account(tuple(points[at] for at in sorted(points)), is_doubtful=not points)
