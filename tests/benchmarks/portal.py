"""What a portal takes: until all odometers were read, to find one user's, and its memory.

The records are those of a worker, of one dataset, one a user. The portal is the reader of
``turnstile portal`` in a process of its own; pages and sessions come on top.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from random import Random

import msgspec
from kafka import KafkaProducer

from streams.config import Config
from streams.kafka.topics import ODOMETER, ensure_topics
from streams.local import LocalStack
from streams.records import OdometerRecord, encode, odometer_key
from streams.records.users import partitions_of
from streams.web.odometer_index import MOST
from streams.web.reading import NotYet, RecordReader
from tests.benchmarks.latency import percentile
from tests.benchmarks.servers import resident_bytes

PARTITIONS = 4
DATASET = "population"
ASKED = 200
_WITHIN = 1200.0
_POLL = 0.02


class Portal(msgspec.Struct, frozen=True):
    """What it takes with so many records.

    Attributes:
        records: of the odometer, one a user.
        seconds: until all of them were read.
        processor: seconds of the portal's processor for that.
        first: milliseconds until a user was found who was not looked for before, each of ``ASKED``.
        memory: resident bytes of the process, above what it had before it read.
    """

    records: int
    seconds: float
    processor: float
    first: list[float]
    memory: int


def measure(stack: LocalStack, records: int) -> Portal:
    """Write so many records, and have a portal read them."""
    config = _config(stack.kafka, stack.redis, records)
    ensure_topics(config)
    _write(config, records)
    command = [sys.executable, "-m", "tests.benchmarks.portal"]
    arguments = [stack.kafka, stack.redis, str(records)]
    done = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, check=True)
    return msgspec.json.decode(done.stdout, type=Portal)


def _config(kafka: str, redis: str, records: int) -> Config:
    return Config(kafka=kafka, redis=redis, prefix=f"portal{records}.", partitions=PARTITIONS)


def _write(config: Config, records: int) -> None:
    producer = KafkaProducer(bootstrap_servers=config.kafka, linger_ms=50, batch_size=2**19)
    topic = config.topic(ODOMETER)
    for user, partition in enumerate(partitions_of(range(records), PARTITIONS).tolist()):
        odometer = OdometerRecord(
            dataset=DATASET, user=user, partition=partition, offset=user, bound=[0.125]
        )
        producer.send(topic, encode(odometer), odometer_key(DATASET, user), partition=partition)
    producer.close()


def _read(config: Config, records: int) -> Portal:
    before = resident_bytes(os.getpid())
    began, used = time.perf_counter(), time.process_time()
    reader = RecordReader(config, MOST)
    reader.start()
    try:
        while not _has_read(reader):
            if time.perf_counter() > began + _WITHIN:
                raise TimeoutError(f"{records:,} records were not read in {_WITHIN:.0f} s")
            time.sleep(_POLL)
        seconds, processor = time.perf_counter() - began, time.process_time() - used
        memory = resident_bytes(os.getpid()) - before
        found = [_find(reader, user) for user in Random(records).sample(range(records), ASKED)]
    finally:
        reader.close()
    return Portal(records, seconds, processor, found, memory)


def _has_read(reader: RecordReader) -> bool:
    try:
        reader.accounts(0, ())
    except NotYet:
        return False
    return True


def _find(reader: RecordReader, user: int) -> float:
    began = time.perf_counter()
    accounts = reader.accounts(user, ())
    taken = (time.perf_counter() - began) * 1000
    assert [point.offset for point in accounts[DATASET].points] == [user]
    return taken


def lines(results: list[Portal]) -> list[str]:
    """A table for the report."""
    if not results:
        return []
    rows = [
        f"| {r.records:,} | {r.seconds:.1f} s | {r.processor:.1f} s "
        f"| {percentile(r.first, 50):.1f} / {percentile(r.first, 99):.1f} ms "
        f"| {r.memory / 2**20:.0f} MiB, {r.memory / r.records:.0f} B a record |"
        for r in results
    ]
    return [
        "## The portal",
        "",
        f"Odometer records of as many users with integer ids in {PARTITIONS} partitions; finding "
        f"is the index and the record itself, of {ASKED} users at random, each for the first time.",
        "",
        "| records | all read after | processor | one user, p50 / p99 | resident for it |",
        "|---:|---:|---:|---:|---:|",
        *rows,
        "",
    ]


if __name__ == "__main__":
    _, kafka, redis, count = sys.argv
    measured = _read(_config(kafka, redis, int(count)), int(count))
    sys.stdout.buffer.write(msgspec.json.encode(measured))
