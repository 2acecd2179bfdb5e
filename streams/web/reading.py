"""Reads what owners are shown: the topics odometer and halts, and the policies of the datasets.

    odometer   a thread    where the checkpoints of each user are, from the beginning and on
    halts      a thread    who was left out of what, and the policies that are told there
    Redis      a thread    the policies of datasets of which nothing was told lately, where it may

What a checkpoint says is read when its owner asks for it, by its offset: milliseconds, however many
records there are. Until a topic has been read up to where it ended at the start, owners are shown
nothing of it: what is still to come says that more was spent.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from msgspec import UnsetType

from streams.config import Config, failure_of
from streams.ledger.outputs import Channel
from streams.operations.errors import Unavailable
from streams.operations.status import datasets_of, read_glances
from streams.schemas import (
    DatasetClosed,
    DatasetCreated,
    Decision,
    Halted,
    OdometerCheckpoint,
    Policy,
    RunOpened,
    User,
    odometer_key,
)
from streams.sdk.errors import ServiceUnavailable
from streams.sdk.followers import UNREADABLE, whole_answer
from streams.sdk.kafka_connection import believing, reaching_kafka
from streams.topics.authentic import inspector_of
from streams.topics.clients import new_admin, new_reader
from streams.topics.security import explained
from streams.topics.seen import TopicsSeen, TopicsUnavailable
from streams.topics.topics import find_topics
from streams.web.halt_index import Episode, HaltedUsers
from streams.web.odometer_index import IndexFull, Places, some
from streams.wire.partitioner import partitions_of

logger = logging.getLogger("turnstile.portal")

MOST_POINTS = 64
"""Checkpoints of a user in a dataset that are read, the newest among them."""
_ANSWERS_WITHIN = 5.0
_AGAIN_AFTER = 3.0
_LOOKS_EVERY = 5.0
_POLL_MS = 200
_REMEMBERED = 2**14  # checkpoints that were read
_A_FEW_BYTES = 64 * 1024
_KEY = msgspec.json.Decoder(tuple[str, int | str])


class Point(NamedTuple):
    """An odometer's checkpoint: at most so much was spent by then."""

    offset: int  # in norms: of two the higher one counts
    time: float  # seconds since 1970
    bound: tuple[float, ...]
    order: float | None


class _Found(NamedTuple):
    """A record; neither a point nor a tombstone: it cannot be read or believed."""

    key: bytes
    point: Point | None = None
    is_tombstone: bool = False


@dataclass(frozen=True)
class Account:
    """Of a user in a dataset.

    Attributes:
        points: checkpoints, in their order; none before the bound rises from the first increment.
        is_forgotten: the user was, and there are no points.
        is_doubtful: there is a checkpoint that cannot be read or believed, and no other one.
    """

    points: tuple[Point, ...] = ()
    is_forgotten: bool = False
    is_doubtful: bool = False


class NotYet(Exception):
    """Not everything was read so far.

    Attributes:
        done: how much of it, 0 to 1.
    """

    def __init__(self, done: float) -> None:
        super().__init__(f"{done:.0%} was read")
        self.done = done


class _Followed:
    """A topic that is read from its beginning.

    Attributes:
        done: the share of the topic that was read, 0 to 1.
        as_of: up to when all is known, in seconds since 1970; None until all was read.
        answered: when the brokers last answered; None if they never did.
    """

    def __init__(self) -> None:
        self.done = 0.0
        self.as_of: float | None = None
        self.answered: float | None = None
        self._problem: str | None = None

    @property
    def is_well(self) -> bool:
        """Whether the brokers answered the last request."""
        return self._problem is None

    def note(self, problem: str | None) -> None:
        """Keep the outcome of a request to the brokers; log the first of several failures."""
        if problem is None:
            self.answered = time.time()
        elif self._problem is None:
            logger.warning("the portal shows what it knew before: %s", problem)
        self._problem = problem


