"""Follows a topic from a few records before its end.

Reading continues when a broker that was away is back.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

from kafka import TopicPartition

from streams.config import Config
from streams.kafka.authentic import verifier_of
from streams.kafka.clients import new_reader
from streams.ledger.outputs import Channel
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
