"""Following what the workers publish: HALTs and odometer checkpoints, each once."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np
from kafka import KafkaConsumer, TopicPartition

from streams.config import Config
from streams.schemas import Answer, Decision, OdometerCheckpoint, Rejected, User, decode_answer
from streams.sdk.connecting import reaching_kafka
from streams.sdk.decisions import is_whole
from streams.sdk.errors import InvalidRequest, ServiceUnavailable, Unusable
from streams.sdk.replies import UNREADABLE
from streams.sdk.witness import Witness
from streams.topics.clients import new_reader
from streams.topics.topics import HALTS, ODOMETER, REJECTS
from streams.wire.packing import unpack_bits, unpack_users

logger = logging.getLogger("turnstile.sdk")

T = TypeVar("T")
Since: TypeAlias = Literal["earliest", "latest"]
_POLL_MS = 200
_REMEMBERED = 100_000
"""Rejects by which one that is published again is recognised: far more than a batch has."""


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    Except, where policies clip, what was too little to pay for any norm: it is charged and the
    user is exhausted.

    Attributes:
        user: the id as the log has it; strings are in Unicode's normal form NFC.
        exhausted: nothing is left, so that no later step can admit this user either. Otherwise a
            cheaper step still may.
    """

    dataset: str
    run: str
    attempt: int
    step: int
    user: User
    exhausted: bool
    partition: int
    offset: int


class Followed(NamedTuple):
    """One record of a topic."""

    partition: int
    value: bytes
    written: float  # seconds since 1970, by the clock of whoever wrote it


@dataclass(frozen=True)
class Reading:
    """Which records of a topic to read, and for how long.

    Attributes:
        config: where Kafka is.
        since: where to begin; the position is fixed before the first record is asked for.
        follow: wait for more after what there is.
        idle_timeout: following ends when nothing came for so many seconds; None is never.
        closed: set when whoever reads must stop.
    """

    config: Config
    since: Since = "latest"
    follow: bool = True
    idle_timeout: float | None = None
    closed: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidRequest(f"since is {self.since!r}; it must be one of {get_args(Since)}")
        if self.idle_timeout is not None and not self.idle_timeout >= 0:
            raise InvalidRequest(f"idle_timeout is {self.idle_timeout}; it must be seconds")