class Reader:
    """Reads from ``start`` to ``close``; whatever is asked may be asked by any thread."""

    def __init__(self, config: Config, most: int) -> None:
        """Describe it.

        Args:
            config: where the service is.
            most: checkpoints that the index has room for.
        """
        self._config = replace(config, timeout=min(config.timeout, _ANSWERS_WITHIN))
        self._places, self._halted = Places(most), HaltedUsers()
        self._policies: dict[str, Policy] = {}
        self._closed_datasets: set[str] = set()
        self._topics: TopicsSeen | None = None
        self._believes: dict[Channel, Callable[[Any], bool]] = {}
        self._sides = {channel: _Followed() for channel in (Channel.ODOMETER, Channel.HALTS)}
        self._told_full = False
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._fetching = threading.Lock()
        self._fetcher: KafkaConsumer | None = None
        self._read: OrderedDict[tuple[int, int], _Found] = OrderedDict()

    def start(self) -> None:
        """Begin to read."""
        for work in (
            partial(self._follow, Channel.ODOMETER, self._see_checkpoint),
            partial(self._follow, Channel.HALTS, self._see_answer),
            self._look_at_redis,
        ):
            thread = threading.Thread(target=work, name="turnstile-portal", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Read no more."""
        self._closed.set()
        for thread in self._threads:
            thread.join(2 * _ANSWERS_WITHIN)
        with self._fetching:
            if self._fetcher is not None:
                self._fetcher.close()

    @property
    def as_of(self) -> float | None:
        """Up to when all is known that was published, in seconds since 1970."""
        times = [side.as_of for side in self._sides.values()]
        known = [time for time in times if time is not None]
        return min(known) if len(known) == len(times) else None

    @property
    def is_away(self) -> bool:
        """Whether Kafka did not answer the last request."""
        return not all(side.is_well for side in self._sides.values())

    @property
    def answered(self) -> float | None:
        """When Kafka last answered, in seconds since 1970; None if it never did."""
        times = [side.answered for side in self._sides.values() if side.answered is not None]
        return max(times, default=None)

    @property
    def halts_since(self) -> float | None:
        """From when on all steps are known that somebody was left out of."""
        return self._halted.since

    def policy(self, dataset: str) -> Policy | None:
        """The policy of a dataset, if it is known."""
        return self._policies.get(dataset)

    def is_closed(self, dataset: str) -> bool:
        """Whether nothing is charged to a dataset any more."""
        return dataset in self._closed_datasets

    def episodes(self, user: User) -> list[Episode]:
        """What a user was left out of, the latest first.

        Raises:
            NotYet: not all of it was read.
        """
        return self._halted.of(self._home_of(user, Channel.HALTS), user)

    def accounts(self, user: User, datasets: Collection[str]) -> dict[str, Account]:
        """What a user has spent at most, by dataset.

        Args:
            user: the id, as the log has it.
            datasets: in these; in all, if there are none.

        Raises:
            NotYet: not all of it was read.
            IndexFull: there are too many users.
            ServiceUnavailable: Kafka does not answer.
        """
        partition = self._home_of(user, Channel.ODOMETER)
        accounts: dict[str, Account] = {}
        try:
            known = self._places.of(partition, user)
        except IndexFull as error:
            if not self._told_full:
                logger.critical("nobody is shown anything: %s", error)
            self._told_full = True
            raise
        for dataset, places in known.items():
            if datasets and dataset not in datasets:
                continue
            key = odometer_key(dataset, user)
            read = self._records(partition, some(places, MOST_POINTS))
            accounts[dataset] = _account_of(key, places, read)
        return accounts

    def _home_of(self, user: User, channel: Channel) -> int:
        """The partition of a user, once all of a topic was read."""
        done = self._sides[channel].done
        if self._topics is None or done < 1.0:
            raise NotYet(done)
        return int(partitions_of([user], self._topics.partitions)[0])

    def _records(self, partition: int, offsets: Sequence[int]) -> dict[int, _Found]:
        """The records of the odometer at these offsets that are there still."""
        with self._fetching:
            missing = [at for at in offsets if (partition, at) not in self._read]
            try:
                self._fetch(partition, missing)
            except KafkaError as error:
                raise ServiceUnavailable(f"Kafka does not answer: {error}") from error
            known = self._read
            read = {at: known[partition, at] for at in offsets if (partition, at) in known}
            while len(self._read) > _REMEMBERED:
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
            # What was passed without being found is there no more: compaction has taken it.
            last = max((record.offset for record in records), default=-1)
            wanted = [offset for offset in wanted if offset > last]
            if wanted and time.monotonic() > deadline:
                raise ServiceUnavailable(f"Kafka at {self._config.kafka} does not answer")

    def _follow(self, channel: Channel, see: Callable[[Any], None]) -> None:
        """Read a topic for ever; what is wrong is said, and it is read again from the beginning."""
        side = self._sides[channel]
        while not self._closed.is_set():
            side.done = 0.0
            try:
                with reaching_kafka(self._config):
                    self._topics = self._topics or self._find_topics()
                    inspector = inspector_of(self._config, self._topics.topic)
                    self._believes[channel] = believing(inspector)
                    self._read_on(channel, side, see)
            except (ServiceUnavailable, TopicsUnavailable) as error:
                side.note(str(error))
            except Exception as error:  # the portal goes on
                logger.error("reading %s failed: %s", channel.value, failure_of(error))
                side.note(f"reading {channel.value} failed: {type(error).__name__}")
            self._closed.wait(_AGAIN_AFTER)

    def _find_topics(self) -> TopicsSeen:
        admin = new_admin(self._config)
        try:
            return find_topics(admin, self._config)
        finally:
            admin.close()

    def _read_on(self, channel: Channel, side: _Followed, see: Callable[[Any], None]) -> None:
        name = self._config.topic(channel.value)
        # A place that is gone is no reason to go on at the end: then all is read again.
        consumer = new_reader(self._config, auto_offset_reset="none")
        try:
            places = [TopicPartition(name, p) for p in sorted(consumer.partitions_for_topic(name))]
            consumer.assign(places)
            starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
            for place in places:
                consumer.seek(place, starts[place])
            (self._places if channel is Channel.ODOMETER else self._halted).clear()
            total = sum(ends[place] - starts[place] for place in places)
            looked = time.monotonic()
            while not self._closed.is_set():
                began = time.time()
                polled = consumer.poll(timeout_ms=_POLL_MS)
                for records in polled.values():
                    for record in records:
                        see(record)
                left = sum(max(0, ends[place] - consumer.position(place)) for place in places)
                if side.done < 1.0:
                    side.done = 1.0 - left / total if left else 1.0
                if time.monotonic() > looked + _LOOKS_EVERY or side.as_of is None:
                    looked = time.monotonic()
                    try:
                        ends = consumer.end_offsets(
                            places
                        )  # a poll does not say that nobody is there
                        side.note(None)
                    except KafkaError as error:
                        side.note(explained(error))
                    left = sum(max(0, ends[p] - consumer.position(p)) for p in places)
                if not left and side.is_well:
                    side.as_of = began
        finally:
            consumer.close()

    def _see_checkpoint(self, record: Any) -> None:
        try:
            dataset, user = _KEY.decode(record.key or b"")
        except UNREADABLE:
            return  # no worker has written that
        self._places.add(record.partition, dataset, user, record.offset)

    def _see_answer(self, record: Any) -> None:
        if record.value is None or not self._believes[Channel.HALTS](record):
            return
        try:
            answer = whole_answer(record.value)
        except (*UNREADABLE, ValueError) as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)
            return
        match answer:
            case Decision() | Halted():
                self._halted.see(answer, record.timestamp / 1000)
            case DatasetCreated():
                self._policies[answer.policy.dataset] = answer.policy
            case DatasetClosed():
                self._closed_datasets.update(answer.datasets)
            case RunOpened():
                for policy in (answer.policy, *(answer.outer or ())):
                    self._policies[policy.dataset] = policy

    def _look_at_redis(self) -> None:
        """Policies of which halts says nothing: it keeps a week."""
        told = False
        while not self._closed.is_set():
            if self._topics is not None:
                try:
                    glances = read_glances(self._config, self._topics.partitions)
                    for name, found in datasets_of(glances).items():
                        self._policies[name] = found.policy
                        if found.closed:
                            self._closed_datasets.add(name)
                except Unavailable as error:
                    if not told:
                        logger.warning(
                            "policies are known from the topic halts alone, so that datasets are "
                            "not shown of which no run was opened for a week: %s",
                            error,
                        )
                    told = True
            self._closed.wait(_LOOKS_EVERY if self._topics is not None else 0.1)


def _found_in(record: Any, is_believed: bool) -> _Found:
    key = record.key or b""
    if not is_believed:
        return _Found(key)
    if record.value is None:
        return _Found(key, is_tombstone=True)
    try:
        read = msgspec.msgpack.decode(record.value, type=OdometerCheckpoint)
    except UNREADABLE:
        return _Found(key)
    order = None if isinstance(read.order, UnsetType) else read.order
    return _Found(key, Point(read.offset, record.timestamp / 1000, tuple(read.bound), order))


def _account_of(key: bytes, places: Sequence[int], read: Mapping[int, _Found]) -> Account:
    """What the records of one key say; others are those of users with the same hash.

    Args:
        key: of the records.
        places: where they may be.
        read: of these, or of some of them and the last one, what is there.
    """
    own = [found for found in read.values() if found.key == key]
    if any(found.is_tombstone for found in own):
        return Account(is_forgotten=True)  # nothing comes after it, and what was before it is gone
    points = {found.point.offset: found.point for found in own if found.point is not None}
    last = read.get(places[-1])
    if last is None:  # it was followed by another one, which is about to be read, or forgotten
        return Account(is_doubtful=True)
    if len(read) < len(places) and (last.key != key or last.point is None):
        return Account(is_doubtful=True)  # a newer one may be among those that were not looked at
    return Account(tuple(points[at] for at in sorted(points)), is_doubtful=not points)
