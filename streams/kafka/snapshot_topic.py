"""Reads the snapshots of a partition in Kafka, backwards from the end."""

from __future__ import annotations

from contextlib import closing

from kafka.errors import KafkaError

from streams.config import Config
from streams.kafka.authentic import RecordVerifier
from streams.kafka.kafka_clients import read_backwards
from streams.kafka.results import LogUnavailable
from streams.kafka.topics import SNAPSHOTS
from streams.store.snapshot import Snapshot, UnusableSnapshot, find_last

_ATTEMPTS = 3


def read_snapshot(
    config: Config, partition: int, verifier: RecordVerifier | None, with_contents: bool = True
) -> Snapshot | None:
    """Return the last snapshot of a partition, verified; None if no snapshot was ever written.

    Kafka may compact the snapshot away while it is read, because a newer one was written. Then the
    newer one is read.

    Args:
        verifier: skips records without a worker's signature; None accepts all records.
        with_contents: whether to read the chunks, or only the manifest.

    Raises:
        UnusableSnapshot: the snapshot is incomplete or damaged.
        LogUnavailable: Kafka does not answer.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with closing(
                read_backwards(config, config.topic(SNAPSHOTS), partition, verifier)
            ) as stretches:
                records = ([(r.key or b"", r.value) for r in stretch] for stretch in stretches)
                return find_last(records, with_contents)
        except UnusableSnapshot:
            if attempt == _ATTEMPTS - 1:
                raise
        except KafkaError as error:
            topic = config.topic(SNAPSHOTS)
            raise LogUnavailable(
                f"cannot read partition {partition} of {topic}: {error!r}"
            ) from error
    raise AssertionError("an attempt returns or raises")