def follow_records(topic: str, reading: Reading) -> Iterator[Followed]:
    """The records of a topic, which is given by its short name, such as ``halts``.

    Raises:
        ServiceUnavailable: no broker, or the topic does not exist.
        Unusable: what it is read for was closed.
    """
    name = reading.config.topic(topic)
    with reaching_kafka(reading.config), ExitStack() as opened:
        consumer = new_reader(reading.config)
        opened.callback(consumer.close)
        partitions = consumer.partitions_for_topic(name)
        if not partitions:
            raise ServiceUnavailable(
                f"topic {name} does not exist; start a worker, which creates it"
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
    return _poll(consumer, ends, reading)


def _poll(
    consumer: KafkaConsumer, ends: dict[TopicPartition, int], reading: Reading
) -> Iterator[Followed]:
    idle_ms = 0.0
    allowed_ms = math.inf if reading.idle_timeout is None else 1000 * reading.idle_timeout
    try:
        while idle_ms < allowed_ms if reading.follow else _is_behind(consumer, ends, reading):
            with reaching_kafka(reading.config):
                polled = consumer.poll(timeout_ms=_POLL_MS)
            idle_ms = 0 if polled else idle_ms + _POLL_MS
            for place, records in polled.items():
                for record in records:
                    if record.offset < ends.get(place, math.inf):
                        yield Followed(place.partition, record.value, record.timestamp / 1000)
            if reading.closed.is_set():
                raise Unusable("this Turnstile was closed: open another one to go on reading")
    finally:
        consumer.close()


def _is_behind(consumer: KafkaConsumer, ends: dict[TopicPartition, int], reading: Reading) -> bool:
    with reaching_kafka(reading.config):
        return any(consumer.position(place) < end for place, end in ends.items())


def _decoded(
    records: Iterator[Followed], decode: Callable[[bytes], T]
) -> Iterator[tuple[Followed, T]]:
    """Records with what they say. One that no worker wrote is skipped, and ends nothing."""
    for record in records:
        try:
            yield record, decode(record.value)
        except UNREADABLE as error:
            logger.warning("skipped a record of partition %s: %s", record.partition, error)


def follow_decisions(reading: Reading, dataset: str | None, run: str | None) -> Iterator[Decision]:
    """Every decision once; workers that take over a partition publish some of them again.

    Args:
        reading: from where to where.
        dataset: of this dataset only.
        run: of runs of this name only.

    Raises:
        ConflictingDecisions: two different decisions for one step and partition.
    """
    decisions = (
        answer
        for _, answer in _decoded(follow_records(HALTS, reading), _answer)
        if isinstance(answer, Decision)
        and dataset in (None, answer.dataset)
        and run in (None, answer.run)
    )
    return _distinct_decisions(decisions)


def _answer(value: bytes) -> Answer:
    answer = decode_answer(value)
    if isinstance(answer, Decision) and not is_whole(answer):
        raise msgspec.ValidationError("its arrays do not fit each other")
    return answer


def _distinct_decisions(decisions: Iterator[Decision]) -> Iterator[Decision]:
    witnesses: dict[tuple[str, str], Witness] = {}
    for decision in decisions:
        run = decision.dataset, decision.run
        witness = witnesses.setdefault(run, Witness(*run))
        is_new = witness.see(decision)
        witness.check()
        if is_new:
            yield decision


def halts_of(decision: Decision) -> Iterator[Halt]:
    """The HALT events of one decision."""
    users = unpack_users(decision.halted)
    admitted = unpack_bits(decision.admitted, decision.users)
    exhausted = unpack_bits(decision.exhausted, decision.users)[~admitted]
    ids = users.tolist() if isinstance(users, np.ndarray) else users
    for user, is_exhausted in zip(ids, exhausted.tolist(), strict=True):
        yield Halt(
            dataset=decision.dataset,
            run=decision.run,
            attempt=decision.attempt,
            step=decision.step,
            user=user,
            exhausted=is_exhausted,
            partition=decision.partition,
            offset=decision.offset,
        )


def follow_odometer(reading: Reading) -> Iterator[OdometerCheckpoint]:
    """Every odometer checkpoint once, never going back."""
    return _rising_checkpoints(follow_records(ODOMETER, reading))


def _rising_checkpoints(records: Iterator[Followed]) -> Iterator[OdometerCheckpoint]:
    decoder = msgspec.msgpack.Decoder(OdometerCheckpoint)
    newest: dict[tuple[str, User], int] = {}
    for _, checkpoint in _decoded(records, decoder.decode):
        key = checkpoint.dataset, checkpoint.user
        if newest.get(key, -1) < checkpoint.offset:
            newest[key] = checkpoint.offset
            yield checkpoint


def follow_rejects(
    config: Config, since: Since, idle_timeout: float | None, *, follow: bool = True
) -> Iterator[tuple[float, Rejected]]:
    """When something was refused, in seconds since 1970, and what and why, each once."""
    records = follow_records(REJECTS, Reading(config, since, follow, idle_timeout))
    return _distinct_rejects(records)


def _distinct_rejects(records: Iterator[Followed]) -> Iterator[tuple[float, Rejected]]:
    decoder = msgspec.msgpack.Decoder(Rejected)
    seen: OrderedDict[bytes, None] = OrderedDict()
    for (_, value, written), rejected in _decoded(records, decoder.decode):
        digest = hashlib.sha256(value).digest()
        if digest in seen:  # a worker that took over a partition published it again
            continue
        seen[digest] = None
        if len(seen) > _REMEMBERED:
            seen.popitem(last=False)
        yield written, rejected
