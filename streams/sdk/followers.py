"""Following what the workers publish: HALTs and odometer checkpoints, each once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from kafka import KafkaConsumer, TopicPartition

from streams.config import Config
from streams.kafka_clients import new_reader
from streams.packing import unpack_bits, unpack_users
from streams.schemas import (
    Decision,
    OdometerCheckpoint,
    Rejected,
    User,
    decode_answer,
)
from streams.sdk.errors import ConflictingDecisions, ServiceUnavailable
from streams.topics import HALTS, ODOMETER, REJECTS

Since: TypeAlias = Literal["earliest", "latest"]
_POLL_MS = 200


@dataclass(frozen=True)
class Halt:
    """A user was left out of a step, and charged nothing for it.

    Except, where policies clip, what was too little to pay for any norm: it is charged and the
    user is exhausted.

    Attributes:
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


def follow_records(
    config: Config, topic: str, since: Since, idle_timeout: float | None
) -> Iterator[tuple[int, bytes]]:
    """Every record of a topic as (partition, value), from its beginning or from now on.

    Args:
        config: where Kafka is.
        topic: a short name, such as ``halts``.
        since: where to begin; the position is fixed before the first record is asked for.
        idle_timeout: end after this many seconds without a record; None follows for ever.

    Raises:
        ServiceUnavailable: the topic does not exist.
    """
    name = config.topic(topic)
    consumer = new_reader(config)
    partitions = consumer.partitions_for_topic(name)
    if not partitions:
        consumer.close()
        raise ServiceUnavailable(f"topic {name} does not exist; start a worker, which creates it")
    places = [TopicPartition(name, partition) for partition in sorted(partitions)]
    consumer.assign(places)
    if since == "earliest":
        consumer.seek_to_beginning(*places)
    else:
        consumer.seek_to_end(*places)
    for place in places:
        consumer.position(place)
    return _poll(consumer, idle_timeout)


def _poll(consumer: KafkaConsumer, idle_timeout: float | None) -> Iterator[tuple[int, bytes]]:
    idle_ms = 0
    try:
        while idle_timeout is None or idle_ms < 1000 * idle_timeout:
            polled = consumer.poll(timeout_ms=_POLL_MS)
            idle_ms = 0 if polled else idle_ms + _POLL_MS
            for place, records in polled.items():
                for record in records:
                    yield place.partition, record.value
    finally:
        consumer.close()


def follow_decisions(
    config: Config, since: Since, idle_timeout: float | None
) -> Iterator[Decision]:
    """Every decision once; workers that take over a partition publish some of them again.

    Raises:
        ConflictingDecisions: two different decisions for one step and partition.
    """
    records = follow_records(config, HALTS, since, idle_timeout)
    return _distinct_decisions(records)


def _distinct_decisions(records: Iterator[tuple[int, bytes]]) -> Iterator[Decision]:
    last: dict[tuple[str, str, int], Decision] = {}
    for partition, value in records:
        decision = decode_answer(value)
        if not isinstance(decision, Decision):
            continue
        lane = decision.dataset, decision.run, partition
        before = last.get(lane)
        if before is not None and decision.step <= before.step:
            same = msgspec.structs.replace(decision, attempt=before.attempt)
            if decision.step == before.step and same != before:
                raise ConflictingDecisions(
                    f"partition {partition} decided step {decision.step} of run "
                    f"{decision.run!r} in two ways"
                )
            continue
        last[lane] = decision
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


def follow_odometer(
    config: Config, since: Since, idle_timeout: float | None
) -> Iterator[OdometerCheckpoint]:
    """Every odometer checkpoint once, never going back."""
    records = follow_records(config, ODOMETER, since, idle_timeout)
    return _rising_checkpoints(records)


def _rising_checkpoints(records: Iterator[tuple[int, bytes]]) -> Iterator[OdometerCheckpoint]:
    decoder = msgspec.msgpack.Decoder(OdometerCheckpoint)
    newest: dict[tuple[str, User], int] = {}
    for _, value in records:
        checkpoint = decoder.decode(value)
        key = checkpoint.dataset, checkpoint.user
        if newest.get(key, -1) < checkpoint.offset:
            newest[key] = checkpoint.offset
            yield checkpoint


def follow_rejects(config: Config, since: Since, idle_timeout: float | None) -> Iterator[Rejected]:
    """What was refused, and why."""
    decoder = msgspec.msgpack.Decoder(Rejected)
    records = follow_records(config, REJECTS, since, idle_timeout)
    return (decoder.decode(value) for _, value in records)
